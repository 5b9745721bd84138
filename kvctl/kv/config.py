"""Configuration and status of a bucket, and their mapping to a stream configuration (ADR-8). [pure]"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Any

from kvctl.errors import UsageError
from kvctl.jetstream import config_diff
from kvctl.jetstream.config_diff import DEFAULTS, WHOLE, Difference
from kvctl.jetstream.config_text import FLAG, STREAM, TEXT
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, check_bucket
from kvctl.kv.settings import FIELDS, SETTINGS, BucketSettings, Republish
from kvctl.kv.stream_kind import FIRST_ENTRY, TOPOLOGY, Kind, bucket_name, kind_of, reserved
from kvctl.units import duration_from_ns, duration_ns, parse_time

__all__ = ["BucketConfig", "BucketStatus", "Kind", "Republish", "StreamConfig"]

_NOTHING = timedelta()
_WHOLE = {"mirror": WHOLE, "sources": WHOLE, "republish": {"route": TEXT, "headers_only": FLAG}}
_SCHEMA = {**STREAM, **_WHOLE}
_NAMES = {row.stream_field: row.difference or row.name for row in SETTINGS.values()} | {"republish.route": "republish"}
DUPLICATE_WINDOW = timedelta(minutes=2)
"""ADR-8: a shorter ttl is also the window."""
CLEARABLE = (*(row.name for row in SETTINGS.values() if row.clearable), "metadata.KEY", "placement")
"""Fields that can be cleared; `placement` is cluster and tags together."""


@dataclass(frozen=True, slots=True)
class BucketConfig(BucketSettings):
    """Configuration of a bucket (ADR-8); omitted fields have ADR-8's defaults."""

    name: str
    _: KW_ONLY
    history: int = 1
    """Revisions kept of each key, 1 to 64."""
    ttl: timedelta = _NOTHING
    """Age at which entries expire; zero keeps them."""
    marker_ttl: timedelta = _NOTHING
    """Lifetime of the markers of expired keys; setting it also allows per-key TTLs. Zero turns both off."""

    def to_stream(self) -> StreamConfig:
        """Return the stream configuration, field by field as in ADR-8. Raises UsageError for values out of range."""
        check_bucket(self.name)
        stream: StreamConfig = {
            "name": STREAM_PREFIX + self.name,
            "subjects": [f"{SUBJECT_PREFIX}{self.name}.>"],
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
            "duplicate_window": duration_ns(DUPLICATE_WINDOW),
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
        }
        return edited(stream, self.settings())

    @classmethod
    def from_stream(cls, stream: StreamConfig) -> BucketConfig:
        """Return the bucket configuration of a stream, as far as BucketConfig covers it."""
        found = {name: SETTINGS[name].from_stream(stream) for name in FIELDS}
        return cls(stream["name"].removeprefix(STREAM_PREFIX), **found)

    def settings(self) -> dict[str, Any]:
        """Return every field except the name."""
        return {name: getattr(self, name) for name in FIELDS}


def differences(before: StreamConfig, after: StreamConfig) -> list[Difference]:
    """Return the fields that differ, in the terms of a bucket; the metadata of server and topology is ignored."""
    first, second = _comparable(before), _comparable(after)
    in_order = {name: _SCHEMA.get(name, WHOLE) for name in (*DEFAULTS, *first, *second)}
    found = config_diff.differences(first, second, in_order)
    return [item._replace(field=_NAMES.get(item.field, item.field)) for item in found]


def _comparable(stream: StreamConfig) -> StreamConfig:
    metadata = {name: text for name, text in (stream.get("metadata") or {}).items() if name != TOPOLOGY}
    changed: StreamConfig = {"metadata": metadata}
    if mirror := stream.get("mirror"):  # mirrors start at the first entry by default, sources do not
        start = mirror.get("opt_start_seq")
        changed["mirror"] = {**mirror, "opt_start_seq": None if start == FIRST_ENTRY else start}
    if route := stream.get("republish"):
        others = {name: part for name, part in route.items() if name not in ("src", "dest")}
        changed["republish"] = {"route": f"{route.get('src') or '>'}={route.get('dest', '')}"} | others
    return stream | changed


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """Status of a bucket (ADR-8), with further facts from the server. List its keys with `Bucket.keys`."""

    bucket: str
    stream: str
    kind: Kind
    values: int
    """Number of messages, history and deletions included."""
    history: int
    ttl: timedelta
    is_compressed: bool
    bytes: int
    last_revision: int
    created_ns: int
    replicas: int
    config: StreamConfig = field(repr=False)
    info: StreamInfo = field(repr=False)
    """The server's complete answer: cluster, mirror, sources, alternates."""
    backing_store: str = "JetStream"

    @classmethod
    def from_info(cls, info: StreamInfo, others: Mapping[str, StreamConfig] | None = None) -> BucketStatus:
        """Build the status from a stream's info; `others` are the streams in view, to follow mirrors of mirrors."""
        config, state = info["config"], info["state"]
        kind = kind_of(config, others) or Kind.STREAM
        return cls(
            bucket=bucket_name(config, kind),
            stream=config["name"],
            kind=kind,
            values=state["messages"],
            history=config.get("max_msgs_per_subject", 0),
            ttl=duration_from_ns(config.get("max_age", 0)),
            is_compressed=config.get("compression", "none") != "none",
            bytes=state["bytes"],
            last_revision=state["last_seq"],
            created_ns=parse_time(info["created"]),
            replicas=config.get("num_replicas", 1),
            config=config,
            info=info,
        )


def edited(stream: StreamConfig, changes: Mapping[str, Any], clear: Iterable[str] = ()) -> StreamConfig:
    """Return the stream configuration with fields of BucketConfig changed and everything else kept.

    `republish_headers_only` changes that switch alone. Metadata is merged. `clear` resets fields to their defaults
    (CLEARABLE). Only duplicate_window follows a ttl, as required by ADR-8. Raises UsageError for unknown fields and
    invalid values.
    """
    result: StreamConfig = json.loads(json.dumps(stream))
    for name in clear:
        _clear(result, name)
    for name, value in changes.items():
        if name not in SETTINGS:
            raise UsageError(f"`{name}` is not a field of a bucket")
        SETTINGS[name].to_stream(result, value)
    _tie_duplicate_window(result, stream)
    return result


def _clear(stream: StreamConfig, text: str) -> None:
    name = text.replace("-", "_")
    if name == "metadata":
        kept = {key: value for key, value in (stream.pop("metadata", None) or {}).items() if reserved(key)}
        stream.update({"metadata": kept} if kept else {})
    elif name.startswith("metadata."):
        _clear_metadata(stream, text.partition(".")[2])
    elif name == "placement":
        stream.pop("placement", None)
    elif name in CLEARABLE:
        SETTINGS[name].to_stream(stream, FIELDS[name])
    else:
        known = ", ".join(f"`{field.replace('_', '-')}`" for field in sorted(CLEARABLE))
        raise UsageError(f"`{text}` is not a field that can be cleared", hint=f"Use one of {known}")


def _clear_metadata(stream: StreamConfig, key: str) -> None:
    metadata = stream.get("metadata") or {}
    if reserved(key) or key not in metadata:
        raise UsageError(f"Metadata `{key}` is not set")
    del metadata[key]


def _tie_duplicate_window(stream: StreamConfig, before: StreamConfig) -> None:
    window, age = stream.get("duplicate_window", 0), stream.get("max_age", 0)
    if not window or age == before.get("max_age", 0):
        return  # an aggregate has no window, and fields that were not requested do not change
    longest = duration_ns(DUPLICATE_WINDOW)
    if 0 < age < longest:
        stream["duplicate_window"] = age
    elif window == before.get("max_age", 0):
        stream["duplicate_window"] = longest
