"""Resources of the Terraform provider `nats-io/jetstream`, in Terraform's JSON syntax. [pure]

Measured with its version 0.4.0: durations are whole seconds, the default duplicate window is two minutes, and tags are
dropped without a cluster. A `jetstream_kv_bucket` has neither replication, compression, republishing, metadata nor
atomic writes, so it is read but not written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvctl.documents.hcl import Expression, escaped
from kvctl.errors import UsageError
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.jetstream.stream_source import sources_of
from kvctl.kv.config import BucketConfig
from kvctl.phrases import quoted
from kvctl.topology.formats.field_map import (
    FLAG,
    NUMBER,
    SECONDS,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Row,
    nested,
    one,
    read,
    several,
    transforms,
    unknown,
    written,
)
from kvctl.topology.formats.placed import Contexts, Found, Placed, SourceFile, checked, labels, unique

STREAM = "jetstream_stream"
KV_BUCKET = "jetstream_kv_bucket"

_RULES = transforms("source", "destination")
_SOURCE = (
    Row("name", "name", TEXT),
    Row("opt_start_seq", "start_seq", NUMBER),
    Row("opt_start_time", "start_time", TEXT),
    Row("filter_subject", "filter_subject", TEXT),
    Row("external", "external", one(nested((Row("api", "api", TEXT), Row("deliver", "deliver", TEXT))))),
    Row("subject_transforms", "subject_transform", _RULES),
)
_ROWS = (
    Row("name", "name", TEXT),
    Row("description", "description", TEXT),
    Row("subjects", "subjects", TEXTS),
    Row("retention", "retention", TEXT),
    Row("storage", "storage", TEXT),
    Row("num_replicas", "replicas", NUMBER),
    Row("max_consumers", "max_consumers", NUMBER),
    Row("max_msgs_per_subject", "max_msgs_per_subject", NUMBER),
    Row("max_msgs", "max_msgs", NUMBER),
    Row("max_bytes", "max_bytes", NUMBER),
    Row("max_age", "max_age", SECONDS),
    Row("max_msg_size", "max_msg_size", NUMBER),
    Row("discard", "discard", TEXT),
    Row("discard_new_per_subject", "discard_new_per_subject", FLAG),
    Row("duplicate_window", "duplicate_window", SECONDS, 120),
    Row("placement.cluster", "placement_cluster", TEXT),
    Row("placement.tags", "placement_tags", TEXTS),
    Row("placement.preferred", "placement_preferred", TEXT),
    Row("mirror", "mirror", one(nested(_SOURCE))),
    Row("sources", "source", several(nested(_SOURCE))),
    Row("compression", "compression", TEXT),
    Row("first_seq", "first_seq", NUMBER),
    Row("republish.src", "republish_source", TEXT),
    Row("republish.dest", "republish_destination", TEXT),
    Row("republish.headers_only", "republish_headers_only", FLAG),
    Row("deny_delete", "deny_delete", FLAG),
    Row("deny_purge", "deny_purge", FLAG),
    Row("allow_rollup_hdrs", "allow_rollup_hdrs", FLAG),
    Row("allow_direct", "allow_direct", FLAG, True),
    Row("mirror_direct", "mirror_direct", FLAG),
    Row("allow_msg_ttl", "allow_msg_ttl", FLAG),
    Row("subject_delete_marker_ttl", "subject_delete_marker_ttl", SECONDS),
    Row("allow_msg_counter", "allow_msg_counter", FLAG),
    Row("allow_atomic", "allow_atomic", FLAG),
    Row("allow_msg_schedules", "allow_msg_schedules", FLAG),
    Row("allow_batched", "allow_batched", FLAG),
    Row("persist_mode", "persist_mode", TEXT),
    Row("consumer_limits.inactive_threshold", "inactive_threshold", SECONDS),
    Row("consumer_limits.max_ack_pending", "max_ack_pending", NUMBER),
    Row("metadata", "metadata", TEXT_MAP),
)
_BUCKET_ROWS = (
    Row("name", "name", TEXT),
    Row("description", "description", TEXT),
    Row("max_msgs_per_subject", "history", NUMBER, 5),
    Row("max_age", "ttl", SECONDS),
    Row("subject_delete_marker_ttl", "limit_marker_ttl", SECONDS),
    Row("num_replicas", "replicas", NUMBER),
    Row("storage", "storage", TEXT),
    Row("max_msg_size", "max_value_size", NUMBER),
    Row("max_bytes", "max_bucket_size", NUMBER),
    Row("placement.cluster", "placement_cluster", TEXT),
    Row("placement.tags", "placement_tags", TEXTS),
)
_SKIPPED = ("provider", "depends_on", "connection", "provisioner", "timeouts", "//")
"""Arguments of Terraform that change nothing in the stream."""
_REPEATED = ("count", "for_each")


def resources(streams: Iterable[Placed], contexts: Contexts) -> dict[str, Any]:
    """Return a `jetstream_stream` for each stream; contexts become provider aliases, origins dependencies."""
    streams = list(streams)
    aliases = labels(streams, contexts, _identifier)
    found: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    for stream in streams:
        label = unique(re.sub(r"^(?=[^A-Za-z_])", "_", stream.name), found)
        body = escaped(arguments_of(stream.config))
        if stream.place in aliases:
            body["provider"] = f"jetstream.{aliases[stream.place]}"
        before = [names.get(source["name"]) for source in sources_of(stream.config)]
        if depends := [f"{STREAM}.{name}" for name in dict.fromkeys(before) if name]:
            body["depends_on"] = depends
        found[label] = body
        names[stream.name] = label
    return {"resource": {STREAM: found}} if found else {}


def arguments_of(config: StreamConfig) -> dict[str, Any]:
    """Return the arguments of a stream."""
    return written(_ROWS, config)


def config_of(arguments: Mapping[str, Any]) -> StreamConfig:
    """Return the stream that the provider creates. Raises UsageError."""
    return _placed(read(_ROWS, arguments))


def _placed(config: StreamConfig) -> StreamConfig:
    """Return the configuration without the tags that the provider drops."""
    placement = config.get("placement") or {}
    if placement.get("cluster"):
        return config
    kept = {name: value for name, value in placement.items() if name != "tags"}
    rest = {name: value for name, value in config.items() if name != "placement"}
    return {**rest, "placement": kept} if kept else rest


def warnings(streams: Iterable[Placed], contexts: Contexts) -> list[str]:
    """Return what the resources need of the configuration that they become part of."""
    used = labels(streams, contexts, _identifier).values()
    return [f"The resources use provider aliases that have to be defined: {quoted(used)}"] if used else []


def _identifier(name: str) -> str:
    """Return a name that Terraform accepts."""
    text = re.sub(r"[^A-Za-z0-9_-]+", "_", name)
    return text if re.match("[A-Za-z_]", text) else f"_{text}"


# -- reading -----------------------------------------------------------------------------------------------


def read_resources(files: Iterable[SourceFile]) -> Found:
    """Read `jetstream_stream` and `jetstream_kv_bucket` resources. Raises UsageError for other files."""
    found = Found()
    for file in files:
        if not isinstance(file.data, Mapping):
            raise UsageError(f"{file.name} is not a Terraform configuration")
        for kind, label, body in _resources(file):
            _add(found, kind, label, body)
        for name in ("module", "data"):
            for label in _names(file.data.get(name)):
                found.leave_out(f"{name} {label}", "not a resource")
    return found


def _resources(file: SourceFile) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for types in _blocks(file.data.get("resource")):
        for kind, resources in types.items():
            for inside in _blocks(resources):
                for label, bodies in inside.items():
                    for body in _blocks(bodies):
                        yield kind, label, body


def _blocks(value: Any) -> list[Mapping[str, Any]]:
    """Return the bodies of a block, which appears once or several times."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, Mapping)]


def _names(value: Any) -> list[str]:
    return [name for block in _blocks(value) for name in block]


def _add(found: Found, kind: str, label: str, body: Mapping[str, Any]) -> None:
    title = f"{kind}.{label}"
    reader = {STREAM: _stream, KV_BUCKET: _kv_bucket}.get(kind)
    if reader is None:
        found.leave_out(title, f"not a `{STREAM}` or `{KV_BUCKET}`")
        return
    try:
        _refuse_expressions(body)
        config, rows = reader(body)
        config = checked(config)
    except UsageError as error:
        found.leave_out(title, error.message)
        return
    place = str(body.get("provider") or "jetstream").partition(".")[2]
    if place:
        found.contexts[place] = {"context": place}
    remarks = [f"`{name}`" for name in unknown(rows, body, _SKIPPED)]
    found.add(Placed(config, place), remarks)


def _refuse_expressions(body: Mapping[str, Any]) -> None:
    for name in _REPEATED:
        if name in body:
            raise UsageError(f"it uses `{name}`")
    for name, value in body.items():
        if name not in _SKIPPED and (text := _expression(value)) is not None:
            raise UsageError(f"`{name}` is not a literal value: {text}")


def _expression(value: Any) -> str | None:
    """Return an expression within a value; None if all of it is literal."""
    if isinstance(value, Expression):
        return str(value)
    items: Sequence[Any] = ()
    if isinstance(value, Mapping):
        items = [*value, *value.values()]
    elif isinstance(value, list):
        items = value
    return next((text for item in items if (text := _expression(item)) is not None), None)


def _stream(body: Mapping[str, Any]) -> tuple[StreamConfig, Sequence[Row]]:
    return config_of(body), _ROWS


def _kv_bucket(body: Mapping[str, Any]) -> tuple[StreamConfig, Sequence[Row]]:
    """Return the stream of a `jetstream_kv_bucket`, as nats.go creates it."""
    fields = _placed(read(_BUCKET_ROWS, body))
    return BucketConfig.from_stream({"name": "", **fields}).to_stream(), _BUCKET_ROWS
