"""End of the initial data of a reading, and if it catches up with a stream that is being written. [pure]"""

from __future__ import annotations

import time

FAR_MESSAGES, FAR_S = 10_000, 1.0
"""Messages, and seconds, of lag that are more than the time between question and answer."""
MAX_SETBACKS, MAX_ROUNDS = 5, 500
"""How often a reading may fall further behind, and how often it may reach the previous end."""
SOMEWHERE = 1 << 63
"""Sequence that no stream reaches: the end is somewhere ahead."""


class CatchUpLimit:
    """Moving end of a stream that a reading tries to reach."""

    def __init__(self, end: int) -> None:
        self.end = end
        self._distance: int | None = None
        self._begun = time.monotonic()
        self._failed = self._rounds = 0

    def hopeless(self, end: int) -> bool:
        """Record that `self.end` was reached and `end` is the new end; return True if it is time to give up."""
        distance, now = end - self.end, time.monotonic()
        far = distance >= FAR_MESSAGES or now - self._begun >= FAR_S
        if far and self._distance is not None and distance >= self._distance:
            self._failed += 1
        self.end, self._distance, self._begun = end, distance, now
        self._rounds += 1
        return self._failed >= MAX_SETBACKS or self._rounds >= MAX_ROUNDS


class InitialEnd:
    """Sequence at which a finite reading is complete, and followers are current."""

    def __init__(self, last: int) -> None:
        self.last = last
        """Last sequence when the reading began; a list of last messages has none above it."""
        self.target = last
        """Lowest sequence known to complete the reading."""
        self.bounded = False
        """True if the target is that of the subjects being read."""
        self.limit = CatchUpLimit(last)

    def lower(self, last: int) -> None:
        """Use the last sequence of the subjects being read, if it is known."""
        self.target, self.bounded = min(self.target, last), last < SOMEWHERE
