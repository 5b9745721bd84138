"""Atomic batches (ADR-50): several messages stored together or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from kvctl.connection import Connection
from kvctl.errors import ServerError
from kvctl.jetstream.publish import acknowledgement_error
from kvctl.wire import encode_headers, publish_frame

LIMIT = 1000
"""Messages in one batch."""
AT_ONCE = 1 << 20
"""Bytes that go to the socket in one write."""

BatchMessage = tuple[str, bytes, dict[str, str]]
"""Subject, payload, headers."""


async def publish_batch(connection: Connection, messages: Sequence[BatchMessage], identity: str | None = None) -> int:
    """Store all messages at once; returns the sequence of the last, the others are contiguous before it.

    `identity` is stored with each of them, as their header Nats-Batch-Id. Only for streams whose configuration reads
    back `allow_atomic`: servers before 2.12 store the messages one by one. Raises WrongRevision (some condition failed,
    it is not said which), ServerError, PermissionDenied, NoResponders and NoServer (nothing was stored), RequestTimeout
    and ConnectionLost (the outcome is open).
    """
    import json

    parts = [_encoded(connection, *part) for part in _numbered(messages, identity or os.urandom(12).hex())]
    subject, payload, header = parts.pop()
    async with connection.subscribe() as told:
        await _send(connection, parts)
        try:
            frame = await connection.request(subject, payload, header)
            if b'"error"' in frame.payload:
                raise acknowledgement_error(frame.payload)
        except ServerError:
            # A message that was not let through leaves a gap, which is all that the answer says.
            for other, _, _ in messages:
                if denied := told.denied(other):
                    raise denied from None
            raise
    return int(json.loads(frame.payload)["seq"])


def _numbered(messages: Sequence[BatchMessage], identity: str) -> Iterator[BatchMessage]:
    """The messages with the headers that make them one batch."""
    for number, (subject, payload, headers) in enumerate(messages, 1):
        own = {"Nats-Batch-Id": identity, "Nats-Batch-Sequence": str(number)}
        if number == len(messages):
            own["Nats-Batch-Commit"] = "1"
        yield subject, payload, {**headers, **own}


def _encoded(connection: Connection, subject: str, payload: bytes, headers: dict[str, str]) -> tuple[str, bytes, bytes]:
    """Subject, payload, header. Raises UsageError for what is too large, before anything is sent."""
    header = encode_headers(headers)
    connection.check_size(subject.encode(), header, payload)
    return subject, payload, header


async def _send(connection: Connection, parts: Sequence[tuple[str, bytes, bytes]]) -> None:
    """Write the messages, as fast as the socket takes them."""
    frames: list[bytes] = []
    size = 0
    for subject, payload, header in parts:
        frames.append(publish_frame(subject.encode(), b"", header, payload))
        size += len(frames[-1])
        if size >= AT_ONCE:
            connection.write(b"".join(frames))
            await connection.drain()
            frames, size = [], 0
    connection.write(b"".join(frames))
