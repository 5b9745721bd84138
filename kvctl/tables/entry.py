"""Entries of a table, and keys without their values. [pure]"""

from __future__ import annotations

from typing import NamedTuple

from kvctl.tables.changes import Version


class Entry(NamedTuple):
    """A key, its value, and the version at which it was read."""

    key: bytes
    value: bytes
    version: Version
    family: str | None = None


class Key(NamedTuple):
    """A key and its version, without the value."""

    key: bytes
    version: Version
    family: str | None = None
