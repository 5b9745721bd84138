"""One message of each subject, out of a listing in which those that are overwritten during it come again."""

from __future__ import annotations

from collections.abc import Sequence

from kvctl.jetstream.consumers.delivery import RawFrame, delivery
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.kv.read.subject_hashes import SubjectHashes

LATE = 1 << 15
"""Messages that wait for the end; each takes some 500 bytes."""


class Distinct:
    """Picker of the first message of each subject.

    At the stream's leader no subject comes twice up to the last sequence at the start, so only hashes are kept. Later
    messages wait for the end, to be compared with all that came before. If there are many, or they may not wait, or a
    list starts over or is read at a replica, a set of all hashes is held: some 60 bytes per subject.
    """

    def __init__(self, consumer: OrderedConsumer, end: int, *, waiting: bool) -> None:
        """`end` is the stream's last sequence before the consumer was created; 0 if unknown."""
        self._consumer = consumer
        self._end = end
        self._late_at_most = LATE if waiting else 0
        self._last = 0
        self._came = SubjectHashes()
        self._all: set[int] | None = None
        self._late: dict[bytes, RawFrame] = {}

    def pick(self, batch: Sequence[RawFrame], wanted: list[RawFrame]) -> list[RawFrame]:
        """Return the wanted messages of the batch that are the first of their subjects, except for those that wait."""
        if not batch:
            return []
        before, first, self._last = self._last, delivery(batch[0][1])[0], delivery(batch[-1][1])[0]
        if self._all is None:
            subjects = [frame[0] for frame in wanted]
            doubtful = not self._end or self._consumer.resumed or self._consumer.misplaced
            repeated = first <= before or len(set(subjects)) < len(subjects)  # by servers, in a rare race
            if not doubtful and not repeated and self._last <= self._end:
                self._came.add(subjects)
                return wanted
            self._late.update(zip(subjects, wanted, strict=True))
            if not doubtful and len(self._late) <= self._late_at_most:
                return []
            self._all, wanted, self._late = self._came.all(), list(self._late.values()), {}
        return _unknown(wanted, self._all)

    def rest(self) -> list[RawFrame]:
        """Return those that waited, and have not come before."""
        again = self._came.among(set(map(hash, self._late)))
        return [frame for subject, frame in self._late.items() if hash(subject) not in again]


def _unknown(wanted: list[RawFrame], known: set[int]) -> list[RawFrame]:
    """Return the messages of unknown subjects, which are known from now on."""
    fresh = []
    for frame in wanted:
        if (hashed := hash(frame[0])) not in known:
            known.add(hashed)
            fresh.append(frame)
    return fresh
