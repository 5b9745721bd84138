"""Pushdown of a query's filters to the server: fewer keys, fewer revisions. [pure]

A filter is accepted only if exactly what it excludes is left out; others that make a read smaller are used and
returned, so that Spark applies them, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kvctl.errors import UsageError
from kvctl.kv.names import check_filter, check_key, matches

MAX_NAMED_KEYS = 4096
"""Maximum number of keys by name; with more, the complete bucket is read."""
LATEST = 2**63 - 1
_NEVER_NULL = ("key", "revision", "created", "operation", "bucket")


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Part of a bucket that a query needs."""

    keys: frozenset[str] | None = None
    """Only these keys; None for any."""
    prefix: str = ""
    """Only keys below it, a filter without its `>`: `users.`."""
    first: int = 1
    last: int = LATEST
    """Only revisions in this range."""
    since_us: int | None = None
    until_us: int | None = None
    """Only entries written between these times, in microseconds since the epoch; both included."""

    def with_filter(self, kind: str, column: str, value: Any) -> tuple[Narrowing, bool]:
        """Return the narrowing with one more filter, named as in Spark, and whether it matches the filter exactly."""
        if kind == "IsNotNull":
            return self, column in _NEVER_NULL
        if value is None or column not in ("key", "revision", "created"):
            return self, False
        if column == "key":
            return self._of_keys(kind, value)
        if column == "revision":
            return self._of_revisions(kind, value)
        return self._of_times(kind, value), False

    def filters(self, asked: tuple[str, ...]) -> tuple[str, ...] | None:
        """Narrow the given filters: returns an empty tuple for everything, None for nothing."""
        if self.keys is not None:
            return tuple(sorted(key for key in self.keys if matches(key, asked))) or None
        if self.first > self.last:
            return None
        return (f"{self.prefix}>",) if self.prefix and not asked else asked

    @property
    def bounded(self) -> bool:
        """True if revisions are left out."""
        return self.first > 1 or self.last < LATEST

    def _of_keys(self, kind: str, value: Any) -> tuple[Narrowing, bool]:
        if kind == "StringStartsWith":
            prefix = value[: value.rfind(".") + 1]
            return (replace(self, prefix=prefix) if _below(prefix, self.prefix) else self), False
        if kind in ("EqualTo", "EqualNullSafe"):
            value = [value]
        elif kind != "In":
            return self, False
        wanted = {key for key in value if key is not None}
        if len(wanted) > MAX_NAMED_KEYS or not all(map(_legal, wanted)):
            return self, False
        return replace(self, keys=frozenset(wanted if self.keys is None else self.keys & wanted)), True

    def _of_revisions(self, kind: str, value: Any) -> tuple[Narrowing, bool]:
        if isinstance(value, bool) or not isinstance(value, int):
            return self, False
        first, last = _bounds(kind, value)
        exact = first is not None or last is not None
        return replace(
            self, first=max(self.first, first or 1), last=min(self.last, LATEST if last is None else last)
        ), exact

    def _of_times(self, kind: str, value: Any) -> Narrowing:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return self
        first, last = _bounds(kind, round(value.timestamp() * 10**6))
        since = self.since_us if first is None else max(first, first if self.since_us is None else self.since_us)
        until = self.until_us if last is None else min(last, last if self.until_us is None else self.until_us)
        return replace(self, since_us=since, until_us=until)


def _bounds(kind: str, value: int) -> tuple[int | None, int | None]:
    """Return the first and the last whole number that the filter selects; None for no bound."""
    return {
        "EqualTo": (value, value), "EqualNullSafe": (value, value), "GreaterThan": (value + 1, None),
        "GreaterThanOrEqual": (value, None), "LessThan": (None, value - 1), "LessThanOrEqual": (None, value),
    }.get(kind, (None, None))  # fmt: skip


def _legal(key: Any) -> bool:
    try:
        return bool(check_key(key))
    except UsageError:
        return False


def _below(prefix: str, other: str) -> bool:
    """Return whether the prefix is narrower than the other, and valid for keys."""
    try:
        return prefix.startswith(other) and len(prefix) > len(other) and bool(check_filter(f"{prefix}>"))
    except UsageError:
        return False
