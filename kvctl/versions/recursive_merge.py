"""Changes of two commits since their merge base, as git's recursive strategy defines it.

Crossing merges have several best common ancestors. These are merged with each other, oldest first, and two of them may
have several in turn. The result is the base: where it has a side's value, the other side decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from kvctl.versions.access import RepositoryAccess
from kvctl.versions.ancestry import merge_bases
from kvctl.versions.refs import CommitReader
from kvctl.versions.tree import tree
from kvctl.versions.tree.chunks import object_id
from kvctl.versions.tree.tree import TreeDifference

Changes = dict[bytes, TreeDifference]
"""A state as its differences from one tree, by key."""
DISPUTED = b"\2"
"""First byte of the value of a key on which merge bases conflict: no leaf has it."""


class _MergedCommits(NamedTuple):
    """State of a commit, or of commits merged with each other."""

    commits: tuple[str, ...]
    changes: Changes


async def since_base(
    repo: RepositoryAccess, bases: Sequence[str], source: str, dest: str
) -> tuple[list[TreeDifference], list[TreeDifference]]:
    """Return the changes of two commits since their merge bases, as values are stored, sorted by key.

    A key on which the bases conflict has a value before that begins with DISPUTED. Raises RefNotFound, MissingObject.
    """
    states = _States(repo, bases[0])
    base = await states.merged([await states.of(one) for one in bases], 1)
    ours, theirs = [_from(base, (await states.of(commit)).changes) for commit in (source, dest)]
    return ours, theirs


class _States:
    """States as differences from the tree of one commit."""

    def __init__(self, repo: RepositoryAccess, start: str) -> None:
        self._repo = repo
        self._start = start
        self._reader = CommitReader(repo.store)
        self._bases: dict[tuple[tuple[str, ...], tuple[str, ...], int], Changes] = {}
        self._known: dict[str, _MergedCommits] = {}

    async def of(self, identity: str) -> _MergedCommits:
        """Return the state of a commit."""
        if identity not in self._known:
            changes = await self._changes(bytes.fromhex((await self._reader.get(identity)).root))
            self._known[identity] = _MergedCommits((identity,), changes)
        return self._known[identity]

    async def merged(self, bases: Sequence[_MergedCommits], depth: int) -> Changes:
        """Merge bases, newest first, with each other; at least one."""
        one, *others = reversed(bases)
        for other in others:
            merged = one.changes
            if merged != other.changes:
                merged = _merge(await self._base(one, other, depth), merged, other.changes, depth)
            one = _MergedCommits(one.commits + other.commits, merged)
        return one.changes

    async def _base(self, one: _MergedCommits, other: _MergedCommits, depth: int) -> Changes:
        """Return the base of two states; unrelated ones have all keys added."""
        place = one.commits, other.commits, depth
        if place not in self._bases:
            found = await merge_bases(self._reader, one.commits, other.commits)
            if not found:
                self._bases[place] = await self._changes(tree.EMPTY_ROOT)
            else:
                states = [await self.of(identity) for identity in found]
                # A task of its own has its own stack: histories may cross thousands of times.
                self._bases[place] = await asyncio.create_task(self.merged(states, depth + 1))
        return self._bases[place]

    async def _changes(self, root: bytes) -> Changes:
        start = bytes.fromhex((await self._reader.get(self._start)).root)
        return {one.key: one for one in await self._repo.objects.run(tree.diff(start, root))}


def _merge(base: Changes, one: Changes, other: Changes, depth: int) -> Changes:
    """Merge two states. Where they conflict, the result is what git's is: another value than either one has.

    That is the base's value if one side has removed the key, and otherwise a value that only the same conflict has.
    """
    merged: Changes = {}
    for key in base.keys() | one.keys() | other.keys():
        start = next(state[key].before for state in (base, one, other) if key in state)
        was, ours, theirs = (state[key].after if key in state else start for state in (base, one, other))
        if ours in (theirs, was):
            value = theirs
        elif theirs == was:
            value = ours
        elif ours is None or theirs is None:
            value = was
        else:
            value = DISPUTED + object_id(repr((depth, ours, theirs)).encode())
        if value != start:
            merged[key] = TreeDifference(key, start, value)
    return merged


def _from(base: Changes, state: Changes) -> list[TreeDifference]:
    """Return the differences between two states that are known by their differences from one tree."""
    found: list[TreeDifference] = []
    for key in sorted(base.keys() | state.keys()):
        start = (base.get(key) or state[key]).before
        before, after = (one[key].after if key in one else start for one in (base, state))
        if before != after:
            found.append(TreeDifference(key, before, after))
    return found
