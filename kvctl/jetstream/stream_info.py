"""Stream information as servers give it, and as kvctl reads it. [pure]

Only the keys that kvctl reads are declared; servers send more.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

StreamConfig = dict[str, Any]
"""Configuration of a stream: the server's own JSON, with every field that it knows (`config_text.STREAM`)."""


class StreamState(TypedDict):
    """Messages of a stream. Times are RFC 3339; of an empty stream `first_seq` is `last_seq` + 1."""

    messages: int
    bytes: int
    first_seq: int
    first_ts: str
    last_seq: int
    last_ts: str
    num_subjects: NotRequired[int]
    num_deleted: NotRequired[int]
    """Sequences between the first and the last that hold no message."""
    consumer_count: int
    subjects: NotRequired[dict[str, int] | None]
    """Messages by subject, one page, only when a filter was sent."""


class Peer(TypedDict):
    """A server with a copy of a stream that does not lead it."""

    name: str
    current: NotRequired[bool]
    offline: NotRequired[bool]
    active: NotRequired[int]
    """Nanoseconds since the leader last heard of it."""
    lag: NotRequired[int]


class Cluster(TypedDict):
    """Servers of a stream."""

    name: NotRequired[str]
    leader: NotRequired[str]
    """Absent or empty while no server leads."""
    replicas: NotRequired[list[Peer] | None]


class SourceState(TypedDict, total=False):
    """State of a mirror or of one source; empty when it is not known. Servers leave out what they do not know yet."""

    name: str
    lag: int
    active: int
    """Nanoseconds since it last heard of its origin; -1: never."""
    seq: int
    error: dict[str, Any]
    external: dict[str, str] | None
    filter_subject: str
    subject_transforms: list[dict[str, str]] | None


class Alternate(TypedDict):
    """A stream that can answer for another, nearest first in the list."""

    name: str
    cluster: str
    domain: NotRequired[str]


class StreamInfo(TypedDict):
    """Answer to `STREAM.INFO`, `STREAM.CREATE` and `STREAM.UPDATE`, and an item of `STREAM.LIST`."""

    config: StreamConfig
    created: str
    """RFC 3339. Tells a stream from an earlier one of the same name."""
    state: StreamState
    cluster: NotRequired[Cluster | None]
    mirror: NotRequired[SourceState | None]
    sources: NotRequired[list[SourceState] | None]
    alternates: NotRequired[list[Alternate] | None]
    did_create: NotRequired[bool]
    """Only in the answer to a creation: false when it existed."""
    ts: NotRequired[str]
    """The server's time."""


UNREADABLE: StreamInfo = {
    "config": {}, "created": "",
    "state": {
        "messages": 0, "bytes": 0, "first_seq": 0, "first_ts": "", "last_seq": 0, "last_ts": "", "consumer_count": 0,
    },
}  # fmt: skip
"""Stands for a stream whose info cannot be read: without messages and with the default configuration."""
