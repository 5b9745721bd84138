"""Publishing: one message and its acknowledgement, or a window of many with deadlines."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

from kvctl.connection import Connection
from kvctl.errors import ConnectionLost, KvctlError, NoResponders, NoServer, PermissionDenied, RequestTimeout, WrongRevision
from kvctl.jetstream.api import BUSY, WRONG_LAST_SEQUENCE, parse_reply, server_error
from kvctl.wire import publish_frame, status

WINDOW = 4_000
WINDOW_BYTES = 32 << 20
RESENDS = 5
CHUNK = 256
"""Messages that go to the socket in one write."""

Done = Callable[[Any, int], object]
Failed = Callable[[Any, KvctlError], object]
_Open = tuple[Any, bytes, bytes, float]
"""Tag, frame, subject, deadline."""

_SEQUENCE = re.compile(rb'"seq":\s*(\d+)')
_FOUND = re.compile(r"last sequence: (\d+)")


async def publish(
    connection: Connection, subject: str, payload: bytes, header: bytes = b"", timeout: float | None = None
) -> int:
    """Publish and wait for the stream's acknowledgement; returns the sequence.

    A stream that is busy with another write of the subject (10164) is asked again. Raises WrongRevision, ServerError,
    NoResponders (nothing was stored), RequestTimeout and ConnectionLost (the outcome is open), UsageError.
    """
    limit = connection.timeout if timeout is None else timeout
    deadline = time.monotonic() + limit
    while True:
        frame = await connection.request(subject, payload, header, timeout=max(deadline - time.monotonic(), 0.05))
        found = _SEQUENCE.search(frame.payload)
        if found and b'"error"' not in frame.payload:
            return int(found[1])
        error = acknowledgement_error(frame.payload)
        if not isinstance(error, Busy) or time.monotonic() > deadline:
            raise error
        await asyncio.sleep(random.uniform(0.001, 0.02))


class Busy(WrongRevision):
    """Another write of the subject is in flight (10164); asking again decides."""


def acknowledgement_error(payload: bytes) -> KvctlError:
    """What a negative acknowledgement says."""
    try:
        error: dict[str, Any] = json.loads(payload)["error"]
    except (ValueError, KeyError, TypeError):
        try:
            parse_reply(payload)
        except KvctlError as problem:
            return problem
        return KvctlError("The server's acknowledgement cannot be read")
    if error.get("err_code") in WRONG_LAST_SEQUENCE:
        found = _FOUND.search(error.get("description", ""))
        kind = Busy if error["err_code"] == BUSY else WrongRevision
        return kind(f"Wrong last revision{f': the last one is {found[1]}' if found else ''}", found=int(found[1]) if found else None)
    return server_error(error)


class PublishWindow:
    """Many messages in flight on one inbox, each with a deadline; an async context manager.

    `send` waits while the window is full. Each message ends in exactly one call, `done(tag, sequence)` or
    `failed(tag, error)`, in the order of acknowledgement. With `resend`, what a lost connection left open is sent
    again in order; else, and when that fails too, its fate is open: ConnectionLost or RequestTimeout.
    """

    def __init__(
        self, connection: Connection, done: Done, failed: Failed, *, window: int = WINDOW, resend: bool = False
    ) -> None:
        self._connection = connection
        self._done = done
        self._failed = failed
        self._window = window
        self._resends = RESENDS if resend else 0
        self._open: dict[int, _Open] = {}
        self._bytes = 0
        self._ready: list[bytes] = []
        self._number = 0

    async def __aenter__(self) -> PublishWindow:
        self._stack = AsyncExitStack()
        self._subscription = await self._stack.enter_async_context(self._connection.subscribe(wildcard=True))
        self._stack.enter_context(self._connection.listening(self._hear_denied, self._subscription.inbox))
        self._prefix = self._subscription.subject.encode() + b"."
        self._epoch = self._connection.epoch
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None or issubclass(kind, KvctlError):
                await self.finish()
        finally:
            await self._stack.aclose()

    async def send(self, tag: Any, subject: bytes, payload: bytes, header: bytes = b"") -> None:
        """Queue a message. Raises UsageError for one over the server's limits."""
        self._connection.check_size(subject, header, payload)
        frame = publish_frame(subject, self._prefix + b"%d" % self._number, header, payload)
        self._open[self._number] = (tag, frame, subject, time.monotonic() + self._connection.timeout)
        self._number += 1
        self._ready.append(frame)
        self._bytes += len(frame)
        if len(self._ready) >= CHUNK or self._bytes >= WINDOW_BYTES:
            await self._write()
            while len(self._open) >= self._window or self._bytes >= WINDOW_BYTES:
                await self._collect()

    async def finish(self) -> None:
        """Send what is queued and wait until everything has an outcome."""
        await self._write()
        while self._open:
            await self._collect()

    async def _write(self) -> None:
        ready, self._ready = self._ready, []
        if ready and self._connection.epoch == self._epoch:
            with suppress(NoServer):  # what could not be sent stays open: `_collect` deals with the cut
                self._connection.write(b"".join(ready))
                await self._connection.drain()

    async def _collect(self) -> None:
        oldest = next(iter(self._open.values()))[3]
        frames = await self._subscription.inbox.take(max(min(oldest - time.monotonic(), 1.0), 0.01))
        for frame in frames:
            self._acknowledged(frame)
        if self._connection.epoch != self._epoch:
            await self._cut()
        elif not frames:
            self._expire()

    def _acknowledged(self, frame: tuple[bytes, bytes, bytes, bytes]) -> None:
        sent = self._open.pop(int(frame[0][len(self._prefix) :]), None)
        if sent is None:
            return
        self._bytes -= len(sent[1])
        payload = frame[3]
        found = None if b'"error"' in payload else _SEQUENCE.search(payload)
        if found is not None:
            self._done(sent[0], int(found[1]))
        elif status(frame[2])[0] == 503:
            self._failed(sent[0], NoResponders("No stream takes the write"))
        else:
            self._failed(sent[0], acknowledgement_error(payload))

    async def _cut(self) -> None:
        """The connection broke: send what is open once more, or give it up."""
        while self._resends:
            self._resends -= 1
            try:
                await self._connection.wait_online(self._connection.timeout)
                self._epoch = self._connection.epoch
                deadline = time.monotonic() + self._connection.timeout
                self._open = {number: (*sent[:3], deadline) for number, sent in self._open.items()}
                self._connection.write(b"".join(sent[1] for sent in self._open.values()))
                await self._connection.drain()
                return
            except NoServer:
                continue
        self._epoch = self._connection.epoch
        self._give_up(list(self._open), ConnectionLost("The connection was lost before the write was acknowledged"))

    def _expire(self) -> None:
        now = time.monotonic()
        late = [number for number, sent in self._open.items() if sent[3] < now]
        self._give_up(late, RequestTimeout("The write was not acknowledged in time"))

    def _hear_denied(self, error: PermissionDenied) -> None:
        subject = (error.subject or "").lower().encode()
        self._give_up([number for number, sent in self._open.items() if sent[2].lower() == subject], error)

    def _give_up(self, numbers: list[int], error: KvctlError) -> None:
        for number in numbers:
            tag, frame, *_ = self._open.pop(number)
            self._bytes -= len(frame)
            self._failed(tag, error)
