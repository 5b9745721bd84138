"""A table with typed keys and values: text, JSON, or anything that has a serializer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvctl.tables.changes import NO_VERSION, Change, Insert, Put, Remove, Version
from kvctl.tables.entry import Entry
from kvctl.tables.ranges import Range
from kvctl.tables.serializers import Serializer
from kvctl.tables.table import EVERYTHING, Table

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class TypedEntry(Generic[K, V]):
    """A key, its value, and the version at which it was read."""

    key: K
    value: V
    version: Version
    family: str | None = None


class TypedTable(Generic[K, V]):
    """`Table` with serializers; raises as it does, and ValueError for bytes of another type."""

    def __init__(self, table: Table, keys: Serializer[K], values: Serializer[V]) -> None:
        self.table = table
        self._keys = keys
        self._values = values

    async def get(self, key: K, *, family: str | None = None) -> TypedEntry[K, V] | None:
        """Return the entry, None if there is none."""
        return self._typed(await self.table.get(self._keys.serialize(key), family=family))

    async def get_all(self, keys: Sequence[K], *, family: str | None = None) -> list[TypedEntry[K, V] | None]:
        """Return the entries of many keys in the requested order, None for missing ones."""
        found = await self.table.get_all([self._keys.serialize(key) for key in keys], family=family)
        return [self._typed(entry) for entry in found]

    async def exists(self, key: K, *, family: str | None = None) -> bool:
        """Return whether the entry exists."""
        return await self.table.exists(self._keys.serialize(key), family=family)

    async def put(self, key: K, value: V, *, version: Version = NO_VERSION, family: str | None = None) -> Version:
        """Write the entry, with a version only if it has that one (NOT_EXISTS: if it does not exist)."""
        data = self._values.serialize(value)
        return await self.table.replace(self._keys.serialize(key), data, version, family=family)

    async def remove(self, key: K, version: Version = NO_VERSION, *, family: str | None = None) -> None:
        """Remove the entry."""
        await self.table.remove(self._keys.serialize(key), version, family=family)

    async def update(self, changes: Sequence[Change]) -> list[Version | None]:
        """Apply changes as `Table.update`, created by this table's `insertion`, `putting` and `removal`."""
        return await self.table.update(changes)

    def insertion(self, key: K, value: V, *, family: str | None = None) -> Change:
        """Return a change that writes an entry which must not exist."""
        return Insert(self._keys.serialize(key), self._values.serialize(value), family)

    def putting(self, key: K, value: V, *, version: Version = NO_VERSION, family: str | None = None) -> Change:
        """Return a change that writes an entry."""
        return Put(self._keys.serialize(key), self._values.serialize(value), version, family)

    def removal(self, key: K, *, version: Version = NO_VERSION, family: str | None = None) -> Change:
        """Return a change that removes an entry."""
        return Remove(self._keys.serialize(key), version, family)

    async def entries(self, of: Range = EVERYTHING) -> AsyncGenerator[TypedEntry[K, V], None]:
        """Yield the entries of a range, in the order of the keys' bytes."""
        async with aclosing(self.table.pages(of)) as pages:
            async for page in pages:
                for entry in page.entries:
                    assert isinstance(entry, Entry)
                    found = self._typed(entry)
                    assert found is not None
                    yield found

    def _typed(self, entry: Entry | None) -> TypedEntry[K, V] | None:
        if entry is None:
            return None
        key, value = self._keys.deserialize(entry.key), self._values.deserialize(entry.value)
        return TypedEntry(key, value, entry.version, entry.family)
