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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from itertools import count
from typing import Any

from kvctl.errors import KvctlError
from kvctl.versions.store.protocol import (
    Place,
    Store,
    StoreChange,
    StoreCondition,
    StoredValue,
    StoreEntry,
    StoreFilling,
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


class SteppedStore(Store):
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

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[StoredValue | None]:
        if lasting:
            await self._fuse.step(writes=False)
            return await self._store.get_many(places, lasting=True)
        found = dict[Place, StoredValue | None]()
        for place in reversed(places) if self._backwards else places:
            await self._fuse.step(writes=False)
            found |= zip([place], await self._store.get_many([place]), strict=True)
        return [found[place] for place in places]

    async def pages(
        self, partition: bytes, start: bytes = b"", *, values: bool = True, beside: int = 0
    ) -> AsyncGenerator[list[StoreEntry], None]:
        await self._fuse.step(writes=False)
        async with aclosing(self._store.pages(partition, start, values=values, beside=beside)) as pages:
            async for page in pages:
                yield page

    @asynccontextmanager
    async def fill(self, partition: bytes) -> AsyncIterator["_SteppedFilling"]:
        async with self._store.fill(partition) as filling:
            yield _SteppedFilling(filling, self._fuse)

    async def partitions(self) -> list[bytes]:
        await self._fuse.step(writes=False)
        return await self._store.partitions()

    async def clear(self, partition: bytes) -> None:
        await self._fuse.step(writes=True)
        await self._store.clear(partition)

    async def clear_soon(self, partition: bytes) -> None:
        with suppress(KvctlError):
            await self.clear(partition)

    async def is_empty(self, partition: bytes) -> bool:
        await self._fuse.step(writes=False)
        return await self._store.is_empty(partition)

    async def write(self, conditions: Sequence[StoreCondition], changes: Sequence[StoreChange]) -> list[int]:
        await self._fuse.step(writes=True)
        return await self._store.write(conditions, changes)


class _SteppedFilling:
    """Filling of which each key is announced, and stored when the next one is."""

    def __init__(self, filling: StoreFilling, fuse: Fuse) -> None:
        self._filling = filling
        self._fuse = fuse

    async def add(self, values: Mapping[bytes, bytes]) -> None:
        for item in values.items():
            await self._fuse.step(writes=True)
            await self._filling.add(dict([item]))
            await self._filling.flush()

    async def flush(self) -> None:
        await self._filling.flush()
