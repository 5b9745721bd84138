"""Pulls of one consumer over one subscription, their options and their statuses (ADR-37).

Fetch, consume and the ordered consumer build on this: each decides when to pull and what a status means for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple, Self

from kvctl.connection import Connection, Subscription, permission_denied
from kvctl.deferred import pattern
from kvctl.errors import ConsumerNotFound, KvctlError, ServerError, UsageError
from kvctl.jetstream.answer import answer_to
from kvctl.jetstream.api import SINGLE_ANSWERS, Api
from kvctl.jetstream.consumers.message import DELIVERY, MessageIteration
from kvctl.jetstream.request_window import LONGEST_NUMBER
from kvctl.tokens import check_name
from kvctl.units import format_duration
from kvctl.wire import RawFrame, header_value, status

_REMEMBERED = 16
EXPIRES = timedelta(seconds=30)
MAX_MESSAGES = 500
PLENTY = 1_000_000
"""Number of messages in a pull by size: without a number it would get one (ADR-37)."""
HEARTBEAT_ABOVE = timedelta(seconds=30)
"""Duration above which a fetch has heartbeats by default."""
SHORTEST = timedelta(seconds=1)
HEARTBEATS = timedelta(milliseconds=500), timedelta(seconds=30)
_LIMIT = pattern(r"Exceeded MaxRequest(Batch|Expires|MaxBytes) of (\S+)")


class Puller:
    """Sender of one consumer's pulls and receiver of its messages; an async context manager."""

    def __init__(self, connection: Connection, subject: str) -> None:
        self.subject = subject
        self.messages = 0
        """Amount requested, and neither counted off nor returned by the server."""
        self.bytes = 0
        self.asked = self.answers = 0
        """Number of pulls sent, and of answers: messages, statuses and heartbeats."""
        self.heard = time.monotonic()
        """Time of the last frame, or of the first pull."""
        self._connection = connection
        self._sent: list[Pull] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Subscribe. Raises NoServer."""
        self._subscription: Subscription = await self._stack.enter_async_context(self._connection.subscribe())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def ask(self, pull: Pull) -> None:
        """Send a pull and count it. Raises NoServer."""
        self._connection.publish(self.subject, pull.body(), reply=self._subscription.subject)
        if not self.messages:
            self.heard = time.monotonic()
        self.asked += 1
        self.messages += pull.batch
        self.bytes += pull.max_bytes
        self._sent.append(pull)
        del self._sent[:-_REMEMBERED]

    async def receive(self, timeout: float) -> list[RawFrame]:
        """Return messages and statuses that have arrived; none when the time is up or the connection changes.

        Raises PermissionDenied.
        """
        frames = await self._subscription.inbox.take(timeout)
        if self._subscription.denials:
            self._check_denials()
        if frames:
            self.heard = time.monotonic()
            self.answers += len(frames)
        return frames

    @property
    def suspicion(self) -> str | None:
        """Hint for pulls that had no more than one answer each, None for others."""
        if not 0 < self.answers <= self.asked:
            return None
        return f"If JetStream is imported from another account: {SINGLE_ANSWERS[:1].lower()}{SINGLE_ANSWERS[1:]}"

    def _check_denials(self) -> None:
        """Raise PermissionDenied when pulls may not be sent, or delivered messages may not be acknowledged."""
        if denied := self._subscription.denied(self.subject):
            raise denied
        name = self.subject.split(".MSG.NEXT.")[-1]
        for kind, about in self._subscription.denials:
            if kind == "publish" and about.lower().startswith("$js.ack.") and f".{name}.".lower() in about.lower():
                raise permission_denied("publish", f"$JS.ACK.{name}.>")

    def count_off(self, messages: int, size: int = 0) -> None:
        """Count messages as received, or as processed: the caller decides."""
        self.messages = max(self.messages - messages, 0)
        self.bytes = max(self.bytes - size, 0)

    def settle(self, header: bytes) -> PullStatus:
        """Parse a status and subtract what it ends from the count."""
        found = read_status(header)
        if found.messages is not None:
            self.count_off(found.messages, found.bytes)
        elif found.meaning in (Meaning.REFUSED, Meaning.BAD) or found.code in (404, 503):
            # It does not name the pull: refusals come immediately, so it is the newest.
            if self._sent:
                newest = self._sent.pop()
                self.count_off(newest.batch, newest.max_bytes)
        elif found.meaning is not Meaning.ALIVE:
            self.forget()
        return found

    def wake(self) -> None:
        """Make a waiting `receive` return."""
        self._subscription.inbox.wake()

    def forget(self) -> None:
        """Count no pull as outstanding any more."""
        self.messages = self.bytes = 0
        self._sent.clear()

    async def stop(self) -> None:
        """Stop pulling; messages already sent by the server are received before `receive` returns empty.

        Raises RequestTimeout, ConnectionLost, NoServer.
        """
        await self._connection.unsubscribe(self._subscription)


class PullIteration(MessageIteration):
    """Base of fetch and consume: messages of one consumer from a puller."""

    def __init__(self, api: Api, stream: str, consumer: str, on_event: OnEvent | None) -> None:
        self.stream = check_name(stream, "stream")
        self.consumer = check_name(consumer, "consumer")
        self._api = api
        self._connection = api.connection
        self._puller = Puller(api.connection, f"{api.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}")
        self._on_event = on_event
        self._failure: KvctlError | None = None

    async def __aexit__(self, *exit: object) -> None:
        await self._puller.__aexit__(*exit)

    def _report(self, severity: str, text: str, code: int = 0, *, final: bool = False) -> None:
        if self._on_event is not None:
            self._on_event(Event(severity, text, code, final))


def gone(stream: str, consumer: str, status: PullStatus) -> KvctlError:
    """Build the error for a consumer that does not answer pulls any more: deleted, or a push consumer."""
    if status.text.startswith("Consumer Deleted"):
        return ConsumerNotFound(f"Consumer `{consumer}` of stream `{stream}` was deleted")
    return ServerError(f"Consumer `{consumer}` is a push consumer and cannot be pulled", code=status.code)


def size_of(frame: RawFrame) -> int:
    """Return the bytes of a message as servers count them: subject, reply, header and payload."""
    return len(frame[0]) + len(frame[1]) + len(frame[2]) + len(frame[3])


# -- options -------------------------------------------------------------------------------------------------


class Pull(NamedTuple):
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


class Event(NamedTuple):
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
            raise UsageError("A fetch needs a maximum of messages, of bytes, or both")
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
            raise UsageError("A maximum of messages and one of bytes cannot be combined")
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


# -- statuses ------------------------------------------------------------------------------------------------


class Meaning(Enum):
    """Meaning of a status for its pull."""

    ALIVE = "alive"
    """Idle heartbeat: nothing has ended."""
    ENDED = "ended"
    """Ordinary end of the pull: not reported."""
    REFUSED = "refused"
    """The pull exceeds a limit of the consumer: a warning."""
    BAD = "bad"
    """The server does not understand the pull: an error."""
    GONE = "gone"
    """No pull will be answered any more: an error that ends consuming."""
    UNPINNED = "unpinned"
    """The consumer is now pinned to another client: not reported, pull again without the pin."""
    LOST = "lost"
    """The server that kept the pulls dropped them: a warning, and a reason to pull again."""


class PullStatus(NamedTuple):
    """Status of a pull; `messages` and `bytes` are the remainder of the pull, None where not reported."""

    code: int
    text: str
    meaning: Meaning
    messages: int | None
    bytes: int

    @property
    def exceeded(self) -> tuple[str, str]:
        """Limit that the pull exceeded, `Batch`, `Expires` or `MaxBytes`, and its value; empty for none."""
        named = _LIMIT.match(self.text)
        return (named[1], named[2]) if named else ("", "")

    def most(self, what: str) -> int:
        """Return the limit of that name as a number; 0 if the pull did not exceed it."""
        name, text = self.exceeded
        return int(text) if name == what and text.isdecimal() and len(text) <= LONGEST_NUMBER else 0

    def __str__(self) -> str:
        return f"{self.text} ({self.code})" if self.text else _WORDS.get(self.code, f"status {self.code}")


def read_status(header: bytes) -> PullStatus:
    """Parse the status in a header block."""
    code, text = status(header)
    left = header_value(header, b"Nats-Pending-Messages")
    size = header_value(header, b"Nats-Pending-Bytes")
    with answer_to(DELIVERY):
        return PullStatus(code, text, meaning_of(code, text), None if left is None else int(left), int(size or 0))


def meaning_of(code: int, text: str) -> Meaning:
    """Return the meaning of a code and its text: many of 409 differ by their text alone."""
    if code == 409:
        return next((meaning for begin, meaning in _CONFLICTS.items() if text.startswith(begin)), Meaning.LOST)
    return _CODES.get(code, Meaning.LOST)


_CODES = {100: Meaning.ALIVE, 400: Meaning.BAD, 404: Meaning.ENDED, 408: Meaning.ENDED, 423: Meaning.UNPINNED}
_CONFLICTS = {
    "Message Size Exceeds": Meaning.ENDED,
    "Batch Completed": Meaning.ENDED,
    "Exceeded": Meaning.REFUSED,
    "Consumer Deleted": Meaning.GONE,
    "Consumer is push": Meaning.GONE,
}
_WORDS = {503: "nobody answers (503)"}
