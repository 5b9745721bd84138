"""Commit log, commits that touched a key, the last commit that changed each key, and all values of keys."""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from kvctl.kv.names import check_filter, check_key, matches
from kvctl.versions import ref_diff, refs
from kvctl.versions.access import RepositoryAccess
from kvctl.versions.ancestry import ancestors
from kvctl.versions.model import Commit
from kvctl.versions.ref_diff import Apart, KeyChange, shown
from kvctl.versions.refs import CommitReader
from kvctl.versions.tree import tree
from kvctl.versions.tree.chunks import object_id
from kvctl.versions.tree.tree import EMPTY_ROOT, TreeDifference

MAX_LOOKUPS = 1000
"""Maximum number of keys looked up one by one; for more, all differences between two commits are read."""


class Annotation(NamedTuple):
    """Key and the last commit that changed it; without a commit, its change is staged."""

    key: str
    id: str | None
    commit: Commit | None


class KeyVersion(NamedTuple):
    """Key after a commit that changed it; without a commit, as staged."""

    key: str
    value: bytes | None
    """None if it was deleted."""
    commit: Commit | None
    revision: int | None = None
    """Revision of a staged change."""

    @property
    def identity(self) -> str | None:
        """Hex hash of the value."""
        return None if self.value is None else object_id(self.value).hex()


async def log(
    repo: RepositoryAccess, ref: str, *, first_parent: bool = False, key: str | None = None, limit: int | None = None
) -> AsyncIterator[tuple[str, Commit]]:
    """Yield a commit and its ancestors, newest first, children before parents, each with its id; at most `limit`.

    With a key only the commits that touched it: its value there differs from the value in all their parents. Raises
    RefNotFound, UsageError.
    """
    start = (await refs.resolve(repo.store, ref)).commit
    name = check_key(key).encode() if key is not None else None
    left = limit
    reader = CommitReader(repo.store)
    async for identity, commit in ancestors(reader, start, first_parent=first_parent):
        if left == 0:
            return
        if name is not None and not await _touches(repo, reader, commit, name, first_parent):
            continue
        if left is not None:
            left -= 1
        yield identity, commit


async def annotate(repo: RepositoryAccess, ref: str, pattern: str = ">") -> list[Annotation]:
    """Find the last commit of each key that a filter selects at a ref, sorted. Raises RefNotFound, UsageError.

    A change staged on a branch has no commit yet. A merge that took a value unchanged is not its last commit.
    """
    check_filter(pattern)
    found = await refs.resolve(repo.store, ref)
    head, staged = found.commit, dict[bytes, bool]()
    if found.branch is not None:
        status = await ref_diff.status(repo, found.branch)
        head, staged = status.commit, {change.key.encode(): change.after is not None for change in status.changes}
    held = await repo.objects.run(tree.entries(bytes.fromhex((await refs.commit(repo.store, head)).root)))
    keys = {key for key, _ in held if matches(key.decode(), (pattern,))}
    made = await _Blame(repo).run(head, keys - staged.keys())
    for key, there in staged.items():
        if there and matches(key.decode(), (pattern,)):
            made[key] = Annotation(key.decode(), None, None)
    return [made[key] for key in sorted(made)]


async def key_history(
    repo: RepositoryAccess, ref: str, filters: Sequence[str] = ()
) -> AsyncGenerator[list[KeyVersion], None]:
    """Yield the versions of keys, at most one commit at a time, by key; a branch's staged changes come last.

    A merge counts for keys that differ from all its parents. Holds all commits in memory. Raises RefNotFound,
    UsageError, MissingObject.
    """
    chosen = tuple(filters)
    meant = await refs.resolve(repo.store, ref)
    # Head and staged changes are read together: separately, changes that a commit moves between them would be missed.
    status = None if meant.branch is None else await ref_diff.status(repo, meant.branch)
    start = meant.commit if status is None else status.commit
    reader = CommitReader(repo.store)
    commits = [commit async for _, commit in ancestors(reader, start)]
    for commit in reversed(commits):
        first, *others = [await _differences(repo, reader, parent, commit) for parent in commit.parents or [None]]
        found = [one for key, one in first.items() if all(key in other for other in others)]
        changes = [KeyChange.of(one.key, None, shown(one.after)) for one in found]
        async for some in _versions(repo, changes, chosen, commit):
            yield some
    if status is not None:
        async for some in _versions(repo, status.changes, chosen, None):
            yield some


async def _versions(
    repo: RepositoryAccess, changes: Sequence[KeyChange], filters: tuple[str, ...], commit: Commit | None
) -> AsyncGenerator[list[KeyVersion], None]:
    """Yield the new values of keys, in batches."""
    chosen = [replace(change, before=None) for change in changes if matches(change.key, filters)]
    async with aclosing(ref_diff.resolved(repo, chosen)) as batches:
        async for some in batches:
            yield [
                KeyVersion(one.key, one.after, commit, one.revision) for one in some if not isinstance(one.after, Apart)
            ]


async def _touches(
    repo: RepositoryAccess, reader: CommitReader, commit: Commit, key: bytes, first_parent: bool
) -> bool:
    for parent in commit.parents[: 1 if first_parent else None] or [None]:
        if key not in await _differences(repo, reader, parent, commit, {key}):
            return False
    return True


async def _differences(
    repo: RepositoryAccess,
    reader: CommitReader,
    parent: str | None,
    commit: Commit,
    keys: Collection[bytes] | None = None,
) -> dict[bytes, TreeDifference]:
    """Return the keys whose value differs between a commit and its parent, if any: those of some, or of all."""
    before = EMPTY_ROOT if parent is None else bytes.fromhex((await reader.get(parent)).root)
    after = bytes.fromhex(commit.root)
    if before == after:
        return {}
    if keys is None or len(keys) > MAX_LOOKUPS:
        return {one.key: one for one in await repo.objects.run(tree.diff(before, after))}
    was, now = [await repo.objects.run(tree.get(root, list(keys))) for root in (before, after)]
    found = (TreeDifference(key, was.get(key), now.get(key)) for key in keys)
    return {one.key: one for one in found if one.before != one.after}


class _Blame:
    """Passes keys from a commit to the first parent with the same value, until the commit differs from all parents."""

    def __init__(self, repo: RepositoryAccess) -> None:
        self._repo = repo
        self._reader = CommitReader(repo.store)
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
            same = keys - (await _differences(self._repo, self._reader, parent, commit, keys)).keys()
            await self._hand(parent, same)
            keys = keys - same
        self._found.update((key, Annotation(key.decode(), identity, commit)) for key in keys)

    async def _hand(self, identity: str, keys: set[bytes]) -> None:
        if not keys:
            return
        if identity in self._keys:
            self._keys[identity] |= keys
            return
        self._commits[identity] = await self._reader.get(identity)
        self._keys[identity] = set(keys)
        heapq.heappush(self._waiting, (-self._commits[identity].generation, identity))
