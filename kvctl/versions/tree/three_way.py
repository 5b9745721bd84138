"""Three-way merge of two sides' changes since a common base. [pure]"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kvctl.versions.tree.tree import Difference
from kvctl.versions.tree.tree_update import Edit


class Strategy(StrEnum):
    """Side that wins where both changed a key."""

    SOURCE_WINS = "source-wins"
    DEST_WINS = "dest-wins"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Key that both sides changed to different values; None: absent."""

    key: bytes
    base: bytes | None
    source: bytes | None
    dest: bytes | None


@dataclass(frozen=True, slots=True)
class Merge:
    """Changes that the destination takes from the source."""

    edits: list[Edit]
    """Changes to the destination, sorted by key."""
    conflicts: list[Conflict]
    """Unresolved keys; empty with a strategy."""


def merge(source: Iterable[Difference], dest: Iterable[Difference], strategy: Strategy | None = None) -> Merge:
    """Apply the source's changes since the base to the destination; both differ from the same base.

    The same change on both sides is not a conflict. A strategy decides only conflicting keys.
    """
    theirs = {difference.key: difference for difference in dest}
    edits: list[Edit] = []
    conflicts: list[Conflict] = []
    for ours in source:
        other = theirs.get(ours.key)
        if other is None:
            edits.append((ours.key, ours.after))
        elif other.after == ours.after:
            continue
        elif strategy is None:
            conflicts.append(Conflict(ours.key, ours.before, ours.after, other.after))
        elif strategy is Strategy.SOURCE_WINS:
            edits.append((ours.key, ours.after))
    return Merge(edits, conflicts)
