"""Atomic batches (ADR-50): several messages stored together or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kvctl.connection import Connection
from kvctl.jetstream.publish import acknowledgement_error
from kvctl.wire import encode_headers, publish_frame

LIMIT = 1000
"""Messages in one batch."""

BatchMessage = tuple[str, bytes, dict[str, str]]
"""Subject, payload, headers."""


async def publish_batch(connection: Connection, messages: Sequence[BatchMessage]) -> int:
    """Store all messages at once; returns the sequence of the last, the others are contiguous before it.

    Only for streams whose configuration reads back `allow_atomic`: servers before 2.12 store the messages one by one.
    Raises WrongRevision (some condition failed, it is not said which), ServerError, RequestTimeout, ConnectionLost.
    """
    import json

    identity = os.urandom(12).hex()
    frames = []
    for number, (subject, payload, headers) in enumerate(messages[:-1], 1):
        header = encode_headers({**headers, "Nats-Batch-Id": identity, "Nats-Batch-Sequence": str(number)})
        connection.check_size(subject.encode(), header, payload)
        frames.append(publish_frame(subject.encode(), b"", header, payload))
    subject, payload, headers = messages[-1]
    closing = {"Nats-Batch-Id": identity, "Nats-Batch-Sequence": str(len(messages)), "Nats-Batch-Commit": "1"}
    header = encode_headers({**headers, **closing})
    connection.check_size(subject.encode(), header, payload)
    connection.write(b"".join(frames))
    frame = await connection.request(subject, payload, header)
    if b'"error"' in frame.payload:
        raise acknowledgement_error(frame.payload)
    return int(json.loads(frame.payload)["seq"])
