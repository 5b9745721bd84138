"""Acknowledged rows of a bulk write, which show above which revision an unacknowledged one is, if stored. [pure]"""

from __future__ import annotations

from collections import deque

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
        self._recent: dict[str, tuple[int, int]] = {}
        """Line and revision of each key; `_earlier` has those of an earlier period."""
        self._earlier: dict[str, tuple[int, int]] = {}

    def note(self, key: str, line: int, revision: int) -> None:
        """Note that a row is stored at a revision."""
        self._recent[key] = line, revision
        if line > self.line:
            self.line = line
        if revision > self.revision:
            self.revision = revision

    def sent_up_to(self, line: int) -> None:
        """Note that all rows up to this line were sent, and forget the oldest keys."""
        self._floors.sample(line, self.revision)
        if len(self._recent) > RECENT_ROWS:
            self._earlier, self._recent = self._recent, {}

    def last_of(self, key: str) -> tuple[int, int]:
        """Return line and revision of the key's last acknowledged row; zeros for none."""
        return self._recent.get(key) or self._earlier.get(key) or (0, 0)

    def floor(self, key: str, line: int) -> int:
        """Return a revision that the row is above, if stored."""
        return max(self._floors.of(line), self.last_of(key)[1])
