"""Ids that identify the row of a stored message: in a header, the same on every attempt of the task.

A task that Spark retries finds the rows that an earlier attempt stored by it. It is a header of our own: servers keep
each `Nats-Msg-Id` in memory for the bucket's duplicate window, 210 bytes per row, and take 50 % longer for a write.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from zlib import crc32

from kvctl.kv.entry import operation_of
from kvctl.kv.identity import Series
from kvctl.pipeline.read.columns import ROW_HEADER
from kvctl.wire import header_value

_NAME = 8
_PLACE = re.compile(rb"([0-9]{1,9})\.([0-9a-f]{1,13})$")


def new_job() -> str:
    """Return a unique job name."""
    return _text(os.urandom(6))


def job_of(identity: str) -> str:
    """Return the name of the job that a user's text, or a batch of a query, identifies."""
    return _text(hashlib.sha256(identity.encode()).digest()[:6])


class RowIds(Series):
    """Ids of one task's rows, which count from 0.

    A message may have `most` bytes: a value that leaves no room for an id is identified by itself.
    """

    def __init__(self, job: str, partition: int, most: int) -> None:
        super().__init__(most, f"{job}.{partition}.".encode(), ROW_HEADER)
        self.partition = partition
        self._job = f"{job}.".encode()

    def number(self, header: bytes) -> int | None:
        """Return the row of this task that a message with such a header is; None for others'."""
        found = self.place(header)
        return found[1] if found and found[0] == self.partition else None

    def place(self, header: bytes) -> tuple[int, int] | None:
        """Return the partition and the row of this job that a message with such a header is; None for others'."""
        found = header_value(header, ROW_HEADER) if header else None
        if found is None or not found.startswith(self._job):
            return None
        place = _PLACE.match(found, len(self._job))
        return (int(place[1]), int(place[2], 16)) if place else None


def digest_of(key: str, header: bytes, value: bytes) -> int:
    """Return 32 bits that identify a row's content: its key, operation and value."""
    named = f"{operation_of(header)[0]} {key}".encode(errors="surrogateescape")
    return crc32(value, crc32(named))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()[:_NAME]
