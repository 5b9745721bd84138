"""Atomic batches (ADR-50): several messages stored together or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from kvctl.connection import Connection
from kvctl.errors import NoServer, ServerError, UsageError
from kvctl.jetstream.publish import acknowledgement_error
from kvctl.tokens import check_subjects
from kvctl.wire import CRLF

LIMIT = 1000
"""Maximum number of messages in a batch."""
WRITE_MESSAGES, WRITE_BYTES = 250, 1 << 20
"""Messages and bytes per write to the socket: the server stores them while the next ones are encoded."""

_COMMIT = b"Nats-Batch-Commit: 1\r\n\r\n"

BatchMessage = tuple[bytes, bytes, bytes]
"""Subject, payload, and the lines of its own headers as of `tokens.header_lines`, encoded."""


class MessageTooLarge(UsageError):
    """A message of a batch exceeds a limit; nothing was sent. `number` counts from 0, `size` includes headers."""

    def __init__(self, number: int, size: int, most: int) -> None:
        super().__init__(f"Message {number + 1} of the batch has {size} bytes; the limit is {most}")
        self.number, self.size, self.most = number, size, most


async def publish_batch(
    connection: Connection, messages: Sequence[BatchMessage], identity: bytes | None = None, most: int = 0
) -> int:
    """Store all messages atomically; return the sequence of the last, the others are contiguous before it.

    `identity` is stored with each of them, as their header Nats-Batch-Id. `most` is the stream's own limit on a
    message: the server silently drops all but the last one if they are larger. Only for streams whose stored
    configuration has `allow_atomic`: servers before 2.12 store the messages one by one. Raises MessageTooLarge,
    WrongRevision (some condition failed, without saying which), ServerError, PermissionDenied, NoResponders and
    NoServer (nothing was stored), RequestTimeout and ConnectionLost (the outcome is unknown).
    """
    import json

    identity = identity or os.urandom(12).hex().encode()
    largest = _check(connection, messages, identity, most)
    end = len(messages) - 1
    to, payload, lines = messages[end]
    step = min(max(WRITE_BYTES // largest, 1), WRITE_MESSAGES)
    if not connection.online:
        await connection.wait_online(connection.timeout)
    with connection.denials() as denials:
        with suppress(NoServer):  # the request waits for the connection, and the server reports the gap
            for start in range(0, end, step):
                frames = b"".join(_frames(messages[start : min(start + step, end)], start + 1, identity))
                if start + step < end:
                    connection.write(frames)
                    await connection.drain()
                else:
                    connection.write_soon(frames)  # in one write with the request
        header = _header(lines, identity, len(messages)) + _COMMIT
        try:
            frame = await connection.request(to.decode(errors="surrogateescape"), payload, header)
            if b'"error"' in frame.payload:
                raise acknowledgement_error(frame.payload)
        except ServerError:
            # A message that was not permitted leaves a gap, which is all that the answer reports.
            for subject, _, _ in messages:
                if denied := denials.denied(subject.decode(errors="surrogateescape")):
                    raise denied from None
            raise
    return int(json.loads(frame.payload)["seq"])


def _header(lines: bytes, identity: bytes, number: int) -> bytes:
    """Return a message's header block without its end."""
    return b"NATS/1.0\r\n%bNats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n" % (lines, identity, number)


def _frames(messages: Sequence[BatchMessage], first: int, identity: bytes) -> Iterator[bytes]:
    """Encode messages but for the last one of the batch, which alone is acknowledged; `first` is the first's number."""
    middle = b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: " % identity
    fixed = len(b"NATS/1.0\r\n" + middle + b"\r\n\r\n")
    for number, (subject, payload, lines) in enumerate(messages, first):
        size = fixed + len(lines) + len(str(number))
        values = subject, size, size + len(payload), lines, middle, number, payload
        yield b"HPUB %b  %d %d\r\nNATS/1.0\r\n%b%b%d\r\n\r\n%b\r\n" % values


def _check(connection: Connection, messages: Sequence[BatchMessage], identity: bytes, most: int) -> int:
    """Check all messages before the first one is sent; return a size that none exceeds.

    Raises UsageError, MessageTooLarge.
    """
    subjects = [subject for subject, _, _ in messages]
    check_subjects(subjects)
    connection.check_message(max(subjects, key=len), b"", b"")
    most = min(most, connection.max_payload) if most > 0 else connection.max_payload
    largest = max([len(payload) + len(lines) for _, payload, lines in messages])
    largest += len(_header(b"", identity, len(messages)) + _COMMIT)
    if largest > most:
        for number, (_, payload, lines) in enumerate(messages, 1):
            size = len(_header(lines, identity, number)) + len(payload)
            size += len(_COMMIT if number == len(messages) else CRLF)
            if size > most:
                raise MessageTooLarge(number - 1, size, most)
    return largest
