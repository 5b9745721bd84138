"""Two readings of the same keys, put side by side as they come; what matches is forgotten at once. [pure]

Replicas hold their entries in about the order of their origins. Read in step, few keys wait for their counterpart, so
this takes little memory at any size; where the orders differ altogether, some 200 bytes for each key that waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

ORIGIN, REPLICA = 0, 1
"""The two sides."""

DELETED = b""
"""The mark of an entry that deletes its key, which is like none at all."""

_DIGEST = 16

Marked = list[tuple[bytes, bytes]]
"""Subjects where they land, each with the mark of its last entry."""


def mark(header: bytes, payload: bytes, revision: bytes = b"") -> bytes:
    """What two entries must share to agree: operation and value, and the revision where that is given."""
    if header and (b"\r\nKV-Operation:" in header or b"\r\nNats-Marker-Reason:" in header):
        return DELETED
    return blake2b(payload, digest_size=_DIGEST).digest() + revision


class Comparison:
    """Takes what each side holds, in any order, and keeps what does not match."""

    def __init__(self) -> None:
        self._waiting: tuple[dict[bytes, bytes], dict[bytes, bytes]] = {}, {}
        self._suspects: set[bytes] = set()

    @property
    def ahead(self) -> int:
        """The side of which more waits for the other one."""
        return REPLICA if len(self._waiting[REPLICA]) > len(self._waiting[ORIGIN]) else ORIGIN

    @property
    def waiting(self) -> int:
        """How many keys wait for their counterpart."""
        return len(self._waiting[ORIGIN]) + len(self._waiting[REPLICA])

    def take(self, side: int, entries: Marked) -> None:
        """Entries that one side holds. A subject that comes twice has moved, or two origins write it: suspicious."""
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
        """The subjects to look at closely, when both sides have been read; `expected` may well be the replica's own."""
        left = {subject for side in self._waiting for subject, found in side.items() if found != DELETED}
        own = {subject for subject in expected if subject not in self._waiting[ORIGIN]}
        return sorted(self._suspects | (left - own))

    def alone(self, expected: Iterable[bytes]) -> int:
        """How many of these subjects the replica holds and the origins do not."""
        return sum(1 for subject in expected if subject in self._waiting[REPLICA] and subject not in self._suspects)
