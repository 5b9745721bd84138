"""Export of live streams as a topology file, the reverse of `document`. [pure]"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple

from kvctl.documents.parser import Document
from kvctl.errors import RefusedError, UsageError
from kvctl.jetstream.config_diff import UNSET, Difference, shown
from kvctl.jetstream.stream_info import StreamConfig, parsed_sources
from kvctl.kv.config import BucketConfig, differences, edited
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.resolve import missing
from kvctl.kv.settings import FIELDS, SETTINGS, Form, Republish
from kvctl.kv.stream_kind import KIND, TOPOLOGY, Kind, bucket_name, started
from kvctl.topology.model.file import DEFAULT_NAME, SECTIONS, TITLE, VERSION, read_topology
from kvctl.topology.model.notation import fields_of
from kvctl.topology.model.origins import Aggregate, Mirror, Origin
from kvctl.topology.survey.graph import Inventory
from kvctl.units import format_duration

_FIELDS = ("bucket", "stream", "domain", "api", "deliver", "keys", "prefix", "map")
_UNITS = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024), ("GB", 10**9), ("MB", 10**6))
"""Units of sizes in a file: the first one that divides a size, else bytes."""


@dataclass(slots=True)
class TopologyExport:
    """A topology file as plain data, and what it cannot express."""

    document: dict[str, Any]
    remarks: dict[str, list[str]] = field(default_factory=dict)
    """Settings that the file does not express, by name."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Streams that are not in the file, with the reason."""

    @property
    def names(self) -> list[str]:
        """Names of everything in the file."""
        return [name for section in SECTIONS for name in self.document.get(section, ())]


def export(inventory: Inventory, names: Collection[str] = ()) -> TopologyExport:
    """Export all buckets, mirrors and aggregates of one account, or only the named ones.

    Settings that replicas inherit from origins in the file are left out. Raises BucketNotFound, and RefusedError for a
    name that a file cannot contain.
    """
    streams = _streams(inventory)
    chosen, exported = _chosen(streams, names), TopologyExport({"version": VERSION})
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    included = {stream for stream, (_, kind) in chosen.items() if kind in _SECTIONS}
    for stream, (name, kind) in sorted(chosen.items(), key=lambda item: item[1]):
        try:
            _check(streams, stream, kind, taken=any(name in section for section in sections.values()))
            described = _describe(name, streams.configs[stream], streams.origins.get(stream, []), included)
        except UsageError as error:
            exported.left_out[name] = error.message.rpartition(f"{_SECTIONS.get(kind)}.{name}: ")[2]
            continue
        sections[_SECTIONS[kind]][name] = described.fields
        if described.remarks:
            exported.remarks[name] = described.remarks
    if names and exported.left_out:
        name, reason = next(iter(exported.left_out.items()))
        raise RefusedError(f"`{name}` cannot be exported to a topology file: {reason}")
    if mark := _common_mark(streams.configs[stream] for stream in included):
        exported.document["name"] = mark
    exported.document |= {section: inside for section, inside in sections.items() if inside}
    return exported


class _Streams(NamedTuple):
    """Streams of one account, by name."""

    configs: Mapping[str, StreamConfig]
    kinds: Mapping[str, Kind]
    origins: Mapping[str, list[StreamConfig | None]]
    """Configurations of the origins by reader, in the order of its sources; None if unreadable."""


def _streams(inventory: Inventory) -> _Streams:
    (place,) = inventory.places.values()
    kinds = {stream: place.kind(stream) or Kind.STREAM for stream in place.infos}
    configs = {stream: info["config"] for stream, info in place.infos.items()}
    origins: dict[str, list[StreamConfig | None]] = {}
    for link in inventory.links:
        origins.setdefault(link.reader, []).append(link.origin["config"] if link.origin else None)
    return _Streams(configs, kinds, origins)


_SECTIONS = {Kind.BUCKET: "buckets", Kind.MIRROR: "mirrors", Kind.AGGREGATE: "aggregates"}


def _chosen(streams: _Streams, names: Collection[str]) -> dict[str, tuple[str, Kind]]:
    """Return name and kind of the streams to export; without names those of all, plain streams included."""
    found = {
        stream: (bucket_name(config, streams.kinds[stream]), streams.kinds[stream])
        for stream, config in streams.configs.items()
    }
    if not names:
        return found
    for name in names:
        if not any(name == other for other, _ in found.values()):
            raise missing(name, [other for other, _ in found.values()])
    return {stream: item for stream, item in found.items() if item[0] in names}


def _check(streams: _Streams, stream: str, kind: Kind, *, taken: bool) -> None:
    """Raise UsageError with the reason if a file cannot describe a stream."""
    config = streams.configs[stream]
    if owner := (config.get("metadata") or {}).get(KIND):
        raise UsageError(f"part of a {owner}")
    if kind is Kind.INCOMPLETE:
        raise UsageError("left behind by an interrupted restore or copy")
    if kind not in _SECTIONS:
        raise UsageError("not a bucket")
    if taken:
        raise UsageError("a bucket has the same name")
    mirrored = (config.get("mirror") or {}).get("name", "")
    if STREAM_PREFIX + mirrored in streams.configs:
        raise UsageError(f"its origin, the mirror `{mirrored}`, has the name of a bucket")


def _common_mark(configs: Iterable[StreamConfig]) -> str | None:
    """Return the topology that all are marked with; None for the default one."""
    marks = {(config.get("metadata") or {}).get(TOPOLOGY) for config in configs}
    mark = marks.pop() if len(marks) == 1 else None
    return mark if mark and mark != DEFAULT_NAME and re.fullmatch(TITLE["pattern"], mark) else None


class _ResourceWords(NamedTuple):
    """One resource as in the file."""

    fields: dict[str, Any]
    remarks: list[str]


def _describe(
    name: str, config: StreamConfig, origins: Sequence[StreamConfig | None], included: Collection[str]
) -> _ResourceWords:
    """Describe a resource, and read that back to find what is missing. Raises UsageError if it cannot be described."""
    section, first = _beginning(config)
    inherited = _meant(section, name, first, config, origins)
    # Settings inherited from an origin elsewhere may differ where the file is applied.
    near = all(source.name in included and not source.api for source in parsed_sources(config))
    alone = inherited if near else _meant(section, name, first, config, [None] * len(origins))
    fields = {**first, **_settings(section, config, inherited, alone)}
    left = differences(_meant(section, name, fields, config, origins), started(config))
    if any(item.field in ("mirror", "sources") for item in left):
        raise UsageError("its origins cannot be fully described")
    # Servers decide `mirror_direct` when the origin exists.
    unseen = {"mirror_direct"} if origins == [None] else set()
    return _ResourceWords(fields, [_remark(item) for item in left if item.field not in unseen])


def _beginning(config: StreamConfig) -> tuple[str, dict[str, Any]]:
    """Return the section of a stream, and its fields that no bucket has."""
    if config.get("mirror"):
        return "mirrors", _mirror_words(Mirror.from_stream(config))
    if config.get("sources"):
        return "aggregates", _aggregate_words(Aggregate.from_stream(config))
    return "buckets", {}


def _meant(
    section: str, name: str, fields: dict[str, Any], config: StreamConfig, origins: Sequence[StreamConfig | None]
) -> StreamConfig:
    """Return the stream configuration that the fields mean with these origins."""
    read = read_topology(Document({"version": VERSION, section: {name: fields}}, name))
    if section == "buckets":
        return read.buckets[name].to_stream()
    if section == "aggregates":
        return read.aggregates[name].to_stream(origins)
    # The stream of the origin's name is resolved where the file is applied.
    return replace(read.mirrors[name], origin=Mirror.from_stream(config).origin).to_stream(origins[0])


def _settings(section: str, config: StreamConfig, inherited: StreamConfig, alone: StreamConfig) -> dict[str, Any]:
    """Return the settings that are not inherited; those that ADR-8 does not allow are left to the remarks."""
    live, usual, without = (BucketConfig.from_stream(stream).settings() for stream in (config, inherited, alone))
    live["metadata"] = {name: text for name, text in live["metadata"].items() if name}
    fields: dict[str, Any] = {}
    for name in SECTIONS[section].fields:
        if name in FIELDS and not live[name] == usual[name] == without[name] and _allowed(inherited, name, live[name]):
            fields |= _words(name, live[name])
    return fields


def _allowed(stream: StreamConfig, name: str, value: Any) -> bool:
    try:
        edited(stream, {name: value})
    except UsageError:
        return False
    return True


def _words(name: str, value: Any) -> dict[str, Any]:
    """Return a setting as in the file."""
    if isinstance(value, Republish):
        headers = {"republish_headers_only": True} if value.headers_only else {}
        return {"republish": f"{value.source}={value.destination}", **headers}
    if isinstance(value, timedelta):
        return {name: format_duration(value)}
    if SETTINGS[name].form is Form.SIZE:
        return {name: next((f"{value // unit}{word}" for word, unit in _UNITS if value % unit == 0), value)}
    return {name: list(value) if isinstance(value, tuple) else value}


def _mirror_words(mirror: Mirror) -> dict[str, Any]:
    names = {"stream": "origin", "bucket": "origin", "domain": "origin_domain", "api": "origin_api"}
    words = {names.get(name, name): value for name, value in _in_order(mirror.origin).items()}
    return words | ({"deny_purge": True} if mirror.deny_purge else {})


def _aggregate_words(aggregate: Aggregate) -> dict[str, Any]:
    words: dict[str, Any] = {"origins": [_origin_words(origin) for origin in aggregate.origins]}
    switches = {"writable": aggregate.writable, "deny_purge": aggregate.deny_purge}
    return words | {name: True for name, on in switches.items() if on}


def _origin_words(origin: Origin) -> str | dict[str, Any]:
    """Return an origin in the shortest notation."""
    words = _in_order(origin)
    return origin.bucket if list(words) == ["bucket"] else words


def _in_order(origin: Origin) -> dict[str, Any]:
    """Return the fields of an origin as in the file: which stream, where, and which of its keys."""
    fields = fields_of(origin)
    if "map" in fields:
        fields["map"] = dict(fields["map"])
    if len(origin.keys) == 1:
        (fields["keys"],) = origin.keys
    elif origin.keys:
        fields["keys"] = list(origin.keys)
    return {name: fields[name] for name in _FIELDS if name in fields}


def _remark(item: Difference) -> str:
    value = shown(item.field, item.after)
    return f"no {item.field}" if value == UNSET else f"{item.field} {value}"
