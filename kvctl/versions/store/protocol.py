"""Store protocol: six operations on partitions of sorted keys, as in lakeFS's design, and some of our own. [pure]

Our own are bulk operations, an atomic conditional write of several keys, and predicates on the entries of a scan, which
may leave out the values.

Partitions and keys are any bytes but not empty; a value may be empty. A read that follows a successful write returns
its value or a later one. A scan of one partition never touches another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from kvctl.errors import ConflictError, KvctlError, NotFoundError, UsageError


class MissingArgument(UsageError):
    """Partition, key or value that was not given."""


class EntryNotFound(NotFoundError):
    """Key that the partition does not have."""


class PredicateFailed(ConflictError):
    """A condition does not hold, and nothing was written."""


class StoreClosed(KvctlError):
    """The store, or a scan, was closed."""


Place = tuple[bytes, bytes]
"""Partition and key."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """Condition on a key: ABSENT, EXISTS, or an opaque token returned by a read of the same store.

    A token holds for that key of that store, and only until the key is written again, even with the same value: lakeFS
    compares values instead.
    """

    token: Any


ABSENT = Predicate("absent")
"""The key does not exist."""
EXISTS = Predicate("exists")
"""The key exists, whatever its value."""


@dataclass(frozen=True, slots=True)
class Found:
    """Value as read, and the predicate that holds until it is written again."""

    value: bytes
    predicate: Predicate


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One entry of a scan."""

    partition: bytes
    key: bytes
    value: bytes
    predicate: Predicate = field(compare=False)
    """Holds until the key is written again."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Predicate that a key must satisfy."""

    partition: bytes
    key: bytes
    predicate: Predicate


@dataclass(frozen=True, slots=True)
class Change:
    """Value for a key; None deletes it."""

    partition: bytes
    key: bytes
    value: bytes | None
    traceless: bool = False
    """True if a server crash may undo the deletion after a while: only for harmless deletions."""


class Entries(Protocol):
    """Entries of a scan, in the order of their keys' bytes: an asynchronous iterator and context manager.

    Concurrent writes may be missed or seen; an unchanged key is seen exactly once.
    """

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> StoreEntry:
        """Return the next entry. Raises StopAsyncIteration; StoreClosed after `close`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def page(self) -> list[tuple[bytes, bytes]]:
        """Return keys and values of the next entries, faster than one by one; none at the end. Raises StoreClosed."""

    async def seek(self, key: bytes) -> None:
        """Move on, or back, to the first entry whose key is this one or after it. Raises StoreClosed."""

    async def close(self) -> None:
        """Stop reading."""


class Filling(Protocol):
    """Writes into a partition, in flight until `flush` or the end of the block; not atomic.

    Both raise UnreachableError and ServerError: some keys may be written then.
    """

    async def add(self, values: Mapping[bytes, bytes]) -> None:
        """Write keys; those of a later call replace those of an earlier one. Raises MissingArgument, UsageError."""

    async def flush(self) -> None:
        """Wait until all are stored."""


class Store(Protocol):
    """lakeFS's Store, extended."""

    @property
    def largest(self) -> int:
        """Maximum bytes of a value; a larger one raises UsageError before anything is written."""

    async def get(self, partition: bytes, key: bytes) -> Found:
        """Return the value of a key. Raises EntryNotFound, MissingArgument, StoreClosed."""

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        """Write a key unconditionally. Raises MissingArgument, StoreClosed, OutcomeUnknown."""

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> Predicate:
        """Write a key if the predicate holds for it; return the one that holds until it is written again.

        Raises PredicateFailed, and as `set`.
        """

    async def delete(self, partition: bytes, key: bytes, *, traceless: bool = False) -> None:
        """Delete a key (`traceless` as in Change); an absent one is not an error. Raises as `set`."""

    def scan(
        self, partition: bytes, start: bytes = b"", *, batch: int = 0, values: bool = True, beside: int = 0
    ) -> Entries:
        """Return the entries of a partition from `start` on; `batch` hints how many to fetch together.

        Without `values` they are left empty, which is cheaper. `beside` is the number of other scans that are open
        at the same time, and share the memory.
        """

    async def write(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> list[Predicate]:
        """Apply all changes if all conditions hold, else none. No key may be changed twice. (Ours.)

        Returns for each change the predicate that holds until its key is written again: ABSENT after a deletion. Raises
        PredicateFailed, UsageError, and as `set`.
        """

    async def put_while(self, fence: Condition, partition: bytes, key: bytes, value: bytes) -> Predicate:
        """Write one key of a partition while another place is as read; as `write`, but faster. (Ours.)

        `fence` is the condition on the other place. Headers are prepared once for each fence object.
        """

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[Found | None]:
        """Return the values of several keys as `get`, None for absent ones. (Ours.)

        They are not read consistently: others may write between any two of them. `lasting` promises that these keys are
        only ever written with one value, and so may be read from any replica that has it. Raises MissingArgument,
        StoreClosed.
        """

    async def set_many(self, partition: bytes, values: Mapping[bytes, bytes]) -> None:
        """Write many keys that nobody else gives other values; not atomic. Raises as `Filling`. (Ours.)"""

    def fill(self, partition: bytes) -> AbstractAsyncContextManager[Filling]:
        """Write any number of keys that nobody else gives other values, thousands at a time. (Ours.)"""

    async def clear(self, partition: bytes) -> None:
        """Delete all keys of a partition; keys written concurrently may stay. Raises as `set`. (Ours.)

        A server crash may undo it.
        """

    async def clear_soon(self, partition: bytes, place: Place) -> None:
        """Begin to clear a partition and to delete one key, traceless, without waiting for either. (Ours.)

        A failure is not reported, and a server crash may undo it. Raises MissingArgument, StoreClosed.
        """

    async def is_empty(self, partition: bytes) -> bool:
        """Return whether a partition has no keys, without listing them. Raises as `get_many`. (Ours.)"""

    async def partitions(self) -> list[bytes]:
        """Return all partitions that have keys, and perhaps some whose keys were all deleted; sorted. (Ours.)"""

    async def close(self) -> None:
        """Close the store: every later operation raises StoreClosed."""


def check_place(partition: bytes, key: bytes) -> None:
    """Check a partition and a key. Raises MissingArgument if one is empty."""
    check_partition(partition)
    if not key:
        raise MissingArgument("The key is missing")


def check_partition(partition: bytes) -> None:
    """Check a partition. Raises MissingArgument if it is empty."""
    if not partition:
        raise MissingArgument("The partition is missing")


def check_value(value: bytes | None, largest: int) -> bytes:
    """Return the value. Raises MissingArgument for None (but not for an empty value), UsageError if it is too large."""
    if value is None:
        raise MissingArgument("The value is missing")
    if len(value) > largest:
        raise UsageError(f"The value has {len(value):,} bytes; the maximum is {largest:,}")
    return bytes(value)


def check_write(conditions: Sequence[Condition], changes: Sequence[Change], largest: int) -> None:
    """Check a write. Raises MissingArgument, and UsageError for a key changed twice or a value too large."""
    if not changes:
        raise MissingArgument("Nothing to write")
    for condition in conditions:
        check_place(condition.partition, condition.key)
    for change in changes:
        check_place(change.partition, change.key)
        if change.value is not None and len(change.value) > largest:
            check_value(change.value, largest)
    if len({(change.partition, change.key) for change in changes}) < len(changes):
        raise UsageError("A key is changed twice in one write")
