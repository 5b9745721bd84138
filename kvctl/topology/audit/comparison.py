"""Incremental comparison of two readings of the same keys; matching keys are dropped immediately. [pure]

Replicas hold their entries in roughly the order of their origins. Read in step, few keys wait for their counterpart, so
memory stays small at any size; with entirely different orders, each waiting key takes about 200 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from kvctl.kv.entry import is_tombstone

ORIGIN, REPLICA = 0, 1
"""The two sides."""

DELETED = b""
"""Mark of an entry that deletes its key; it is equal to no entry at all."""

_DIGEST = 16

Marked = list[tuple[bytes, bytes]]
"""Subjects where they land, each with the mark of its last entry."""


def mark(header: bytes, payload: bytes, revision: bytes = b"") -> bytes:
    """Return a digest that agreeing entries share: operation and value, and the revision if given."""
    if header and is_tombstone(header):
        return DELETED
    return blake2b(payload, digest_size=_DIGEST).digest() + revision


class Comparison:
    """Comparison of entries of both sides, in any order; keeps those that do not match."""

    def __init__(self) -> None:
        self._waiting: tuple[dict[bytes, bytes], dict[bytes, bytes]] = {}, {}
        self._suspects: set[bytes] = set()

    @property
    def ahead(self) -> int:
        """The side with more entries that wait for the other one."""
        return REPLICA if len(self._waiting[REPLICA]) > len(self._waiting[ORIGIN]) else ORIGIN

    @property
    def waiting(self) -> int:
        """Number of keys that wait for their counterpart."""
        return len(self._waiting[ORIGIN]) + len(self._waiting[REPLICA])

    def take(self, side: int, entries: Marked) -> None:
        """Add entries of one side. A subject that comes twice has moved, or has two origins: it is suspect."""
        mine, other = self._waiting[side], self._waiting[1 - side]
        for subject, found in entries:
            match = other.pop(subject, None)
            if match is None:
                if subject in mine:
                    self._suspects.add(subject)
                mine[subject] = found
            elif match != found:
                self._suspects.add(subject)

    def suspects(self, expected: Iterable[bytes] = ()) -> list[bytes]:
        """Return the subjects to check again after both sides were read; `expected` may be the replica's own."""
        left = {subject for side in self._waiting for subject, found in side.items() if found != DELETED}
        own = {subject for subject in expected if subject not in self._waiting[ORIGIN]}
        return sorted(self._suspects | (left - own))

    def alone(self, expected: Iterable[bytes]) -> int:
        """Return the number of these subjects that only the replica holds."""
        return sum(1 for subject in expected if subject in self._waiting[REPLICA] and subject not in self._suspects)
