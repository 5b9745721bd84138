"""Content-addressed objects in a Store, chunks of trees and large values: read in parallel, cached."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from kvctl.errors import KvctlError
from kvctl.versions.model import apart_id, inline_value
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree.chunks import TreeChunk
from kvctl.versions.tree.tree import Edit, NewChunks, NewTree, Reading, child_of, get
from kvctl.versions.tree.tree_update import HAND_OVER, Ahead, read_for, update

OBJECTS = b"objects"
AHEAD = 64
"""Number of leaves read together in advance."""
BLOCKING_S = 0.001
"""Seconds that building a tree may block other tasks of the process."""
CACHE = 64 << 20
"""Bytes of objects cached: they never change."""

STORED_BYTES = 64 << 20
"""Bytes of objects that `StoredObjects` keeps."""

T = TypeVar("T")


class StoredObjects:
    """Objects that were stored during a block, to be stored again."""

    def __init__(self) -> None:
        self.found: dict[bytes, bytes] | None = {}
        """None if they are more than STORED_BYTES."""
        self._size = 0

    def add(self, objects: Mapping[bytes, bytes]) -> None:
        """Add objects."""
        self._size += sum(map(len, objects.values()))
        if self.found is not None and self._size <= STORED_BYTES:
            self.found |= objects
        else:
            self.found = None


class MissingObject(KvctlError):
    """Object that a commit needs, or a commit, does not exist."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is missing", hint="`kvctl doctor` shows what refers to it")


class Objects:
    """Objects of a repository."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: OrderedDict[bytes, bytes] = OrderedDict()
        self._size = 0
        self._storing: list[StoredObjects] = []

    @contextmanager
    def storing(self) -> Iterator[StoredObjects]:
        """Collect what is stored during the block, also by other tasks."""
        stored = StoredObjects()
        self._storing.append(stored)
        try:
            yield stored
        finally:
            self._storing.remove(stored)

    async def run(self, reading: Reading[T]) -> T:
        """Run a reading of trees. Raises MissingObject."""
        try:
            wanted = next(reading)
            while True:
                wanted = reading.send(await self.read(wanted))
        except StopIteration as end:
            result: T = end.value
            return result

    @asynccontextmanager
    async def ahead(self, root: bytes, keys: Sequence[bytes]) -> AsyncIterator[asyncio.Task[None]]:
        """During the block, read and cache what `updated` needs to change these sorted keys; yields the task."""

        async def read() -> None:
            with suppress(KvctlError):  # `updated` reads what is missing
                await self.run(read_for(root, keys))

        task = asyncio.create_task(read())
        try:
            yield task
        finally:
            await _stopped(task)

    async def updated(self, root: bytes, edits: Sequence[Edit]) -> NewTree:
        """Return the tree with these changes. Most new objects are stored, the rest are in it. Raises MissingObject."""
        made = NewChunks()
        reading = update(root, edits, made)
        storing, since = _Storing(self), time.monotonic()
        ahead: asyncio.Task[dict[bytes, bytes]] | None = None
        try:
            wanted = next(reading)
            while True:
                if made.size >= HAND_OVER:
                    await storing.start(made.take())
                if time.monotonic() - since > BLOCKING_S:
                    await asyncio.sleep(0)
                    since = time.monotonic()
                if wanted and ahead is not None:
                    await ahead  # what it has read is cached
                    ahead = None
                if isinstance(wanted, Ahead):
                    ahead, wanted = asyncio.create_task(self.read(wanted)), set()
                wanted = reading.send(await self.read(wanted) if wanted else {})
        except StopIteration as end:
            result: NewTree = end.value
        finally:
            await _stopped(ahead)
            await storing.end()
        return result

    async def leaves(self, root: bytes, start: bytes = b"") -> AsyncGenerator[TreeChunk, None]:
        """Yield the leaves of a tree from a key on, in order, some read in advance. Raises MissingObject."""
        top = TreeChunk.decode((await self.read([root]))[root])
        if top.level == 0:
            yield top
            return
        children = top.values[child_of(top, start) :]
        if top.level > 1:
            for child in children:
                async with aclosing(self.leaves(child, start)) as leaves:
                    async for leaf in leaves:
                        yield leaf
            return
        ahead = asyncio.create_task(self.read(children[:AHEAD]))
        try:
            for at in range(0, len(children), AHEAD):
                data = await ahead
                ahead = asyncio.create_task(self.read(children[at + AHEAD : at + 2 * AHEAD]))
                for child in children[at : at + AHEAD]:
                    yield TreeChunk.decode(data[child])
        finally:
            await _stopped(ahead)

    async def read(self, wanted: Iterable[bytes], *, keep: bool = True) -> dict[bytes, bytes]:
        """Read objects by their ids; `keep` caches them. Raises MissingObject."""
        found: dict[bytes, bytes] = {}
        missing: list[bytes] = []
        for identity in wanted:
            if (data := self._held.get(identity)) is None:
                missing.append(identity)
            else:
                found[identity] = data
                self._held.move_to_end(identity)
        if missing:
            found |= await self._from_store(missing, keep=keep)
        return found

    async def values(self, stored: Sequence[bytes]) -> list[bytes]:
        """Read the values that leaves refer to, those stored separately included. Raises MissingObject."""
        apart = {apart_id(item) for item in stored if inline_value(item) is None}
        objects = await self.read(apart)
        return [objects[apart_id(item)] if (value := inline_value(item)) is None else value for item in stored]

    async def values_at(self, root: bytes, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Read the values of those keys that a tree has. Raises MissingObject."""
        stored = await self.run(get(root, keys))
        return dict(zip(stored, await self.values(list(stored.values())), strict=True))

    async def write(self, objects: Mapping[bytes, bytes], *, keep: bool = True) -> None:
        """Store objects; storing one again is harmless. `keep` caches them."""
        for stored in self._storing:
            stored.add(objects)
        if objects:
            await self._store.set_many(OBJECTS, objects)
        if keep:
            self.keep(objects)

    def keep(self, objects: Mapping[bytes, bytes]) -> None:
        """Cache these objects."""
        for identity, data in objects.items():
            if identity not in self._held:
                self._held[identity] = data
                self._size += len(data)
        while self._size > CACHE:
            _, data = self._held.popitem(last=False)
            self._size -= len(data)

    async def _from_store(self, identities: Sequence[bytes], *, keep: bool) -> dict[bytes, bytes]:
        stored = await self._store.get_many([(OBJECTS, identity) for identity in identities], lasting=True)
        found: dict[bytes, bytes] = {}
        for identity, one in zip(identities, stored, strict=True):
            if one is None:
                raise MissingObject(f"Object `{identity.hex()}`")
            found[identity] = one.value
        if keep:
            self.keep(found)
        return found


async def _stopped(task: asyncio.Task[Any] | None) -> None:
    """Cancel a read whose result is not needed."""
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError, KvctlError):
            await task


class _Storing:
    """Stores objects in batches while others are created; until then they are cached."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._task: asyncio.Task[None] | None = None

    async def start(self, some: Mapping[bytes, bytes]) -> None:
        """Store these, once the previous batch is stored."""
        await self.end()
        self._objects.keep(some)
        self._task = asyncio.create_task(self._objects.write(some))

    async def end(self) -> None:
        """Wait until all are stored."""
        if self._task is not None:
            task, self._task = self._task, None
            await task
