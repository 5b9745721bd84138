"""One table: single, batched and conditional reads and writes (PDP-39's KeyValueTable), and its Serializers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, cast

from kvctl.contexts import read_only_error
from kvctl.errors import ConditionalUpdateError, KeyExists, KeyNotFound, UsageError, WrongRevision
from kvctl.jetstream.api import Api
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry as StoredEntry
from kvctl.kv.maintenance import compaction
from kvctl.kv.maintenance.compaction import Tombstones
from kvctl.kv.read.bulk_get import get_many
from kvctl.kv.transaction.group_commit import GroupCommit
from kvctl.tables import catalog, scan
from kvctl.tables.batch import TableBatch, TableUpdate, prepare, update_queue
from kvctl.tables.catalog import ExistingTable
from kvctl.tables.changes import (
    NO_VERSION,
    NOT_EXISTS,
    Change,
    Entry,
    Insert,
    K,
    Put,
    Remove,
    TableEntry,
    TypedChange,
    V,
    Version,
    refusal,
)
from kvctl.tables.ranges import Range
from kvctl.tables.scan import TablePage
from kvctl.tables.stored_entries import Name, TableLayout

T = TypeVar("T")


class Serializer(Protocol[T]):
    """Lossless conversion to bytes and back; keys sort as their bytes do."""

    def serialize(self, value: T) -> bytes:
        """Return the value as bytes."""

    def deserialize(self, data: bytes) -> T:
        """Return the value of bytes. Raises ValueError for bytes that have none."""


class Bytes:
    """Bytes, unchanged."""

    def serialize(self, value: bytes) -> bytes:
        """Return the value unchanged."""
        return value

    def deserialize(self, data: bytes) -> bytes:
        """Return the bytes unchanged."""
        return data


class Text:
    """Text as UTF-8, which sorts by code points."""

    def serialize(self, value: str) -> bytes:
        """Return the text as UTF-8."""
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        """Return the text. Raises ValueError."""
        return data.decode()


class Json:
    """JSON values in canonical form: members sorted, no whitespace."""

    def serialize(self, value: Any) -> bytes:
        """Return the value as JSON. Raises ValueError, TypeError for values that JSON does not give back."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        if json.loads(text) != value:
            raise TypeError("JSON has text as names of members, and lists for tuples")
        return text.encode()

    def deserialize(self, data: bytes) -> Any:
        """Return the value, in whatever form it is. Raises ValueError, also for NaN, Infinity and repeated members."""
        return json.loads(data, parse_constant=_refuse, object_pairs_hook=_members)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("A member appears twice in one object")
    return found


EVERYTHING = Range()


class Table(Generic[K, V]):
    """A handle on a table whose keys and values have serializers.

    Reads include at least everything that this handle has written, and raise ValueError for bytes of another type.
    """

    def __init__(
        self, api: Api, found: ExistingTable, keys: Serializer[K], values: Serializer[V], *, read_only: bool = False
    ) -> None:
        self._keys = keys
        self._values = values
        self._plain = isinstance(keys, Bytes) and isinstance(values, Bytes)
        self.config = found.config
        self.life = found.life
        self.layout = TableLayout(api, found)
        self._read_only = read_only
        self._closed = False
        self._queues: dict[Bucket, GroupCommit[TableUpdate]] = {}

    @staticmethod
    async def open(api: Api, name: str, *, read_only: bool = False) -> Table[bytes, bytes]:
        """Open the table of this name with keys and values of bytes, after checking that its partitions exist.

        Raises TableNotFound, KvctlError if some do not exist.
        """
        return Table.of_bytes(api, await catalog.find_complete(api, name), read_only=read_only)

    @staticmethod
    def of_bytes(api: Api, found: ExistingTable, *, read_only: bool = False) -> Table[bytes, bytes]:
        """Return a handle with keys and values of bytes."""
        return Table(api, found, Bytes(), Bytes(), read_only=read_only)

    @property
    def name(self) -> str:
        """Its name."""
        return self.config.name

    def close(self) -> None:
        """Close the handle: every later operation raises UsageError."""
        self._closed = True

    # -- reading -------------------------------------------------------------------------------------------

    async def get(self, key: K, *, family: str | None = None, leader: bool = False) -> TableEntry[K, V] | None:
        """Return the entry, None if there is none; without `leader` any replica answers, which may be behind.

        Raises TableNotFound, UsageError.
        """
        return self._typed(await self._read(self._place(family, self._keys.serialize(key)), leader=leader))

    @property
    def confirmed(self) -> bool:
        """Return False if an entry was missing in an answer, and no leader could confirm its absence."""
        return not any(bucket.unconfirmed for bucket in self.layout.buckets)

    async def exists(self, key: K, *, family: str | None = None) -> bool:
        """Return whether the entry exists."""
        return await self._read(self._place(family, self._keys.serialize(key))) is not None

    async def get_all(
        self, keys: Sequence[K], *, family: str | None = None, leader: bool = False
    ) -> list[TableEntry[K, V] | None]:
        """Return the entries of many keys in the requested order, None for missing ones; `leader` as in `get`."""
        self._check_open()
        names = cast(Sequence[bytes], keys) if self._plain else [self._keys.serialize(key) for key in keys]
        places = self.layout.places(family, names)
        found = await self.entries_at(places, [(family, name) for name in names], leader=leader)
        if None in found:
            await self.layout.check_life()
        if self._plain:
            return cast("list[TableEntry[K, V] | None]", found)
        return [self._typed(entry) for entry in found]

    async def entries_at(
        self,
        places: Sequence[str],
        names: Sequence[Name] = (),
        *,
        leader: bool = False,
        at_least: Mapping[str, int] | None = None,
    ) -> list[Entry | None]:
        """Return the entries at these ends of subjects, in their order; with `leader` never stale ones.

        `names` are their families and keys, if known; `at_least` are sequences than which they are not older.
        """
        asked: dict[Bucket, dict[str, None]] = {}
        if self.config.apart:
            for place in places:
                asked.setdefault(self.layout.bucket(place), {})[place] = None
        elif places:
            asked[self.layout.bucket(places[0])] = dict.fromkeys(places)
        found: dict[str, StoredEntry | None] = {}
        reads = [get_many(bucket, list(keys), leader=leader, at_least=at_least) for bucket, keys in asked.items()]
        for some in await asyncio.gather(*map(self.layout.mapped, reads)):
            found.update(some)
        return self.layout.entries(places, map(found.__getitem__, places), names)

    def pages(
        self,
        of: Range = EVERYTHING,
        *,
        values: bool = True,
        size: int = scan.PAGE_ENTRIES,
        after: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[TablePage, None]:
        """Yield the entries of a range as bytes, in order, in pages with tokens to resume; see `scan.pages`."""
        self._check_open()
        return scan.pages(self, of, values=values, size=size, after=after, limit=limit)

    async def entries(self, of: Range = EVERYTHING) -> AsyncGenerator[TableEntry[K, V], None]:
        """Yield the entries of a range, in the order of the keys' bytes."""
        async with aclosing(self.pages(of)) as pages:
            async for page in pages:
                for entry in page.entries:
                    yield self._decoded(entry)

    async def find_markers(self, *, older_than: timedelta = timedelta()) -> list[Tombstones]:
        """Return the markers of removals that are at least this old, stream by stream. Raises TableNotFound.

        A removal leaves its marker permanently: a nats-server up to 2.15 that is killed may restore a removed entry
        whose marker no longer exists (nats-server issue 8505), as happened with markers that had a ttl.
        """
        await self.layout.check_life()
        found = [compaction.find(bucket, older_than=older_than) for bucket in self.layout.buckets]
        return [await self.layout.mapped(one) for one in found]

    async def remove_markers(self, found: Sequence[Tombstones]) -> int:
        """Remove the markers, except of keys written since, and return their number. Raises PartlyDone."""
        pairs = zip(self.layout.buckets, found, strict=True)
        return sum([await compaction.remove(bucket, tombstones) for bucket, tombstones in pairs])

    # -- writing one ---------------------------------------------------------------------------------------

    async def put(self, key: K, value: V, *, family: str | None = None) -> Version:
        """Write the entry unconditionally. Raises TableSealed, OutcomeUnknown, TableNotFound, UsageError."""
        return await self.replace(key, value, NO_VERSION, family=family)

    async def put_if_absent(self, key: K, value: V, *, family: str | None = None) -> Version:
        """Write an entry that does not exist. Raises BadKeyVersion, and as `put`."""
        return await self.replace(key, value, NOT_EXISTS, family=family)

    async def replace(self, key: K, value: V, version: Version, *, family: str | None = None) -> Version:
        """Write the entry if it has this version. Raises BadKeyVersion, NoSuchKey, and as `put`."""
        return await self._store(Put(self._keys.serialize(key), self._values.serialize(value), version, family))

    async def remove(self, key: K, version: Version = NO_VERSION, *, family: str | None = None) -> None:
        """Remove the entry; without a version it may be missing. Raises BadKeyVersion, NoSuchKey, and as `put`."""
        await self._remove(Remove(self._keys.serialize(key), version, family))

    # -- writing together ----------------------------------------------------------------------------------

    async def update(self, changes: Sequence[TypedChange[K, V]]) -> list[Version | None]:
        """Apply all changes or none, and return the versions in their order, None for removals.

        Concurrent updates may be applied together. Raises ConditionalUpdateError, which names every entry whose
        condition failed, UsageError for an invalid batch, and as `put`.
        """
        if not changes:
            return []
        raw = self._serialized(changes)
        if len(raw) == 1:  # a single message, which servers process several times as fast
            return [await (self._remove(raw[0]) if isinstance(raw[0], Remove) else self._store(raw[0]))]
        batch = await self._prepared(raw)
        await self.layout.check_life()
        absent = await self._absent(batch)
        if (absent or batch.guarded) and all(
            place in absent or (isinstance(change, Remove) and change.version == NOT_EXISTS)
            for place, change in zip(batch.places, raw, strict=True)
        ):
            await self.check(changes)
            return [None] * len(raw)
        stream = self.layout.bucket(batch.place(0))
        if stream not in self._queues:
            self._queues[stream] = update_queue(self.layout)
        update = TableUpdate(batch, absent)
        self._queues[stream].add(update)
        return await update.done

    async def check(self, changes: Sequence[TypedChange[K, V]]) -> None:
        """Check that the conditions hold now, without writing. Raises as `update`."""
        raw = self._serialized(changes)
        await self._prepared(raw)
        error = await self._conflict(raw)
        if error.failed:
            raise error

    async def _prepared(self, changes: Sequence[Change]) -> TableBatch:
        """Return the batch of the changes.

        Raises UsageError, ReadOnly, ConditionalUpdateError for versions that cannot belong to these entries.
        """
        self._check_open()
        self._check_writable()
        batch = prepare(changes, self.layout.space)
        if batch.foreign:
            raise await self._conflict(changes)
        return batch

    async def _store(self, change: Put[bytes, bytes] | Insert[bytes, bytes]) -> Version:
        """Write one entry. Raises as `replace`."""
        bucket, place = self._target(change.family, change.key)
        version = change.version
        if not self._ours(place, change):
            raise await self._conflict([change])
        if version == NO_VERSION:
            writing = bucket.put(place, change.value)
        elif version == NOT_EXISTS:
            writing = bucket.create(place, change.value)
        else:
            writing = bucket.update(place, change.value, self.layout.sequence(version))
        try:
            return self.layout.version(place, await self.layout.mapped(writing, place))
        except (KeyExists, WrongRevision):
            raise await self._conflict([change]) from None

    async def _remove(self, change: Remove[bytes]) -> None:
        """Remove one entry. Raises as `remove`."""
        bucket, place = self._target(change.family, change.key)
        version = change.version
        if version.special and await self._read(place, leader=True) is None:
            return
        if version == NOT_EXISTS or not self._ours(place, change):
            raise await self._conflict([change])
        expected = None if version.special else self.layout.sequence(version)
        try:
            await self.layout.mapped(bucket.purge(place, revision=expected), place)
        except (KeyNotFound, WrongRevision):
            raise await self._conflict([change]) from None

    async def _absent(self, batch: TableBatch) -> frozenset[str]:
        """Return the places of unconditional removals without an entry at the leader."""
        asked = [
            batch.place(at)
            for at, change in enumerate(batch.changes)
            if isinstance(change, Remove) and change.version == NO_VERSION
        ]
        found = await self.entries_at(asked, leader=True) if asked else []
        return frozenset(place for place, entry in zip(asked, found, strict=True) if entry is None)

    # -- inside --------------------------------------------------------------------------------------------

    def _serialized(self, changes: Sequence[TypedChange[K, V]]) -> Sequence[Change]:
        return cast(Sequence[Change], changes) if self._plain else [self._bytes_of(change) for change in changes]

    def _bytes_of(self, change: TypedChange[K, V]) -> Change:
        key = self._keys.serialize(change.key)
        if isinstance(change, Remove):
            return Remove(key, change.version, change.family)
        value = self._values.serialize(change.value)
        if isinstance(change, Insert):
            return Insert(key, value, change.family)
        return Put(key, value, change.version, change.family)

    def _typed(self, entry: Entry | None) -> TableEntry[K, V] | None:
        return None if entry is None else self._decoded(entry)

    def _decoded(self, entry: Entry) -> TableEntry[K, V]:
        if self._plain:
            return cast(TableEntry[K, V], entry)
        key, value = self._keys.deserialize(entry.key), self._values.deserialize(entry.value)
        if self._keys.serialize(key) != entry.key:  # or two entries would have one key
            raise ValueError(
                f"Key {entry.key!r} of table `{self.name}` is not as {type(self._keys).__name__} writes it"
            )
        return TableEntry(key, value, entry.version, entry.family)

    def _place(self, family: str | None, key: bytes) -> str:
        """Return the place of an entry. Raises UsageError."""
        self._check_open()
        return self.layout.place(family, key)

    def _target(self, family: str | None, key: bytes) -> tuple[Bucket, str]:
        """Return the bucket and the place to write an entry. Raises UsageError, ReadOnly."""
        self._check_writable()
        place = self._place(family, key)
        return self.layout.bucket(place), place

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"Table `{self.name}` was closed")

    def _check_writable(self) -> None:
        if self._read_only:
            raise read_only_error(f"Table `{self.name}`")

    async def _read(self, place: str, *, leader: bool = False) -> Entry | None:
        stored = await self.layout.mapped(self.layout.bucket(place).last_entry(place, leader=leader), place)
        if stored is None:
            await self.layout.check_life()
        return self.layout.entry(place, stored)

    def _ours(self, place: str, change: Change) -> bool:
        """Return whether the version can belong to this entry in this instance of the table."""
        return change.version.special or self.layout.ours(place, change.version)

    async def _conflict(self, changes: Sequence[Change]) -> ConditionalUpdateError:
        """Return the error that names every condition that fails at the leader, which the server does not."""
        places = [self._place(change.family, change.key) for change in changes]
        found = await self.entries_at(places, [(change.family, change.key) for change in changes], leader=True)
        return refusal(self.name, zip(places, changes, strict=True), dict(zip(places, found, strict=True)))
