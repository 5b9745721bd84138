"""Ids that identify the row of a stored message: in a header, the same on every attempt of the task.

A task that Spark retries finds the rows that an earlier attempt stored by it. It is a header of our own: servers keep
each `Nats-Msg-Id` in memory for the bucket's duplicate window, 210 bytes per row, and take 50 % longer for a write.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

from kvctl.kv.bulk.rows import Row
from kvctl.kv.entry import operation_of
from kvctl.pipeline.read.columns import ROW_HEADER
from kvctl.wire import header_value

DIGITS = 8
"""Hexadecimal digits of a row's number."""
_NAME = 8
_PLACE = re.compile(rb"([0-9]{1,9})\.([0-9a-f]{8})$")


def new_job() -> str:
    """Return a unique job name."""
    return _text(os.urandom(6))


def job_of(identity: str) -> str:
    """Return the name of the job that a user's text, or a batch of a query, identifies."""
    return _text(hashlib.sha256(identity.encode()).digest()[:6])


@dataclass(frozen=True)
class RowIds:
    """Ids of one task's rows, which count from 0.

    A message may have `most` bytes (0: any number): a value that leaves no room for an id is identified by itself.
    """

    job: str
    partition: int
    most: int = 0

    @cached_property
    def size(self) -> int:
        """Bytes of a header block that has only an id."""
        return len(self.opening) + DIGITS + 4

    @cached_property
    def opening(self) -> bytes:
        """Common beginning of the header blocks of the task's rows, up to the row's number."""
        return b"NATS/1.0\r\n%b: %b%d." % (ROW_HEADER, self._job, self.partition)

    def fit(self, row: Row) -> bool:
        """Return whether there is room for an id beside the row's own headers."""
        return not self.most or self.size + len(row.header) + len(row.value) <= self.most

    def block(self, row: Row) -> bytes:
        """Return the header block to write a row with: its id, and its own headers."""
        if not self.fit(row):
            return row.header
        return b"%b%08x" % (self.opening, row.line) + (row.header[8:] or b"\r\n\r\n")

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

    @cached_property
    def _job(self) -> bytes:
        return b"%b." % self.job.encode()


def digest_of(key: str, header: bytes, value: bytes) -> int:
    """Return 32 bits that identify a row's content: its key, operation and value."""
    named = f"{operation_of(header)[0]} {key}".encode(errors="surrogateescape")
    return crc32(value, crc32(named))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()[:_NAME]
