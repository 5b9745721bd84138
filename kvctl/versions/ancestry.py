"""Ancestors of commits: in the order of a log, and the best ones that two commits have in common."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import AsyncIterator, Iterable

from kvctl.versions.model import Commit
from kvctl.versions.refs import CommitReader

_ONE, _OTHER, _COMMON, _STALE = 1, 2, 3, 7
"""Colours of commits: ancestors of one side, of the other, of both, and of a common ancestor."""


async def ancestors(
    reader: CommitReader, start: str, *, first_parent: bool = False
) -> AsyncIterator[tuple[str, Commit]]:
    """Yield a commit and its ancestors: children before parents, otherwise newest first."""
    walk = _Walk(reader, first_parent)
    await walk.begin(start)
    while walk.ready:
        *_, identity = heapq.heappop(walk.ready)
        yield identity, walk.commits[identity]
        await walk.leave(identity)


async def merge_bases(reader: CommitReader, ones: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the best common ancestors, newest first: those that are not ancestors of another one.

    A side is a commit, or several that are merged with each other. None for unrelated histories. A commit is visited
    after all its children, which have higher generations, and so with its final colour.
    """
    colours: dict[str, int] = {}
    waiting: list[tuple[int, str]] = []
    left = [0] * (_STALE + 1)
    """Number of waiting commits, by colour."""
    best: list[str] = []

    async def paint(identity: str, colour: int) -> None:
        before = colours.get(identity, 0)
        colours[identity] = before | colour
        left[before | colour] += 1
        if before:
            left[before] -= 1
        else:
            heapq.heappush(waiting, (-(await reader.get(identity)).generation, identity))

    for colour, side in ((_ONE, ones), (_OTHER, others)):
        for identity in side:
            await paint(identity, colour)
    while left[_COMMON] or (left[_ONE] and left[_OTHER]):
        _, identity = heapq.heappop(waiting)
        colour = colours[identity]
        left[colour] -= 1
        if colour == _COMMON:
            best.append(identity)
            colour = _STALE
            if not left[_COMMON] and not (left[_ONE] and left[_OTHER]):
                break  # its parents need not be read
        for parent in (await reader.get(identity)).parents:
            await paint(parent, colour)
    found = [(await reader.get(identity), identity) for identity in best]
    found.sort(key=lambda one: (one[0].created_ns, one[0].generation, one[1]), reverse=True)
    return [identity for _, identity in found]


class _Walk:
    """Walk through commits. One is ready when all its children were left; those have higher generations."""

    def __init__(self, reader: CommitReader, first_parent: bool) -> None:
        self._reader = reader
        self._only = 1 if first_parent else None
        self._children: Counter[str] = Counter()
        """Of the commits seen, the number of children not left."""
        self._unseen: list[tuple[int, str]] = []
        """Commits whose parents were not looked at, highest generation first."""
        self.commits: dict[str, Commit] = {}
        self.ready: list[tuple[int, int, str]] = []

    async def begin(self, identity: str) -> None:
        """Start at the first commit."""
        await self._find(identity)
        self._make_ready(identity)

    async def leave(self, identity: str) -> None:
        """Leave a commit and make its parents ready."""
        for parent in self._parents(identity):
            if parent not in self.commits:
                await self._find(parent)
            await self._look_above(self.commits[parent].generation)
            self._children[parent] -= 1
            if not self._children[parent]:
                self._make_ready(parent)

    async def _look_above(self, generation: int) -> None:
        """Read all children of the commits of a generation."""
        while self._unseen and -self._unseen[0][0] > generation:
            _, identity = heapq.heappop(self._unseen)
            for parent in self._parents(identity):
                self._children[parent] += 1
                if parent not in self.commits:
                    await self._find(parent)

    async def _find(self, identity: str) -> None:
        found = self.commits[identity] = await self._reader.get(identity)
        heapq.heappush(self._unseen, (-found.generation, identity))

    def _make_ready(self, identity: str) -> None:
        found = self.commits[identity]
        heapq.heappush(self.ready, (-found.created_ns, -found.generation, identity))

    def _parents(self, identity: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.commits[identity].parents[: self._only]))
