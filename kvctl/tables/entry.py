"""Entries of a table, and keys without their values. [pure]"""

from __future__ import annotations

from dataclasses import dataclass

from kvctl.tables.changes import Version


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, its value, and the version at which it was read."""

    key: bytes
    value: bytes
    version: Version
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key and its version, without the value."""

    key: bytes
    version: Version
    family: str | None = None
