"""Atomic batches (ADR-50): several messages stored together or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kvctl.connection import Connection
from kvctl.errors import ServerError, UsageError
from kvctl.jetstream.publish import acknowledgement_error
from kvctl.tokens import encoded, header_lines
from kvctl.wire import publish_frame

LIMIT = 1000
"""Maximum number of messages in a batch."""
WRITE_BYTES = 1 << 20
"""Bytes per write to the socket."""

BatchMessage = tuple[str, bytes, dict[str, str]]
"""Subject, payload, headers."""
_Part = tuple[bytes, bytes, bytes]
"""The same in wire form: subject, payload, header block."""


class MessageTooLarge(UsageError):
    """A message of a batch exceeds a limit; nothing was sent. `number` counts from 0, `size` includes headers."""

    def __init__(self, number: int, size: int, most: int) -> None:
        super().__init__(f"Message {number + 1} of the batch has {size} bytes; the limit is {most}")
        self.number, self.size, self.most = number, size, most


async def publish_batch(
    connection: Connection, messages: Sequence[BatchMessage], identity: str | None = None, most: int = 0
) -> int:
    """Store all messages atomically; return the sequence of the last, the others are contiguous before it.

    `identity` is stored with each of them, as their header Nats-Batch-Id. `most` is the stream's own limit on a
    message: the server silently drops all but the last one if they are larger. Only for streams whose stored
    configuration
    has `allow_atomic`: servers before 2.12 store the messages one by one. Raises MessageTooLarge, WrongRevision
    (some condition failed, without saying which), ServerError, PermissionDenied, NoResponders and NoServer (nothing was
    stored), RequestTimeout and ConnectionLost (the outcome is unknown).
    """
    import json

    parts = _encoded(connection, messages, identity or os.urandom(12).hex(), most)
    subject, payload, header = parts.pop()
    async with connection.subscribe() as replies:
        await _send(connection, parts)
        try:
            frame = await connection.request(subject.decode(errors="surrogateescape"), payload, header)
            if b'"error"' in frame.payload:
                raise acknowledgement_error(frame.payload)
        except ServerError:
            # A message that was not permitted leaves a gap, which is all that the answer reports.
            for other, _, _ in messages:
                if denied := replies.denied(other):
                    raise denied from None
            raise
    return int(json.loads(frame.payload)["seq"])


def _encoded(connection: Connection, messages: Sequence[BatchMessage], identity: str, most: int) -> list[_Part]:
    """Encode the messages with the headers of one batch. Raises UsageError, MessageTooLarge."""
    parts = []
    most = min(most, connection.max_payload) if most > 0 else connection.max_payload
    for number, (subject, payload, headers) in enumerate(messages, 1):
        own = header_lines(headers) if headers else ""
        place = f"Nats-Batch-Id: {identity}\r\nNats-Batch-Sequence: {number}\r\n"
        end = "Nats-Batch-Commit: 1\r\n" if number == len(messages) else ""
        header = encoded(f"NATS/1.0\r\n{own}{place}{end}\r\n")
        to = encoded(subject)
        if len(header) + len(payload) > most:
            raise MessageTooLarge(number - 1, len(header) + len(payload), most)
        connection.check_message(to, header, payload)
        parts.append((to, payload, header))
    return parts


async def _send(connection: Connection, parts: Sequence[_Part]) -> None:
    """Write the messages as fast as the socket accepts them."""
    frames: list[bytes] = []
    size = 0
    for subject, payload, header in parts:
        frames.append(publish_frame(subject, b"", header, payload))
        size += len(frames[-1])
        if size >= WRITE_BYTES:
            connection.write(b"".join(frames))
            await connection.drain()
            frames, size = [], 0
    connection.write(b"".join(frames))
