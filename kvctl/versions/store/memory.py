"""Store in memory: for tests, and for data that need not outlive the process. [pure]"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count

from kvctl.versions.store.protocol import (
    ABSENT,
    Place,
    PredicateFailed,
    Store,
    StoreChange,
    StoreCondition,
    StoredValue,
    StoreEntry,
    StoreFilling,
)

PAGE_ENTRIES = 1000
"""Number of entries returned together."""


class MemoryStore(Store):
    """Sorted keys and a dictionary per partition. Nothing awaits, so every operation is atomic."""

    def __init__(self, *, largest: int = 1 << 20) -> None:
        self._largest = largest
        self._values: dict[bytes, dict[bytes, StoredValue]] = {}
        self._keys: dict[bytes, list[bytes]] = {}
        self._sequence = count(1)

    @property
    def largest(self) -> int:
        return self._largest

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[StoredValue | None]:
        self.check_open()
        for place in places:
            self.check_place(*place)
        return [self._values.get(partition, {}).get(key) for partition, key in places]

    async def pages(
        self, partition: bytes, start: bytes = b"", *, values: bool = True, beside: int = 0
    ) -> AsyncGenerator[list[StoreEntry], None]:
        """See `Store.pages`: each step looks up the next keys, so that keys may come and go in between."""
        self.check_partition(partition)
        at = bisect_left(self._keys.get(partition, []), start)
        while some := self._keys.get(partition, [])[at : at + PAGE_ENTRIES]:
            held = self._values[partition]
            yield [StoreEntry(key, held[key].value if values else b"", held[key].revision) for key in some]
            self.check_open()
            at = bisect_right(self._keys.get(partition, []), some[-1])

    async def write(self, conditions: Sequence[StoreCondition], changes: Sequence[StoreChange]) -> list[int]:
        self.check_write(conditions, changes)
        for condition in conditions:
            held = self._values.get(condition.partition, {}).get(condition.key)
            if (held.revision if held else ABSENT) != condition.revision:
                raise PredicateFailed
        return [self._apply(change) for change in changes]

    @asynccontextmanager
    async def fill(self, partition: bytes) -> AsyncIterator[StoreFilling]:
        self.check_partition(partition)
        yield MemoryFilling(self, partition)

    async def clear(self, partition: bytes) -> None:
        self.check_partition(partition)
        self._values.pop(partition, None)
        self._keys.pop(partition, None)

    async def clear_soon(self, partition: bytes) -> None:
        await self.clear(partition)

    async def is_empty(self, partition: bytes) -> bool:
        self.check_partition(partition)
        return not self._values.get(partition)

    async def partitions(self) -> list[bytes]:
        self.check_open()
        return sorted(partition for partition, held in self._values.items() if held)

    def _apply(self, change: StoreChange) -> int:
        values, keys = self._values.setdefault(change.partition, {}), self._keys.setdefault(change.partition, [])
        if change.value is None:
            if values.pop(change.key, None) is not None:
                del keys[bisect_left(keys, change.key)]
            return ABSENT
        if change.key not in values:
            insort(keys, bytes(change.key))
        made = values[bytes(change.key)] = StoredValue(bytes(change.value), next(self._sequence))
        return made.revision


class MemoryFilling:
    """See `Filling`."""

    def __init__(self, store: MemoryStore, partition: bytes) -> None:
        self._store = store
        self._partition = partition

    async def add(self, values: Mapping[bytes, bytes]) -> None:
        """See `Filling.add`."""
        for key, value in values.items():
            await self._store.write([], [StoreChange(self._partition, key, value)])

    async def flush(self) -> None:
        """See `Filling.flush`."""
