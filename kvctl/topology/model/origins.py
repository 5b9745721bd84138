"""Mirrors and aggregates as ADR-58 describes them, to and from stream configurations. [pure]"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from typing import Any

from kvctl.errors import UsageError
from kvctl.jetstream.stream_info import Source, SourceConfig, StreamConfig
from kvctl.kv import stream_kind
from kvctl.kv.config import edited
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, check_bucket, check_filter, overlapping
from kvctl.kv.settings import SETTINGS, BucketSettings, Resource, Settings, settings_of
from kvctl.kv.stream_kind import FIRST_ENTRY, LEAVING, OWN_METADATA
from kvctl.phrases import quoted
from kvctl.tokens import check_prefix
from kvctl.topology.model.subjects import LITERAL, KeyMapping, Transform, default_dest, parse, render

_DOMAIN = "$JS."
_PREFIXES = (STREAM_PREFIX, "", stream_kind.WHOLE)


@dataclass(frozen=True, slots=True)
class External:
    """Access to another domain or account: the prefix of its API, and the prefix of its delivery subjects."""

    api: str
    deliver: str = ""

    def __post_init__(self) -> None:
        check_prefix("api", self.api)
        if self.deliver:
            check_prefix("deliver", self.deliver)

    @classmethod
    def of_domain(cls, domain: str) -> External:
        """Return the access to another JetStream domain. Raises UsageError."""
        check_prefix("domain", domain, tokens=1)
        return cls(f"{_DOMAIN}{domain}.API")

    @property
    def domain(self) -> str | None:
        """The domain, if the prefix is that of a domain."""
        parts = self.api.split(".")
        return parts[1] if len(parts) == 3 and self.api.startswith(_DOMAIN) and parts[2] == "API" else None

    def to_json(self) -> dict[str, str]:
        """Return the `external` field of a stream configuration."""
        return {"api": self.api, **({"deliver": self.deliver} if self.deliver else {})}


@dataclass(frozen=True, slots=True)
class Origin:
    """A replicated bucket, or the stream that holds its keys (ADR-58's KVAggregateOrigin).

    `keys` are filters that lose their literal head, `prefix` is put before the rest, `maps` give source and destination
    with wildcards as `$1`.
    """

    bucket: str = ""
    """Name in the keys' subjects; empty: the one that the stream replicates, if that can be determined."""
    _: KW_ONLY
    stream: str = ""
    """Stream to read; empty: the bucket's own stream."""
    keys: tuple[str, ...] = ()
    prefix: str = ""
    maps: tuple[tuple[str, str], ...] = ()
    external: External | None = None

    def __post_init__(self) -> None:
        if not self.bucket and not self.stream:
            raise UsageError("An origin needs a bucket or a stream")
        for name in filter(None, (self.bucket, self.stream)):
            check_bucket(name)
        for text in self.keys:
            check_filter(text)

    @property
    def name(self) -> str:
        """Name in messages: the bucket whose keys the stream holds."""
        return self.bucket or self.stream.removeprefix(STREAM_PREFIX)

    @property
    def asked_name(self) -> str:
        """What was asked for, in messages that it does not exist: the stream, else the bucket."""
        return self.stream or self.bucket

    @property
    def source_stream(self) -> str:
        """The stream that is read."""
        return self.stream or STREAM_PREFIX + self.bucket

    @property
    def candidates(self) -> list[str]:
        """The streams that it may mean: the bucket's own, a mirror's, or a repository's."""
        return [self.stream] if self.stream else [prefix + self.bucket for prefix in _PREFIXES]

    def found_as(self, stream: str, bucket: str) -> Origin:
        """Return the origin with its stream, and the bucket whose keys that holds."""
        return replace(self, bucket=bucket, stream="" if stream == STREAM_PREFIX + bucket else stream)

    def transforms(self, target: str) -> list[Transform]:
        """Return the rules that map its keys into the target. Raises UsageError, also if two filters match one key."""
        rules = render(self.name, target, self.keys, self.prefix, self.maps)
        _refuse_covering([rule.src for rule in rules], f"{SUBJECT_PREFIX}{self.name}.")
        return rules

    def to_source(self, target: str) -> dict[str, Any]:
        """Return the source for the stream configuration of an aggregate."""
        source: dict[str, Any] = {"name": self.source_stream}
        if self.external:
            source["external"] = self.external.to_json()
        rules = [rule.to_json() for rule in self.transforms(target)]
        return {**source, "opt_start_seq": FIRST_ENTRY, "subject_transforms": rules}

    def to_mirror(self) -> dict[str, Any]:
        """Return the `mirror` of a stream configuration; keys keep their names. Raises UsageError."""
        subjects = [f"{SUBJECT_PREFIX}{self.name}.{text}" for text in self.keys]
        if overlapping(subjects):
            raise UsageError(f"Filters of a mirror must not overlap: {quoted(self.keys)}")
        mirror: dict[str, Any] = {"name": self.source_stream}
        if len(subjects) == 1:
            mirror["filter_subject"] = subjects[0]
        elif subjects:
            mirror["subject_transforms"] = [{"src": subject, "dest": ""} for subject in subjects]
        return {**mirror, "external": self.external.to_json()} if self.external else mirror

    @classmethod
    def from_source(cls, source: Mapping[str, Any], target: str = "") -> Origin:
        """Return the origin of a live source or mirror; `target` is the aggregate. Raises UnknownTransform, UsageError.

        Transforms into anything but the target raise UsageError.
        """
        rules = parse(source.get("subject_transforms") or ())
        if source.get("filter_subject"):
            rules.append(Transform(source["filter_subject"], ""))
        external = source.get("external") or {}
        stream = source["name"]
        prefix = next((one for one in (STREAM_PREFIX, stream_kind.WHOLE) if stream.startswith(one)), stream)
        bucket = _bucket_of(rules) or stream.removeprefix(prefix)
        origin = cls(
            bucket,
            stream="" if stream == STREAM_PREFIX + bucket else stream,
            external=External(external["api"], external.get("deliver", "")) if external.get("api") else None,
        )
        return replace(origin, **_fields_of(rules, bucket, target))


@dataclass(frozen=True, slots=True)
class Mirror(Settings):
    """A copy of one bucket that serves its reads locally (ADR-58's KVMirrorConfig). None: same as the origin."""

    name: str
    origin: Origin
    _: KW_ONLY
    history: int | None = None
    ttl: timedelta | None = None
    deny_purge: bool = False
    """Leave history readable here after a purge at the origin: with it, servers accept no rollups (10052)."""

    def __post_init__(self) -> None:
        check_bucket(self.name)
        if self.name.startswith(STREAM_PREFIX):
            raise UsageError(
                f"`{self.name}` is a bucket stream name; the name of a mirror must not start with `KV_`",
                hint="Leave out `KV_`: clients use the origin's name and read from the nearest replica",
            )
        if self.origin.prefix or self.origin.maps:
            raise UsageError("A mirror cannot rename keys", hint="Use an aggregate to rename them")

    def to_stream(self, origin: StreamConfig | None = None) -> StreamConfig:
        """Return the stream configuration, given the origin's if it can be read. Raises UsageError."""
        found = origin or {}
        external = self.origin.external is not None
        stream = {
            "name": self.name,
            "mirror": self.origin.to_mirror(),
            **_common(self.deny_purge),
            "max_msgs_per_subject": found.get("max_msgs_per_subject", 1),
            "max_age": found.get("max_age", 0),
            # Servers answer the origin's reads here only if it allows direct gets, and silently drop it otherwise.
            "mirror_direct": external or bool(found.get("allow_direct", True)),
        }
        if found.get("allow_msg_ttl"):
            stream["allow_msg_ttl"] = True
        return edited(stream, _given(self, "mirror"))

    @classmethod
    def from_stream(cls, stream: StreamConfig) -> Mirror:
        """Return the mirror that a stream is. Raises UsageError if it is not one, UnknownTransform."""
        if not stream.get("mirror"):
            raise UsageError(f"`{stream['name']}` is not a mirror")
        return cls(
            stream["name"],
            Origin.from_source(stream["mirror"]),
            deny_purge=bool(stream.get("deny_purge")),
            **_found(stream, "mirror"),
        )


@dataclass(frozen=True, slots=True)
class Aggregate(BucketSettings):
    """A bucket merged from other buckets (ADR-58's KVAggregateConfig). None: derived from the origins."""

    name: str
    origins: tuple[Origin, ...]
    _: KW_ONLY
    writable: bool = False
    history: int | None = None
    """Default: the longest of the origins'."""
    ttl: timedelta | None = None
    """Default: the longest of the origins', if all are known to have one. It counts from the arrival of an entry."""
    marker_ttl: timedelta | None = None
    deny_purge: bool = False
    """Leave history readable here after a purge at an origin: with it, servers accept no rollups (10052)."""

    def __post_init__(self) -> None:
        check_bucket(self.name)
        if not self.origins:
            raise UsageError("An aggregate needs an origin", hint="Use `--origin BUCKET`, once or several times")

    def to_stream(self, origins: Iterable[StreamConfig | None] = ()) -> StreamConfig:
        """Return the stream configuration, given those of the origins that can be read. Raises UsageError."""
        origins = list(origins)
        found = [config for config in origins if config is not None]
        ages = [config.get("max_age", 0) if config else 0 for config in origins]
        stream = {
            "name": STREAM_PREFIX + self.name,
            # Empty if read-only; no duplicate_window: two origins may use the same message ids.
            "subjects": [f"{SUBJECT_PREFIX}{self.name}.>"] if self.writable else [],
            "sources": sources_of(self.name, self.origins),
            **_common(self.deny_purge),
            "max_msgs_per_subject": max((config.get("max_msgs_per_subject", 1) for config in found), default=1),
            "max_age": max(ages, default=0) if all(ages) else 0,
        }
        if any(config.get("allow_msg_ttl") for config in found):
            stream["allow_msg_ttl"] = True
        return edited(stream, _given(self, "aggregate"))

    @classmethod
    def from_stream(cls, stream: StreamConfig) -> Aggregate:
        """Return the aggregate that a stream is. Raises UsageError if it is not one, UnknownTransform."""
        name = stream["name"].removeprefix(STREAM_PREFIX)
        origins = tuple(Origin.from_source(source, name) for source in stream.get("sources") or ())
        return cls(
            name,
            origins,
            writable=bool(stream.get("subjects")),
            deny_purge=bool(stream.get("deny_purge")),
            **_found(stream, "aggregate"),
        )


def sources_of(target: str, origins: Iterable[Origin]) -> list[dict[str, Any]]:
    """Return the sources of an aggregate. Raises UsageError, also for a source that is given twice."""
    found: list[dict[str, Any]] = []
    for origin in origins:
        source = origin.to_source(target)
        if source in found:
            raise UsageError(f"Origin `{origin.name}` is given twice with the same keys")
        found.append(source)
    return found


def _common(deny_purge: bool) -> StreamConfig:
    """Return the settings that mirrors and aggregates share with buckets."""
    stream: StreamConfig = {
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs_per_subject": 1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msg_size": -1,
        "storage": "file",
        "discard": "new",
        "num_replicas": 1,
        "allow_rollup_hdrs": not deny_purge,
        "deny_delete": True,
        "allow_direct": True,
    }
    return {**stream, "deny_purge": True} if deny_purge else stream


def _given(replica: Mirror | Aggregate, resource: Resource) -> dict[str, Any]:
    """Return the settings of a replica, without those that it takes from its origins."""
    return {name: value for name in settings_of(resource) if (value := getattr(replica, name)) is not None}


def _found(stream: StreamConfig, resource: Resource) -> dict[str, Any]:
    """Return the settings of a live replica."""
    found = {name: SETTINGS[name].from_stream(stream) for name in settings_of(resource)}
    if "marker_ttl" in found:
        found["marker_ttl"] = found["marker_ttl"] or None
    return found


def _refuse_covering(sources: list[str], head: str) -> None:
    """Refuse filters that contain each other, as servers do (10147)."""
    for at, first in enumerate(sources):
        for second in sources[at + 1 :]:
            if Transform(first, "").covers(second) or Transform(second, "").covers(first):
                one, other = first.removeprefix(head), second.removeprefix(head)
                raise UsageError(
                    f"`{one}` and `{other}` match the same keys", hint="Each key can have only one destination"
                )


def _bucket_of(rules: list[Transform]) -> str:
    heads = {
        rule.src.split(".")[1] for rule in rules if rule.src.startswith(SUBJECT_PREFIX) and rule.src.count(".") > 1
    }
    return heads.pop() if len(heads) == 1 else ""


def _fields_of(rules: list[Transform], bucket: str, target: str) -> dict[str, Any]:
    """Return the shortest `keys`, `prefix` and `maps` that render as these transforms."""
    head, to = f"{SUBJECT_PREFIX}{bucket}.", f"{SUBJECT_PREFIX}{target}."
    pairs: list[tuple[str, str]] = []
    for rule in rules:
        dest = rule.dest or rule.src
        if not rule.src.startswith(head) or (target and not dest.startswith(to)):
            raise UsageError(f"`{rule.src}` to `{dest}` maps keys out of the bucket")
        pairs.append((rule.src.removeprefix(head), dollars(dest.removeprefix(to if target else head))))
    if not target:
        return {"keys": tuple(src for src, _ in pairs)}
    prefix = common_prefix(pairs)
    if prefix is None:
        return {"maps": tuple(pairs)}
    keys = tuple(src for src, _ in pairs)
    return {"prefix": prefix, "keys": () if keys == (">",) else keys}


def common_prefix(pairs: Iterable[tuple[str, str]]) -> str | None:
    """Return the prefix before the default destination of each filter; None if that is not all that differs."""
    prefixes = {_prefix(src, dest) for src, dest in pairs}
    return prefixes.pop() if len(prefixes) == 1 else None


def _prefix(src: str, dest: str) -> str | None:
    usual = default_dest(src)
    if dest == usual:
        return ""
    prefix = dest.removesuffix(f".{usual}")
    return prefix if prefix != dest and all(map(LITERAL.match, prefix.split("."))) else None


def dollars(dest: str) -> str:
    """Return a destination with wildcards as people write them, `$1`."""
    return ".".join(
        f"${token[len('{{wildcard(') : -len(')}}')]}" if token.startswith("{{wildcard(") else token
        for token in dest.split(".")
    )


def source_key(source: SourceConfig) -> tuple[str, str]:
    """Return the stream and the API prefix that a source reads."""
    found = Source.parse(source)
    return found.name, found.api


def meaning(source: SourceConfig) -> tuple[Any, ...]:
    """Return the identity of a source: the stream it reads, and each rule with its destination."""
    found = Source.parse(source)
    rules = found.transforms or ((found.filter_subject, ""),)
    taken = frozenset((src or ">", "" if dest == (src or ">") else dest) for src, dest in rules)
    return found.name, found.api, found.deliver, taken


def same_mirror(one: SourceConfig | None, other: SourceConfig | None) -> bool:
    """Return whether two mirrors replicate the same; two absent ones do."""
    if not one or not other:
        return bool(one) == bool(other)
    return _widened(meaning(one)) == _widened(meaning(other))


def leaving(config: Mapping[str, Any]) -> list[SourceConfig]:
    """Return the former sources of an aggregate whose keys are still to be removed from it."""
    found: list[SourceConfig] = json.loads((config.get("metadata") or {}).get(LEAVING, "[]"))
    return found


def marked_leaving(config: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the configuration with the keys of these sources marked for removal."""
    metadata = {key: text for key, text in (config.get("metadata") or {}).items() if key != LEAVING}
    return {**config, "metadata": {**metadata, **({LEAVING: json.dumps(sources)} if sources else {})}}


def removed(before: Iterable[SourceConfig], after: Iterable[SourceConfig]) -> list[SourceConfig]:
    """Return the sources that are in the first and not in the second."""
    kept = {meaning(source) for source in after}
    return [source for source in before if meaning(source) not in kept]


def added(before: Iterable[SourceConfig], after: Iterable[SourceConfig]) -> list[SourceConfig]:
    """Return the sources that are in the second and not in the first."""
    return removed(after, before)


def _widened(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Treat all subjects of a bucket as everything in its stream."""
    name, api, deliver, taken = found
    if taken == {(f"$KV.{name.removeprefix('KV_')}.>", "")}:
        taken = frozenset({(">", "")})
    return name, api, deliver, taken


REPAIR = f"{OWN_METADATA}repair"
"""Metadata of a stand-in: the mirror that it stands in for."""
_STAND_IN = "kvctl-repair-"
_TOKEN = "$KV._kvctl.repair."
"""Unused subject prefix: a rule for one of its subjects distinguishes a source from one without it."""


def stand_in(config: StreamConfig) -> StreamConfig:
    """Return a mirror that holds what a new one of this configuration would, and stores the configuration."""
    name = config["name"]
    return {**config, "name": f"{_STAND_IN}{name}", "metadata": {**(config.get("metadata") or {}), REPAIR: name}}


def original(config: StreamConfig) -> StreamConfig:
    """Return the mirror that a stand-in stands in for."""
    metadata = {key: value for key, value in config["metadata"].items() if key != REPAIR}
    return {**config, "name": config["metadata"][REPAIR], "metadata": metadata}


def is_stand_in(config: StreamConfig) -> bool:
    """Return whether the stream is a stand-in."""
    return REPAIR in (config.get("metadata") or {})


def temporary(source: Mapping[str, Any], token: str, subjects: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a second source that replicates everything again, or only `subjects` (the origin's, and where they land).

    It begins with the origin's first entry: by default servers let a source that joins an aggregate begin with what is
    newer than the aggregate's last entry, if the aggregate's first one was removed.
    """
    rules = [{"src": src, "dest": dest} for src, dest in (subjects or {}).items()]
    if subjects is None:
        rules = [rule.to_json() for rule in KeyMapping.of(dict(source)).rules]
    kept = {key: value for key, value in source.items() if key in ("name", "external")}
    mark = {"src": f"{_TOKEN}{token}", "dest": f"{_TOKEN}{token}"}
    return {**kept, "opt_start_seq": 1, "subject_transforms": [*rules, mark]}


def is_temporary(source: Mapping[str, Any]) -> bool:
    """Return whether a repair added the source."""
    return any((rule.get("src") or "").startswith(_TOKEN) for rule in source.get("subject_transforms") or ())


def token_of(source: Mapping[str, Any]) -> str:
    """Return the mark in the headers of messages of this temporary source, and of no other."""
    return str(next(rule["src"] for rule in source["subject_transforms"] if rule["src"].startswith(_TOKEN)))
