"""Publishing: one message and its acknowledgement, or a window of many with deadlines."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from typing import Any

from kvctl.connection import Connection
from kvctl.errors import ConnectionLost, KvctlError, NoServer, PermissionDenied, RequestTimeout, WrongRevision
from kvctl.jetstream.api import BUSY, WRONG_LAST_SEQUENCE, parse_reply, server_error
from kvctl.wire import publish_frame, status

WINDOW = 4_000
CHUNK = 256
"""Messages that go to the socket in one write."""

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

    `send` waits while the window is full. Outcomes come in the order of acknowledgement to `done(number, sequence)` or
    `failed(number, error)`; a message whose fate is open fails with RequestTimeout or ConnectionLost.
    """

    def __init__(self, connection: Connection, done: Any, failed: Any, *, window: int = WINDOW) -> None:
        self._connection = connection
        self._done = done
        self._failed = failed
        self._window = window
        self._open: dict[int, tuple[bytes, float]] = {}
        self._ready: list[bytes] = []
        self._number = 0

    async def __aenter__(self) -> PublishWindow:
        self._subscribing = self._connection.subscribe(wildcard=True)
        self._subscription = await self._subscribing.__aenter__()
        self._prefix = self._subscription.subject.encode() + b"."
        self._epoch = self._connection.epoch
        self._denying = self._connection.listening(self._denied, self._subscription.inbox)
        self._denying.__enter__()
        return self

    async def __aexit__(self, kind: Any, *rest: Any) -> None:
        try:
            if kind is None:
                await self.finish()
        finally:
            self._denying.__exit__(None, None, None)
            await self._subscribing.__aexit__(None, None, None)

    async def send(self, subject: bytes, payload: bytes, header: bytes = b"") -> int:
        """Queue a message; returns its number, counted from 0. Raises UsageError for a message over the server's limits."""
        self._connection.check_size(subject, header, payload)
        number = self._number
        self._number += 1
        self._ready.append(publish_frame(subject, self._prefix + b"%d" % number, header, payload))
        self._open[number] = (subject, time.monotonic() + self._connection.timeout)
        if len(self._ready) >= CHUNK:
            await self._write()
            while len(self._open) >= self._window:
                await self._collect()
        return number

    async def finish(self) -> None:
        """Send what is queued and wait until everything has an outcome."""
        await self._write()
        while self._open:
            await self._collect()

    async def _write(self) -> None:
        ready, self._ready = self._ready, []
        if not ready:
            return
        if self._connection.epoch == self._epoch:
            try:
                self._connection.write(b"".join(ready))
                await self._connection.drain()
            except NoServer:
                self._cut()
            return
        self._cut()

    async def _collect(self) -> None:
        oldest = next(iter(self._open.values()))[1]
        frames = await self._subscription.inbox.take(max(min(oldest - time.monotonic(), 1.0), 0.01))
        if self._connection.epoch != self._epoch:
            self._cut()
            return
        at = len(self._prefix)
        for frame in frames:
            number = int(frame[0][at:])
            if self._open.pop(number, None) is None:
                continue
            payload = frame[3]
            if b'"error"' in payload:
                self._failed(number, acknowledgement_error(payload))
            elif (found := _SEQUENCE.search(payload)) is not None:
                self._done(number, int(found[1]))
            else:
                self._failed(number, _no_stream(frame[2]))
        if not frames:
            self._expire()

    def _expire(self) -> None:
        now = time.monotonic()
        for number in [number for number, (_, deadline) in self._open.items() if deadline < now]:
            del self._open[number]
            self._failed(number, RequestTimeout("The write was not acknowledged in time"))

    def _cut(self) -> None:
        lost, self._open = self._open, {}
        self._epoch = self._connection.epoch
        for number in lost:
            self._failed(number, ConnectionLost("The connection was lost before the write was acknowledged"))

    def _denied(self, error: PermissionDenied) -> None:
        subject = (error.subject or "").lower().encode()
        for number in [number for number, (asked, _) in self._open.items() if asked.lower() == subject]:
            del self._open[number]
            self._failed(number, error)


def _no_stream(header: bytes) -> KvctlError:
    from kvctl.errors import NoResponders

    code, _ = status(header)
    if code == 503:
        return NoResponders("No stream takes the write")
    return KvctlError("The server's acknowledgement cannot be read")
