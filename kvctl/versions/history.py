"""Commits in order, those that touched a key, and the last one to have changed each key."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from kvctl.kv.names import check_filter, check_key, matches
from kvctl.versions import ref_diff, refs
from kvctl.versions.model import Commit
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree import tree
from kvctl.versions.tree.objects import Objects

FEW = 1000
"""Keys that are looked up one by one; of more, all differences between two commits are read."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """A key and the last commit that changed it; without one, its change is staged."""

    key: str
    id: str | None
    commit: Commit | None


async def log(
    store: Store, objects: Objects, ref: str, *, first_parent: bool = False, key: str | None = None,
    limit: int | None = None,
) -> AsyncIterator[tuple[str, Commit]]:  # fmt: skip
    """A commit and those that it comes from, children before parents, the newest first. Raises RefNotFound.

    With a key only those that touched it: what they hold is not what any of their parents holds.
    """
    start = (await refs.resolve(store, ref)).commit
    name = check_key(key).encode() if key is not None else None
    left = limit
    async for identity, commit in refs.ancestors(store, start, first_parent=first_parent):
        if left == 0:
            return
        if name is not None and not await _touches(store, objects, commit, name, first_parent):
            continue
        if left is not None:
            left -= 1
        yield identity, commit


async def annotate(store: Store, objects: Objects, ref: str, pattern: str = ">") -> list[Annotation]:
    """The last commit for each key at a ref that a filter selects, sorted. Raises RefNotFound, UsageError.

    At a branch a staged change has none yet. What a merge took over unchanged is the commit's it took it from.
    """
    check_filter(pattern)
    found = await refs.resolve(store, ref)
    head, staged = found.commit, dict[bytes, bool]()
    if found.branch is not None:
        status = await ref_diff.status(store, objects, found.branch, values=False)
        head, staged = status.commit, {change.key.encode(): change.after is not None for change in status.changes}
    held = await objects.carry(tree.entries(bytes.fromhex((await refs.commit(store, head)).root)))
    keys = {key for key, _ in held if matches(key.decode(), (pattern,))}
    made = await _Blame(store, objects).run(head, keys - staged.keys())
    for key, there in staged.items():
        if there and matches(key.decode(), (pattern,)):
            made[key] = Annotation(key.decode(), None, None)
    return [made[key] for key in sorted(made)]


async def _touches(store: Store, objects: Objects, commit: Commit, key: bytes, first_parent: bool) -> bool:
    parents = [await refs.commit(store, parent) for parent in commit.parents[: 1 if first_parent else None]]
    if any(parent.root == commit.root for parent in parents):
        return False
    value = await _value(objects, commit, key)
    return value is not None if not parents else all([await _value(objects, one, key) != value for one in parents])


async def _value(objects: Objects, commit: Commit, key: bytes) -> bytes | None:
    return (await objects.carry(tree.get(bytes.fromhex(commit.root), [key]))).get(key)


class _Blame:
    """Hands keys on from a commit to the first parent that holds the same, until one differs from all its parents."""

    def __init__(self, store: Store, objects: Objects) -> None:
        self._store = store
        self._objects = objects
        self._found: dict[bytes, Annotation] = {}
        self._waiting: list[tuple[int, str]] = []
        self._keys: dict[str, set[bytes]] = {}
        self._commits: dict[str, Commit] = {}

    async def run(self, start: str, keys: set[bytes]) -> dict[bytes, Annotation]:
        """The last commit for each of the keys."""
        await self._hand(start, keys)
        while self._waiting:
            _, identity = heapq.heappop(self._waiting)
            await self._settle(identity, self._keys.pop(identity))
        return self._found

    async def _settle(self, identity: str, keys: set[bytes]) -> None:
        commit = self._commits[identity]
        for parent in commit.parents:
            same = keys - await self._changed(parent, commit, keys)
            await self._hand(parent, same)
            keys = keys - same
        self._found.update((key, Annotation(key.decode(), identity, commit)) for key in keys)

    async def _hand(self, identity: str, keys: set[bytes]) -> None:
        if not keys:
            return
        if identity in self._keys:
            self._keys[identity] |= keys
            return
        self._commits[identity] = await refs.commit(self._store, identity)
        self._keys[identity] = set(keys)
        heapq.heappush(self._waiting, (-self._commits[identity].generation, identity))

    async def _changed(self, parent: str, commit: Commit, keys: set[bytes]) -> set[bytes]:
        """The keys that the commit does not hold as its parent does."""
        roots = [bytes.fromhex((await refs.commit(self._store, parent)).root), bytes.fromhex(commit.root)]
        if roots[0] == roots[1]:
            return set()
        if len(keys) > FEW:
            return {one.key for one in await self._objects.carry(tree.diff(*roots))}
        wanted: Sequence[bytes] = list(keys)
        was, now = [await self._objects.carry(tree.get(root, wanted)) for root in roots]
        return {key for key in keys if was.get(key) != now.get(key)}
