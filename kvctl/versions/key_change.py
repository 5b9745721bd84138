"""Changes of keys as people see them: keys as text, values in full. [pure]"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What happens to a key."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    CONFLICT = "conflict"
    """Both sides changed it since their common commit, each to something else."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A large value that was not read; `Repository.resolved` reads it."""

    identity: str
    """Hex hash of the value."""


Value = bytes | Apart | None
"""A value, one that was not read, or None for a key that is not there."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key whose value is not the same before and after; None: it is not there."""

    key: str
    before: Value
    after: Value
    kind: Kind

    @classmethod
    def of(cls, key: str, before: Value, after: Value, *, conflict: bool = False) -> KeyChange:
        """The change, its kind being told from the values."""
        if conflict:
            return cls(key, before, after, Kind.CONFLICT)
        if before is None:
            return cls(key, before, after, Kind.ADDED)
        return cls(key, before, after, Kind.REMOVED if after is None else Kind.CHANGED)


@dataclass(frozen=True, slots=True)
class Status:
    """A branch: where it stands, and what of its staged changes differs from that, sorted by key."""

    branch: str
    commit: str
    changes: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class KeyConflict:
    """A key that both sides changed since their common commit, each to something else; None: it is not there."""

    key: str
    base: Value
    source: Value
    dest: Value
