"""Deleted entries in a server's list of last messages, at each of which it pauses (2.15). [pure]

At each of them it ends the pulls that do not wait, and pauses until something wakes it: a message, a pull that it
accepts, or a pull's next heartbeat. So pulls that wait, with frequent heartbeats, take it past all of them, and their
heartbeats tell its position.
"""

from __future__ import annotations

STEP_HEARTBEAT_S, STEP_EXPIRES_S, SINGLE_STEP_EXPIRES_S = 0.000_2, 0.5, 0.05
"""Seconds of a pause, of the pull that ends pauses, and of one with a single answer."""
PAUSES, ENTRIES_PER_PAUSE = 500, 50
"""Pauses after which a new list is faster, and entries read in the time of one pause."""


class ListGaps:
    """Progress of a consumer past deleted entries of its list."""

    def __init__(self) -> None:
        self._tolerated = PAUSES
        """Pauses after which the list starts over; it grows."""
        self.begin()

    def begin(self) -> None:
        """Start with a new consumer."""
        self.stepping = False
        """True if the server has come to deleted entries."""
        self.moved = False
        """True if it has moved past one since the last look."""
        self._position = self._pauses = 0

    def reach(self, position: int) -> bool:
        """Record the position of a pause; return True if it is a new one."""
        if position <= self._position:
            return False
        self._position, self.moved = position, True
        self._pauses += 1
        return True

    def too_many(self, entries: int) -> bool:
        """Return True if a new list is faster than the pauses to come in a list of this length."""
        if self._pauses <= max(self._tolerated, entries // ENTRIES_PER_PAUSE):
            return False
        self._tolerated *= 4
        return True
