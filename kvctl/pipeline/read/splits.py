"""Cut what is to be read into parts: ranges of revisions, groups of filters, runs of weighed things.  [pure]

A part says all that a task needs. Nothing here knows where what is cut comes from: revisions of a stream, or chunks of
a commit's tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Revisions:
    """The revisions from `first` to `last`, both included."""

    first: int
    last: int
    expected: int | None = None
    """How many messages there were when the read was planned; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Keys:
    """All that these filters select; of everything without any."""

    filters: tuple[str, ...] = ()
    expected: int | None = None
    """How many messages there were when the read was planned; None where that is not known."""


def probes(first: int, last: int, parts: int) -> list[int]:
    """Revisions at which counting tells where to cut; the first one is `first`."""
    return _starts(first, last, 4 * parts)


def even(first: int, last: int, parts: int) -> list[Revisions]:
    """At most so many ranges of about the same number of revisions, whatever they hold."""
    starts = _starts(first, last, parts)
    return [Revisions(start, end - 1) for start, end in pairwise([*starts, last + 1])]


def cut_by_count(starts: Sequence[int], left: Sequence[int], last: int, parts: int) -> list[Revisions]:
    """At most so many ranges with about as many messages each, none of them empty.

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
    """The items in at most so many runs, in their order, of about the same weight; no run is without items."""
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
