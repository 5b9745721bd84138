"""The identity of a write: a header that no other write has, by which a write without an answer is found again.

An acknowledgement can get lost after the write was stored. What is stored then tells whose it is only by an identity:
two writers may well write equal values, and all deletions are equal. So each single write bears `Kvctl-Id`: 8 random
characters of its process and a number, the same when it is sent again. It is a header of our own and no `Nats-Msg-Id`:
servers hold those in memory for the duplicate window, 210 bytes each, forget them after it, and aggregates drop what
bears an id that they have seen from another origin.

The identity belongs to one message of one stream. Copies, dumps and loads do not take it along, and kvctl shows it
nowhere among a message's headers. Mirrors and backups keep it, since they keep the messages. Transactions have one in
their `Nats-Batch-Id`, rows of a Spark task in `Kvctl-Row`.

Where the value fills the largest message to within the identity's 40 bytes, the write goes without: then only what is
certain without it is reported, and the rest is unknown.
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
"""Bytes of a header block that holds an identity and nothing else, at most."""


def series() -> bytes:
    """What the identities of one process, or of one bulk write, begin with."""
    return b2a_base64(os.urandom(6), newline=False) + b"."


class _Process:
    """The series of this process; a forked child has one of its own."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin counting in a series that no other process has."""
        self.series = series()
        self.numbers = count(1)


_process = _Process()
os.register_at_fork(after_in_child=_process.begin)


def new() -> bytes:
    """An identity that no other write has."""
    return b"%b%x" % (_process.series, next(_process.numbers))


def stamped(header: bytes, identity: bytes) -> bytes:
    """The header block with the identity before its other lines."""
    return _OPENING + identity + (header[8:] or b"\r\n\r\n")


class Series:
    """The identities of a bulk write, whose rows are numbered. A message has room for `most` bytes."""

    def __init__(self, most: int) -> None:
        self._prefix = series()
        self._opening = _OPENING + self._prefix
        self._room = most - _LONGEST

    def fits(self, header: bytes, value: bytes) -> bool:
        """Whether there is room for an identity."""
        return len(header) + len(value) <= self._room

    def block(self, number: int, header: bytes, value: bytes) -> bytes:
        """The header block with the identity of a row, where there is room for it."""
        if len(header) + len(value) > self._room:
            return header
        return b"%b%x%b" % (self._opening, number, header[8:] or b"\r\n\r\n")

    def number(self, header: bytes) -> int | None:
        """The row of this bulk write that a message with such a header is; None for any other message."""
        identity = identity_of(header) or b""
        return int(identity[len(self._prefix) :], 16) if identity.startswith(self._prefix) else None


def most_bytes(max_payload: int, config: Mapping[str, Any]) -> int:
    """The size of the largest message that a stream of this configuration takes."""
    limit = config.get("max_msg_size", -1)
    return min(max_payload, limit) if limit > 0 else max_payload


def identity_of(header: bytes) -> bytes | None:
    """The identity in a message's header block; None where it has none."""
    return header_value(header, HEADER) if header else None


def is_bare(header: bytes) -> bool:
    """Whether a header block holds nothing, or an identity and nothing else."""
    return not header or (len(header) <= _LONGEST and header.startswith(_OPENING) and header.count(b"\r\n") == 3)
