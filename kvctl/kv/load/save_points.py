"""Save points of a running load: the position in its checkpoint file, and when it is saved again."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import replace

from kvctl.kv.load.bulk_writer import RowCounts
from kvctl.kv.load.checkpoint import Position, ProgressFile

SAVE_ROWS = 10_000
SAVE_BYTES = 8 << 20
"""Rows and bytes between saves of the position. No row further ahead of the saved position is sent."""


class SavePoints:
    """Position of a load in its checkpoint file. Without a file, nothing is saved."""

    def __init__(self, file: ProgressFile | None, start: Position) -> None:
        self._file = file
        self._position = start
        """Saved position: every stored row after its line is above its revision."""
        self._until = start.until
        """Last line that may be sent before the position is saved again."""
        self._bytes = 0
        """Bytes taken since the last save."""
        self._rejected: deque[int] = deque()
        """Lines of rejected rows above the saved position."""

    def reject(self, line: int) -> None:
        """Note that the row of this line is rejected."""
        self._rejected.append(line)

    def must_precede(self, line: int) -> bool:
        """Return True if the position has to be saved before rows up to this line are sent."""
        if line <= self._until:
            return False
        self._until = line + SAVE_ROWS
        return True

    def due_after(self, size: int) -> bool:
        """Return True if these bytes of input make a save due."""
        self._bytes += size
        return self._bytes >= SAVE_BYTES

    def advance(self, line: int, revision: int, counts: RowCounts) -> None:
        """Move the position to this line, below which all rows are done; later ones are above the revision."""
        later = sum(1 for rejected in self._rejected if rejected > line)
        self._rejected = deque(rejected for rejected in self._rejected if rejected > line)
        self._position = replace(
            self._position,
            line=line,
            revision=revision,
            written=counts.written,
            unchanged=counts.unchanged,
            rejected=counts.rejected - later,
            presumed=counts.presumed,
        )

    def save(self) -> None:
        """Write the file; if that fails, the load continues without."""
        self._bytes = 0
        if self._file is not None:
            with suppress(OSError):
                self._file.save(replace(self._position, until=self._until))

    def remove(self) -> None:
        """Delete the file: the load is complete."""
        if self._file is not None:
            self._file.remove()
