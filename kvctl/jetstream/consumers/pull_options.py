"""Options of fetch, next and consume: ADR-37's defaults, and its constraints as usage errors. [pure]"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kvctl.errors import UsageError
from kvctl.units import format_duration

EXPIRES = timedelta(seconds=30)
MAX_MESSAGES = 500
PLENTY = 1_000_000
"""Number of messages in a pull by size: without a number it would get one (ADR-37)."""
HEARTBEAT_ABOVE = timedelta(seconds=30)
"""Duration above which a fetch has heartbeats by default."""
SHORTEST = timedelta(seconds=1)
HEARTBEATS = timedelta(milliseconds=500), timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Request to CONSUMER.MSG.NEXT; durations in seconds, 0 for none."""

    batch: int
    max_bytes: int = 0
    expires: float = 0
    heartbeat: float = 0
    no_wait: bool = False
    group: str = ""
    pin: str = ""
    """Pin id of this client, for a consumer pinned to one of its clients."""

    def body(self) -> bytes:
        """Return the request's JSON."""
        request: dict[str, Any] = {
            "batch": self.batch,
            "max_bytes": self.max_bytes,
            "expires": int(self.expires * 1e9),
            "idle_heartbeat": int(self.heartbeat * 1e9),
            "no_wait": self.no_wait,
            "group": self.group,
            "id": self.pin,
        }
        return json.dumps({name: value for name, value in request.items() if value}).encode()


@dataclass(frozen=True, slots=True)
class Event:
    """Event beside the messages. `severity` is `error` or `warning`; `code` is a status code, else 0."""

    severity: str
    text: str
    code: int = 0
    final: bool = False
    """True if it ends the iteration, which also raises it."""

    def __str__(self) -> str:
        return self.text


OnEvent = Callable[[Event], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Options of one pull. Raises UsageError for what ADR-37 forbids."""

    max_messages: int | None = None
    max_bytes: int | None = None
    expires: timedelta = EXPIRES
    idle_heartbeat: timedelta | None = None
    no_wait: bool = False
    """Take available messages without waiting."""
    group: str = ""
    """Priority group, for consumers that have some."""

    def __post_init__(self) -> None:
        if self.max_messages is None and self.max_bytes is None:
            raise UsageError("A fetch needs a limit: `max_messages`, `max_bytes`, or both")
        _check(self.max_messages, self.max_bytes, self.expires, self.idle_heartbeat)

    def pull(self, pin: str = "") -> Pull:
        """Build the request, with the pin id of this client for a pinned consumer."""
        heartbeat = self.idle_heartbeat
        if heartbeat is None:
            heartbeat = default_heartbeat(self.expires) if self.expires > HEARTBEAT_ABOVE else timedelta()
        return Pull(
            batch=self.max_messages or PLENTY,
            max_bytes=self.max_bytes or 0,
            expires=0 if self.no_wait else self.expires.total_seconds(),
            heartbeat=0 if self.no_wait else heartbeat.total_seconds(),
            no_wait=self.no_wait,
            group=self.group,
            pin=pin,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """Options of consuming: the amount in flight. Raises UsageError for what ADR-37 forbids."""

    max_messages: int | None = None
    """Size of the buffer; 500 messages without any limit."""
    max_bytes: int | None = None
    expires: timedelta = EXPIRES
    idle_heartbeat: timedelta | None = None
    """Half of `expires`, at most 30 s."""
    threshold_messages: int | None = None
    """Remainder of the buffer at which more is requested; by default half of it."""
    threshold_bytes: int | None = None
    count: int | None = None
    """End after this many messages, and never request more."""
    group: str = ""
    """Priority group, for consumers that have some."""

    def __post_init__(self) -> None:
        if self.max_messages is not None and self.max_bytes is not None:
            raise UsageError("`max_messages` and `max_bytes` cannot be combined")
        _check(self.max_messages, self.max_bytes, self.expires, self.idle_heartbeat)
        if self.expires < SHORTEST:
            raise UsageError(f"`expires` must be at least 1 second, not {format_duration(self.expires)}")
        if self.count is not None and self.count < 1:
            raise UsageError("`count` must be at least 1")
        _check_threshold("messages", self.threshold_messages, None if self.max_bytes else self.most)
        _check_threshold("bytes", self.threshold_bytes, self.max_bytes)

    @property
    def most(self) -> int:
        """Return the buffer in messages."""
        return self.max_messages or MAX_MESSAGES

    @property
    def heartbeat(self) -> timedelta:
        """Interval of the server's heartbeats."""
        return self.idle_heartbeat or default_heartbeat(self.expires)


def default_heartbeat(expires: timedelta) -> timedelta:
    """Return half of a pull's lifetime, within the bounds."""
    return min(max(expires / 2, HEARTBEATS[0]), HEARTBEATS[1])


def _check(messages: int | None, size: int | None, expires: timedelta, heartbeat: timedelta | None) -> None:
    for name, value in (("max_messages", messages), ("max_bytes", size)):
        if value is not None and value < 1:
            raise UsageError(f"`{name}` must be at least 1")
    if expires <= timedelta():
        raise UsageError(f"`expires` must be greater than 0, not {format_duration(expires)}")
    if heartbeat is None:
        return
    if not HEARTBEATS[0] <= heartbeat <= HEARTBEATS[1]:
        raise UsageError(f"`idle_heartbeat` must be 500ms to 30s, not {format_duration(heartbeat)}")
    if heartbeat > expires / 2:
        raise UsageError(
            f"`idle_heartbeat` must be at most half of `expires` ({format_duration(expires / 2)}): servers refuse more"
        )


def _check_threshold(what: str, threshold: int | None, limit: int | None) -> None:
    if threshold is None:
        return
    if limit is None:
        raise UsageError(f"`threshold_{what}` needs `max_{what}`")
    if not 0 <= threshold <= limit:
        raise UsageError(f"`threshold_{what}` must be 0 to `max_{what}` ({limit}), not {threshold}")
