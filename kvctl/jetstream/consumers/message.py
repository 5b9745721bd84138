"""A message from a consumer, and the five answers that it can be given (ADR-37, ADR-15)."""

from __future__ import annotations

import json
from datetime import timedelta

from kvctl.connection import Connection
from kvctl.errors import ReadOnly, UsageError
from kvctl.jetstream.consumers.delivery import (
    Metadata,
    RawFrame,
    delivery,
    metadata,
)
from kvctl.units import duration_ns
from kvctl.wire import decode_headers


class Message:
    """One message of a stream, as a consumer delivered it.

    It waits for an answer, unless the consumer's ack policy is `none`: without one it is delivered again after the
    consumer's `ack_wait`. An answer is sent and not confirmed, save that of `double_ack`; it raises NoServer while the
    connection is down, and then the message comes again.
    """

    __slots__ = ("_connection", "_metadata", "frame")

    def __init__(self, frame: RawFrame, connection: Connection) -> None:
        self.frame = frame
        """Subject, reply, header and payload as they came."""
        self._connection = connection
        self._metadata: Metadata | None = None

    @property
    def subject(self) -> str:
        """The subject it was stored under; bytes that are no UTF-8 as surrogates."""
        return self.frame[0].decode(errors="surrogateescape")

    @property
    def data(self) -> bytes:
        """The payload."""
        return self.frame[3]

    @property
    def headers(self) -> dict[str, str]:
        """The headers; repeated ones joined by a comma."""
        return decode_headers(self.frame[2])

    @property
    def metadata(self) -> Metadata:
        """Stream, consumer, sequences, time, how often it was delivered, and what is pending behind it."""
        if self._metadata is None:
            self._metadata = metadata(self.frame[1])
        return self._metadata

    @property
    def sequence(self) -> int:
        """Its sequence in the stream."""
        return delivery(self.frame[1])[0]

    async def ack(self) -> None:
        """It is done: never deliver it again."""
        self._answer(b"+ACK")

    async def double_ack(self, *, timeout: float | None = None) -> None:
        """As `ack`, and wait until the server has heard of it. Raises RequestTimeout, ConnectionLost, NoServer."""
        self._check_writable()
        await self._connection.request(self._reply, b"+ACK", timeout=timeout)

    async def nak(self, delay: timedelta | None = None) -> None:
        """It failed: deliver it again, at once or after the delay."""
        if delay is not None and delay < timedelta():
            raise UsageError("A delay cannot be negative")
        body = b"" if not delay else b" " + json.dumps({"delay": duration_ns(delay)}).encode()
        self._answer(b"-NAK" + body)

    async def term(self, reason: str = "") -> None:
        """It can never be done: do not deliver it again. The reason goes into the server's advisory."""
        self._answer(b"+TERM" + (f" {reason}".encode() if reason else b""))

    async def in_progress(self) -> None:
        """It is being worked on: `ack_wait` begins anew."""
        self._answer(b"+WPI")

    @property
    def _reply(self) -> str:
        return self.frame[1].decode(errors="surrogateescape")

    def _answer(self, body: bytes) -> None:
        connection = self._connection
        if connection.context.read_only:
            self._check_writable()
        connection.write_soon(b"PUB %b %d\r\n%b\r\n" % (self.frame[1], len(body), body))

    def _check_writable(self) -> None:
        if self._connection.context.read_only:
            raise ReadOnly(
                "The connection is for reading only, and an answer changes the consumer",
                hint="`--read-only` or the context's `read_only` is set",
            )

    def __repr__(self) -> str:
        return f"<Message {self.sequence} {self.subject!r} {len(self.data)} B>"
