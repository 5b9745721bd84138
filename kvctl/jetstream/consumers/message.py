"""Delivered messages, the metadata in their reply subjects, their acknowledgements (ADR-37, ADR-15), and readers."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import timedelta
from typing import NamedTuple, Self

from kvctl.connection import Connection
from kvctl.errors import UsageError
from kvctl.jetstream.answer import LARGEST, answer_to, malformed
from kvctl.tokens import shown
from kvctl.units import duration_ns
from kvctl.wire import RawFrame, decode_headers

DELIVERY = "CONSUMER.MSG.NEXT"


class Metadata(NamedTuple):
    """Metadata of a delivered message: its stream, consumer, sequences and pending count; `time_ns` since the epoch."""

    stream: str
    consumer: str
    delivered: int
    """Number of deliveries, including this one."""
    sequence: int
    consumer_sequence: int
    time_ns: int
    pending: int


def delivery(reply: bytes) -> tuple[int, int, int, int]:
    """Parse stream sequence, consumer sequence, time in ns, and pending messages from a message's reply subject."""
    # The longer form has domain and account before the stream, and a random token at the end.
    tokens = reply.rsplit(b".", 4) if reply.count(b".") == 8 else reply.split(b".")[6:]
    try:
        numbers = int(tokens[1]), int(tokens[2]), int(tokens[3]), int(tokens[4])
        if max(numbers) < LARGEST and min(numbers) >= 0:
            return numbers
    except (ValueError, IndexError):
        pass
    raise malformed(DELIVERY, f"`{shown(reply)}` is not the reply subject of a delivery")


def sequence_token(reply: bytes) -> int:
    """Return the position of the stream sequence among the tokens of a message's reply subject."""
    return 5 if reply.count(b".") == 8 else 7  # after domain and account


def all_short(frames: Sequence[RawFrame]) -> bool:
    """Return True if all reply subjects have the short form, in which the last four tokens are those of `delivery`."""
    return b"".join([frame[1] for frame in frames]).count(b".") == 8 * len(frames)  # no form has fewer dots


def metadata(reply: bytes) -> Metadata:
    """Parse all metadata of a message's reply subject."""
    tokens = reply.decode(errors="surrogateescape").split(".")
    with answer_to(DELIVERY):
        stream, consumer, *numbers = tokens[2:9] if len(tokens) == 9 else tokens[4:11]
        return Metadata(stream, consumer, *map(int, numbers))


class Message:
    """Message of a stream, delivered by a consumer.

    Unless the consumer's ack policy is `none`, it must be acknowledged, or it is redelivered after the consumer's
    `ack_wait`. Acknowledgements are sent without confirmation, except for `double_ack`; they raise NoServer while the
    connection is down, and the message is redelivered.
    """

    __slots__ = ("_connection", "_metadata", "frame")

    def __init__(self, frame: RawFrame, connection: Connection) -> None:
        self.frame = frame
        """Subject, reply, header and payload in wire form."""
        self._connection = connection
        self._metadata: Metadata | None = None

    @property
    def subject(self) -> str:
        """Subject under which it was stored; bytes that are not UTF-8 as surrogates."""
        return self.frame[0].decode(errors="surrogateescape")

    @property
    def data(self) -> bytes:
        """The payload."""
        return self.frame[3]

    @property
    def headers(self) -> dict[str, str]:
        """Headers; repeated ones joined by a comma."""
        return decode_headers(self.frame[2])

    @property
    def metadata(self) -> Metadata:
        """Stream, consumer, sequences, time, number of deliveries, and number of pending messages."""
        if self._metadata is None:
            self._metadata = metadata(self.frame[1])
        return self._metadata

    @property
    def sequence(self) -> int:
        """Its sequence in the stream."""
        return delivery(self.frame[1])[0]

    async def ack(self) -> None:
        """Acknowledge it as processed: it is not delivered again."""
        self._answer(b"+ACK")

    async def double_ack(self, *, timeout: float | None = None) -> None:
        """Acknowledge it and wait for the server's confirmation. Raises RequestTimeout, ConnectionLost, NoServer."""
        self._connection.context.require_writable()
        await self._connection.request(self._reply, b"+ACK", timeout=timeout)

    async def nak(self, delay: timedelta | None = None) -> None:
        """Report a failure: it is redelivered immediately, or after the delay."""
        if delay is not None and delay < timedelta():
            raise UsageError("A delay cannot be negative")
        body = b"" if not delay else b" " + json.dumps({"delay": duration_ns(delay)}).encode()
        self._answer(b"-NAK" + body)

    async def term(self, reason: str = "") -> None:
        """Report that it can never be processed: it is not delivered again. The server's advisory has the reason."""
        self._answer(b"+TERM" + (f" {reason}".encode() if reason else b""))

    async def in_progress(self) -> None:
        """Report work in progress: `ack_wait` starts over."""
        self._answer(b"+WPI")

    @property
    def _reply(self) -> str:
        return self.frame[1].decode(errors="surrogateescape")

    def _answer(self, body: bytes) -> None:
        connection = self._connection
        if connection.context.read_only:  # a call for each message would cost more than the check
            connection.context.require_writable()
        connection.write_soon(b"PUB %b %d\r\n%b\r\n" % (self.frame[1], len(body), body))

    def __repr__(self) -> str:
        return f"<Message {self.sequence} {self.subject!r} {len(self.data)} B>"


class MessageIteration:
    """Async context manager that also iterates over messages, in batches or one by one.

    Iterating over it outside a `with` block opens and closes it.
    """

    _opened = False

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Begin, and set `_opened`."""

    @abstractmethod
    async def __aexit__(self, *exit: object) -> None: ...

    @abstractmethod
    def batches(self) -> AsyncGenerator[list[Message], None]:
        """Yield messages in batches, as they arrive."""

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._one_by_one() if self._opened else self._by_itself()

    async def _one_by_one(self) -> AsyncIterator[Message]:
        async for batch in self.batches():
            for message in batch:
                yield message

    async def _by_itself(self) -> AsyncIterator[Message]:
        async with self:
            async for message in self._one_by_one():
                yield message
