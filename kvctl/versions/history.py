"""Commit log, commits that touched a key, and the last commit that changed each key."""

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

MAX_LOOKUPS = 1000
"""Maximum number of keys looked up one by one; for more, all differences between two commits are read."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """Key and the last commit that changed it; without a commit, its change is staged."""

    key: str
    id: str | None
    commit: Commit | None


async def log(
    store: Store, objects: Objects, ref: str, *, first_parent: bool = False, key: str | None = None,
    limit: int | None = None,
) -> AsyncIterator[tuple[str, Commit]]:  # fmt: skip
    """List a commit and its ancestors, children before parents, newest first. Raises RefNotFound.

    With a key only the commits that touched it: its value there differs from the value in all their parents.
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
    """Find the last commit of each key that a filter selects at a ref, sorted. Raises RefNotFound, UsageError.

    A change staged on a branch has no commit yet. A merge that took a value unchanged is not its last commit.
    """
    check_filter(pattern)
    found = await refs.resolve(store, ref)
    head, staged = found.commit, dict[bytes, bool]()
    if found.branch is not None:
        status = await ref_diff.status(store, objects, found.branch, values=False)
        head, staged = status.commit, {change.key.encode(): change.after is not None for change in status.changes}
    held = await objects.run(tree.entries(bytes.fromhex((await refs.commit(store, head)).root)))
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
    return (await objects.run(tree.get(bytes.fromhex(commit.root), [key]))).get(key)


class _Blame:
    """Passes keys from a commit to the first parent with the same value, until the commit differs from all parents."""

    def __init__(self, store: Store, objects: Objects) -> None:
        self._store = store
        self._objects = objects
        self._found: dict[bytes, Annotation] = {}
        self._waiting: list[tuple[int, str]] = []
        self._keys: dict[str, set[bytes]] = {}
        self._commits: dict[str, Commit] = {}

    async def run(self, start: str, keys: set[bytes]) -> dict[bytes, Annotation]:
        """Return the last commit of each key."""
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
        """Return the keys whose value differs between the commit and its parent."""
        roots = [bytes.fromhex((await refs.commit(self._store, parent)).root), bytes.fromhex(commit.root)]
        if roots[0] == roots[1]:
            return set()
        if len(keys) > MAX_LOOKUPS:
            return {one.key for one in await self._objects.run(tree.diff(*roots))}
        wanted: Sequence[bytes] = list(keys)
        was, now = [await self._objects.run(tree.get(root, wanted)) for root in roots]
        return {key for key in keys if was.get(key) != now.get(key)}
