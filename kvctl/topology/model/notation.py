"""Notations of origins: SPECs of the command line, and rules in terms of keys, as people write them. [pure]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvctl.errors import UsageError
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.topology.model.origins import External, Origin, common_prefix, dollars
from kvctl.topology.model.subjects import Transform, default_dest, parse, plain_dest

FIELDS = ("bucket", "stream", "keys", "prefix", "map", "domain", "api", "deliver")
_REPEATABLE = ("keys", "map")
_HINT = "Write `ORDERS` or `bucket=ORDERS,keys=NEW.>,prefix=orders.new`; fields: " + ", ".join(FIELDS)


def parse_origin(spec: str) -> Origin:
    """Return the origin that a SPEC describes. Raises UsageError."""
    if "=" not in spec:
        return Origin(_given(spec, "bucket", spec))
    given: dict[str, list[str]] = {}
    for part in spec.split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in FIELDS:
            raise UsageError(f"`{part}` in `{spec}` is not a field of an origin", hint=_HINT)
        if name in given and name not in _REPEATABLE:
            raise UsageError(f"`{name}` appears twice in `{spec}`", hint=_HINT)
        given.setdefault(name, []).append(_given(spec, name, value))
    if not {"bucket", "stream"} & given.keys():
        raise UsageError(f"`{spec}` needs a `bucket` or a `stream`", hint=_HINT)
    several = {"keys": given.pop("keys", ()), "map": parse_maps(given.pop("map", ()))}
    return origin_of({**several, **{name: values[0] for name, values in given.items()}})


def origin_spec(origin: Origin) -> str:
    """Return the shortest SPEC of an origin, the reverse of `parse_origin`."""
    fields = fields_of(origin)
    fields["map"] = [f"{src}:{dest}" for src, dest in fields.get("map", ())]
    texts = {name: [value] if isinstance(value, str) else value for name, value in fields.items()}
    given = [(name, text) for name in FIELDS for text in texts.get(name, ())]
    return given[0][1] if [name for name, _ in given] == ["bucket"] else ",".join(map("=".join, given))


def fields_of(origin: Origin) -> dict[str, Any]:
    """Return the fields of an origin that are set, `map` as pairs."""
    external, fields = origin.external, {name: getattr(origin, name) for name in ("bucket", "stream", "keys", "prefix")}
    fields["map"] = origin.maps
    if external is not None:
        domain = external.domain if not external.deliver else None
        fields |= {"domain": domain} if domain else {"api": external.api, "deliver": external.deliver}
    return {name: value for name, value in fields.items() if value}


def origin_of(fields: Mapping[str, Any]) -> Origin:
    """Return the origin with these fields, the reverse of `fields_of`. Raises UsageError."""
    return Origin(
        fields.get("bucket", ""),
        stream=fields.get("stream", ""),
        keys=tuple(fields.get("keys", ())),
        prefix=fields.get("prefix", ""),
        maps=tuple(fields.get("map", ())),
        external=external(fields.get("domain"), fields.get("api"), fields.get("deliver")),
    )


def parse_maps(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return SRC:DEST texts as pairs. Raises UsageError."""
    pairs = []
    for text in texts:
        source, colon, destination = text.partition(":")
        if not colon or not source or not destination:
            raise UsageError(f"`{text}` is not SRC:DEST", hint="For example `*.*:stock.$2.$1`")
        pairs.append((source, destination))
    return tuple(pairs)


def external(domain: str | None, api: str | None, deliver: str | None) -> External | None:
    """Return the access to another domain or account; None for this one. Raises UsageError if both are given."""
    if domain is not None and (api is not None or deliver is not None):
        raise UsageError("`domain` cannot be combined with `api` or `deliver`")
    if deliver is not None and api is None:
        raise UsageError(
            "A deliver prefix requires an API prefix",
            hint="Use the prefixes under which this account imports the origin's exports",
        )
    if domain is not None:
        if not domain or any(character in domain for character in ".*> \t"):
            raise UsageError(f"`{domain}` is not a domain name")
        return External.of_domain(domain)
    if api is None:
        return None
    for text in (api, deliver or "deliver"):
        if "" in text.split(".") or any(character in text for character in "*> \t"):
            raise UsageError(f"`{text}` is not a subject prefix")
    return External(api, deliver or "")


def _given(spec: str, name: str, value: str) -> str:
    if not value:
        raise UsageError(f"`{name}` is empty in `{spec}`" if spec else "The origin is empty", hint=_HINT)
    return value


Rules = tuple[tuple[str, str], ...]
"""Filters and destinations of keys; an empty destination keeps the names. Empty: all keys keep their names."""


def rules_of(source: Mapping[str, Any], reader: str) -> Rules:
    """Return a source's rules in keys; empty if all keys keep their names. `reader` is the stream that has it.

    A destination outside the aggregate's own keys is given as a complete subject.
    """
    rules = parse(source.get("subject_transforms") or ())
    if not rules:
        rules = [Transform(source.get("filter_subject") or f"{_head(source['name']) or ''}>", "")]
    found = []
    for rule in rules:
        src = as_key(rule.src)
        own = _head(reader) or rule.src.removesuffix(src)
        dest = (dollars(rule.dest) or plain_dest(rule.src)).removeprefix(own)
        found.append((src, "" if dest == plain_dest(src) else dest))
    return () if found == [(">", "")] else tuple(found)


def rules_json(source: Mapping[str, Any], reader: str) -> dict[str, Any]:
    """Return what a source replicates and where it lands, for JSON output.

    `keys`, `prefix` and `map` are those of flags and files; `transforms` are the subjects of the configuration. Keys
    that land outside the aggregate's own are in `map`, with a complete subject.
    """
    taken = parse(source.get("subject_transforms") or ())
    if source.get("filter_subject"):
        taken.append(Transform(source["filter_subject"], ""))
    pairs = [(src, dest or plain_dest(src)) for src, dest in rules_of(source, reader) or ((">", ">"),)]
    return {**_in_words(pairs, reader), "transforms": [rule.to_json() for rule in taken]}


def with_rules_text(row: Mapping[str, Any], reader: str) -> dict[str, Any]:
    """Return a row that has `rules_json`, with `taken` and `lands_as` for tables; empty where all keys keep names."""
    taken, lands = list(row["map"] or row["keys"] or ()), list((row["map"] or {}).values())
    if reader.startswith(STREAM_PREFIX) and (row["keys"] or row["prefix"]):
        head = f"{row['prefix']}." if row["prefix"] else ""
        taken = taken or [">"]
        lands = [head + default_dest(text) for text in taken]
    return {**row, "taken": ", ".join(taken), "lands_as": ", ".join(lands)}


def _in_words(pairs: list[tuple[str, str]], reader: str) -> dict[str, Any]:
    """Return the shortest `keys`, `prefix` and `map` that mean these filters and destinations."""
    keys = [] if [src for src, _ in pairs] == [">"] else [src for src, _ in pairs]
    if not reader.startswith(STREAM_PREFIX):  # a mirror: keys keep their names
        renamed = any(dest != plain_dest(src) for src, dest in pairs)
        return {"keys": [] if renamed else keys, "prefix": None, "map": dict(pairs) if renamed else None}
    prefix = common_prefix(pairs)
    if prefix is None:
        return {"keys": [], "prefix": None, "map": dict(pairs)}
    return {"keys": keys, "prefix": prefix or None, "map": None}


def _head(stream: str) -> str | None:
    """Return the prefix of the subjects of a bucket's stream."""
    return f"{SUBJECT_PREFIX}{stream.removeprefix(STREAM_PREFIX)}." if stream.startswith(STREAM_PREFIX) else None


def as_key(subject: str) -> str:
    """Return a subject of a bucket as its key; others stay complete."""
    return subject.split(".", 2)[2] if subject.startswith(SUBJECT_PREFIX) and subject.count(".") > 1 else subject
