"""Decide if a reading catches up with the end of a stream that is being written. [pure]"""

from __future__ import annotations

import time

MANY, LONG = 10_000, 1.0
"""Messages, and seconds, of lag that are more than the time between question and answer."""
TRIES, ROUNDS = 5, 500
"""How often a reading may fall further behind, and how often it may reach the previous end."""


class Chase:
    """Moving end of a stream that a reading tries to reach."""

    def __init__(self, end: int) -> None:
        self.end = end
        self._distance: int | None = None
        self._begun = time.monotonic()
        self._failed = self._rounds = 0

    def hopeless(self, end: int) -> bool:
        """Record that `self.end` was reached and `end` is the new end; return True if it is time to give up."""
        distance, now = end - self.end, time.monotonic()
        far = distance >= MANY or now - self._begun >= LONG
        if far and self._distance is not None and distance >= self._distance:
            self._failed += 1
        self.end, self._distance, self._begun = end, distance, now
        self._rounds += 1
        return self._failed >= TRIES or self._rounds >= ROUNDS
