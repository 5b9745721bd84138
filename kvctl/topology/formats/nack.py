"""Custom resources of NACK, the JetStream controller for Kubernetes (`jetstream.nats.io/v1beta2`). [pure]

Measured with its version 0.22.4: a `Stream` without `maxAge` expires entries after a year in the controller's
`--control-loop` mode, memory is the default storage, and `republish` has no headers-only switch. A `KeyValue` replaces
the transforms of its sources and has neither metadata nor atomic writes, so it is read but not written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvctl.errors import UsageError
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv.config import BucketConfig
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.phrases import quoted
from kvctl.topology.formats.field_map import (
    FLAG,
    GO_DURATION,
    NUMBER,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Kind,
    Row,
    nested,
    read,
    several,
    transforms,
    unknown,
    written,
)
from kvctl.topology.formats.placed import Contexts, Found, Placed, SourceFile, checked, labels, unique

GROUP = "jetstream.nats.io"
API_VERSION = f"{GROUP}/v1beta2"

_SOURCE = (
    Row("name", "name", TEXT),
    Row("opt_start_seq", "optStartSeq", NUMBER),
    Row("opt_start_time", "optStartTime", TEXT),
    Row("filter_subject", "filterSubject", TEXT),
    Row("external.api", "externalApiPrefix", TEXT),
    Row("external.deliver", "externalDeliverPrefix", TEXT),
    Row("subject_transforms", "subjectTransforms", transforms("source", "dest")),
)
_STREAM = (
    Row("name", "name", TEXT),
    Row("description", "description", TEXT),
    Row("subjects", "subjects", TEXTS),
    Row("retention", "retention", TEXT),
    Row("storage", "storage", TEXT, "memory"),
    Row("num_replicas", "replicas", NUMBER),
    Row("max_consumers", "maxConsumers", NUMBER),
    Row("max_msgs_per_subject", "maxMsgsPerSubject", NUMBER),
    Row("max_msgs", "maxMsgs", NUMBER),
    Row("max_bytes", "maxBytes", NUMBER),
    Row("max_age", "maxAge", GO_DURATION, always=True),
    Row("max_msg_size", "maxMsgSize", NUMBER),
    Row("discard", "discard", TEXT),
    Row("discard_new_per_subject", "discardPerSubject", FLAG),
    Row("no_ack", "noAck", FLAG),
    Row("duplicate_window", "duplicateWindow", GO_DURATION),
    Row("placement.cluster", "placement.cluster", TEXT),
    Row("placement.tags", "placement.tags", TEXTS),
    Row("mirror", "mirror", nested(_SOURCE)),
    Row("sources", "sources", several(nested(_SOURCE))),
    Row("compression", "compression", TEXT),
    Row("first_seq", "firstSequence", NUMBER),
    Row("subject_transform.src", "subjectTransform.source", TEXT),
    Row("subject_transform.dest", "subjectTransform.dest", TEXT),
    Row("republish.src", "republish.source", TEXT),
    Row("republish.dest", "republish.destination", TEXT),
    Row("sealed", "sealed", FLAG),
    Row("deny_delete", "denyDelete", FLAG),
    Row("deny_purge", "denyPurge", FLAG),
    Row("allow_rollup_hdrs", "allowRollup", FLAG),
    Row("allow_direct", "allowDirect", FLAG),
    Row("mirror_direct", "mirrorDirect", FLAG),
    Row("allow_msg_ttl", "allowMsgTtl", FLAG),
    Row("subject_delete_marker_ttl", "subjectDeleteMarkerTtl", GO_DURATION),
    Row("allow_msg_counter", "allowMsgCounter", FLAG),
    Row("allow_atomic", "allowAtomicPublish", FLAG),
    Row("allow_msg_schedules", "allowMsgSchedules", FLAG),
    Row("persist_mode", "persistMode", TEXT),
    Row("consumer_limits.inactive_threshold", "consumerLimits.inactiveThreshold", GO_DURATION),
    Row("consumer_limits.max_ack_pending", "consumerLimits.maxAckPending", NUMBER),
    Row("metadata", "metadata", TEXT_MAP),
)
_KEY_VALUE = (
    Row("name", "bucket", TEXT),
    Row("description", "description", TEXT),
    Row("max_msgs_per_subject", "history", NUMBER, 1),
    Row("max_age", "ttl", GO_DURATION),
    Row("subject_delete_marker_ttl", "limitMarkerTtl", NUMBER),
    Row("num_replicas", "replicas", NUMBER),
    Row("storage", "storage", TEXT),
    Row("max_msg_size", "maxValueSize", NUMBER),
    Row("max_bytes", "maxBytes", NUMBER),
    Row("compression", "compression", Kind(lambda value: "s2" if value is True else "none")),
    Row("placement.cluster", "placement.cluster", TEXT),
    Row("placement.tags", "placement.tags", TEXTS),
    Row("republish.src", "republish.source", TEXT),
    Row("republish.dest", "republish.destination", TEXT),
    Row("mirror", "mirror", nested(_SOURCE)),
    Row("sources", "sources", several(nested(_SOURCE))),
)
_CONTEXT = {"context": "account", "domain": "jsDomain"}
"""Fields of a context, and of a `spec`."""
_NO_EXPIRY = "no `maxAge` (a year, if the controller runs with `--control-loop`)"
_DNS_NAME_MAX = 253


def resources(streams: Iterable[Placed], contexts: Contexts) -> list[dict[str, Any]]:
    """Return a `Stream` for each stream, in the same order; contexts become accounts and domains."""
    streams = list(streams)
    accounts = labels(streams, contexts, _dns_name)
    found: list[dict[str, Any]] = []
    names: set[str] = set()
    for stream in streams:
        names.add(name := unique(_dns_name(stream.name), names))
        connection = {"account": accounts.get(stream.place), "jsDomain": contexts.get(stream.place, {}).get("domain")}
        spec = {**spec_of(stream.config), **{field: text for field, text in connection.items() if text}}
        found.append({"apiVersion": API_VERSION, "kind": "Stream", "metadata": {"name": name}, "spec": spec})
    return found


def spec_of(config: StreamConfig) -> dict[str, Any]:
    """Return the `spec` of a stream."""
    return written(_STREAM, config)


def config_of(spec: Mapping[str, Any]) -> StreamConfig:
    """Return the stream that the controller creates for a `spec`. Raises UsageError."""
    return read(_STREAM, spec)


def warnings(streams: Iterable[Placed], contexts: Contexts) -> list[str]:
    """Return what the resources need of the cluster that they are applied to."""
    streams = list(streams)
    specs = [resource["spec"] for resource in resources(streams, contexts)]
    found = []
    if accounts := dict.fromkeys(spec["account"] for spec in specs if "account" in spec):
        found.append(f"The resources refer to `Account` resources that have to exist: {quoted(accounts)}")
    # Other mirrors are made direct by the server.
    direct = any("externalApiPrefix" in spec.get("mirror", {}) for spec in specs)
    if direct or any("jsDomain" in spec for spec in specs):
        found.append("The controller has to run with `--control-loop`, or it ignores `mirrorDirect` and `jsDomain`")
    return found


def _dns_name(name: str) -> str:
    """Return a name that Kubernetes accepts (RFC 1123)."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:_DNS_NAME_MAX].strip("-") or "stream"


# -- reading -----------------------------------------------------------------------------------------------


def read_resources(files: Iterable[SourceFile]) -> Found:
    """Read `Stream` and `KeyValue` resources, also in a `List`. Raises UsageError for what is not a resource."""
    found = Found()
    for file in files:
        for resource in _listed(file.data):
            if not isinstance(resource, Mapping) or not isinstance(resource.get("kind"), str):
                raise UsageError(f"{file.name} is not a Kubernetes resource", hint="A resource has a `kind`")
            _add(found, resource)
    return found


def _listed(data: Any) -> Sequence[Any]:
    if data is None:
        return ()
    items = data.get("items") if isinstance(data, Mapping) and str(data.get("kind", "")).endswith("List") else None
    return items if isinstance(items, list) else [data]


def _add(found: Found, resource: Mapping[str, Any]) -> None:
    kind, metadata, spec = resource["kind"], resource.get("metadata"), resource.get("spec")
    label = f"{kind} {metadata.get('name') if isinstance(metadata, Mapping) else ''}".strip()
    reader = _READERS.get(kind)
    if str(resource.get("apiVersion")) != API_VERSION or reader is None:
        found.leave_out(label, f"not a `Stream` or `KeyValue` of `{API_VERSION}`")
        return
    try:
        if not isinstance(spec, Mapping):
            raise UsageError("it has no `spec`")
        config, rows = reader(spec)
        config = checked(config)
        place = _place(found, spec)
    except UsageError as error:
        found.leave_out(label, error.message)
        return
    remarks = [f"`{name}`" for name in unknown(rows, spec, _CONTEXT.values()) if spec[name]]
    expires = [] if kind == "KeyValue" or spec.get("maxAge") else [_NO_EXPIRY]
    found.add(Placed(config, place), [*remarks, *expires])


def _stream(spec: Mapping[str, Any]) -> tuple[StreamConfig, Sequence[Row]]:
    return config_of(spec), _STREAM


def _key_value(spec: Mapping[str, Any]) -> tuple[StreamConfig, Sequence[Row]]:
    """Return the stream of a `KeyValue`, as nats.go creates it."""
    fields = read(_KEY_VALUE, spec)
    name, mirror, sources = fields.get("name", ""), fields.get("mirror"), fields.get("sources")
    config = BucketConfig.from_stream({"name": name, **fields}).to_stream()
    if mirror:
        del config["subjects"]
        config |= {"mirror": {**mirror, "name": _prefixed(mirror)}, "mirror_direct": True}
    elif sources:
        config["sources"] = [_whole(source, name) for source in sources]
    return config, _KEY_VALUE


_READERS = {"Stream": _stream, "KeyValue": _key_value}


def _prefixed(source: Mapping[str, Any]) -> str:
    return STREAM_PREFIX + str(source.get("name", "")).removeprefix(STREAM_PREFIX)


def _whole(source: Mapping[str, Any], target: str) -> dict[str, Any]:
    """Return a source with all keys of its bucket, whatever its transforms."""
    stream = _prefixed(source)
    bucket = stream.removeprefix(STREAM_PREFIX)
    if bucket == target and source.get("external"):
        return {**source, "name": stream}
    rule = {"src": f"{SUBJECT_PREFIX}{bucket}.>", "dest": f"{SUBJECT_PREFIX}{target}.>"}
    return {**source, "name": stream, "subject_transforms": [rule]}


def _place(found: Found, spec: Mapping[str, Any]) -> str:
    """Return the context for an account and a domain, and add it."""
    context = {ours: spec[theirs] for ours, theirs in _CONTEXT.items() if spec.get(theirs)}
    if not all(isinstance(text, str) for text in context.values()):
        raise UsageError("`account` and `jsDomain` must be text")
    if not context:
        return ""
    name = next((name for name, other in found.contexts.items() if other == context), None)
    if name is None:
        name = unique("-".join(context.values()), found.contexts)
        found.contexts[name] = context
    return name
