"""Verify a table: its files against what was written."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.stored_table import Advance, Damage, StoredTable


@dataclass(frozen=True, slots=True)
class TableVerification:
    """Result of checking the files."""

    table: StoredTable
    damage: list[Damage]
    seconds: float

    @property
    def whole(self) -> bool:
        """True if every file is as written, and none is missing or extra."""
        return not self.damage


def verify(table: StoredTable, advance: Advance = lambda _: None) -> TableVerification:
    """Compare the files of a table with what was written; needs no Spark."""
    begun = time.monotonic()
    found = stored_table.damages(table, advance)
    return TableVerification(table, found, time.monotonic() - begun)
