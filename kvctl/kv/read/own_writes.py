"""Writes of this session, which its reads must reflect. [pure]"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class OwnWrites:
    """Highest revision acknowledged to this session for each key, so that reads never show older ones."""

    LIMIT = 10_000

    def __init__(self) -> None:
        self._last: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0
        self.highest = 0
        """Highest revision of any key."""

    def note(self, key: str, revision: int) -> None:
        """Record an acknowledged write."""
        self.note_all((key,), (revision,))

    def note_all(self, keys: Sequence[str], revisions: Sequence[int]) -> None:
        """Record acknowledged writes of distinct keys."""
        last = self._last
        for key, revision in zip(keys, revisions, strict=True):
            last[key] = max(revision, last.pop(key)) if key in last else revision
        self.highest = max(self.highest, *revisions)
        while len(last) > self.LIMIT:
            _, oldest = last.popitem(last=False)
            self._forgotten = max(self._forgotten, oldest)

    def note_many(self, revision: int) -> None:
        """Record that any key may have been written, up to this revision."""
        self._forgotten = max(self._forgotten, revision)
        self.highest = max(self.highest, revision)

    def last(self, key: str) -> int:
        """Return the revision of the key's last write; 0 for none or one too long ago."""
        return self._last.get(key, 0)

    def any(self) -> bool:
        """Return True if there were any writes."""
        return bool(self._last or self._forgotten)

    def stale(self, key: str, revision: int, *, sole: bool = False) -> bool:
        """Return True if an answer of this revision (0: none) may be older than this session's writes.

        `sole` means that it came from the only replica, which cannot be behind.
        """
        known = self._last.get(key)
        return revision < ((0 if sole else self._forgotten) if known is None else known)
