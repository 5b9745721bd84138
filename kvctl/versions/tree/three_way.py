"""Three-way merge of what two sides changed since a common base. [pure]"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kvctl.versions.tree.tree import Difference
from kvctl.versions.tree.tree_update import Edit


class Strategy(StrEnum):
    """Who is right about a key that both sides changed."""

    SOURCE_WINS = "source-wins"
    DEST_WINS = "dest-wins"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A key that both sides changed, each to something else; None: it is not there."""

    key: bytes
    base: bytes | None
    source: bytes | None
    dest: bytes | None


@dataclass(frozen=True, slots=True)
class Merge:
    """What the destination takes from the source."""

    edits: list[Edit]
    """Changes of the destination, sorted by key."""
    conflicts: list[Conflict]
    """Keys that stand in the way; empty with a strategy."""


def merge(source: Iterable[Difference], dest: Iterable[Difference], strategy: Strategy | None = None) -> Merge:
    """Bring the source's changes since the base into the destination; both differ from the same base.

    Both sides changing a key in the same way is no conflict. A strategy decides about conflicting keys only.
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
