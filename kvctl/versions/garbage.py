"""Garbage collection: objects and commits that no branch or tag reaches, and epochs that commits have consumed.

Candidates are listed first, with revisions; then the collection record is advanced, so that others write objects that
they saw before once more; only then reachable objects are searched. Objects written since the listing survive by their
revision. A concurrent link to a commit that may be unreachable changes the record, and the search is repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from kvctl.errors import ConflictError
from kvctl.versions.access import RepositoryAccess
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.branch.branch_state import Collection, CollectionRecord
from kvctl.versions.model import Branch, Commit, apart_id, inline_value
from kvctl.versions.refs import BRANCHES, COMMITS, TAGS, CommitReader, RefNotFound
from kvctl.versions.store.protocol import Store, StoreChange, StoreCondition
from kvctl.versions.tree.chunks import TreeChunk
from kvctl.versions.tree.objects import OBJECTS, MissingObject, Objects
from kvctl.versions.tree.tree import Reading

DELETIONS_PER_WRITE = 400
"""Number of deletions in one write."""
READ = 500
"""Number of objects or commits read together."""

Candidates = dict[bytes, int]
"""Keys of one partition, each with its revision when listed."""


class CollectedGarbage(NamedTuple):
    """Numbers of removed items; with a dry run, of those that would be removed."""

    objects: int = 0
    commits: int = 0
    epochs: int = 0


class _ExistingObjects(NamedTuple):
    """All existing objects and commits, before the reachable ones are searched."""

    objects: Candidates
    commits: Candidates


class _ReachableObjects(NamedTuple):
    """Objects and commits that branches and tags reach."""

    objects: set[bytes]
    commits: set[bytes]


T = TypeVar("T")


class _CollectionEnded(Exception):
    """The collection record was changed while this collection deleted."""


async def collect(repo: RepositoryAccess, *, dry_run: bool = False) -> CollectedGarbage:
    """Remove objects and commits that no branch or tag reaches, and epochs that no branch has.

    Raises MissingObject if a reachable object is missing; ConflictError.
    """
    store, objects = repo.store, repo.objects
    if dry_run:
        return await _look(store, objects)
    cleared = await epochs.collect(store)
    gone = [0, 0]
    for _ in range(branch_state.MAX_ATTEMPTS):
        listed = await _listing(store)
        begun = await _advance(store)
        held, reached = await _begin(store, objects, begun)
        try:
            for at, (partition, order) in enumerate(await _doomed(store, listed, reached)):
                for some in _runs(order, DELETIONS_PER_WRITE):
                    gone[at] += await _delete(store, held, partition, some)
        except _CollectionEnded:
            continue
        # If a linking operation comes first, that ends it.
        await store.written([held.unchanged], [held.replaced(Collection(held.collection.begun))])
        return CollectedGarbage(objects=gone[1], commits=gone[0], epochs=cleared)
    raise branch_state.crowded()


async def _look(store: Store, objects: Objects) -> CollectedGarbage:
    listed = await _listing(store)
    reached = await _reach(store, objects)
    return CollectedGarbage(
        objects=len(listed.objects.keys() - reached.objects),
        commits=len(listed.commits.keys() - reached.commits),
        epochs=len(await epochs.uncollected(store)),
    )


async def _listing(store: Store) -> _ExistingObjects:
    found = [
        {entry.key: entry.revision async for entry in store.scan(partition, values=False)}
        for partition in (OBJECTS, COMMITS)
    ]
    return _ExistingObjects(*found)


async def _advance(store: Store) -> int:
    """Record that a collection now searches reachable objects; return its number."""
    for _ in range(branch_state.MAX_ATTEMPTS):
        held = await branch_state.collections(store)
        number = held.collection.begun + 1
        if await store.written([held.unchanged], [held.replaced(Collection(number))]):
            return number
        await branch_state.pause()
    raise branch_state.crowded()


async def _begin(store: Store, objects: Objects, begun: int) -> tuple[CollectionRecord, _ReachableObjects]:
    """Return the reachable objects, and the record that this collection deletes; no link was added in between."""
    for _ in range(branch_state.MAX_ATTEMPTS):
        held = await _own(store, begun)
        reached = await _reach(store, objects)
        if not await store.written([held.unchanged], [held.replaced(Collection(begun, deleting=True))]):
            await branch_state.pause()
            continue
        held = await _own(store, begun)
        if held.collection.deleting:  # no link was added since
            return held, reached
    raise branch_state.crowded()


async def _own(store: Store, begun: int) -> CollectionRecord:
    held = await branch_state.collections(store)
    if held.collection.begun != begun:
        raise ConflictError("Another garbage collection has started", hint="It removes the same objects and commits")
    return held


async def _doomed(
    store: Store, listed: _ExistingObjects, reached: _ReachableObjects
) -> list[tuple[bytes, list[tuple[bytes, int]]]]:
    """Return the commits to delete, youngest first so that remaining ones are complete; then objects."""
    commits = [(key, at) for key, at in listed.commits.items() if key not in reached.commits]
    ages: dict[bytes, int] = {}
    for some in _runs(commits, READ):
        found = await store.get_many([(COMMITS, key) for key, _ in some])
        ages.update(
            (key, Commit.decode(one.value).generation) for (key, _), one in zip(some, found, strict=True) if one
        )
    commits.sort(key=lambda one: -ages.get(one[0], 0))
    return [(COMMITS, commits), (OBJECTS, [one for one in listed.objects.items() if one[0] not in reached.objects])]


async def _delete(store: Store, held: CollectionRecord, partition: bytes, some: Sequence[tuple[bytes, int]]) -> int:
    """Delete entries that are as listed, and return their number. Raises _Ended."""
    left = list(some)
    for _ in range(branch_state.MAX_ATTEMPTS):
        if not left:
            return 0
        conditions = [StoreCondition(partition, key, at) for key, at in left]
        # An object that a crash restores is collected again; a restored commit could be linked to and lack its objects.
        gone = [StoreChange(partition, key, None, traceless=partition == OBJECTS) for key, _ in left]
        if await store.written([*conditions, held.unchanged], gone):
            return len(left)
        if (await branch_state.collections(store)).revision != held.revision:
            raise _CollectionEnded
        found = await store.get_many([(partition, key) for key, _ in left])
        left = [one for one, now in zip(left, found, strict=True) if now is not None and now.revision == one[1]]
    raise _CollectionEnded


async def _reach(store: Store, objects: Objects) -> _ReachableObjects:
    """Return what branches and tags reach. Raises MissingObject."""
    starts = {bytes.fromhex(Branch.decode(entry.value).commit) async for entry in store.scan(BRANCHES)}
    starts |= {bytes.fromhex(entry.value.decode()) async for entry in store.scan(TAGS)}
    commits: set[bytes] = set()
    trees: set[bytes] = set()
    roots: list[bytes] = []
    async for identity, commit in _ancestors(store, starts):
        commits.add(identity)
        roots.append(bytes.fromhex(commit.root))
        if len(roots) == READ:
            await objects.run(_of_trees(roots, trees))
            roots = []
    await objects.run(_of_trees(roots, trees))
    return _ReachableObjects(trees, commits)


async def _ancestors(store: Store, starts: Iterable[bytes]) -> AsyncIterator[tuple[bytes, Commit]]:
    """Yield commits and all their ancestors, unordered. Raises MissingObject."""
    reader = CommitReader(store)
    waiting = [start.hex() for start in starts]
    seen = set(waiting)
    while waiting:
        identity = waiting.pop()
        try:
            commit = await reader.get(identity, keep=False)
        except RefNotFound:
            raise MissingObject(f"Commit `{identity}`") from None
        parents = [parent for parent in commit.parents if parent not in seen]
        seen.update(parents)
        waiting += parents
        yield bytes.fromhex(identity), commit


def _of_trees(roots: Iterable[bytes], seen: set[bytes]) -> Reading[None]:
    """Add the objects of trees to those seen, separately stored values included; seen ones are not read again."""
    waiting = [*set(roots).difference(seen)]
    seen.update(waiting)
    while waiting:
        some = set(waiting[-READ:])
        del waiting[-READ:]
        data = yield some
        for identity in some:
            chunk = TreeChunk.decode(data[identity])
            for _, value in chunk.pairs:
                if chunk.level:
                    if value not in seen:
                        seen.add(value)
                        waiting.append(value)
                elif inline_value(value) is None:
                    seen.add(apart_id(value))


def _runs(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))
