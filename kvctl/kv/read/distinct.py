"""One message of each subject, out of a listing in which those that are overwritten during it come again."""

from __future__ import annotations

from collections.abc import Sequence

from kvctl.jetstream.consumers.delivery import RawFrame, delivery
from kvctl.jetstream.consumers.ordered.ordered_consumer import OrderedConsumer
from kvctl.kv.read.subject_hashes import SubjectHashes


class Distinct:
    """Picker of the first message of each subject.

    At the stream's leader no subject comes twice up to the last sequence at the start, so only hashes are kept. Later
    messages are compared with all that came before, at the end if they may wait. A list that starts over, or is read
    at a replica, is compared with a set of all hashes: some 60 bytes per subject.
    """

    def __init__(self, consumer: OrderedConsumer, end: int, *, waiting: bool) -> None:
        """`end` is the stream's last sequence before the consumer was created; 0 if unknown."""
        self._consumer = consumer
        self._end = end
        self._waiting = waiting
        self._last = 0
        self._came = SubjectHashes()
        self._all: set[int] | None = None
        self._late: dict[bytes, RawFrame] = {}

    def pick(self, batch: Sequence[RawFrame], wanted: list[RawFrame]) -> list[RawFrame]:
        """Return the wanted messages of the batch that are the first of their subjects, except for those that wait."""
        if not batch:
            return []
        before, first, self._last = self._last, delivery(batch[0][1])[0], delivery(batch[-1][1])[0]
        late = self._last > self._end
        if self._all is None and (self._doubtful() or (late and not self._waiting)):
            self._all = self._came.all()
        subjects = [frame[0] for frame in wanted]
        if self._all is not None:
            return self._unknown(wanted, self._all)
        if late or first <= before or len(set(subjects)) < len(subjects):  # servers repeat messages in a rare race
            self._late.update(zip(subjects, wanted, strict=True))
            return []
        self._came.add(subjects)
        return wanted

    def rest(self) -> list[RawFrame]:
        """Return those that waited, and have not come before."""
        hashes = set(map(hash, self._late))
        again = self._all if self._all is not None else self._came.among(hashes)
        return [frame for subject, frame in self._late.items() if hash(subject) not in again]

    def _doubtful(self) -> bool:
        return not self._end or self._consumer.resumed or self._consumer.misplaced

    @staticmethod
    def _unknown(wanted: list[RawFrame], known: set[int]) -> list[RawFrame]:
        fresh = []
        for frame in wanted:
            if (hashed := hash(frame[0])) not in known:
                known.add(hashed)
                fresh.append(frame)
        return fresh
