"""Record complete content as one commit: its tree is built, and objects that the branch lacks are written.

Leaves and large values are written while the content is read, so that only keys, small values and references are held.
They stay valid while no garbage collection begins and the branch keeps its history: objects that its head has are not
written again, and a collection that began before may remove them after a reset. In both cases the content is read
again, if it can be.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing

from kvctl.errors import ConflictError, UsageError
from kvctl.versions import commits, refs
from kvctl.versions.branch import branch_state
from kvctl.versions.commits import CommitInfo
from kvctl.versions.model import Branch, Commit, apart_id, leaf_value
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree.chunks import Chunk, Chunker, Pair
from kvctl.versions.tree.objects import Broken, Objects
from kvctl.versions.tree.tree import Made, Reading, Tree, get
from kvctl.versions.tree.tree_update import HAND_OVER

Content = Mapping[str, bytes] | Iterable[tuple[str, bytes]]
"""Keys and values; if it is not a mapping, sorted by the bytes of the keys without duplicates."""
Check = Callable[[str, bytes], None]
"""Raises UsageError for what no branch can hold."""
Stored = Callable[[bytes], AsyncGenerator[Sequence[Pair], None]]
"""Yields sorted entries as leaves store them, given the root of a tree that has some of their large values."""

SHOWN = 80
"""Maximum characters of a key in a message."""
PART_ENTRIES, PART_BYTES = 1000, 8 << 20
"""Maximum number of entries, and bytes of large values, that are stored together."""
TIMES = 3
"""Number of attempts, if garbage collections interfere."""


async def record(
    store: Store, objects: Objects, branch: str, content: Content, info: CommitInfo, check: Check
) -> Commit:
    """Commit this content, and nothing else, onto a branch.

    Raises NothingToCommit, Staged, UsageError, BranchNotFound, ConflictError after too many retries.
    """

    async def stored(root: bytes) -> AsyncGenerator[Sequence[Pair], None]:
        large, some = LargeValues(objects, root), list[Pair]()
        before = b""
        for key, value in sorted(content.items()) if isinstance(content, Mapping) else content:
            check_entry(key, value, check)
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
    return await record_stored(store, objects, branch, stored, lambda: info, times=times)


async def record_stored(
    store: Store, objects: Objects, branch: str, stored: Stored, info: Callable[[], CommitInfo], *, times: int = TIMES
) -> Commit:
    """Commit entries as leaves store them, read `times` times at most; `info` is asked for when they were read.

    Raises as `record`.
    """
    tree, begun, based = None, -1, None
    for _ in range(branch_state.MAX_ATTEMPTS):
        state = await commits.read_clean(store, objects, branch)
        collected = state.collections.collection.begun != begun
        if based is None or collected or not await _has_grown(store, based, state.branch):
            if not times:
                what = "garbage collection" if collected else f"reset of branch `{branch}`"
                raise ConflictError(f"A {what} interfered", hint="Try again")
            times, begun, based = times - 1, state.collections.collection.begun, state.branch
            root = bytes.fromhex(state.branch.root)
            try:
                async with aclosing(stored(root)) as parts:
                    tree = await _built(objects, parts, await objects.run(_above_leaves(root)))
            except Broken:
                if await branch_state.is_unchanged(store, state.record):
                    raise
                based = None  # the branch was reset, and its old head collected
                continue
        assert tree is not None
        made = await commits.move_to(store, objects, state, info(), tree.root, tree.objects)
        if made is not None:
            return made
        await branch_state.pause()
    raise branch_state.busy(branch)


async def _has_grown(store: Store, before: Branch, head: Branch) -> bool:
    """Return whether a head is an earlier one of its branch, or came from it by commits and merges."""
    async for identity, found in refs.ancestors(store, head.commit, first_parent=True):
        if found.generation <= before.generation:
            return identity == before.commit
    return False


class LargeValues:
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


async def _built(objects: Objects, parts: AsyncIterator[Sequence[Pair]], known: set[bytes]) -> Tree:
    """Return the tree of sorted entries, and its objects that are not stored; those known are."""
    cut, made, row = Chunker(0), Made(), list[Pair]()

    def end(chunk: Chunk) -> None:
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
    return Tree(whole.root, {identity: data for identity, data in whole.objects.items() if identity not in known})


def _above_leaves(root: bytes) -> Reading[set[bytes]]:
    """Return the ids of a tree's chunks without reading leaves."""
    known, waiting = {root}, {root}
    while waiting:
        data = yield waiting
        chunks = [Chunk.decode(data[identity]) for identity in waiting]
        below = {child for chunk in chunks if chunk.level for _, child in chunk.pairs}
        known |= below
        waiting = below if any(chunk.level > 1 for chunk in chunks) else set()
    return known


def check_entry(key: str, value: bytes, check: Check) -> None:
    """Check a key and its value. Raises UsageError that names the key."""
    try:
        check(key, value)
    except UsageError as error:
        shown = key if len(key) <= SHOWN else f"{key[:SHOWN]}…"
        what = error.message[0].lower() + error.message[1:]
        raise UsageError(f"`{shown}` cannot be recorded: {what}", hint=error.hint) from None
