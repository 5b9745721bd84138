"""Record complete content as one commit, or that of a live bucket at one revision, despite concurrent writers.

The tree is built, and objects that the branch lacks are written. Leaves and large values are written while the content
is read, so that only keys, small values and references are held. They stay valid while no garbage collection begins and
the branch keeps its history: objects that its head has are not written again, and a collection that began before may
remove them after a reset. In both cases the content is read again, if it can be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from kvctl.errors import ConflictError, UsageError
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.names import check_key
from kvctl.units import NEVER
from kvctl.versions import commits
from kvctl.versions.access import RepositoryAccess
from kvctl.versions.ancestry import ancestors
from kvctl.versions.branch import branch_state
from kvctl.versions.commits import CommitInfo
from kvctl.versions.model import INLINE, Branch, Commit, apart_id, leaf_value
from kvctl.versions.refs import CommitReader
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree.chunks import Chunker, Pair, TreeChunk
from kvctl.versions.tree.objects import MissingObject, Objects
from kvctl.versions.tree.tree import NewChunks, NewTree, Reading, get
from kvctl.versions.tree.tree_update import HAND_OVER

if TYPE_CHECKING:
    from kvctl.kv.read.watch import Watcher

Content = Mapping[str, bytes] | Iterable[tuple[str, bytes]]
"""Keys and values; if it is not a mapping, sorted by the bytes of the keys without duplicates."""
Stored = Callable[[bytes], AsyncGenerator[Sequence[Pair], None]]
"""Yields sorted entries as leaves store them, given the root of a tree that has some of their large values."""

SHOWN = 80
"""Maximum characters of a key in a message."""
PART_ENTRIES, PART_BYTES = 1000, 8 << 20
"""Maximum number of entries, and bytes of large values, that are stored together."""
TIMES = 3
"""Number of attempts, if garbage collections interfere."""
CATCH_UP_DEADLINE_S = 60.0
"""Seconds to catch up with concurrent writes, after the keys of a bucket present at the start were read."""

T = TypeVar("T")


async def record(
    repo: RepositoryAccess,
    branch: str,
    content: Content,
    message: str,
    *,
    meta: Mapping[str, str] | None = None,
    allow_empty: bool = False,
) -> Commit:
    """Replace the branch's content by this one in one commit, onto a branch without staged changes.

    An iterable that is not a mapping must be sorted by the bytes of the keys. Raises NothingToCommit, HasStagedChanges,
    UsageError, BranchNotFound, ConflictError after too many retries.
    """
    info = CommitInfo(message, repo.author, meta or {}, allow_empty)

    async def stored(root: bytes) -> AsyncGenerator[Sequence[Pair], None]:
        large, some = _LargeValues(repo.objects, root), list[Pair]()
        before = b""
        for key, value in sorted(content.items()) if isinstance(content, Mapping) else content:
            _check_entry(repo, key, value)
            name = key.encode()
            if name <= before:
                raise UsageError(f"`{key}` follows `{before.decode()}`: keys must be sorted and unique")
            before = name
            some.append((name, large.add(name, value)))
            if len(some) >= PART_ENTRIES or large.size >= PART_BYTES:
                await large.write()
                yield some
                some = []
        await large.write()
        yield some

    times = TIMES if isinstance(content, Mapping) else 1
    return await _record_stored(repo, branch, stored, lambda: info, times=times)


@dataclass(slots=True)
class Live(Generic[T]):
    """Keys of a bucket at one revision."""

    revision: int = 0
    """Revision of the snapshot; 0 if nothing was ever written."""
    keys: dict[str, tuple[int, T]] = field(default_factory=dict)
    """Existing keys: the revision, and the part of the value that is kept."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Revisions of markers."""
    foreign: set[str] = field(default_factory=set)
    """Existing keys that ADR-8 does not allow: no repository has room for them."""
    adorned: set[str] = field(default_factory=set)
    """Existing keys with a ttl or headers of their own, for which a repository has no room either."""

    lasting: set[str] = field(default_factory=set)
    """Existing keys that never expire, whatever the bucket's ttl: `Nats-TTL: never`."""

    def take(self, entry: Entry, keep: Callable[[bytes], T]) -> None:
        """Add the next entry."""
        self.revision = entry.revision
        for known in (self.foreign, self.adorned, self.lasting):
            known.discard(entry.key)
        if entry.operation is not Operation.PUT:
            self.keys.pop(entry.key, None)
            self.deleted[entry.key] = entry.revision
        elif not is_legal(entry.key):
            self.foreign.add(entry.key)
        else:
            self.deleted.pop(entry.key, None)
            self.keys[entry.key] = entry.revision, keep(entry.value)
            if not entry.bare:
                self._note_headers(entry)

    def _note_headers(self, entry: Entry) -> None:
        if entry.ttl is not None or entry.headers:
            self.adorned.add(entry.key)
        if entry.ttl == NEVER:
            self.lasting.add(entry.key)


async def read_bucket(
    bucket: Bucket, keep: Callable[[bytes], T], *, before: Callable[[Entry], Awaitable[None]] | None = None
) -> Live[T]:
    """Read the bucket's leader up to the current end, with what `keep` returns for each value.

    `before` is called with each large entry, before it is taken.

    A key overwritten before its turn comes later in the same reading: when the server has no more to send, which its
    count of pending entries does not tell, every key is as of the last revision read. Holds all keys. Raises
    BucketNotFound, ConflictError if writers are faster.
    """
    live: Live[T] = Live()
    info = (await bucket.locate(fresh=True)).info
    known = int(info["state"]["last_seq"]) if info else 0
    async with (
        await bucket.watch(follow=False) as watcher,
        aclosing(_to_the_end(bucket.name, watcher, known)) as entries,
    ):
        async for entry in entries:
            if before is not None and len(entry.value) > INLINE:
                await before(entry)
            live.take(entry, keep)
    return live


async def record_bucket(
    repo: RepositoryAccess,
    branch: str,
    bucket: Bucket,
    message: str,
    *,
    meta: Mapping[str, str] | None = None,
    allow_empty: bool = False,
) -> tuple[Commit, Live[bytes]]:
    """Commit the bucket's content, and nothing else; bucket and revision are recorded with the commit.

    Returns also the bucket's keys with their values as leaves store them: large ones are written as they are read.
    Raises BucketNotFound, and as `read_bucket` and `record`.
    """
    live: Live[bytes] = Live()

    def info() -> CommitInfo:
        origin = {"bucket": bucket.name, "revision": str(live.revision)}
        return CommitInfo(message, repo.author, origin | dict(meta or {}), allow_empty)

    async def stored(root: bytes) -> AsyncGenerator[Sequence[Pair], None]:
        nonlocal live
        large = _LargeValues(repo.objects, root)
        refused: dict[bytes, UsageError] = {}

        async def before(entry: Entry) -> None:
            if entry.operation is not Operation.PUT or not is_legal(entry.key):
                return
            try:
                _check_entry(repo, entry.key, entry.value)
            except UsageError as error:  # unless it is overwritten until the end
                refused[leaf_value(entry.value)[0]] = error
                return
            large.add(entry.key.encode(), entry.value)
            if large.size >= PART_BYTES:
                await large.write()

        live = await read_bucket(bucket, lambda value: leaf_value(value)[0], before=before)
        await large.write()
        keys = sorted(live.keys)
        for at in range(0, len(keys), PART_ENTRIES):
            some = [(key, live.keys[key][1]) for key in keys[at : at + PART_ENTRIES]]
            for key, value in some:
                if value in refused:
                    raise refused[value]
                _check_entry(repo, key, b"")
            yield [(key.encode(), value) for key, value in some]

    return await _record_stored(repo, branch, stored, info), live


async def _record_stored(
    repo: RepositoryAccess, branch: str, stored: Stored, info: Callable[[], CommitInfo], *, times: int = TIMES
) -> Commit:
    """Commit entries as leaves store them, read `times` times at most; `info` is asked for when they were read.

    Raises as `record`.
    """
    tree, begun, based = None, -1, None
    for _ in range(branch_state.MAX_ATTEMPTS):
        state = await commits.read_clean(repo, branch)
        collected = state.collections.collection.begun != begun
        if based is None or collected or not await _has_grown(repo.store, based, state.branch):
            if not times:
                what = "garbage collection" if collected else f"reset of branch `{branch}`"
                raise ConflictError(f"A {what} interfered", hint="Try again")
            times, begun, based = times - 1, state.collections.collection.begun, state.branch
            root = bytes.fromhex(state.branch.root)
            try:
                async with aclosing(stored(root)) as parts:
                    tree = await _built(repo.objects, parts, await repo.objects.run(_above_leaves(root)))
            except MissingObject:
                if await branch_state.is_unchanged(repo.store, state.record):
                    raise
                based = None  # the branch was reset, and its old head collected
                continue
        assert tree is not None
        made = await commits.move_to(repo, state, info(), tree)
        if made is not None:
            return made
        await branch_state.pause()
    raise branch_state.busy(branch)


async def _has_grown(store: Store, before: Branch, head: Branch) -> bool:
    """Return whether a head is an earlier one of its branch, or came from it by commits and merges."""
    async for identity, found in ancestors(CommitReader(store), head.commit, first_parent=True):
        if found.generation <= before.generation:
            return identity == before.commit
    return False


class _LargeValues:
    """Large values to write, except those that a tree has at the same key."""

    def __init__(self, objects: Objects, root: bytes) -> None:
        self._objects = objects
        self._root = root
        self._waiting: dict[bytes, tuple[bytes, bytes]] = {}
        self.size = 0
        """Bytes of the values that wait to be written."""

    def add(self, name: bytes, value: bytes) -> bytes:
        """Add the value of a key; return it as a leaf stores it."""
        stored, apart = leaf_value(value)
        if apart:
            self._waiting[name] = stored, value
            self.size += len(value)
        return stored

    async def write(self) -> None:
        """Write the values added."""
        if self._waiting:
            waiting, self._waiting, self.size = self._waiting, {}, 0
            known = await self._objects.run(get(self._root, list(waiting)))
            new = {apart_id(one): value for name, (one, value) in waiting.items() if known.get(name) != one}
            await self._objects.write(new, keep=False)


async def _built(objects: Objects, parts: AsyncIterator[Sequence[Pair]], known: set[bytes]) -> NewTree:
    """Return the tree of sorted entries, and its objects that are not stored; those known are."""
    cut, made, row = Chunker(0), NewChunks(), list[Pair]()

    def end(chunk: TreeChunk) -> None:
        row.append(made.add(chunk))
        if row[-1][1] in known:
            made.remove(row[-1][1])

    async for some in parts:
        for chunk in cut.add([key for key, _ in some], [value for _, value in some]):
            end(chunk)
        if made.size >= HAND_OVER:
            await objects.write(made.take(), keep=False)
        await asyncio.sleep(0)
    if (last := cut.end()) is not None:
        end(last)
    whole = made.tree(row)
    return NewTree(whole.root, {identity: data for identity, data in whole.objects.items() if identity not in known})


def _above_leaves(root: bytes) -> Reading[set[bytes]]:
    """Return the ids of a tree's chunks without reading leaves."""
    known, waiting = {root}, {root}
    while waiting:
        data = yield waiting
        chunks = [TreeChunk.decode(data[identity]) for identity in waiting]
        below = {child for chunk in chunks if chunk.level for _, child in chunk.pairs}
        known |= below
        waiting = below if any(chunk.level > 1 for chunk in chunks) else set()
    return known


def _check_entry(repo: RepositoryAccess, key: str, value: bytes) -> None:
    """Check a key and its value. Raises UsageError that names the key."""
    try:
        repo.check(key, value)
    except UsageError as error:
        shown = key if len(key) <= SHOWN else f"{key[:SHOWN]}…"
        what = error.message[0].lower() + error.message[1:]
        raise UsageError(f"`{shown}` cannot be recorded: {what}", hint=error.hint) from None


async def _to_the_end(bucket: str, watcher: Watcher, known: int) -> AsyncGenerator[Entry]:
    """Yield entries until the server has no more; `known` is the last revision at the start."""
    deadline = None
    async with aclosing(watcher.batches()) as batches:
        while True:
            try:
                async with asyncio.timeout(deadline and max(deadline - time.monotonic(), 0)):
                    batch = await anext(batches, None)
            except TimeoutError:
                raise ConflictError(
                    f"Bucket `{bucket}` has no consistent snapshot: it is written faster than it can be read",
                    hint="Run it closer to the server or when fewer writes happen",
                ) from None
            if batch is None:
                return
            for entry in batch:
                yield entry
            if deadline is None and batch and batch[-1].revision > known:
                deadline = time.monotonic() + CATCH_UP_DEADLINE_S


def is_legal(key: str) -> bool:
    """Return whether ADR-8 allows the key, so that a commit has room for it."""
    try:
        check_key(key)
    except UsageError:
        return False
    return True
