"""Streams in the files of other deployment tools: the `nats` command, NACK for Kubernetes, Terraform. [pure]

NACK is the JetStream controller for Kubernetes (`jetstream.nats.io/v1beta2`). Measured with its version 0.22.4: a
`Stream` without `maxAge` expires entries after a year in the controller's `--control-loop` mode, memory is the default
storage, and `republish` has no headers-only switch. A `KeyValue` replaces the transforms of its sources and has neither
metadata nor atomic writes, so it is not written.

Terraform's provider is `nats-io/jetstream`. Measured with its version 0.4.0: durations are whole seconds, the default
duplicate window is two minutes, and tags are dropped without a cluster. A `jetstream_kv_bucket` has neither
replication, compression, republishing, metadata nor atomic writes, so it is not written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvctl.jetstream.config_diff import shown
from kvctl.jetstream.config_text import DURATION, STREAM
from kvctl.jetstream.stream_info import StreamConfig, sources_of
from kvctl.kv.config import differences
from kvctl.phrases import quoted
from kvctl.topology.hazards.hazards import Hazard
from kvctl.units import SECOND_NS

LOSSY_FORMAT = "lossy-format"
Contexts = Mapping[str, Mapping[str, str]]
"""Fields of the contexts of a topology file, by name."""

_RESOURCE = "jetstream_stream"
_UNSET: tuple[Any, ...] = (None, "", [], {})
_NEUTRAL: tuple[Any, ...] = (False, -1, 0, "0s")
"""Values that mean no setting."""
_DNS_NAME_MAX = 253


@dataclass(frozen=True, slots=True)
class PlacedStream:
    """One stream and its context, empty for the one in use."""

    config: StreamConfig
    place: str = ""

    @property
    def name(self) -> str:
        """Name of the stream."""
        return str(self.config["name"])


@dataclass(frozen=True, slots=True)
class _Tool:
    """Fields that a tool has, under its own names; `a.b` is the field `b` of `a`."""

    title: str
    stream: Mapping[str, str]
    source: Mapping[str, str]
    destination: str
    """Name of a transform's `dest`."""
    duration: Callable[[int], Any]
    """Write nanoseconds."""
    always: Collection[str]
    """Settings to write even if they mean nothing, as the tool has another default."""
    listed: Collection[str]
    """Objects that are written as a list of one."""
    lacking: Collection[str]
    """Fields of contexts without a place."""


def lossy(format: str, streams: Iterable[PlacedStream], contexts: Contexts) -> list[Hazard]:
    """Return a hazard for each setting that the tool would not create as it is in the configuration."""
    if format not in _TOOLS:
        return []
    tool, streams = _TOOLS[format], list(streams)
    lost = [
        f"`{stream.name}`: {tool.title} cannot express {item.field} {shown(item.field, item.before)}"
        for stream in streams
        for item in differences(stream.config, _created(tool, stream.config))
    ]
    lost += [
        f"context `{place}`: {tool.title} cannot express {field} {contexts[place][field]}"
        for place in dict.fromkeys(stream.place for stream in streams)
        for field in tool.lacking
        if field in contexts.get(place, {})
    ]
    return [Hazard(LOSSY_FORMAT, text) for text in lost]


def file_name(stream: PlacedStream) -> str:
    """Return the path of a stream's file for `nats stream add --config`: `CONTEXT/KV_ORDERS.json`."""
    folder = re.sub(r"^\.|[^A-Za-z0-9_.-]", "_", stream.place)
    return f"{folder}/{stream.name}.json" if folder else f"{stream.name}.json"


# -- NACK --------------------------------------------------------------------------------------------------


def nack(streams: Iterable[PlacedStream], contexts: Contexts) -> list[dict[str, Any]]:
    """Return a `Stream` for each stream, in the same order; contexts become accounts and domains."""
    streams = list(streams)
    accounts = _labels(streams, contexts, _dns_name)
    resources: list[dict[str, Any]] = []
    names: set[str] = set()
    for stream in streams:
        names.add(name := _unique(_dns_name(stream.name), names))
        connection = {"account": accounts.get(stream.place), "jsDomain": contexts.get(stream.place, {}).get("domain")}
        spec = {**_written(_NACK, stream.config), **{field: text for field, text in connection.items() if text}}
        head = {"apiVersion": "jetstream.nats.io/v1beta2", "kind": "Stream", "metadata": {"name": name}}
        resources.append({**head, "spec": spec})
    return resources


def nack_warnings(resources: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Return what the resources need of the cluster that they are applied to."""
    specs = [resource["spec"] for resource in resources]
    if accounts := dict.fromkeys(spec["account"] for spec in specs if "account" in spec):
        yield f"The resources refer to `Account` resources that have to exist: {quoted(accounts)}"
    # Other mirrors are made direct by the server.
    direct = any("externalApiPrefix" in spec.get("mirror", {}) for spec in specs)
    if direct or any("jsDomain" in spec for spec in specs):
        yield "The controller has to run with `--control-loop`, or it ignores `mirrorDirect` and `jsDomain`"


def _dns_name(name: str) -> str:
    """Return a name that Kubernetes accepts (RFC 1123)."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:_DNS_NAME_MAX].strip("-") or "stream"


# -- Terraform ---------------------------------------------------------------------------------------------


def terraform(streams: Iterable[PlacedStream], contexts: Contexts) -> dict[str, Any]:
    """Return a `jetstream_stream` for each stream; contexts become provider aliases, origins dependencies."""
    streams = list(streams)
    aliases = _labels(streams, contexts, _identifier)
    resources: dict[str, dict[str, Any]] = {}
    labels: dict[str, str] = {}
    for stream in streams:
        label = _unique(re.sub(r"^(?=[^A-Za-z_])", "_", stream.name), resources)
        body: dict[str, Any] = _without_templates(_written(_TERRAFORM, stream.config))
        if stream.place in aliases:
            body["provider"] = f"jetstream.{aliases[stream.place]}"
        before = [labels.get(source["name"]) for source in sources_of(stream.config)]
        if depends := [f"{_RESOURCE}.{name}" for name in dict.fromkeys(before) if name]:
            body["depends_on"] = depends
        resources[label] = body
        labels[stream.name] = label
    return {"resource": {_RESOURCE: resources}} if resources else {}


def terraform_warnings(document: Mapping[str, Any]) -> Iterator[str]:
    """Return what the resources need of the configuration that they become part of."""
    bodies = document.get("resource", {}).get(_RESOURCE, {}).values()
    aliases = dict.fromkeys(body["provider"].partition(".")[2] for body in bodies if "provider" in body)
    if aliases:
        yield f"The resources use provider aliases that have to be defined: {quoted(aliases)}"


def _identifier(name: str) -> str:
    """Return a name that Terraform accepts."""
    text = re.sub(r"[^A-Za-z0-9_-]+", "_", name)
    return text if re.match("[A-Za-z_]", text) else f"_{text}"


def _without_templates(value: Any) -> Any:
    """Return plain data with the beginnings of templates in its texts escaped."""
    if isinstance(value, str):
        return re.sub(r"[$%](?=\{)", r"\g<0>\g<0>", value)
    if isinstance(value, list):
        return [_without_templates(item) for item in value]
    if isinstance(value, Mapping):
        return {_without_templates(name): _without_templates(item) for name, item in value.items()}
    return value


# -- fields ------------------------------------------------------------------------------------------------


def _written(tool: _Tool, config: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the fields of a stream, or of one of its sources, without those that mean nothing to the tool either."""
    fields: dict[str, Any] = {}
    for ours, theirs in (names or tool.stream).items():
        value = _value(tool, ours, _get(config, ours))
        if ours in tool.always or value not in (*_UNSET, *_NEUTRAL):
            _put(fields, theirs, value)
    return {name: [value] if name in tool.listed else value for name, value in fields.items()}


def _value(tool: _Tool, field: str, value: Any) -> Any:
    if STREAM.get(field) == DURATION:
        return tool.duration(value or 0)
    if value in _UNSET:
        return False if field in tool.always else None
    if field == "mirror":
        return _written(tool, value, tool.source)
    if field == "sources":
        return [_written(tool, source, tool.source) for source in value]
    if field == "subject_transforms":
        return [{"source": rule["src"], tool.destination: rule.get("dest", "")} for rule in value]
    return value


def _created(tool: _Tool, config: Mapping[str, Any]) -> StreamConfig:
    """Return the stream that the tool creates, as far as it differs from the configuration."""
    created: dict[str, Any] = {}
    for field in tool.stream:
        value = _get(config, field)
        if value not in _UNSET:
            is_rounded = tool is _TERRAFORM and STREAM.get(field) == DURATION
            _put(created, field, _seconds(value) * SECOND_NS if is_rounded else value)
    if tool is _TERRAFORM and not created.get("placement", {}).get("cluster"):
        created.pop("placement", None)
    return created


def _get(data: Mapping[str, Any], path: str) -> Any:
    head, _, rest = path.partition(".")
    value = data.get(head)
    return _get(value, rest) if rest and value else value


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    head, _, rest = path.partition(".")
    if rest:
        _put(data.setdefault(head, {}), rest, value)
    else:
        data[head] = value


def _seconds(nanoseconds: int) -> int:
    """Return whole seconds, rounded up: nothing expires early."""
    return -(-nanoseconds // SECOND_NS)


def _go_duration(nanoseconds: int) -> str:
    """Format as Go's `time.ParseDuration` reads it, which has no unit above the hour."""
    parts = ""
    for unit, size in (("h", 3600 * SECOND_NS), ("m", 60 * SECOND_NS), ("s", SECOND_NS), ("ms", 10**6), ("ns", 1)):
        count, nanoseconds = divmod(nanoseconds, size)
        parts += f"{count}{unit}" if count else ""
    return parts or "0s"


# -- names -------------------------------------------------------------------------------------------------


def _labels(streams: Iterable[PlacedStream], contexts: Contexts, label: Callable[[str], str]) -> dict[str, str]:
    """Return a unique name for each context that has a connection of its own, as a format can write it."""
    labels: dict[str, str] = {}
    for place in dict.fromkeys(stream.place for stream in streams):
        if {"context", "url"} & contexts.get(place, {}).keys():
            labels[place] = _unique(label(place), labels.values())
    return labels


def _unique(name: str, taken: Collection[str]) -> str:
    """Return the name, or with the first number that makes it unique: `orders-2`."""
    number, text = 1, name
    while text in taken:
        number += 1
        text = f"{name}-{number}"
    return text


def _names(text: str, spelled: Callable[[str], str] = str) -> dict[str, str]:
    """Return names by field from `field` or `field=name`."""
    pairs = (word.partition("=") for word in text.split())
    return {field: name or spelled(field) for field, _, name in pairs}


def _camel_case(name: str) -> str:
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)


_NACK = _Tool(
    "a `Stream` resource",
    _names(
        """
        name description subjects retention storage num_replicas=replicas max_consumers max_msgs_per_subject max_msgs
        max_bytes max_age max_msg_size discard duplicate_window placement.cluster placement.tags mirror sources
        compression first_seq=firstSequence republish.src=republish.source republish.dest=republish.destination
        deny_delete deny_purge allow_rollup_hdrs=allowRollup allow_direct mirror_direct allow_msg_ttl
        subject_delete_marker_ttl allow_atomic=allowAtomicPublish metadata
        """,
        _camel_case,
    ),
    _names(
        """
        name opt_start_seq filter_subject external.api=externalApiPrefix external.deliver=externalDeliverPrefix
        subject_transforms
        """,
        _camel_case,
    ),
    destination="dest",
    duration=_go_duration,
    always=("max_age",),
    listed=(),
    lacking=("api_prefix",),
)
_TERRAFORM = _Tool(
    "the provider",
    _names(
        """
        name description subjects retention storage num_replicas=replicas max_consumers max_msgs_per_subject max_msgs
        max_bytes max_age max_msg_size discard duplicate_window placement.cluster=placement_cluster
        placement.tags=placement_tags mirror sources=source compression first_seq republish.src=republish_source
        republish.dest=republish_destination republish.headers_only=republish_headers_only deny_delete deny_purge
        allow_rollup_hdrs allow_direct mirror_direct allow_msg_ttl subject_delete_marker_ttl allow_atomic metadata
        """
    ),
    _names(
        """
        name opt_start_seq=start_seq filter_subject external.api external.deliver subject_transforms=subject_transform
        """
    ),
    destination="destination",
    duration=_seconds,
    always=("duplicate_window", "allow_direct"),
    listed=("mirror", "external"),
    lacking=("api_prefix", "domain"),
)
_TOOLS = {"nack": _NACK, "terraform": _TERRAFORM}
