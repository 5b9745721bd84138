"""One table: single, batched and conditional reads and writes (PDP-39's KeyValueTable)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from kvctl.contexts import read_only_error
from kvctl.errors import ConditionalUpdateError, KeyExists, KeyNotFound, UsageError, WrongRevision
from kvctl.jetstream.api import Api
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry as StoredEntry
from kvctl.kv.read.bulk_get import get_many
from kvctl.tables import catalog, scan
from kvctl.tables.catalog import Found
from kvctl.tables.changes import NO_VERSION, NOT_EXISTS, Change, Insert, Put, Remove, Version
from kvctl.tables.entry import Entry
from kvctl.tables.ranges import Range
from kvctl.tables.scan import Page
from kvctl.tables.stored_entries import Layout, Name
from kvctl.tables.update import batch_commit
from kvctl.tables.update.batch import Batch, prepare
from kvctl.tables.update.conflicts import refusal
from kvctl.tables.update.update_queue import Update, UpdateQueue

__all__ = ["Entry", "Table"]

EVERYTHING = Range()


class Table:
    """A handle on a table. Reads include at least everything that this handle has written."""

    def __init__(self, api: Api, found: Found, *, read_only: bool = False) -> None:
        self.config = found.config
        self.life = found.life
        self.layout = Layout(api, found)
        self._read_only = read_only
        self._closed = False
        self._queues: dict[Bucket, UpdateQueue] = {}

    @classmethod
    async def open(cls, api: Api, name: str, *, read_only: bool = False) -> Table:
        """Open the table of this name, after checking that its partitions exist.

        Raises TableNotFound, KvctlError if some do not exist.
        """
        return cls(api, await catalog.find_complete(api, name), read_only=read_only)

    @property
    def name(self) -> str:
        """Its name."""
        return self.config.name

    def close(self) -> None:
        """Close the handle: every later operation raises UsageError."""
        self._closed = True

    # -- reading -------------------------------------------------------------------------------------------

    async def get(self, key: bytes, *, family: str | None = None, leader: bool = False) -> Entry | None:
        """Return the entry, None if there is none; without `leader` any replica answers, which may be behind.

        Raises TableNotFound, UsageError.
        """
        return await self._read(self._place(family, key), leader=leader)

    async def exists(self, key: bytes, *, family: str | None = None) -> bool:
        """Return whether the entry exists."""
        return await self.get(key, family=family) is not None

    async def get_all(
        self, keys: Sequence[bytes], *, family: str | None = None, leader: bool = False
    ) -> list[Entry | None]:
        """Return the entries of many keys in the requested order, None for missing ones; `leader` as in `get`."""
        self._check_open()
        names = [(family, key) for key in keys]
        found = await self.entries_at(self.layout.places(family, keys), names, leader=leader)
        if None in found:
            await self.layout.check_life()
        return found

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
        for some in await asyncio.gather(*(
            self.layout.mapped(get_many(bucket, list(keys), leader=leader, at_least=at_least))
            for bucket, keys in asked.items()
        )):  # fmt: skip
            found.update(some)
        return self.layout.entries(places, map(found.__getitem__, places), names)

    def pages(
        self, of: Range = EVERYTHING, *, values: bool = True, size: int = scan.PAGE_ENTRIES, after: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[Page, None]:  # fmt: skip
        """Yield the entries of a range in order, page by page, with tokens to resume after each; see `scan.pages`."""
        self._check_open()
        return scan.pages(self, of, values=values, size=size, after=after, limit=limit)

    # -- writing one ---------------------------------------------------------------------------------------

    async def put(self, key: bytes, value: bytes, *, family: str | None = None) -> Version:
        """Write the entry unconditionally. Raises TableSealed, OutcomeUnknown, TableNotFound, UsageError."""
        bucket, place = self._target(family, key)
        return self.layout.version(place, await self.layout.mapped(bucket.put(place, value), place))

    async def put_if_absent(self, key: bytes, value: bytes, *, family: str | None = None) -> Version:
        """Write an entry that does not exist. Raises BadKeyVersion, and as `put`."""
        bucket, place = self._target(family, key)
        try:
            return self.layout.version(place, await self.layout.mapped(bucket.create(place, value), place))
        except (KeyExists, WrongRevision):
            raise await self._conflict([Insert(key, value, family)]) from None

    async def replace(self, key: bytes, value: bytes, version: Version, *, family: str | None = None) -> Version:
        """Write the entry if it has this version. Raises BadKeyVersion, NoSuchKey, and as `put`."""
        if version == NO_VERSION:
            return await self.put(key, value, family=family)
        if version == NOT_EXISTS:
            return await self.put_if_absent(key, value, family=family)
        change = Put(key, value, version, family)
        bucket, place = self._target(family, key)
        if not self._ours(place, change):
            raise await self._conflict([change])
        try:
            made = await self.layout.mapped(bucket.update(place, value, self.layout.sequence(version)), place)
        except WrongRevision:
            raise await self._conflict([change]) from None
        return self.layout.version(place, made)

    async def remove(self, key: bytes, version: Version = NO_VERSION, *, family: str | None = None) -> None:
        """Remove the entry; without a version it may be missing. Raises BadKeyVersion, NoSuchKey, and as `put`."""
        change = Remove(key, version, family)
        bucket, place = self._target(family, key)
        if version.special and await self._read(place, leader=True) is None:
            return
        if version == NOT_EXISTS or not self._ours(place, change):
            raise await self._conflict([change])
        expected = None if version.special else self.layout.sequence(version)
        try:
            await self.layout.mapped(bucket.purge(place, revision=expected), place)
        except (KeyNotFound, WrongRevision):
            raise await self._conflict([change]) from None

    # -- writing together ----------------------------------------------------------------------------------

    async def update(self, changes: Sequence[Change]) -> list[Version | None]:
        """Apply all changes or none, and return the versions in their order, None for removals.

        Concurrent updates may be applied together. Raises ConditionalUpdateError, which names every entry whose
        condition failed, UsageError for an invalid batch, and as `put`.
        """
        if not changes:
            return []
        if len(changes) == 1:
            return [await self._alone(changes[0])]
        batch = await self._prepared(changes)
        await self.layout.check_life()
        absent = await self._absent(batch)
        if (absent or batch.guarded) and all(
            place in absent or (isinstance(change, Remove) and change.version == NOT_EXISTS)
            for place, change in zip(batch.places, changes, strict=True)
        ):
            await self.check(changes)
            return [None] * len(changes)
        stream = self.layout.bucket(batch.place(0))
        if stream not in self._queues:
            self._queues[stream] = UpdateQueue(lambda group: batch_commit.store(self.layout, group))
        return await self._queues[stream].apply(Update(batch, absent))

    async def check(self, changes: Sequence[Change]) -> None:
        """Check that the conditions hold now, without writing. Raises as `update`."""
        await self._prepared(changes)
        error = await self._conflict(changes)
        if error.failed:
            raise error

    async def _prepared(self, changes: Sequence[Change]) -> Batch:
        """Return the batch of the changes.

        Raises UsageError, ReadOnly, ConditionalUpdateError for versions that cannot belong to these entries.
        """
        self._check_open()
        self._check_writable()
        batch = prepare(changes, self.layout.space)
        if batch.foreign:
            raise await self._conflict(changes)
        return batch

    async def _alone(self, change: Change) -> Version | None:
        """Apply a batch of one as a single message, which servers process several times as fast."""
        if isinstance(change, Remove):
            await self.remove(change.key, change.version, family=change.family)
            return None
        return await self.replace(change.key, change.value, change.version, family=change.family)

    async def _absent(self, batch: Batch) -> frozenset[str]:
        """Return the places of unconditional removals without an entry at the leader."""
        asked = [
            batch.place(at)
            for at, change in enumerate(batch.changes)
            if isinstance(change, Remove) and change.version == NO_VERSION
        ]
        found = await self.entries_at(asked, leader=True) if asked else []
        return frozenset(place for place, entry in zip(asked, found, strict=True) if entry is None)

    # -- inside --------------------------------------------------------------------------------------------

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
        return refusal(zip(places, changes, strict=True), dict(zip(places, found, strict=True)))
