"""Publish messages: one with its acknowledgement, or a window of many with deadlines."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Callable
from typing import Any

from kvctl.connection import Connection
from kvctl.errors import KvctlError, NoResponders, UnreachableError, WrongRevision
from kvctl.jetstream.api import BUSY, WRONG_LAST_SEQUENCE, parse_reply, server_error
from kvctl.jetstream.request_window import WINDOW, Failed, RequestWindow
from kvctl.wire import status

Done = Callable[[Any, int], object]

_SEQUENCE = re.compile(rb'"seq":\s*(\d+)')
_FOUND = re.compile(r"last sequence: (\d+)")


async def publish(
    connection: Connection, subject: str, payload: bytes, header: bytes = b"", timeout: float | None = None
) -> int:
    """Publish and wait for the stream's acknowledgement; return the sequence.

    While the stream is busy with another write of the subject (10164), the message is sent again until the timeout;
    each
    attempt gets the full time to answer, so that the outcome of the last one is known. Raises WrongRevision,
    ServerError, NoResponders and UnreachableError (nothing was stored), RequestTimeout and ConnectionLost (the outcome
    is unknown), UsageError.
    """
    limit = connection.timeout if timeout is None else timeout
    deadline = time.monotonic() + limit
    while True:
        frame = await connection.request(subject, payload, header, timeout=limit)
        found = _SEQUENCE.search(frame.payload)
        if found and b'"error"' not in frame.payload:
            return int(found[1])
        error = acknowledgement_error(frame.payload)
        if not isinstance(error, Busy):
            raise error
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"`{subject}` does not accept writes: the server is busy with another one; nothing was written",
                hint="Try again",
            )
        await asyncio.sleep(random.uniform(0.001, 0.02))


async def publish_soon(connection: Connection, subject: bytes, payload: bytes, header: bytes) -> int:
    """Publish once, in one socket write with other messages of the moment; raises Busy besides."""
    frame = await connection.request_soon(subject, payload, header)
    found = _SEQUENCE.search(frame.payload)
    if found and b'"error"' not in frame.payload:
        return int(found[1])
    if status(frame.header)[0] == 503:
        raise NoResponders("No stream accepts the write")
    raise acknowledgement_error(frame.payload)


class Busy(WrongRevision):
    """Another write of the subject is in flight (10164); sending again decides."""


def acknowledgement_error(payload: bytes) -> KvctlError:
    """Parse the error of a negative acknowledgement."""
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
        return kind(
            f"Wrong last revision{f': the last one is {found[1]}' if found else ''}",
            found=int(found[1]) if found else None,
        )
    return server_error(error)


class PublishWindow(RequestWindow):
    """Window of messages in flight, each acknowledged; an async context manager.

    As its base class, but each message ends in `done(tag, sequence)` or `failed(tag, error)`. After RequestTimeout or
    ConnectionLost the message may have been stored.
    """

    def __init__(
        self, connection: Connection, done: Done, failed: Failed, *, window: int = WINDOW, resend: bool = False
    ) -> None:
        super().__init__(connection, self._acknowledged, failed, window=window, resend=resend)
        self._done = done
        self._head, self._length = b"?", 1
        """Beginning of the stream's acknowledgements, up to the sequence."""

    def _acknowledged(self, tag: Any, header: bytes, payload: bytes) -> None:
        if payload[: self._length] == self._head and (number := payload[self._length : -1]).isdigit():
            self._done(tag, int(number))
            return
        found = None if b'"error"' in payload else _SEQUENCE.search(payload)
        if found is not None:
            self._length = found.start(1)
            self._head = payload[: self._length]
            self._done(tag, int(found[1]))
        elif status(header)[0] == 503:
            self._failed(tag, NoResponders("No stream accepts the write"))
        else:
            self._failed(tag, acknowledgement_error(payload))
