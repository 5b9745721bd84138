"""Text graph of a history: commits as `*`, a lane for each line of descent, merges and forks as slants. [pure]"""

from collections.abc import Sequence
from typing import NamedTuple


class Drawn(NamedTuple):
    """Graph text beside and below one commit."""

    mark: str
    """Text on the commit's line."""
    slants: list[str]
    """Lines after the commit, on which lanes begin and end."""


class Graph:
    """Drawing of commits, one at a time, children before parents."""

    def __init__(self) -> None:
        self._lanes: list[str] = []
        """Next commit of each lane."""

    def draw(self, commit: str, parents: Sequence[str]) -> Drawn:
        """Draw the next commit."""
        if commit not in self._lanes:
            self._lanes.append(commit)
        at = self._lanes.index(commit)
        mark = _row(len(self._lanes), {at: "*"})
        forks = self._descend(at, parents)
        return Drawn(mark, [*forks, *self._meet()])

    def _descend(self, at: int, parents: Sequence[str]) -> list[str]:
        """Move to the parents: the first in the same lane, others in new lanes beside it."""
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
        """Join lanes that lead to the same commit."""
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
    """Draw `count` lanes; `marks` and `gaps` replace the characters in and after a lane."""
    marks, gaps = marks or {}, gaps or {}
    return "".join(marks.get(lane, "|") + gaps.get(lane, " ") for lane in range(count)).rstrip()


def _slant(count: int, first: int, slant: str) -> str:
    """Shift the lanes from `first` on: one place to the left (`/`), or to the right for a new lane."""
    if slant == "\\":
        return ("| " * first)[:-1] + "\\" + " \\" * (count - first)
    return ("| " * first)[:-1] + "/" + " /" * (count - first - 1)


def _meeting(count: int, left: int, right: int) -> str:
    """Move lane `right` next to lane `left`, across those between; lanes further right follow."""
    gaps = dict.fromkeys(range(left, right - 1), "_") | {right - 1: "/"}
    return _row(right, gaps=gaps) + (" /" * (count - right - 1))
