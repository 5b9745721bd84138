"""One table: entries read and written one by one, together, and on condition (PDP-39's KeyValueTable)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from datetime import timedelta
from typing import TypeVar

from kvctl.errors import (
    BucketNotFound,
    ConditionalUpdateError,
    ConditionsFailed,
    KeyExists,
    OutcomeUnknown,
    ReadOnly,
    ServerError,
    TableNotFound,
    TableSealed,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream.api import Api
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry as StoredEntry
from kvctl.kv.entry import Operation
from kvctl.kv.transaction import Transaction
from kvctl.tables import catalog, scan
from kvctl.tables.catalog import Found
from kvctl.tables.changes import NO_VERSION, NOT_EXISTS, Change, Insert, Put, Remove, Version, check_batch
from kvctl.tables.config import partition_stream, stream_name, subject_prefix
from kvctl.tables.conflicts import refusal, unknown
from kvctl.tables.entry import Entry
from kvctl.tables.keys import check_key, partition_of, tail
from kvctl.tables.ranges import Families, Range
from kvctl.tables.scan import Page

MARKER_TTL = timedelta(hours=1)
"""How long a removal leaves a trace."""

EVERYTHING = Range()
_SEALED = 10109

T = TypeVar("T")


class Table:
    """A handle on a table. Reads never show less than this handle has written."""

    def __init__(self, api: Api, found: Found, *, read_only: bool = False) -> None:
        self.config = found.config
        self.life = found.life
        self._api = api
        self._read_only = read_only
        self._buckets: dict[int, Bucket] = {}
        self._closed = False

    @classmethod
    async def open(cls, api: Api, name: str, *, read_only: bool = False) -> Table:
        """The table of this name, its partitions checked against what they were made with. Raises TableNotFound."""
        return cls(api, await catalog.find(api, name), read_only=read_only)

    @property
    def name(self) -> str:
        """Its name."""
        return self.config.name

    def close(self) -> None:
        """Use it no more: every operation afterwards raises UsageError."""
        self._closed = True

    # -- reading -------------------------------------------------------------------------------------------

    async def get(self, key: bytes, *, family: str | None = None) -> Entry | None:
        """The entry, None where there is none. Raises TableNotFound, UsageError."""
        bucket, text = self._place(family, key)
        return self._entry(family, key, await self._tell(bucket.last_entry(text), family, key))

    async def exists(self, key: bytes, *, family: str | None = None) -> bool:
        """Whether there is such an entry."""
        return await self.get(key, family=family) is not None

    async def get_all(self, keys: Sequence[bytes], *, family: str | None = None) -> list[Entry | None]:
        """The entries of many keys in the order asked, None for those that are not there."""
        return await self.get_entries([(family, key) for key in keys])

    async def get_entries(
        self, keys: Sequence[tuple[str | None, bytes]], *, leader: bool = False
    ) -> list[Entry | None]:
        """`get_all` for (family, key) of any families; with `leader` never a stale one."""
        asked: dict[Bucket, dict[str, tuple[str | None, bytes]]] = {}
        for family, key in keys:
            bucket, text = self._place(family, key)
            asked.setdefault(bucket, {})[text] = (family, key)
        found: dict[tuple[str | None, bytes], Entry | None] = {}

        async def read(bucket: Bucket, texts: dict[str, tuple[str | None, bytes]]) -> None:
            entries = await self._tell(bucket.get_many(list(texts), leader=leader), *keys[0])
            for (family, key), entry in zip(texts.values(), entries, strict=True):
                found[family, key] = self._entry(family, key, entry)

        await asyncio.gather(*(read(*item) for item in asked.items()))
        return [found[key] for key in keys]

    def pages(
        self, of: Range = EVERYTHING, *, values: bool = True, size: int = scan.PAGE, after: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[Page, None]:  # fmt: skip
        """The entries of a range in order, page by page, each with a token that resumes after it; see `scan.pages`."""
        self._check_open()
        return scan.pages(self, of, values=values, size=size, after=after, limit=limit)

    def readings(self, of: Range) -> list[tuple[Bucket, str]]:
        """Where a range is, stream by stream, and the subjects to read there."""
        prefix, count = subject_prefix(self.name), self.config.partitions
        if not isinstance(of.family, Families) and of.family is not None:
            partition = partition_of(of.family, b"", count)
            return [(self._bucket(partition), f"{prefix}{partition:04x}.{of.tokens}")]
        if self.config.apart:
            return [(self._bucket(number), f"{prefix}{number:04x}.{of.tokens}") for number in range(count)]
        return [(self._bucket(0), f"{prefix}*.{of.tokens}")]

    # -- writing one ---------------------------------------------------------------------------------------

    async def put(self, key: bytes, value: bytes, *, family: str | None = None) -> Version:
        """Write the entry, whatever is there. Raises TableSealed, OutcomeUnknown, TableNotFound, UsageError."""
        bucket, text = self._place(family, key, writing=True)
        return self._version(family, key, await self._tell(bucket.put(text, value), family, key))

    async def put_if_absent(self, key: bytes, value: bytes, *, family: str | None = None) -> Version:
        """Write an entry that does not exist. Raises BadKeyVersion, and as `put`."""
        bucket, text = self._place(family, key, writing=True)
        try:
            return self._version(family, key, await self._tell(bucket.create(text, value), family, key))
        except (KeyExists, WrongRevision):
            raise await self._conflict([Insert(key, value, family)]) from None

    async def replace(self, key: bytes, value: bytes, version: Version, *, family: str | None = None) -> Version:
        """Write the entry if it has this version. Raises BadKeyVersion, NoSuchKey, and as `put`."""
        if version == NO_VERSION:
            return await self.put(key, value, family=family)
        if version == NOT_EXISTS:
            return await self.put_if_absent(key, value, family=family)
        change = Put(key, value, version, family)
        bucket, text = self._place(family, key, writing=True)
        if not self._ours(change):
            raise await self._conflict([change])
        try:
            made = await self._tell(bucket.update(text, value, self._sequence(version)), family, key)
        except WrongRevision:
            raise await self._conflict([change]) from None
        return self._version(family, key, made)

    async def remove(self, key: bytes, version: Version = NO_VERSION, *, family: str | None = None) -> None:
        """Remove the entry; without a version also one that is not there. Raises BadKeyVersion, NoSuchKey, as `put`."""
        change = Remove(key, version, family)
        bucket, text = self._place(family, key, writing=True)
        there = self._entry(family, key, await self._tell(bucket.last_entry(text, leader=True), family, key))
        if there is None and version in (NO_VERSION, NOT_EXISTS):
            return
        if there is None or not self._ours(change) or version == NOT_EXISTS:
            raise await self._conflict([change])
        expected = None if version == NO_VERSION else self._sequence(version)
        try:
            await self._tell(bucket.purge(text, revision=expected, ttl=MARKER_TTL), family, key)
        except WrongRevision:
            raise await self._conflict([change]) from None

    # -- writing together ----------------------------------------------------------------------------------

    async def update(self, changes: Sequence[Change]) -> list[Version | None]:
        """Carry out all changes or none; the versions in their order, None for removals.

        Raises ConditionalUpdateError, which names every entry whose condition failed, UsageError for what is no batch,
        and as `put`.
        """
        if not changes:
            return []
        if len(changes) == 1:
            return [await self._alone(changes[0])]
        bucket = await self._batch(changes)
        transaction, places = self._transaction(changes)
        if not transaction.changes:
            await self.check(changes)
            return [None] * len(changes)
        first = changes[0]
        try:
            revisions = iter(await self._tell(bucket.commit(transaction), first.family, first.key))
        except ConditionsFailed as error:
            found = {failure.key: self._entry(*places[failure.key], failure.found) for failure in error.failures}
            raise refusal(changes, {places[text]: entry for text, entry in found.items()}) from None
        written = {text: next(revisions) for text in (change.key for change in transaction.changes)}
        return [
            None if isinstance(change, Remove) else self._version(change.family, change.key, written[text])
            for text, change in zip(places, changes, strict=True)
        ]

    async def check(self, changes: Sequence[Change]) -> None:
        """Whether the conditions hold now; writes nothing. Raises as `update`."""
        await self._batch(changes)
        error = await self._conflict(changes)
        if error.failed:
            raise error

    # -- inside --------------------------------------------------------------------------------------------

    async def _batch(self, changes: Sequence[Change]) -> Bucket:
        """The bucket that takes the batch. Raises UsageError, ReadOnly, ConditionalUpdateError for foreign versions."""
        check_batch(changes, self.config.partitions, apart=self.config.apart)
        if not all(self._ours(change) for change in changes):
            raise await self._conflict(changes)
        return self._place(changes[0].family, changes[0].key, writing=True)[0]

    async def _alone(self, change: Change) -> Version | None:
        """A batch of one, which servers take several times as fast as a message by itself."""
        if isinstance(change, Remove):
            await self.remove(change.key, change.version, family=change.family)
            return None
        return await self.replace(change.key, change.value, change.version, family=change.family)

    def _transaction(self, changes: Sequence[Change]) -> tuple[Transaction, dict[str, tuple[str | None, bytes]]]:
        """The transaction, and family and key by what its messages call them, in the order of the changes."""
        transaction = Transaction()
        places: dict[str, tuple[str | None, bytes]] = {}
        for change in changes:
            _, text = self._place(change.family, change.key)
            places[text] = (change.family, change.key)
            revision = None if change.version in (NO_VERSION, NOT_EXISTS) else self._sequence(change.version)
            if isinstance(change, Remove):
                if change.version == NOT_EXISTS:
                    transaction.expect(text, absent=True)
                else:
                    transaction.purge(text, revision=revision, ttl=MARKER_TTL)
            elif change.version == NOT_EXISTS:
                transaction.create(text, change.value)
            elif revision is None:
                transaction.put(text, change.value)
            else:
                transaction.update(text, change.value, revision)
        return transaction, places

    def _place(self, family: str | None, key: bytes, *, writing: bool = False) -> tuple[Bucket, str]:
        """Where an entry lives. Raises UsageError, ReadOnly."""
        self._check_open()
        if writing and self._read_only:
            raise ReadOnly(f"Table `{self.name}` is open for reading only")
        check_key(family, key)
        partition = partition_of(family, key, self.config.partitions)
        return self._bucket(partition), tail(partition, family, key)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"Table `{self.name}` was closed")

    def _bucket(self, partition: int) -> Bucket:
        """The handle on the stream of a partition."""
        number = partition if self.config.apart else 0
        if number not in self._buckets:
            stream = partition_stream(self.name, partition) if self.config.apart else stream_name(self.name)
            prefix = subject_prefix(self.name)
            self._buckets[number] = Bucket(self._api, self.name, stream=stream, prefix=prefix)
        return self._buckets[number]

    def _entry(self, family: str | None, key: bytes, stored: StoredEntry | None) -> Entry | None:
        if stored is None or stored.operation is not Operation.PUT:
            return None
        return Entry(key, stored.value, self._version(family, key, stored.revision), family)

    def _version(self, family: str | None, key: bytes, sequence: int) -> Version:
        return Version(self.life, partition_of(family, key, self.config.partitions), sequence - self.life)

    def _sequence(self, version: Version) -> int:
        return version.life + version.number

    def _ours(self, change: Change) -> bool:
        """Whether the version can be one of this key in this life of the table."""
        version = change.version
        partition = partition_of(change.family, change.key, self.config.partitions)
        return version in (NO_VERSION, NOT_EXISTS) or (version.life, version.partition) == (self.life, partition)

    async def _conflict(self, changes: Sequence[Change]) -> ConditionalUpdateError:
        """The error that names every condition that does not hold at the leader, though the server names none."""
        found = await self.get_entries([(change.family, change.key) for change in changes], leader=True)
        return refusal(
            changes, {(change.family, change.key): entry for change, entry in zip(changes, found, strict=True)}
        )

    async def _tell(self, work: Awaitable[T], family: str | None, key: bytes) -> T:
        """A bucket's answer, its errors in the words of tables."""
        try:
            return await work
        except BucketNotFound:
            raise TableNotFound(f"Table `{self.name}` does not exist any more") from None
        except ServerError as error:
            if error.err_code == _SEALED:
                raise TableSealed(f"Table `{self.name}` is sealed: it is read-only for ever") from None
            raise
        except OutcomeUnknown:
            raise unknown(self.name, family, key) from None
