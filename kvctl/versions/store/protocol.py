"""Store of a repository: partitions of sorted keys, as in lakeFS's design, and some operations of our own. [pure]

Our own are bulk operations, an atomic conditional write of several keys, and revisions on the entries of a scan, which
may leave out the values.

Partitions and keys are any bytes but not empty; a value may be empty. A read that follows a successful write returns
its value or a later one. A scan of one partition never touches another.

Each write of a key gives it a revision that no other write of the store has. So the condition that a key is as read is
its revision: it fails once the key is written again, even with the same value (lakeFS compares values instead).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import NamedTuple, Protocol

from kvctl.errors import ConflictError, KvctlError, UsageError


class MissingArgument(UsageError):
    """Partition, key or value that was not given."""


class PredicateFailed(ConflictError):
    """A condition does not hold, and nothing was written."""

    def __init__(self) -> None:
        super().__init__("A condition does not hold")


class StoreClosed(KvctlError):
    """The store was closed."""


Place = tuple[bytes, bytes]
"""Partition and key."""

ABSENT = 0
"""Revision of a key that does not exist."""


class StoredValue(NamedTuple):
    """Value of a key as read, and its revision."""

    value: bytes
    revision: int


class StoreEntry(NamedTuple):
    """One entry of a scan."""

    key: bytes
    value: bytes
    revision: int


class StoreCondition(NamedTuple):
    """Revision that a key must have."""

    partition: bytes
    key: bytes
    revision: int


class StoreChange(NamedTuple):
    """Value for a key; None deletes it."""

    partition: bytes
    key: bytes
    value: bytes | None
    traceless: bool = False
    """True if a server crash may undo the deletion after a while: only for harmless deletions."""


class StoreFilling(Protocol):
    """Writes into a partition, in flight until `flush` or the end of the block; not atomic.

    Both raise UnreachableError and ServerError: some keys may be written then.
    """

    async def add(self, values: Mapping[bytes, bytes]) -> None:
        """Write keys; those of a later call replace those of an earlier one. Raises MissingArgument, UsageError."""

    async def flush(self) -> None:
        """Wait until all are stored."""


class Store(ABC):
    """lakeFS's Store, extended. Operations raise MissingArgument and StoreClosed, those that write OutcomeUnknown."""

    _closed = False

    @property
    @abstractmethod
    def largest(self) -> int:
        """Maximum bytes of a value; a larger one raises UsageError before anything is written."""

    @abstractmethod
    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[StoredValue | None]:
        """Return the values of several keys, None for absent ones.

        They are not read consistently: others may write between any two of them. `lasting` promises that these keys are
        only ever written with one value, and so may be read from any replica that has it.
        """

    @abstractmethod
    def pages(
        self, partition: bytes, start: bytes = b"", *, values: bool = True, beside: int = 0
    ) -> AsyncGenerator[list[StoreEntry], None]:
        """Yield the entries of a partition from `start` on, in the order of their keys' bytes, in pages.

        Concurrent writes may be missed or seen; an unchanged key is seen exactly once. Without `values` they are left
        empty, which is cheaper. `beside` is the number of other scans that are open at the same time, and share the
        memory.
        """

    @abstractmethod
    async def write(self, conditions: Sequence[StoreCondition], changes: Sequence[StoreChange]) -> list[int]:
        """Apply all changes if all conditions hold, else none. No key may be changed twice.

        Returns the new revision for each change: ABSENT after a deletion. Raises PredicateFailed, UsageError.
        """

    @abstractmethod
    def fill(self, partition: bytes) -> AbstractAsyncContextManager[StoreFilling]:
        """Write any number of keys that nobody else gives other values, thousands at a time."""

    @abstractmethod
    async def clear(self, partition: bytes) -> None:
        """Delete all keys of a partition; keys written concurrently may stay. A server crash may undo it."""

    @abstractmethod
    async def clear_soon(self, partition: bytes) -> None:
        """Begin to clear a partition, without waiting. A failure is not reported."""

    @abstractmethod
    async def is_empty(self, partition: bytes) -> bool:
        """Return whether a partition has no keys, without listing them."""

    @abstractmethod
    async def partitions(self) -> list[bytes]:
        """Return all partitions that have keys, and perhaps some whose keys were all deleted; sorted."""

    async def now_ns(self) -> int:
        """Return the time of the store, in nanoseconds since the epoch: that of clients may be off."""
        return time.time_ns()

    async def get(self, partition: bytes, key: bytes) -> StoredValue | None:
        """Return the value of a key; None for an absent one."""
        return (await self.get_many([(partition, key)]))[0]

    async def scan(
        self, partition: bytes, start: bytes = b"", *, values: bool = True
    ) -> AsyncGenerator[StoreEntry, None]:
        """Yield the entries of a partition from `start` on one by one, as `pages`."""
        async with aclosing(self.pages(partition, start, values=values)) as pages:
            async for page in pages:
                for entry in page:
                    yield entry

    async def set(self, partition: bytes, key: bytes, value: bytes) -> int:
        """Write a key unconditionally; return its revision."""
        return (await self.write([], [StoreChange(partition, key, check_value(value, self.largest))]))[0]

    async def set_if(self, partition: bytes, key: bytes, value: bytes, revision: int) -> int:
        """Write a key if it has this revision; return the new one. Raises PredicateFailed."""
        change = StoreChange(partition, key, check_value(value, self.largest))
        return (await self.write([StoreCondition(partition, key, revision)], [change]))[0]

    async def delete(self, partition: bytes, key: bytes) -> None:
        """Delete a key; an absent one is not an error."""
        await self.write([], [StoreChange(partition, key, None)])

    async def written(self, conditions: Sequence[StoreCondition], changes: Sequence[StoreChange]) -> bool:
        """Write as `write`; return False if a condition does not hold."""
        try:
            await self.write(conditions, changes)
        except PredicateFailed:
            return False
        return True

    async def put_while(self, fence: StoreCondition, partition: bytes, key: bytes, value: bytes) -> int:
        """Write one key of a partition while another place is as read; as `write`, but faster where it can be.

        `fence` is the condition on the other place. Headers are prepared once for each fence object.
        """
        return (await self.write([fence], [StoreChange(partition, key, value)]))[0]

    async def set_many(self, partition: bytes, values: Mapping[bytes, bytes]) -> None:
        """Write many keys that nobody else gives other values; not atomic. Raises as `Filling`."""
        async with self.fill(partition) as filling:
            await filling.add(values)

    async def close(self) -> None:
        """Close the store: every later operation raises StoreClosed."""
        self._closed = True

    def check_open(self) -> None:
        """Check that the store is open. Raises StoreClosed."""
        if self._closed:
            raise StoreClosed("The store was closed")

    def check_partition(self, partition: bytes) -> None:
        """Check that the store is open, and a partition is given. Raises StoreClosed, MissingArgument."""
        self.check_open()
        if not partition:
            raise MissingArgument("The partition is missing")

    def check_place(self, partition: bytes, key: bytes) -> None:
        """Check that the store is open, and partition and key are given. Raises StoreClosed, MissingArgument."""
        self.check_partition(partition)
        if not key:
            raise MissingArgument("The key is missing")

    def check_write(self, conditions: Sequence[StoreCondition], changes: Sequence[StoreChange]) -> None:
        """Check a write. Raises StoreClosed, MissingArgument, UsageError for a key changed twice or a large value."""
        self.check_open()
        if not changes:
            raise MissingArgument("Nothing to write")
        for condition in conditions:
            self.check_place(condition.partition, condition.key)
        for change in changes:
            self.check_place(change.partition, change.key)
            if change.value is not None:
                check_size(change.value, self.largest)
        if len({(change.partition, change.key) for change in changes}) < len(changes):
            raise UsageError("A key is changed twice in one write")


def check_value(value: bytes | None, largest: int) -> bytes:
    """Return the value. Raises MissingArgument for None (but not for an empty value), UsageError if it is too large."""
    if value is None:
        raise MissingArgument("The value is missing")
    check_size(value, largest)
    return value


def check_size(value: bytes, largest: int) -> None:
    """Check that a value is not too large. Raises UsageError."""
    if len(value) > largest:
        raise UsageError(f"The value has {len(value):,} bytes; the maximum is {largest:,}")
