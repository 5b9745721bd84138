"""Commits that lost every key of their parent, as kvctl 0.1 created them until November 2026.

Its tree update dropped the old root when all changes fell before or after it and it came out unchanged. Such a commit
has no key within its parent's range, and its parent's root is a full chunk, which may have siblings. A commit that
replaces everything by keys of another range can look the same, so the evidence says `may`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kvctl.versions import refs
from kvctl.versions.model import Commit
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree.chunks import Chunk, Chunker
from kvctl.versions.tree.objects import Broken, Objects
from kvctl.versions.tree.tree import EMPTY_ROOT, Reading, get

COMMITS_READ = 1000
"""Maximum number of commits checked per repository, the newest of each branch first."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Commit in a branch's history without any key of its parent, which the branch still lacks."""

    branch: str
    commit: str
    parent: str


async def losses(store: Store, objects: Objects, branches: Mapping[str, str]) -> list[Loss]:
    """Return the losses in the history of branches, given with their commit ids. Raises what reading raises."""
    found: list[Loss] = []
    lossy: dict[str, bool] = {}
    for branch, head in branches.items():
        commits = await _history(store, head, COMMITS_READ - len(lossy))
        for identity, commit in commits.items():
            parent = commits.get(next(iter(commit.parents), ""))
            if parent is None:
                continue
            if identity not in lossy:
                lossy[identity] = await _answer(objects, _lost_all(_root(parent), _root(commit)), default=False)
            if lossy[identity]:
                restored = _has_ends(_root(commits[head]), _root(parent))
                if not await _answer(objects, restored, default=True):
                    found.append(Loss(branch, identity, parent.id))
    return found


async def _history(store: Store, head: str, limit: int) -> dict[str, Commit]:
    """Return the newest commits of a branch, up to a missing one, which is a separate finding."""
    commits: dict[str, Commit] = {}
    with suppress(refs.RefNotFound):
        async for identity, commit in refs.ancestors(store, head):
            if len(commits) >= limit:
                break
            commits[identity] = commit
    return commits


async def _answer(objects: Objects, reading: Reading[bool], *, default: bool) -> bool:
    """Return the answer, or the default if objects are missing, which is a separate finding."""
    try:
        return await objects.run(reading)
    except Broken:
        return default


def _root(commit: Commit) -> bytes:
    return bytes.fromhex(commit.root)


def _lost_all(before: bytes, after: bytes) -> Reading[bool]:
    """Return whether an update from one tree to another may have dropped the old root. [pure]"""
    if before in (after, EMPTY_ROOT):
        return False
    data = yield {before}
    root = Chunk.decode(data[before])
    if not _full(root):
        return False
    first, last = yield from _ends(before)
    following = yield from _first_from(after, first)
    return following is None or following > last


def _full(root: Chunk) -> bool:
    """Return whether a chunk ends because it is full, not because nothing follows."""
    return Chunker(root.level).add(root.keys, root.values) == [root]


def _ends(root: bytes) -> Reading[tuple[bytes, bytes]]:
    """Return the first and the last key of a tree that is not empty."""
    found: list[bytes] = []
    for end in (0, -1):
        chunk = Chunk.decode((yield {root})[root])
        while chunk.level:
            child = chunk.values[end]
            chunk = Chunk.decode((yield {child})[child])
        found.append(chunk.keys[end])
    return found[0], found[1]


def _first_from(root: bytes, start: bytes) -> Reading[bytes | None]:
    """Return the first key of a tree from a key on."""
    chunk = Chunk.decode((yield {root})[root])
    while chunk.level:
        child = next(_from(chunk.keys, chunk.values, start), None)
        if child is None:
            return None
        chunk = Chunk.decode((yield {child})[child])
    return next(_from(chunk.keys, chunk.keys, start), None)


def _from(keys: Iterable[bytes], wanted: Iterable[bytes], start: bytes) -> Iterator[bytes]:
    return (one for key, one in zip(keys, wanted, strict=True) if key >= start)


def _has_ends(head: bytes, lost: bytes) -> Reading[bool]:
    """Return whether a tree has the first and the last key of another again."""
    ends = yield from _ends(lost)
    found = yield from get(head, ends)
    return len(found) == len({*ends})
