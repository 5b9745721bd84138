"""Store in memory: for tests, and for data that need not outlive the process. [pure]"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Self

from kvctl.versions.store.protocol import (
    ABSENT,
    EXISTS,
    Change,
    Condition,
    EntryNotFound,
    Filling,
    Found,
    Place,
    Predicate,
    PredicateFailed,
    StoreClosed,
    StoreEntry,
    check_partition,
    check_place,
    check_value,
    check_write,
)

PAGE = 1000
"""Number of entries returned together."""


class MemoryStore:
    """Sorted keys and a dictionary per partition. Nothing awaits, so every operation is atomic."""

    def __init__(self, *, largest: int = 1 << 20) -> None:
        self.largest = largest
        self._values: dict[bytes, dict[bytes, tuple[bytes, int]]] = {}
        self._keys: dict[bytes, list[bytes]] = {}
        self._sequence = count(1)
        self._closed = False

    async def get(self, partition: bytes, key: bytes) -> Found:
        """See `Store.get`."""
        self._check_open()
        check_place(partition, key)
        held = self._values.get(partition, {}).get(key)
        if held is None:
            raise EntryNotFound("The key does not exist")
        return Found(held[0], self._predicate(partition, key, held[1]))

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        """See `Store.set`."""
        await self.write([], [Change(partition, key, check_value(value, self.largest))])

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> Predicate:
        """See `Store.set_if`."""
        change = Change(partition, key, check_value(value, self.largest))
        return (await self.write([Condition(partition, key, predicate)], [change]))[0]

    async def delete(self, partition: bytes, key: bytes, *, traceless: bool = False) -> None:
        """See `Store.delete`."""
        await self.write([], [Change(partition, key, None)])

    def scan(
        self, partition: bytes, start: bytes = b"", *, batch: int = 0, values: bool = True, beside: int = 0
    ) -> MemoryEntries:
        """See `Store.scan`."""
        self._check_open()
        check_partition(partition)
        return MemoryEntries(self, partition, start, values)

    async def write(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> list[Predicate]:
        """See `Store.write`."""
        self._check_open()
        check_write(conditions, changes, self.largest)
        if not all(self._holds(condition) for condition in conditions):
            raise PredicateFailed("A condition does not hold")
        return [self._apply(change) for change in changes]

    async def put_while(self, fence: Condition, partition: bytes, key: bytes, value: bytes) -> Predicate:
        """See `Store.put_while`."""
        return (await self.write([fence], [Change(partition, key, value)]))[0]

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[Found | None]:
        """See `Store.get_many`."""
        self._check_open()
        for place in places:
            check_place(*place)
        found: list[Found | None] = []
        for place in places:
            try:
                found.append(await self.get(*place))
            except EntryNotFound:
                found.append(None)
        return found

    async def set_many(self, partition: bytes, values: Mapping[bytes, bytes]) -> None:
        """See `Store.set_many`."""
        async with self.fill(partition) as filling:
            await filling.add(values)

    @asynccontextmanager
    async def fill(self, partition: bytes) -> AsyncIterator[Filling]:
        """See `Store.fill`."""
        self._check_open()
        check_partition(partition)
        yield MemoryFilling(self, partition)

    async def clear(self, partition: bytes) -> None:
        """See `Store.clear`."""
        self._check_open()
        check_partition(partition)
        self._values.pop(partition, None)
        self._keys.pop(partition, None)

    async def clear_soon(self, partition: bytes, place: Place) -> None:
        """See `Store.clear_soon`."""
        await self.clear(partition)
        await self.delete(*place, traceless=True)

    async def is_empty(self, partition: bytes) -> bool:
        """See `Store.is_empty`."""
        self._check_open()
        check_partition(partition)
        return not self._values.get(partition)

    async def partitions(self) -> list[bytes]:
        """See `Store.partitions`."""
        self._check_open()
        return sorted(partition for partition, held in self._values.items() if held)

    async def close(self) -> None:
        """See `Store.close`."""
        self._closed = True

    def after(self, partition: bytes, key: bytes, *, inclusive: bool, values: bool) -> StoreEntry | None:
        """Return the first entry after a key, or with `inclusive` at it. Raises StoreClosed."""
        self._check_open()
        keys = self._keys.get(partition, [])
        at = bisect_left(keys, key)
        if not inclusive and at < len(keys) and keys[at] == key:
            at += 1
        if at == len(keys):
            return None
        value, sequence = self._values[partition][keys[at]]
        predicate = self._predicate(partition, keys[at], sequence)
        return StoreEntry(partition, keys[at], value if values else b"", predicate)

    def _predicate(self, partition: bytes, key: bytes, sequence: int) -> Predicate:
        return Predicate((id(self), partition, key, sequence))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("The store was closed")

    def _holds(self, condition: Condition) -> bool:
        held = self._values.get(condition.partition, {}).get(condition.key)
        if condition.predicate == ABSENT:
            return held is None
        if condition.predicate == EXISTS:
            return held is not None
        read = (id(self), condition.partition, condition.key, held[1] if held else None)
        return held is not None and getattr(condition.predicate, "token", None) == read

    def _apply(self, change: Change) -> Predicate:
        values, keys = self._values.setdefault(change.partition, {}), self._keys.setdefault(change.partition, [])
        if change.value is None:
            if values.pop(change.key, None) is not None:
                del keys[bisect_left(keys, change.key)]
            return ABSENT
        if change.key not in values:
            insort(keys, bytes(change.key))
        sequence = next(self._sequence)
        values[bytes(change.key)] = (bytes(change.value), sequence)
        return self._predicate(bytes(change.partition), bytes(change.key), sequence)


class MemoryFilling:
    """See `Filling`."""

    def __init__(self, store: MemoryStore, partition: bytes) -> None:
        self._store = store
        self._partition = partition

    async def add(self, values: Mapping[bytes, bytes]) -> None:
        """See `Filling.add`."""
        for key, value in values.items():
            await self._store.write([], [Change(self._partition, key, value)])

    async def flush(self) -> None:
        """See `Filling.flush`."""


class MemoryEntries:
    """See `Entries`: each step looks up the next key, so that keys may come and go in between."""

    def __init__(self, store: MemoryStore, partition: bytes, start: bytes, values: bool) -> None:
        self._store = store
        self._values = values
        self._partition = partition
        self._at = start
        self._inclusive = True
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoreEntry:
        self._check_open()
        entry = self._store.after(self._partition, self._at, inclusive=self._inclusive, values=self._values)
        if entry is None:
            raise StopAsyncIteration
        self._at, self._inclusive = entry.key, False
        return entry

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def page(self) -> list[tuple[bytes, bytes]]:
        """See `Entries.page`."""
        found: list[tuple[bytes, bytes]] = []
        async for entry in self:
            found.append((entry.key, entry.value))
            if len(found) >= PAGE:
                break
        return found

    async def seek(self, key: bytes) -> None:
        """See `Entries.seek`."""
        self._check_open()
        self._at, self._inclusive = key, True

    async def close(self) -> None:
        """See `Entries.close`."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("The scan was closed")
