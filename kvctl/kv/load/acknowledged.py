"""Acknowledged rows of a bulk write, which show above which revision an unacknowledged one is, if stored. [pure]"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

FLOOR_ROWS = 500
"""Number of rows between samples of the stream's revision."""
FLOORS = 64
RECENT_ROWS = 20_000
"""Number of acknowledged rows whose keys are remembered: more than can be in flight with an unacknowledged one."""


class Floors:
    """Samples of line and revision: later rows, if stored, are above this revision."""

    def __init__(self, revision: int) -> None:
        self._samples: deque[tuple[int, int]] = deque([(0, revision)], maxlen=FLOORS)

    def sample(self, line: int, revision: int) -> None:
        """Note that all rows up to this line were sent when the stream was at this revision, or above it."""
        last, floor = self._samples[-1]
        if line >= last + FLOOR_ROWS:
            self._samples.append((line, max(floor, revision)))

    def of(self, line: int) -> int:
        """Return a revision that the row of this line is above, if stored."""
        return next((revision for sampled, revision in reversed(self._samples) if sampled < line), 0)


class Acknowledged:
    """Highest acknowledged line and revision, and the last acknowledged row of each recent key."""

    def __init__(self, revision: int) -> None:
        self.line = 0
        self.revision = revision
        self._floors = Floors(revision)
        self._recent: deque[tuple[int, Sequence[str], Sequence[int]]] = deque()
        """First line, keys and revisions of the last runs of consecutive rows."""
        self._rows = 0
        self._last: dict[str, tuple[int, int]] | None = None
        """Line and revision of each recent key, once they were asked for."""

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
        if self._last is not None:
            self._add(self._last, line, keys, revisions)

    def sent_up_to(self, line: int) -> None:
        """Note that all rows up to this line were sent."""
        self._floors.sample(line, self.revision)
        self._last = None

    def floor(self, line: int, key: str) -> int:
        """Return a revision that the row is above, if stored."""
        if self._last is None:
            self._last = {}
            for run in self._recent:
                self._add(self._last, *run)
        last, revision = self._last.get(key, (0, 0))
        return max(self._floors.of(line), revision if last < line else 0)

    @staticmethod
    def _add(last: dict[str, tuple[int, int]], line: int, keys: Sequence[str], revisions: Sequence[int]) -> None:
        for number, (key, revision) in enumerate(zip(keys, revisions, strict=True), line):
            if number > last.get(key, (0, 0))[0]:  # rows that were looked up are noted after later ones
                last[key] = number, revision
