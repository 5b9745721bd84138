"""Configuration and status of a bucket, and their mapping to a stream configuration (ADR-8). [pure]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Any

from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv.config_edit import (
    DUPLICATE_WINDOW,
    FIELDS,
    Republish,
    edited,
)
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, check_bucket
from kvctl.kv.stream_kind import Kind, bucket_name, kind_of, own_metadata
from kvctl.units import duration_from_ns, duration_ns, parse_time

__all__ = ["BucketConfig", "BucketStatus", "Kind", "Republish", "StreamConfig"]

_NOTHING = timedelta()


@dataclass(frozen=True, slots=True)
class BucketConfig:
    """Configuration of a bucket (ADR-8); omitted fields have ADR-8's defaults."""

    name: str
    _: KW_ONLY
    description: str = ""
    history: int = 1
    """Revisions kept of each key, 1 to 64."""
    ttl: timedelta = _NOTHING
    """Age at which entries expire; zero keeps them."""
    marker_ttl: timedelta = _NOTHING
    """Lifetime of the markers of expired keys; setting it also allows per-key TTLs. Zero turns both off."""
    replicas: int = 1
    storage: str = "file"
    """`file` or `memory`."""
    max_value_size: int | None = None
    """Maximum size of a value in bytes, headers included."""
    max_bytes: int | None = None
    """Maximum size of the bucket in bytes."""
    compress: bool = False
    cluster: str | None = None
    tags: tuple[str, ...] = ()
    republish: Republish | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    atomic: bool = False
    """Allow atomic batches, which write several keys at once."""

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
        placement, republish = stream.get("placement") or {}, stream.get("republish")
        return cls(
            stream["name"].removeprefix(STREAM_PREFIX),
            description=stream.get("description", ""),
            history=stream.get("max_msgs_per_subject", 0),
            ttl=duration_from_ns(stream.get("max_age", 0)),
            marker_ttl=duration_from_ns(stream.get("subject_delete_marker_ttl", 0)),
            replicas=stream.get("num_replicas", 1),
            storage=stream.get("storage", "file"),
            max_value_size=_limit(stream.get("max_msg_size")),
            max_bytes=_limit(stream.get("max_bytes")),
            compress=stream.get("compression", "none") != "none",
            cluster=placement.get("cluster") or None,
            tags=tuple(placement.get("tags") or ()),
            republish=Republish.from_stream(republish) if republish else None,
            metadata=own_metadata(stream),
            atomic=bool(stream.get("allow_atomic")),
        )

    def settings(self) -> dict[str, Any]:
        """Return every field except the name."""
        return {name: getattr(self, name) for name in FIELDS}


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


def _limit(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None
