"""Changes of keys for display: keys as text, complete values. [pure]"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """Kind of change to a key."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    CONFLICT = "conflict"
    """Both sides changed it to different values since their merge base."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Large value that was not read; `Repository.resolved` reads it."""

    identity: str
    """Hex hash of the value."""
    branch: str | None = field(default=None, compare=False)
    """Branch on which it is staged; None if it is committed."""


Value = bytes | Apart | None
"""Value, a large value that was not read, or None for an absent key."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Key whose value differs before and after; None: absent."""

    key: str
    before: Value
    after: Value
    kind: Kind

    @property
    def is_conflict(self) -> bool:
        """True if both sides changed the key."""
        return self.kind is Kind.CONFLICT

    @classmethod
    def of(cls, key: str, before: Value, after: Value, *, conflict: bool = False) -> KeyChange:
        """Create the change, with the kind that follows from the values."""
        if conflict:
            return cls(key, before, after, Kind.CONFLICT)
        if before is None:
            return cls(key, before, after, Kind.ADDED)
        return cls(key, before, after, Kind.REMOVED if after is None else Kind.CHANGED)


@dataclass(frozen=True, slots=True)
class Status:
    """Branch with its commit and the staged changes that differ from it, sorted by key."""

    branch: str
    commit: str
    changes: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class KeyConflict:
    """Key that both sides changed to different values since their merge base; None: absent."""

    key: str
    base: Value
    source: Value
    dest: Value
