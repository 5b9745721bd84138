"""Kill an operation, or run another one, at each of its steps in turn.

A step is what is announced to the fuse: each operation of a SteppedStore is, and whatever else a test announces.

    async def scenario(fuse: Fuse) -> None:
        ...prepare...
        with fuse.killing():
            await operation_on(SteppedStore(store, fuse))
        ...check what is there, and that the same again completes it...

    assert await at_every_step(scenario, kill=True) > 3
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from typing import Any

from kvctl.errors import KvctlError
from kvctl.versions.store.protocol import (
    Change,
    Condition,
    Entries,
    Filling,
    Found,
    Place,
    Predicate,
    Store,
    StoreEntry,
)


class Killed(BaseException):
    """The process ended here: later steps have no effect either."""


class Fuse:
    """Fires at step `number`: it kills, or runs the test's `then`."""

    def __init__(self, number: int, *, kill: bool) -> None:
        self.number = number
        self.kill = kill
        self.blown = False
        self.then: Callable[[], Awaitable[Any]] | None = None
        self._seen = 0

    async def step(self, *, writes: bool) -> None:
        """Announce a step before it is taken; only those that write can be the last."""
        if self.kill and self.blown:
            raise Killed
        if self.kill and not writes:
            return
        self._seen += 1
        if self._seen == self.number:
            self.blown = True
            if self.kill:
                raise Killed
            assert self.then is not None
            await self.then()

    @contextmanager
    def killing(self) -> Iterator[None]:
        """Allow kills in the block, but not after it."""
        try:
            yield
        except Killed:
            assert self.kill

    @property
    def finished(self) -> bool:
        """Return whether there were fewer steps."""
        return not self.blown


class StagingRecord(Fuse):
    """Stops before its first write, until it may go on."""

    def __init__(self) -> None:
        super().__init__(0, kill=False)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def step(self, *, writes: bool) -> None:
        """Stop before a write."""
        if writes:
            self.reached.set()
            await self.go_on.wait()


async def at_every_step(scenario: Callable[[Fuse], Awaitable[None]], *, kill: bool) -> int:
    """Run a scenario with a fuse that fires at the first step, the second and so on; return the number of steps.

    The last time, no step is left for it to blow at.
    """
    for number in count(1):
        fuse = Fuse(number, kill=kill)
        await scenario(fuse)
        if fuse.finished:
            return number - 1
    raise AssertionError


class SteppedStore:
    """Another store, of which each operation is announced; where many keys are read or written, each is one.

    With `backwards` the keys of one read are read in the opposite order: a server reads them in any.
    """

    def __init__(self, store: Store, fuse: Fuse, *, backwards: bool = False) -> None:
        self._store = store
        self._fuse = fuse
        self._backwards = backwards

    @property
    def largest(self) -> int:
        return self._store.largest

    async def get(self, partition: bytes, key: bytes) -> Found:
        await self._fuse.step(writes=False)
        return await self._store.get(partition, key)

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[Found | None]:
        if lasting:
            await self._fuse.step(writes=False)
            return await self._store.get_many(places, lasting=True)
        found = dict[Place, Found | None]()
        for place in reversed(places) if self._backwards else places:
            await self._fuse.step(writes=False)
            found |= zip([place], await self._store.get_many([place]), strict=True)
        return [found[place] for place in places]

    def scan(
        self, partition: bytes, start: bytes = b"", *, batch: int = 0, values: bool = True, beside: int = 0
    ) -> Entries:
        return _SteppedEntries(
            self._store.scan(partition, start, batch=batch, values=values, beside=beside), self._fuse
        )

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        await self._fuse.step(writes=True)
        await self._store.set(partition, key, value)

    async def set_many(self, partition: bytes, values: Mapping[bytes, bytes]) -> None:
        async with self.fill(partition) as filling:
            await filling.add(values)

    @asynccontextmanager
    async def fill(self, partition: bytes) -> AsyncIterator["_SteppedFilling"]:
        async with self._store.fill(partition) as filling:
            yield _SteppedFilling(filling, self._fuse)

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> Predicate:
        await self._fuse.step(writes=True)
        return await self._store.set_if(partition, key, value, predicate)

    async def delete(self, partition: bytes, key: bytes, *, traceless: bool = False) -> None:
        await self._fuse.step(writes=True)
        await self._store.delete(partition, key, traceless=traceless)

    async def partitions(self) -> list[bytes]:
        await self._fuse.step(writes=False)
        return await self._store.partitions()

    async def clear(self, partition: bytes) -> None:
        await self._fuse.step(writes=True)
        await self._store.clear(partition)

    async def clear_soon(self, partition: bytes, place: Place) -> None:
        with suppress(KvctlError):
            await self.clear(partition)
            await self.delete(*place, traceless=True)

    async def is_empty(self, partition: bytes) -> bool:
        await self._fuse.step(writes=False)
        return await self._store.is_empty(partition)

    async def write(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> list[Predicate]:
        await self._fuse.step(writes=True)
        return await self._store.write(conditions, changes)

    async def put_while(self, fence: Condition, partition: bytes, key: bytes, value: bytes) -> Predicate:
        await self._fuse.step(writes=True)
        return await self._store.put_while(fence, partition, key, value)

    async def close(self) -> None:
        await self._store.close()


class _SteppedFilling:
    """Filling of which each key is announced, and stored when the next one is."""

    def __init__(self, filling: Filling, fuse: Fuse) -> None:
        self._filling = filling
        self._fuse = fuse

    async def add(self, values: Mapping[bytes, bytes]) -> None:
        for item in values.items():
            await self._fuse.step(writes=True)
            await self._filling.add(dict([item]))
            await self._filling.flush()

    async def flush(self) -> None:
        await self._filling.flush()


class _SteppedEntries:
    """Entries that are listed at the first step, which is announced."""

    def __init__(self, entries: Entries, fuse: Fuse) -> None:
        self._entries = entries
        self._fuse: Fuse | None = fuse

    def __aiter__(self) -> "_SteppedEntries":
        return self

    async def __anext__(self) -> StoreEntry:
        await self._list()
        return await anext(self._entries)

    async def page(self) -> list[tuple[bytes, bytes]]:
        await self._list()
        return await self._entries.page()

    async def _list(self) -> None:
        if self._fuse:
            fuse, self._fuse = self._fuse, None
            await fuse.step(writes=False)

    async def __aenter__(self) -> "_SteppedEntries":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._entries.close()

    async def seek(self, key: bytes) -> None:
        await self._entries.seek(key)

    async def close(self) -> None:
        await self._entries.close()
