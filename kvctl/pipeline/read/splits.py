"""Split a read into parts: ranges of revisions, groups of filters, runs of weighted items. [pure]

A part has all that a task needs. Nothing here depends on the source of the items: revisions of a stream, or chunks of a
commit's tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Revisions:
    """Revisions from `first` to `last`, both included."""

    first: int
    last: int
    expected: int | None = None
    """Number of messages when the read was planned; None if not known."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Entries that these filters select; without filters, all."""

    filters: tuple[str, ...] = ()
    expected: int | None = None
    """Number of messages when the read was planned; None if not known."""


def probes(first: int, last: int, parts: int) -> list[int]:
    """Return revisions to count from in order to choose the split points; the first one is `first`."""
    return _starts(first, last, 4 * parts)


def even(first: int, last: int, parts: int) -> list[Revisions]:
    """Return at most `parts` ranges of about the same number of revisions, whatever they contain."""
    starts = _starts(first, last, parts)
    return [Revisions(start, end - 1) for start, end in pairwise([*starts, last + 1])]


def cut_by_count(starts: Sequence[int], left: Sequence[int], last: int, parts: int) -> list[Revisions]:
    """Return at most `parts` ranges with about as many messages each, none of them empty.

    `left[i]` counts the messages from `starts[i]` on.
    """
    counts = [before - after for before, after in pairwise([*left, 0])]
    found = []
    for run in runs(range(len(starts)), counts, parts):
        count = sum(counts[index] for index in run)
        end = starts[run[-1] + 1] - 1 if run[-1] + 1 < len(starts) else last
        if count:
            found.append(Revisions(starts[run[0]], end, count))
    return found


def runs(items: Sequence[T], weights: Sequence[int], parts: int) -> list[list[T]]:
    """Split the items, in order, into at most `parts` runs of about the same weight; no run is empty."""
    total, taken, due = sum(weights), 0, -1
    found: list[list[T]] = []
    for item, weight in zip(items, weights, strict=True):
        # The run that the middle of the item's weight falls into.
        number = min((2 * taken + weight) * parts // (2 * total), parts - 1) if total else 0
        taken += weight
        if number > due:
            found.append([])
            due = number
        found[-1].append(item)
    return found


def _starts(first: int, last: int, parts: int) -> list[int]:
    count = min(parts, last - first + 1)
    return [first + (last - first + 1) * number // count for number in range(count)]
