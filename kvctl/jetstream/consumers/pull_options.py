"""What fetch, next and consume may be asked for: ADR-37's defaults, and its constraints as usage errors. [pure]"""

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
"""Messages that a pull by size asks for: without a number it would get one (ADR-37)."""
LONG = timedelta(seconds=30)
"""A fetch that may take longer has heartbeats without being asked."""
SHORTEST = timedelta(seconds=1)
HEARTBEATS = timedelta(milliseconds=500), timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """One request to CONSUMER.MSG.NEXT; seconds, 0 for none."""

    batch: int
    max_bytes: int = 0
    expires: float = 0
    heartbeat: float = 0
    no_wait: bool = False
    group: str = ""
    pin: str = ""
    """Who we are to a consumer that is pinned to one of its clients."""

    def body(self) -> bytes:
        """The request's JSON."""
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
    """What happens beside the messages. `severity` is `error` or `warning`; `code` that of a status, else 0."""

    severity: str
    text: str
    code: int = 0
    final: bool = False
    """Whether it ends the iteration, which raises it too."""

    def __str__(self) -> str:
        return self.text


OnEvent = Callable[[Event], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """One pull. Raises UsageError for what ADR-37 forbids."""

    max_messages: int | None = None
    max_bytes: int | None = None
    expires: timedelta = EXPIRES
    idle_heartbeat: timedelta | None = None
    no_wait: bool = False
    """Take what is there; wait for nothing."""
    group: str = ""
    """The priority group, for consumers that have some."""

    def __post_init__(self) -> None:
        if self.max_messages is None and self.max_bytes is None:
            raise UsageError("A fetch needs a limit: `max_messages`, `max_bytes`, or both")
        _check(self.max_messages, self.max_bytes, self.expires, self.idle_heartbeat)

    def pull(self, pin: str = "") -> Pull:
        """The request, with who we are to a consumer that is pinned to one of its clients."""
        heartbeat = self.idle_heartbeat
        if heartbeat is None:
            heartbeat = default_heartbeat(self.expires) if self.expires > LONG else timedelta()
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
    """How much to keep under way while consuming. Raises UsageError for what ADR-37 forbids."""

    max_messages: int | None = None
    """The buffer; without any limit 500 messages."""
    max_bytes: int | None = None
    expires: timedelta = EXPIRES
    idle_heartbeat: timedelta | None = None
    """Half of `expires`, 30 s at most."""
    threshold_messages: int | None = None
    """What is left of the buffer when more is asked for; half of it."""
    threshold_bytes: int | None = None
    count: int | None = None
    """End after so many messages, and never ask for more."""
    group: str = ""
    """The priority group, for consumers that have some."""

    def __post_init__(self) -> None:
        if self.max_messages is not None and self.max_bytes is not None:
            raise UsageError("`max_messages` and `max_bytes` exclude each other")
        _check(self.max_messages, self.max_bytes, self.expires, self.idle_heartbeat)
        if self.expires < SHORTEST:
            raise UsageError(f"`expires` is one second at least, not {format_duration(self.expires)}")
        if self.count is not None and self.count < 1:
            raise UsageError("`count` is one at least")
        _check_threshold("messages", self.threshold_messages, None if self.max_bytes else self.most)
        _check_threshold("bytes", self.threshold_bytes, self.max_bytes)

    @property
    def most(self) -> int:
        """The buffer in messages."""
        return self.max_messages or MAX_MESSAGES

    @property
    def heartbeat(self) -> timedelta:
        """How often the server says that it is there."""
        return self.idle_heartbeat or default_heartbeat(self.expires)


def default_heartbeat(expires: timedelta) -> timedelta:
    """Half of what a pull lives, within the bounds."""
    return min(max(expires / 2, HEARTBEATS[0]), HEARTBEATS[1])


def _check(messages: int | None, size: int | None, expires: timedelta, heartbeat: timedelta | None) -> None:
    for name, value in (("max_messages", messages), ("max_bytes", size)):
        if value is not None and value < 1:
            raise UsageError(f"`{name}` is one at least")
    if expires <= timedelta():
        raise UsageError(f"`expires` must be greater than 0, not {format_duration(expires)}")
    if heartbeat is None:
        return
    if not HEARTBEATS[0] <= heartbeat <= HEARTBEATS[1]:
        raise UsageError(f"`idle_heartbeat` is 500ms to 30s, not {format_duration(heartbeat)}")
    if heartbeat > expires / 2:
        raise UsageError(
            f"`idle_heartbeat` is half of `expires` at most, {format_duration(expires / 2)}: servers refuse more"
        )


def _check_threshold(what: str, threshold: int | None, limit: int | None) -> None:
    if threshold is None:
        return
    if limit is None:
        raise UsageError(f"`threshold_{what}` needs `max_{what}`")
    if not 0 <= threshold <= limit:
        raise UsageError(f"`threshold_{what}` is 0 to `max_{what}`, which is {limit}, not {threshold}")
