"""Identity of a write: a unique header by which an unacknowledged write is found again.

An acknowledgement can be lost after the write was stored. Only an identity tells whose the stored write is: two writers
may write equal values, and all deletions are equal. So each single write carries `Kvctl-Id`: 8 random characters of its
process and a number, the same when it is sent again. It is a header of our own rather than `Nats-Msg-Id`: servers keep
those in memory for the duplicate window, 210 bytes each, forget them afterwards, and aggregates drop messages with an
id that they have seen from another origin.

The identity belongs to one message of one stream. Copies, dumps and loads do not keep it, and kvctl does not show it
among a message's headers. Mirrors and backups keep it, since they keep the messages. Transactions have one in their
`Nats-Batch-Id`, rows of a Spark task in `Kvctl-Row`.

If the value leaves no room for the identity's 40 bytes in the largest message, the write goes without: then only
outcomes certain without it are reported, and the others are unknown.
"""

from __future__ import annotations

import os
from binascii import b2a_base64
from collections.abc import Mapping
from itertools import count
from typing import Any

from kvctl.wire import header_value

HEADER = b"Kvctl-Id"
_OPENING = b"NATS/1.0\r\n%b: " % HEADER
_LONGEST = len(_OPENING) + 26
"""Maximum bytes of a header block that has an identity and nothing else."""
_NUMBER = 17
"""Maximum bytes of a row's number and the end of its header block."""
_CONDITION = 60
"""Maximum bytes of a header line with the expected last revision of a key."""


def series() -> bytes:
    """Return a prefix for the identities of one process, or of one bulk write."""
    return b2a_base64(os.urandom(6), newline=False) + b"."


class _Process:
    """Series of this process; a forked child has its own."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin counting in a new series."""
        self.series = series()
        self.numbers = count(1)


_process = _Process()
os.register_at_fork(after_in_child=_process.begin)


def new() -> bytes:
    """Return a new identity."""
    return b"%b%x" % (_process.series, next(_process.numbers))


def stamped(header: bytes, identity: bytes) -> bytes:
    """Return the header block with the identity before its other lines."""
    return _OPENING + identity + (header[8:] or b"\r\n\r\n")


class Series:
    """Identities of a bulk write with numbered rows. A message has room for `most` bytes.

    The prefix of an interrupted write names its rows again.
    """

    def __init__(self, most: int, prefix: bytes = b"", name: bytes = HEADER) -> None:
        self.prefix = prefix or series()
        self.opening = b"NATS/1.0\r\n%b: %b" % (name, self.prefix)
        """Common beginning of the header blocks of rows with an identity, up to the row's number in hexadecimal."""
        self.most = most
        self._room = most - len(self.opening) - _NUMBER - _CONDITION

    def fits(self, header: bytes, value: bytes) -> bool:
        """Return True if there is room for an identity and for the key's last revision as a condition."""
        return len(header) + len(value) <= self._room

    def block(self, number: int, header: bytes, value: bytes) -> bytes:
        """Return the header block with a row's identity, if there is room for it."""
        if not self.fits(header, value):
            return header
        return b"%b%x%b" % (self.opening, number, header[8:] or b"\r\n\r\n")

    def number(self, header: bytes) -> int | None:
        """Return the row of this bulk write that a message's header names; None for any other message."""
        identity = identity_of(header) or b""
        return int(identity[len(self.prefix) :], 16) if identity.startswith(self.prefix) else None


def most_bytes(max_payload: int, config: Mapping[str, Any]) -> int:
    """Return the size of the largest message that a stream of this configuration accepts."""
    limit = config.get("max_msg_size", -1)
    return min(max_payload, limit) if limit > 0 else max_payload


def identity_of(header: bytes) -> bytes | None:
    """Return the identity in a message's header block; None if it has none."""
    return header_value(header, HEADER) if header else None


def is_bare(header: bytes) -> bool:
    """Return True if a header block is empty, or has an identity and nothing else."""
    return not header or (len(header) <= _LONGEST and header.startswith(_OPENING) and header.count(b"\r\n") == 3)


def all_bare(headers: bytes, name: bytes = HEADER) -> bool:
    """Return True if joined header blocks have one header of this name each, and nothing else; or if there are none."""
    opening = b"NATS/1.0\r\n%b: " % name
    if not headers.startswith(opening) or not headers.endswith(b"\r\n\r\n"):
        return not headers
    return b"\r\n" not in headers[len(opening) : -4].replace(b"\r\n\r\n" + opening, b"")
