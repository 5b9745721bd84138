"""Origins in command-line notation: `ORDERS`, or `bucket=ORDERS,keys=NEW.>,prefix=orders.new`. [pure]"""

from __future__ import annotations

from collections.abc import Sequence

from kvctl.errors import UsageError
from kvctl.topology.model import External, Origin

FIELDS = ("bucket", "stream", "keys", "prefix", "map", "domain", "api", "deliver")
_REPEATABLE = ("keys", "map")
_HINT = "Write `ORDERS` or `bucket=ORDERS,keys=NEW.>,prefix=orders.new`; fields:  " + ", ".join(FIELDS)


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
    one = {name: values[0] for name, values in given.items()}
    return Origin(
        one.get("bucket", ""),
        stream=one.get("stream", ""),
        keys=tuple(given.get("keys", ())),
        prefix=one.get("prefix", ""),
        maps=parse_maps(given.get("map", ())),
        external=external(one.get("domain"), one.get("api"), one.get("deliver")),
    )


def origin_spec(origin: Origin) -> str:
    """Return the shortest SPEC of an origin, the reverse of `parse_origin`."""
    external = origin.external
    found = [("bucket", origin.bucket), ("stream", origin.stream), *(("keys", text) for text in origin.keys)]
    found += [("prefix", origin.prefix), *(("map", f"{src}:{dest}") for src, dest in origin.maps)]
    if external is not None:
        domain = external.domain if not external.deliver else None
        found += [("domain", domain)] if domain else [("api", external.api), ("deliver", external.deliver)]
    given = [(name, text) for name, text in found if text]
    return given[0][1] if [name for name, _ in given] == ["bucket"] else ",".join(map("=".join, given))


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
