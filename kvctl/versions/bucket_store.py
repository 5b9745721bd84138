"""Store on JetStream: a key is a subject, its predicate the sequence of its last message.

Partition and key are a token each, so that neither two partitions nor two keys can meet. Reads ask the leader: others
may lag behind a write that succeeded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Self

from kvctl.errors import ConditionsFailed, KeyExists, KeyNotFound, WrongRevision
from kvctl.jetstream import streams
from kvctl.jetstream.delivery import delivery
from kvctl.jetstream.ordered import OrderedConsumer, Selection
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry, Operation, is_tombstone
from kvctl.kv.ordered import token, untoken
from kvctl.kv.transaction import Transaction
from kvctl.versions.store import (
    ABSENT,
    EXISTS,
    Change,
    Condition,
    EntryNotFound,
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

BATCH = 1000
"""Entries that a scan fetches at once, unless said otherwise."""
MARKER_TTL = timedelta(hours=1)
"""How long a deletion leaves a trace."""

HEADERS = 1024
"""Bytes that the headers of a message may come to: conditions on the longest names, and its place in a batch."""

_HEAD = "p"


class BucketStore:
    """The keys of a bucket whose stream takes atomic batches and ttls of messages, one revision a key."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._closed = False

    @property
    def largest(self) -> int:
        """See `Store.largest`."""
        return self._bucket.binding.api.connection.max_payload - HEADERS

    async def get(self, partition: bytes, key: bytes) -> Found:
        """See `Store.get`."""
        place = self._place(partition, key)
        entry = await self._bucket.last_entry(place, leader=True)
        if not _lives(entry):
            raise EntryNotFound("There is no such key")
        assert entry is not None
        return Found(entry.value, self.predicate(place, entry.revision))

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        """See `Store.set`."""
        await self._bucket.put(self._place(partition, key), check_value(value, self.largest))

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        """See `Store.set_if`."""
        place, value = self._place(partition, key), check_value(value, self.largest)
        try:
            if predicate == ABSENT:
                await self._bucket.create(place, value)
            elif predicate == EXISTS:
                await self._bucket.commit(Transaction().expect(place, exists=True).put(place, value))
            else:
                await self._bucket.update(place, value, self._revision(place, predicate))
        except (KeyExists, WrongRevision, ConditionsFailed):
            raise PredicateFailed("The condition does not hold") from None

    async def delete(self, partition: bytes, key: bytes) -> None:
        """See `Store.delete`."""
        place = self._place(partition, key)
        if not _lives(await self._bucket.last_entry(place, leader=True)):
            return
        try:
            await self._bucket.purge(place, ttl=MARKER_TTL)
        except KeyNotFound:  # it went meanwhile
            return

    def scan(self, partition: bytes, start: bytes = b"", *, batch: int = 0, values: bool = True) -> BucketEntries:
        """See `Store.scan`."""
        self._check_open()
        check_partition(partition)
        return BucketEntries(self, self._bucket, bytes(partition), bytes(start), batch or BATCH, values)

    async def write(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> None:
        """See `Store.write`."""
        self._check_open()
        check_write(conditions, changes, self.largest)
        if len(changes) == len(conditions) == 1 and await self._fenced(conditions[0], changes[0]):
            return
        transaction = Transaction()
        for condition in conditions:
            place = self._place(condition.partition, condition.key)
            if condition.predicate == ABSENT:
                transaction.expect(place, absent=True)
            elif condition.predicate == EXISTS:
                transaction.expect(place, exists=True)
            else:
                transaction.expect(place, revision=self._revision(place, condition.predicate))
        for change in changes:
            place = self._place(change.partition, change.key)
            if change.value is None:
                transaction.purge(place, ttl=MARKER_TTL)
            else:
                transaction.put(place, bytes(change.value))
        try:
            await self._bucket.commit(transaction)
        except (ConditionsFailed, WrongRevision):
            raise PredicateFailed("A condition does not hold") from None

    async def _fenced(self, condition: Condition, change: Change) -> bool:
        """One value on condition of another key as it was read: one message, where a batch costs several fsyncs."""
        key, other = self._place(change.partition, change.key), self._place(condition.partition, condition.key)
        if change.value is None or key == other or condition.predicate in (ABSENT, EXISTS):
            return False
        try:
            await self._bucket.put_while(key, bytes(change.value), other, self._revision(other, condition.predicate))
        except WrongRevision:
            raise PredicateFailed("The condition does not hold") from None
        return True

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[Found | None]:
        """See `Store.get_many`."""
        names = [self._place(*place) for place in places]
        entries = await self._bucket.get_many(names, leader=not lasting)
        return [
            None if entry is None else Found(entry.value, self.predicate(name, entry.revision))
            for name, entry in zip(names, entries, strict=True)
        ]

    async def set_many(self, partition: bytes, values: Mapping[bytes, bytes]) -> None:
        """See `Store.set_many`."""
        self._check_open()
        check_partition(partition)
        for key, value in values.items():
            await self.set(partition, key, value)

    async def clear(self, partition: bytes) -> None:
        """See `Store.clear`."""
        self._check_open()
        check_partition(partition)
        binding = self._bucket.binding
        await streams.purge(binding.api, binding.stream, filter=binding.subject(f"{partition_token(partition)}.*"))

    async def close(self) -> None:
        """See `Store.close`."""
        self._closed = True

    def check_open(self) -> None:
        """Raises StoreClosed."""
        self._check_open()

    def predicate(self, place: str, revision: int) -> Predicate:
        """That the last revision of a key, partition and key as tokens, is this one."""
        return Predicate((self._bucket.binding.stream, place, revision))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("The store was closed")

    def _place(self, partition: bytes, key: bytes) -> str:
        self._check_open()
        check_place(partition, key)
        return f"{partition_token(partition)}.{token(key).decode()}"

    def _revision(self, place: str, predicate: Predicate) -> int:
        """The revision that a predicate insists on. Raises PredicateFailed for one of another key or store."""
        held = predicate.token
        if isinstance(held, tuple) and held[:2] == (self._bucket.binding.stream, place):
            return int(held[2])
        raise PredicateFailed("The condition is of another key or store")


def partition_token(partition: bytes) -> str:
    """What the subjects of a partition's keys begin with."""
    return _HEAD + token(partition).decode()


class BucketEntries:
    """See `Entries`: the keys are listed and sorted at the first step, values are fetched a batch at a time."""

    def __init__(
        self, store: BucketStore, bucket: Bucket, partition: bytes, start: bytes, batch: int, values: bool
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._partition = partition
        self._start = start
        self._batch = batch
        self._values = values
        self._revisions: dict[bytes, int] = {}
        """As they were listed."""
        self._keys: list[bytes] | None = None
        """Tokens of the keys, sorted, which is the order of the keys."""
        self._next = 0
        self._ahead: list[StoreEntry] = []
        """Entries that were fetched, the next one last."""
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoreEntry:
        self._check_open()
        if self._keys is None:
            self._keys = await self._listed()
            self._next = bisect_left(self._keys, token(self._start))
        while not self._ahead:
            if self._next >= len(self._keys):
                raise StopAsyncIteration
            await self._fetch(self._keys)
        return self._ahead.pop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def seek(self, key: bytes) -> None:
        """See `Entries.seek`."""
        self._check_open()
        self._start = bytes(key)
        self._ahead.clear()
        if self._keys is not None:
            self._next = bisect_left(self._keys, token(self._start))

    async def close(self) -> None:
        """See `Entries.close`."""
        self._closed = True
        self._ahead.clear()

    async def _listed(self) -> list[bytes]:
        head = f"{partition_token(self._partition)}."
        subject = f"{self._bucket.binding.prefix}{head}*"
        cut = len(self._bucket.binding.prefix) + len(head)
        found: dict[bytes, int] = {}
        selection = Selection(subjects=(subject,), headers_only=True)
        async with OrderedConsumer(self._bucket.binding.api, self._bucket.binding.stream, selection) as consumer:
            async for batch in consumer.batches():
                for name, reply, header, _ in batch:
                    found[name[cut:]] = 0 if is_tombstone(header) else delivery(reply)[0]
        self._revisions = {key: revision for key, revision in found.items() if revision}
        return sorted(self._revisions)

    async def _fetch(self, keys: list[bytes]) -> None:
        some = keys[self._next : self._next + self._batch]
        head = partition_token(self._partition)
        places = [f"{head}.{key.decode()}" for key in some]
        if self._values:
            entries = await self._bucket.get_many(places, leader=True)
            found = [(entry.value, entry.revision) if entry is not None else None for entry in entries]
        else:
            found = [(b"", self._revisions[key]) for key in some]
        self._ahead = [
            StoreEntry(self._partition, untoken(key), one[0], self._store.predicate(place, one[1]))
            for key, place, one in zip(some, places, found, strict=True)
            if one is not None
        ][::-1]
        self._next += len(some)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("The reading was closed")
        self._store.check_open()


def _lives(entry: Entry | None) -> bool:
    return entry is not None and entry.operation is Operation.PUT
