"""Configuration and status of a bucket, and their mapping to a stream configuration (ADR-8). [pure]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, field
from datetime import timedelta
from typing import Any

from kvctl.dataclass import dataclass
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv.config_edit import DUPLICATE_WINDOW, edited
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, check_bucket
from kvctl.kv.settings import FIELDS, SETTINGS, BucketSettings, Republish
from kvctl.kv.stream_kind import Kind, bucket_name, kind_of
from kvctl.units import duration_from_ns, duration_ns, parse_time

__all__ = ["BucketConfig", "BucketStatus", "Kind", "Republish", "StreamConfig"]

_NOTHING = timedelta()


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
