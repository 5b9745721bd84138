"""What this session has written itself, so that its reads never show less. [pure]"""

from __future__ import annotations

from collections import OrderedDict


class OwnWrites:
    """The highest revision this session was acknowledged for each key, so that reads never show older ones."""

    LIMIT = 10_000

    def __init__(self) -> None:
        self._last: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0

    def note(self, key: str, revision: int) -> None:
        """Remember an acknowledged write."""
        self._last[key] = max(revision, self._last.pop(key, 0))
        if len(self._last) > self.LIMIT:
            _, oldest = self._last.popitem(last=False)
            self._forgotten = max(self._forgotten, oldest)

    def note_many(self, revision: int) -> None:
        """Remember that keys not named were written up to this revision."""
        self._forgotten = max(self._forgotten, revision)

    def stale(self, key: str, revision: int) -> bool:
        """Whether an answer of this revision (0: none) may be older than what this session wrote."""
        known = self._last.get(key)
        return revision < (self._forgotten if known is None else known)
