"""A history drawn with lines: commits as `*`, one lane for each line of descent, merges and forks as slants. [pure]"""

from collections.abc import Sequence
from typing import NamedTuple


class Drawn(NamedTuple):
    """What stands beside and below one commit."""

    mark: str
    """On its line."""
    slants: list[str]
    """Lines of their own, after it: where lanes begin and end."""


class Graph:
    """Draws commits that come children before parents, one at a time."""

    def __init__(self) -> None:
        self._lanes: list[str] = []
        """The commits that the lanes lead to."""

    def draw(self, commit: str, parents: Sequence[str]) -> Drawn:
        """The lines of the next commit."""
        if commit not in self._lanes:
            self._lanes.append(commit)
        at = self._lanes.index(commit)
        mark = _row(len(self._lanes), {at: "*"})
        forks = self._descend(at, parents)
        return Drawn(mark, [*forks, *self._meet()])

    def _descend(self, at: int, parents: Sequence[str]) -> list[str]:
        """Go on to the parents: the first in the same lane, others in lanes that begin beside it."""
        if not parents:
            count = len(self._lanes)
            del self._lanes[at]
            return ["| " * at + " /" * (count - at - 1)] if at < count - 1 else []
        self._lanes[at] = parents[0]
        slants = []
        for number, parent in enumerate(parents[1:], 1):
            slants.append(_slant(len(self._lanes), at + number, "\\"))
            self._lanes.insert(at + number, parent)
        return slants

    def _meet(self) -> list[str]:
        """Let lanes that lead to the same commit become one."""
        rows = []
        while (found := self._twins()) is not None:
            left, right = found
            count = len(self._lanes)
            if right > left + 1:
                rows.append(_meeting(count, left + 1, right))
            else:
                rows.append(_slant(count, right, "/"))
            del self._lanes[right]
            if right > left + 1:
                rows.append(_row(count - 1, gaps={left: "/"}))
        return rows

    def _twins(self) -> tuple[int, int] | None:
        for right, commit in enumerate(self._lanes):
            left = self._lanes.index(commit)
            if left < right:
                return left, right
        return None


def _row(count: int, marks: dict[int, str] | None = None, gaps: dict[int, str] | None = None) -> str:
    """So many lanes, with other characters in some of them and in the gaps after some."""
    marks, gaps = marks or {}, gaps or {}
    return "".join(marks.get(lane, "|") + gaps.get(lane, " ") for lane in range(count)).rstrip()


def _slant(count: int, first: int, slant: str) -> str:
    """Lanes of which those from `first` on move one place: to the left (`/`), or, of one more, to the right."""
    if slant == "\\":
        return ("| " * first)[:-1] + "\\" + " \\" * (count - first)
    return ("| " * first)[:-1] + "/" + " /" * (count - first - 1)


def _meeting(count: int, left: int, right: int) -> str:
    """The lane `right` goes over to the one after `left`, past those between; what is further right moves along."""
    gaps = dict.fromkeys(range(left, right - 1), "_") | {right - 1: "/"}
    return _row(right, gaps=gaps) + (" /" * (count - right - 1))
