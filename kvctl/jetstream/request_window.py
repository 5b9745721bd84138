"""Window of requests in flight on one inbox, shared by bulk reads and writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

from kvctl.connection import Connection
from kvctl.errors import ConnectionLost, KvctlError, NoServer, RequestTimeout
from kvctl.tokens import unsafe
from kvctl.wire import publish_frame

WINDOW = 4_000
WINDOW_BYTES = 32 << 20
ANSWER_BYTES = 16 << 20
"""Bytes of outstanding answers, by the largest so far: servers drop a connection that reads 64 MiB too slowly."""
FIRST_WINDOW = 16
"""Requests in flight until the first answer shows how large answers are."""
RESENDS = 5
CHUNK = 256
"""Messages per write to the socket."""

LONGEST_NUMBER = 20
"""Digits of a number of 64 bits."""

Answered = Callable[[Any, bytes, bytes], object]
Failed = Callable[[Any, KvctlError], object]
_Open = tuple[Any, bytes, bytes]
"""Tag, frame, subject."""


class RequestWindow:
    """Window of thousands of requests awaiting answers; an async context manager.

    `send` waits while the window is full. Each request ends in exactly one call, `answered(tag, header, payload)` or
    `failed(tag, error)`, in the order of the answers: RequestTimeout if nothing at all was answered for the
    connection's timeout, ConnectionLost if the connection was lost. With `resend`, requests are then sent again in
    order, and fail only if the connection stays away.
    """

    def __init__(
        self, connection: Connection, answered: Answered, failed: Failed, *, window: int = WINDOW, resend: bool = False
    ) -> None:
        self._connection = connection
        self._answered = answered
        self._failed = failed
        self._most = window
        self._window = min(window, FIRST_WINDOW)
        self._largest = 256
        self._resends = RESENDS if resend else 0
        self._open: dict[int, _Open] = {}
        self._more = 0
        """Messages in flight beyond one for each open request."""
        self._bytes = 0
        self._ready: list[bytes] = []
        self._number = 0
        self._heard = 0.0
        """Time of the last answer, or of the first request sent after it."""

    async def __aenter__(self) -> RequestWindow:
        self._stack = AsyncExitStack()
        self._subscription = await self._stack.enter_async_context(self._connection.subscribe(wildcard=True))
        self._prefix = self._subscription.subject.encode() + b"."
        self._epoch = self._connection.epoch
        # Anything below both limits needs no further check.
        self._small = self._connection.max_payload, 2048
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None or issubclass(kind, KvctlError):
                await self.finish()
        finally:
            await self._stack.aclose()

    async def send(self, tag: Any, subject: bytes, payload: bytes = b"", header: bytes = b"") -> None:
        """Queue a request. Raises UsageError for one over the server's limits or with an invalid subject."""
        if len(header) + len(payload) > self._small[0] or len(subject) > self._small[1] or unsafe(subject):
            self._connection.check_message(subject, header, payload)
        frame = publish_frame(subject, b"%b%d" % (self._prefix, self._number), header, payload)
        self._open[self._number] = (tag, frame, subject)
        self._number += 1
        self._ready.append(frame)
        self._bytes += len(frame)
        if len(self._ready) >= CHUNK or len(self._open) >= self._window or self._bytes >= WINDOW_BYTES:
            await self._make_room()

    async def send_all(self, requests: Iterator[tuple[Any, bytes, bytes, bytes]], stop: Callable[[], object]) -> None:
        """Queue requests of (tag, subject, payload, header), faster than `send`; stop early once `stop()` is true."""
        prefix, most, longest = self._prefix, *self._small
        opened, ready, room = self._open, self._ready, CHUNK
        for tag, subject, payload, header in requests:
            number, size = self._number, len(header) + len(payload)
            if size > most or len(subject) > longest or unsafe(subject):
                await self.send(tag, subject, payload, header)
                ready = self._ready
            else:
                if header:
                    head = (subject, prefix, number, len(header), size)
                    frame = b"HPUB %b %b%d %d %d\r\n%b%b\r\n" % (*head, header, payload)
                else:
                    frame = b"PUB %b %b%d %d\r\n%b\r\n" % (subject, prefix, number, size, payload)
                opened[number] = (tag, frame, subject)
                self._number = number + 1
                ready.append(frame)
                self._bytes += len(frame)
            room -= 1
            if room <= 0 or self._bytes >= WINDOW_BYTES:
                await self._make_room()
                ready, room = self._ready, min(CHUNK, self._window - len(opened))
                if stop():
                    return

    @property
    def oldest(self) -> Any:
        """Return the tag of the first request without an outcome; None if all have one."""
        return next(iter(self._open.values()))[0] if self._open else None

    async def flush(self) -> None:
        """Send queued requests without waiting for answers."""
        await self._write()

    async def finish(self) -> None:
        """Send queued requests and wait until each has an outcome."""
        await self._write()
        while self._open:
            await self._collect()

    async def _make_room(self) -> None:
        await self._write()
        while len(self._open) + self._more >= self._window or self._bytes >= WINDOW_BYTES:
            await self._collect()

    async def _write(self) -> None:
        ready, self._ready = self._ready, []
        if len(ready) == len(self._open):
            self._heard = time.monotonic()
        if ready and self._connection.epoch == self._epoch:
            with suppress(NoServer):  # unsent requests stay open: `_collect` handles the lost connection
                self._connection.write(b"".join(ready))
                await self._connection.drain()

    async def _collect(self) -> None:
        silence = self._heard + self._connection.timeout - time.monotonic()
        frames = await self._subscription.inbox.take(max(min(silence, 1.0), 0.01))
        if frames:
            self._heard = time.monotonic()
        self._take(frames)
        if frames:
            self._window = min(self._most, max(ANSWER_BYTES // self._largest, FIRST_WINDOW))
        self._drop_denied()
        if self._connection.epoch != self._epoch:
            await self._cut()
        elif not frames and silence <= 0:
            self._give_up(list(self._open), RequestTimeout("No answer in time"))

    def _take(self, frames: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
        """Handle the answers received."""
        cut, opened, answered = len(self._prefix), self._open, self._answered
        for subject, _, header, payload in frames:
            sent = opened.pop(number_of(subject[cut:]), None)
            if sent is not None:
                self._bytes -= len(sent[1])
                if len(payload) > self._largest:
                    self._largest = len(payload)
                answered(sent[0], header, payload)

    async def _cut(self) -> None:
        """Handle a lost connection: send open requests once more, or fail them."""
        while self._resends:
            self._resends -= 1
            with suppress(NoServer):
                await self._connection.wait_online(self._connection.timeout)
                self._epoch = self._connection.epoch
                self._heard = time.monotonic()
                self._connection.write(b"".join(frame for _, frame, _ in self._open.values()))
                await self._connection.drain()
                return
        self._epoch = self._connection.epoch
        self._give_up(list(self._open), ConnectionLost("The connection was lost before the answer came"))

    def _drop_denied(self) -> None:
        if not self._subscription.denials:
            return
        for number, (_, _, subject) in list(self._open.items()):
            if error := self._subscription.denied(subject.decode(errors="surrogateescape")):
                self._give_up([number], error)
        self._subscription.denials.clear()

    def _give_up(self, numbers: Iterable[int], error: KvctlError) -> None:
        for number in numbers:
            tag, frame, _ = self._open.pop(number)
            self._bytes -= len(frame)
            self._failed(tag, error)


def number_of(text: bytes) -> int:
    """Return the number of a request that a reply's subject ends in; -1, of none, for any other text."""
    return int(text) if text.isdigit() and len(text) <= LONGEST_NUMBER else -1
