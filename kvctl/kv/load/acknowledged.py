"""Acknowledged rows of a bulk write, which show above which revision an unacknowledged one is, if stored. [pure]"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Sequence

FLOOR_ROWS = 500
"""Number of rows between samples of the stream's revision."""
FLOORS = 64
RECENT_ROWS = 20_000
"""Number of acknowledged rows whose keys are remembered: more than can be in flight with an unacknowledged one."""


class Floors:
    """Samples of line and revision: later rows, if stored, are above this revision."""

    def __init__(self, revision: int) -> None:
        self._first = revision
        self._samples: deque[tuple[int, int]] = deque([(0, revision)], maxlen=FLOORS)

    def sample(self, line: int, revision: int) -> None:
        """Note that all rows up to this line were sent when the stream was at this revision, or above it."""
        last, floor = self._samples[-1]
        if line >= last + FLOOR_ROWS:
            self._samples.append((line, max(floor, revision)))

    def of(self, line: int) -> int:
        """Return a revision that the row of this line is above, if stored."""
        return next((revision for sampled, revision in reversed(self._samples) if sampled < line), self._first)


class Acknowledged:
    """Highest acknowledged line and revision, and the recent acknowledged rows of each key."""

    def __init__(self, revision: int) -> None:
        self.line = 0
        self.start = revision
        """Revision that every row is above."""
        self.revision = revision
        self._floors = Floors(revision)
        self._recent: deque[tuple[int, Sequence[str], Sequence[int]]] = deque()
        """First line, keys and revisions of the last runs of consecutive rows."""
        self._rows = 0
        self._found: dict[str, list[tuple[int, int]]] | None = None
        """Lines and revisions of each key's recent rows, ascending, once they were asked for."""

    def start_at(self, revision: int) -> None:
        """Note that no further row has been sent when the stream was at this revision, or above it."""
        self.start = self.revision = max(self.revision, revision)
        self._floors = Floors(self.revision)

    def note(self, line: int, key: str, revision: int) -> None:
        """Note that a row is stored at a revision."""
        self.note_all(line, (key,), (revision,))

    def note_all(self, line: int, keys: Sequence[str], revisions: Sequence[int]) -> None:
        """Note that consecutive rows from this line on are stored, at ascending revisions."""
        self.line = max(self.line, line + len(keys) - 1)
        self.revision = max(self.revision, revisions[-1])
        self._recent.append((line, keys, revisions))
        self._rows += len(keys)
        while self._rows > RECENT_ROWS:
            self._rows -= len(self._recent.popleft()[1])
        if self._found is not None:
            self._add(self._found, line, keys, revisions)

    def sent_up_to(self, line: int) -> None:
        """Note that all rows up to this line were sent."""
        self._floors.sample(line, self.revision)
        self._found = None

    def floor(self, line: int, key: str) -> int:
        """Return a revision that the row is above, if stored: at best that of the key's row before it."""
        rows = self._rows_of(key)
        at = bisect_left(rows, (line, 0))
        return max(self._floors.of(line), rows[at - 1][1] if at else 0)

    def followed(self, line: int, key: str) -> bool:
        """Return True if a later row of the key is stored."""
        rows = self._rows_of(key)
        return bool(rows) and rows[-1][0] > line

    def _rows_of(self, key: str) -> Sequence[tuple[int, int]]:
        if self._found is None:
            self._found = defaultdict(list)
            for run in self._recent:
                self._add(self._found, *run)
        return self._found.get(key, ())

    @staticmethod
    def _add(found: dict[str, list[tuple[int, int]]], line: int, keys: Sequence[str], revisions: Sequence[int]) -> None:
        for number, (key, revision) in enumerate(zip(keys, revisions, strict=True), line):
            insort(found[key], (number, revision))  # rows that were looked up are noted after later ones
