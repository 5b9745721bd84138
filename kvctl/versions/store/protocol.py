"""The narrow waist: six operations on partitions of sorted keys, as lakeFS's design has them, and two of ours. [pure]

Ours are an atomic write of several keys on conditions, and that the entries of a scan bring their predicates, if wanted
without their values.

Partitions and keys are any bytes but none; a value may be empty. A read that follows a successful write sees it, or a
later one. A scan of one partition never touches another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from kvctl.errors import ConflictError, KvctlError, NotFoundError, UsageError


class MissingArgument(UsageError):
    """A partition, a key or a value was not given."""


class EntryNotFound(NotFoundError):
    """The partition has no such key."""


class PredicateFailed(ConflictError):
    """A condition does not hold, and nothing was written, except that `set_many` may have written some keys before."""

    def __init__(self, message: str, *, written: frozenset[bytes] = frozenset()) -> None:
        super().__init__(message)
        self.written = written
        """Keys that `set_many` is known to have written."""


class StoreClosed(KvctlError):
    """The store, or the reading of entries, was closed."""


Place = tuple[bytes, bytes]
"""Partition and key."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """What a write may be conditioned on: ABSENT, EXISTS, or what a read gave out, which only its store understands.

    One that was read holds for that key of that store, and only until the key is written again, also with the same
    value: where lakeFS compares values, a key that went there and back is another one here.
    """

    token: Any


ABSENT = Predicate("absent")
"""There is no such key."""
EXISTS = Predicate("exists")
"""There is one, whatever its value."""


@dataclass(frozen=True, slots=True)
class Found:
    """A value as it was read, and the predicate that holds until it is written again."""

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
    """That a predicate holds of a key."""

    partition: bytes
    key: bytes
    predicate: Predicate


@dataclass(frozen=True, slots=True)
class Change:
    """A value for a key; None deletes it."""

    partition: bytes
    key: bytes
    value: bytes | None
    traceless: bool = False
    """Whether a deletion may be undone after a while, by a crash of a server: only for what does no harm then."""


class Entries(Protocol):
    """The entries of a scan, in the order of their keys' bytes; use it as an asynchronous iterator and context.

    What is written while it is read may be missed or seen; a key that stays as it is is seen once.
    """

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> StoreEntry:
        """The next entry. Raises StopAsyncIteration; StoreClosed after `close`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def seek(self, key: bytes) -> None:
        """Go on, or back, to the first entry whose key is this one or after it. Raises StoreClosed."""

    async def close(self) -> None:
        """Read no more."""


class Store(Protocol):
    """lakeFS's Store."""

    @property
    def largest(self) -> int:
        """Bytes that a value may have; more is a UsageError before anything is written."""

    async def get(self, partition: bytes, key: bytes) -> Found:
        """The value of a key. Raises EntryNotFound, MissingArgument, StoreClosed."""

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        """Write a key, whatever is there. Raises MissingArgument, StoreClosed, OutcomeUnknown."""

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        """Write a key if the predicate holds of it. Raises PredicateFailed, and as `set`."""

    async def delete(self, partition: bytes, key: bytes, *, traceless: bool = False) -> None:
        """Delete a key (`traceless` as in Change); one that is not there is no error. Raises as `set`."""

    def scan(self, partition: bytes, start: bytes = b"", *, batch: int = 0, values: bool = True) -> Entries:
        """The entries of a partition from the first key not before `start`; `batch`, a hint, are fetched at once.

        Without `values` they are left empty, which is cheaper.
        """

    async def write(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> list[Predicate]:
        """Ours: carry out all changes if all conditions hold, else nothing. No key may be changed twice.

        Returns for each change what holds until its key is written again: ABSENT after a deletion. Raises
        PredicateFailed, UsageError, and as `set`.
        """

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[Found | None]:
        """Ours: the values of several keys, each as `get` gives it, None for those that are not there.

        They are not of one moment: between any two of them others may write. `lasting` says that these keys are
        written with one value only, whenever they are, and so may be read from wherever there is one. Raises
        MissingArgument, StoreClosed.
        """

    async def set_many(
        self, partition: bytes, values: Mapping[bytes, bytes], *, fence: Condition | None = None
    ) -> None:
        """Ours: write many keys in no order, and not as a whole, each only while the fence holds.

        Raises PredicateFailed, which names those written, and as `set`: some keys may be written then.
        """

    async def clear(self, partition: bytes) -> None:
        """Ours: delete all keys of a partition, those that are written meanwhile or not. Raises as `set`.

        A crash of a server may undo it.
        """

    async def partitions(self) -> list[bytes]:
        """Ours: all partitions that hold something, and perhaps some whose keys were all deleted; sorted."""

    async def close(self) -> None:
        """Use it no more: every operation afterwards raises StoreClosed."""


def check_place(partition: bytes, key: bytes) -> None:
    """Raises MissingArgument for an empty partition or key."""
    check_partition(partition)
    if not key:
        raise MissingArgument("The key is missing")


def check_partition(partition: bytes) -> None:
    """Raises MissingArgument for an empty partition."""
    if not partition:
        raise MissingArgument("The partition is missing")


def check_value(value: bytes | None, largest: int) -> bytes:
    """The value. Raises MissingArgument for None (an empty value is one), UsageError for one that is too large."""
    if value is None:
        raise MissingArgument("The value is missing")
    if len(value) > largest:
        raise UsageError(f"The value is {len(value):,} bytes, {largest:,} are the most")
    return bytes(value)


def check_write(conditions: Sequence[Condition], changes: Sequence[Change], largest: int) -> None:
    """Raises MissingArgument for missing places and changes, UsageError for a key changed twice, a value too large."""
    if not changes:
        raise MissingArgument("There is nothing to write")
    for condition in conditions:
        check_place(condition.partition, condition.key)
    for change in changes:
        check_place(change.partition, change.key)
        if change.value is not None and len(change.value) > largest:
            check_value(change.value, largest)
    if len({(change.partition, change.key) for change in changes}) < len(changes):
        raise UsageError("A key is changed twice in one write")
