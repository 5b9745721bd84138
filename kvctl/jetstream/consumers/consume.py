"""Consume: endless messages from one consumer, across failures of servers and connections (ADR-37)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Self

from kvctl.errors import (
    ConnectionLost,
    ConsumerNotFound,
    KvctlError,
    NoServer,
    ServerError,
    StreamNotFound,
    UnreachableError,
    UsageError,
)
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.message import Message
from kvctl.jetstream.consumers.pull import (
    PLENTY,
    SHORTEST,
    ConsumeOptions,
    Meaning,
    OnEvent,
    Pull,
    PullIteration,
    PullStatus,
    default_heartbeat,
    gone,
    size_of,
)
from kvctl.units import parse_duration
from kvctl.wire import RawFrame, header_value

REFUSALS = 12
"""Refused pulls in a row (35 s) before a warning is repeated, or a message larger than the buffer ends consuming."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
CHECK = 2.0
"""Seconds to check that the consumer exists; without an answer it is checked again later."""
_GRACE = 0.25
"""Seconds for a busy program to read messages that have already arrived."""


class Consumption(PullIteration):
    """Consumption of one consumer's messages: an async context manager, and an iterator.

    A message counts as processed when the next one is requested. Raises ConsumerNotFound when the consumer or its
    stream is deleted, PermissionDenied when pulls are not allowed, ServerError when it is a push consumer and for a
    message larger than `max_bytes`. Everything else is recovered from, however long that takes (ADR-37), and reported
    to `on_event`.
    """

    def __init__(
        self, api: Api, stream: str, consumer: str, options: ConsumeOptions, on_event: OnEvent | None = None
    ) -> None:
        super().__init__(api, stream, consumer, on_event)
        self._left = options.count
        self._grouped = bool(options.group)
        self._buffer = Buffer(options)
        self._epoch = api.connection.epoch
        self._stopped = self._draining = self._drained = False
        self._ready: deque[RawFrame] = deque()
        self._in_hand: tuple[RawFrame, ...] = ()
        self._doubtful = False
        """True if the consumer may have been deleted."""
        self._refusals = 0
        self._not_before = 0.0
        self._reported = ""
        self._pin = ""

    async def __aenter__(self) -> Self:
        """Subscribe. Raises NoServer."""
        await self._puller.__aenter__()
        self._epoch = self._connection.epoch
        self._opened = True
        return self

    async def __aexit__(self, *exit: object) -> None:
        self._stopped = True
        await super().__aexit__(*exit)

    async def _one_by_one(self) -> AsyncIterator[Message]:
        connection, puller, buffer = self._connection, self._puller, self._buffer
        while not self._stopped:
            self._count_off()
            if puller.messages <= buffer.low or puller.bytes <= buffer.low_bytes:
                self._refill()
            if not self._ready:
                self._ready.extend(await self._receive())
                if not self._ready:
                    return
            frame = self._ready.popleft()
            self._in_hand = (frame,)
            yield Message(frame, connection)

    async def batches(self) -> AsyncGenerator[list[Message], None]:
        """Yield messages in batches, as they arrive."""
        connection = self._connection
        while not self._stopped:
            self._count_off()
            frames = tuple(self._ready) or tuple(await self._receive())
            self._ready.clear()
            if not frames:
                return
            self._in_hand = frames
            yield [Message(frame, connection) for frame in frames]

    def stop(self) -> None:
        """End the iteration immediately. Unacknowledged messages are redelivered after the consumer's ack wait."""
        self._stopped = True
        self._puller.wake()

    async def drain(self) -> None:
        """Request nothing more, and end the iteration after the messages already delivered."""
        self._draining = True
        with suppress(UnreachableError):
            await self._puller.stop()
        self._drained = True
        self._puller.wake()

    def _count_off(self) -> None:
        """Count the messages handed out last as processed."""
        for frame in self._in_hand:
            self._puller.count_off(1, size_of(frame))
        self._in_hand = ()

    # -- one round -----------------------------------------------------------------------------------------

    async def _receive(self) -> list[RawFrame]:
        """Return the next messages, at least one; none at the end."""
        while not (self._stopped or self._left == 0):
            self._refill()
            drained = self._drained
            frames = await self._puller.receive(self._wait())
            messages = [frame for frame in frames if frame[1]]
            if len(messages) != len(frames):
                for frame in frames:
                    if not frame[1]:
                        self._heed(self._puller.settle(frame[2]))
            if messages:
                return self._taken(messages)
            if self._failure is not None:
                raise self._failure
            if drained and not frames:
                return []
            if not self._draining:
                await self._mend()
        return []

    def _taken(self, messages: list[RawFrame]) -> list[RawFrame]:
        self._recovered()
        if self._grouped:
            self._pin = (header_value(messages[-1][2], b"Nats-Pin-Id") or b"").decode() or self._pin
        if self._left is not None:
            messages = messages[: self._left]
            self._left -= len(messages)
        return messages

    def _refill(self) -> None:
        """Send a pull if too little is in flight."""
        puller = self._puller
        pull = self._buffer.next_pull(puller.messages, puller.bytes, self._left, self._pin)
        if pull is None or self._draining or self._doubtful or time.monotonic() < self._not_before:
            return
        with suppress(NoServer):  # `_mend` waits for the connection
            puller.ask(pull)
            self._buffer.cautious = False

    def _wait(self) -> float:
        """Return the seconds until something is due even if nothing arrives."""
        if self._drained:
            return 0
        if self._doubtful:
            return 0.001
        now = time.monotonic()
        if self._not_before > now:
            return self._not_before - now
        return max(self._puller.heard + 2 * self._buffer.heartbeat - now, _GRACE)

    # -- statuses ------------------------------------------------------------------------------------------

    def _heed(self, status: PullStatus) -> None:
        if status.meaning is Meaning.ALIVE:
            self._recovered()
        elif status.meaning is Meaning.ENDED:
            self._ended(status)
        elif status.meaning is Meaning.GONE:
            self._report("error", str(status), status.code, final=True)
            self._failure = gone(self.stream, self.consumer, status)
        elif status.meaning is Meaning.LOST:
            self._report("warning", f"The server ended the pull: {status}", status.code)
            self._doubtful = True
            self._pin = ""
            if status.code == 503:
                self._refused()
        elif status.meaning is Meaning.UNPINNED:
            self._pin = ""
        else:
            bad = status.meaning is Meaning.BAD
            self._report("error" if bad else "warning", f"The server refused a pull: {status}", status.code)
            if bad or not self._buffer.adapt(status):
                self._refused()

    def _ended(self, status: PullStatus) -> None:
        if not status.text.startswith("Message Size Exceeds"):
            self._recovered()
            return
        self._buffer.cautious = True
        if self._buffer.never_fits(status):
            self._report("warning", f"The next message is larger than `max_bytes` ({status.bytes})", status.code)
            self._refused()
            if self._refusals >= REFUSALS:
                self._failure = ServerError(
                    f"The server keeps refusing pulls of consumer `{self.consumer}`: {status}", code=status.code
                )

    def _refused(self) -> None:
        """Pull again after a growing pause, and repeat the warning from time to time."""
        self._refusals += 1
        self._not_before = time.monotonic() + min(FIRST_PAUSE * 2 ** min(self._refusals - 1, 16), LONGEST_PAUSE)
        if self._refusals % REFUSALS == 0:
            self._reported = ""

    def _recovered(self) -> None:
        self._refusals, self._not_before, self._reported = 0, 0.0, ""

    def _report(self, severity: str, text: str, code: int = 0, *, final: bool = False) -> None:
        """Report an event once, however often it happens in a row."""
        if text != self._reported:
            self._reported = text
            super()._report(severity, text, code, final=final)

    # -- disturbances --------------------------------------------------------------------------------------

    async def _mend(self) -> None:
        """Handle a lost connection, a possibly deleted consumer, and missed heartbeats."""
        if self._epoch != self._connection.epoch or not self._connection.online:
            await self._reconnect()
        elif self._doubtful:
            await self._check()
        elif self._puller.messages and time.monotonic() - self._puller.heard >= 2 * self._buffer.heartbeat:
            self._reported = ""
            hint = self._puller.suspicion
            text = f"Consumer `{self.consumer}` missed two heartbeats; pulling again"
            self._report("warning", f"{text}. {hint}" if hint else text)
            self._puller.forget()
            self._doubtful = True

    async def _reconnect(self) -> None:
        """Wait for the connection, however long it takes; heartbeats do not count as missed until then."""
        self._report("warning", "The connection to the server was lost; consuming continues when it is back")
        while not self._connection.online:
            if self._stopped or self._draining:
                return
            try:
                await self._connection.wait_online(1)
            except NoServer:
                if self._connection.closed:
                    raise
        self._epoch = self._connection.epoch
        self._puller.forget()
        self._pin = ""
        self._recovered()
        self._doubtful = True

    async def _check(self) -> None:
        """Check that the consumer exists: only a definite no ends consuming, not a denial or silence."""
        try:
            await admin.info(self._api, self.stream, self.consumer, timeout=min(CHECK, self._connection.timeout))
        except (ConsumerNotFound, StreamNotFound) as error:
            self._report("error", error.message, final=True)
            raise
        except ConnectionLost:
            return  # the next round waits for it
        except KvctlError:
            pass  # the next pull shows it
        self._doubtful = False


class Buffer:
    """Buffer of a consume, by number of messages or by their size: when to pull, and how much. [pure]"""

    def __init__(self, options: ConsumeOptions) -> None:
        self.heartbeat = options.heartbeat.total_seconds()
        self.cautious = False
        """True if the last pull was too small for the next message: then only an empty buffer pulls again, for all."""
        self._expires = options.expires
        self._messages = options.most
        self._batch = PLENTY if options.max_bytes else options.most
        """Maximum of one pull."""
        self._bytes = options.max_bytes or 0
        self.low = -1 if self._bytes else _half(options.threshold_messages, self._messages)
        """Number of messages left at which more are requested; none if limited by size."""
        self.low_bytes = _half(options.threshold_bytes, self._bytes) if self._bytes else -1
        self._group = options.group

    def next_pull(self, messages: int, size: int, left: int | None = None, pin: str = "") -> Pull | None:
        """Return the next pull in addition to the pending ones; None while they suffice. `left` bounds the total."""
        if self._bytes:
            if not size:
                messages = 0  # pulls without bytes left have ended, whatever number of messages was left
            missing, batch = self._bytes - size, self._batch
            enough = size > (0 if self.cautious else self.low_bytes)
        else:
            missing, batch = 0, self._messages - messages
            enough = messages > self.low
        if left is not None:
            batch = min(batch, left - messages)
        if enough or batch < 1:
            return None
        return Pull(
            batch=batch,
            max_bytes=missing,
            expires=self._expires.total_seconds(),
            heartbeat=self.heartbeat,
            group=self._group,
            pin=pin,
        )

    def never_fits(self, status: PullStatus) -> bool:
        """Return True if the next message is larger than the entire buffer."""
        return bool(self._bytes) and status.bytes >= self._bytes

    def adapt(self, status: PullStatus) -> bool:
        """Adapt to the consumer's limit that a refusal names; return True if another pull may succeed."""
        what, text = status.exceeded
        if what == "Expires":
            return self._shorten(text)
        limit = int(text or 0)
        if what == "Batch" and 0 < limit < self._batch:
            self._batch = limit
            if not self._bytes:
                self._messages, self.low = limit, min(self.low, limit // 2)
            return True
        if what == "MaxBytes" and 0 < limit < self._bytes:
            self._bytes, self.low_bytes = limit, min(self.low_bytes, limit // 2)
            return True
        return False

    def _shorten(self, text: str) -> bool:
        try:
            longest = parse_duration(text)
        except UsageError:
            return False
        if not timedelta(0) < longest < self._expires:
            return False
        self._expires = longest
        shorter = min(self.heartbeat, default_heartbeat(longest).total_seconds())
        self.heartbeat = shorter if longest >= SHORTEST else longest.total_seconds() / 2
        return True


def _half(threshold: int | None, limit: int) -> int:
    return limit // 2 if threshold is None else threshold
