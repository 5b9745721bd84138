"""Store on JetStream: a key is a subject, its predicate the sequence of its last message.

Partition and key are a token each, so that neither two partitions nor two keys can meet. Reads are as new as the
leader: others may lag behind a write that succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress

from kvctl.errors import ConditionsFailed, KeyExists, KeyNotFound, WrongRevision
from kvctl.jetstream import streams
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.transaction.transaction import Transaction
from kvctl.versions.store import store_reads
from kvctl.versions.store.group_commit import Wish, in_batches
from kvctl.versions.store.ordered_scan import BucketEntries
from kvctl.versions.store.protocol import (
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
    check_partition,
    check_place,
    check_value,
    check_write,
)
from kvctl.versions.store.store_errors import said_of_the_repository
from kvctl.versions.store.store_subjects import (
    head,
    insisted,
    partition_of_head,
    place_of,
    predicate_of,
    was_read,
)
from kvctl.versions.store.store_writes import MARKER_TTL, BucketWriting

HEADERS = 1024
"""Bytes that the headers of a message may come to: conditions on the longest names, and its place in a batch."""


class BucketStore:
    """The keys of a bucket whose stream takes atomic batches and ttls of messages, one revision a key."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._closed = False
        self._writing = BucketWriting(bucket)

    @property
    def largest(self) -> int:
        """See `Store.largest`."""
        return self.bucket.binding.api.connection.max_payload - HEADERS

    # -- reading -------------------------------------------------------------------------------------------

    async def get(self, partition: bytes, key: bytes) -> Found:
        """See `Store.get`."""
        place = self._place(partition, key)
        entry = await self.bucket.last_entry(place, leader=True)
        if not _lives(entry):
            raise EntryNotFound("There is no such key")
        assert entry is not None
        return Found(entry.value, self.predicate(place, entry.revision))

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[Found | None]:
        """See `Store.get_many`."""
        names = [self._place(*place) for place in places]
        read = store_reads.lasting if lasting else store_reads.latest
        stored = await read(self.bucket, names)
        return [
            None if (one := stored.get(name)) is None else Found(one[1], self.predicate(name, one[0])) for name in names
        ]

    def scan(self, partition: bytes, start: bytes = b"", *, batch: int = 0, values: bool = True) -> BucketEntries:
        """See `Store.scan`."""
        self.check_open()
        check_partition(partition)
        return BucketEntries(self, head(bytes(partition)), bytes(partition), bytes(start), batch, values)

    # -- writing -------------------------------------------------------------------------------------------

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        """See `Store.set`."""
        place, value = self._place(partition, key), check_value(value, self.largest)
        with self._said():
            await self.bucket.put(place, value)

    async def set_many(
        self, partition: bytes, values: Mapping[bytes, bytes], *, fence: Condition | None = None
    ) -> None:
        """See `Store.set_many`: a window of messages, but with a fence on several replicas a batch after the other."""
        self.check_open()
        check_partition(partition)
        self.bucket.check_writable(None)
        for key, value in values.items():
            check_place(partition, key)
            check_value(value, self.largest)
        with self._said():
            if fence is None:
                await self._writing.write_each(partition, values)
            elif was_read(fence.predicate) and await self._writing.sole():
                await self._writing.write_each_fenced(partition, values, self._wanted(fence))
            else:
                await self._write_in_batches(fence, [Change(partition, *item) for item in values.items()])

    async def _write_in_batches(self, fence: Condition, changes: Sequence[Change]) -> None:
        written: set[bytes] = set()
        for some in in_batches(changes):
            try:
                await self.write([fence], some)
            except PredicateFailed as error:
                raise PredicateFailed(error.message, written=frozenset(written)) from None
            written.update(change.key for change in some)

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        """See `Store.set_if`."""
        place, value = self._place(partition, key), check_value(value, self.largest)
        try:
            with self._said():
                if predicate == ABSENT:
                    await self.bucket.create(place, value)
                elif predicate == EXISTS:
                    await self.bucket.commit(Transaction().expect(place, exists=True).put(place, value))
                else:
                    await self.bucket.update(place, value, insisted(self.bucket.binding.stream, place, predicate))
        except (KeyExists, WrongRevision, ConditionsFailed):
            raise PredicateFailed("The condition does not hold") from None

    async def delete(self, partition: bytes, key: bytes, *, traceless: bool = False) -> None:
        """See `Store.delete`."""
        with suppress(KeyNotFound), self._said():
            await self.bucket.purge(self._place(partition, key), ttl=MARKER_TTL if traceless else None)

    async def clear(self, partition: bytes) -> None:
        """See `Store.clear`."""
        self.check_open()
        check_partition(partition)
        self.bucket.check_writable(None)
        binding = self.bucket.binding
        await streams.purge(binding.api, binding.stream, filter=binding.subject(f"{head(bytes(partition))}*"))

    async def partitions(self) -> list[bytes]:
        """See `Store.partitions`."""
        self.check_open()
        binding = self.bucket.binding
        subjects = await streams.subjects(binding.api, binding.stream, f"{binding.prefix}>")
        cut = len(binding.prefix)
        return sorted(partition_of_head(head) for head in {subject[cut:].partition(".")[0] for subject in subjects})

    async def write(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> list[Predicate]:
        """See `Store.write`."""
        self.check_open()
        self.bucket.check_writable(None)
        check_write(conditions, changes, self.largest)
        wish = Wish(
            [self._wanted(item) for item in conditions],
            {place_of(item.partition, item.key): None if item.value is None else bytes(item.value) for item in changes},
            {place_of(item.partition, item.key) for item in changes if item.traceless},
        )
        with self._said():
            revisions = await self._writing.write(wish)
        return [
            ABSENT if value is None else self.predicate(place, revisions[place])
            for place, value in wish.changes.items()
        ]  # fmt: skip

    async def close(self) -> None:
        """See `Store.close`."""
        self._closed = True

    # -- inside --------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises StoreClosed."""
        if self._closed:
            raise StoreClosed("The store was closed")

    def predicate(self, place: str, revision: int) -> Predicate:
        """That the last revision of a place is this one."""
        return predicate_of(self.bucket.binding.stream, place, revision)

    def _said(self) -> AbstractContextManager[None]:
        """What goes wrong with a write is said of the repository."""
        return said_of_the_repository(self.bucket.binding)

    def _place(self, partition: bytes, key: bytes) -> str:
        self.check_open()
        check_place(partition, key)
        return place_of(partition, key)

    def _wanted(self, condition: Condition) -> tuple[str, Predicate]:
        """The condition of a place. Raises PredicateFailed for one that was read of another key or store."""
        place = place_of(condition.partition, condition.key)
        if was_read(condition.predicate):
            insisted(self.bucket.binding.stream, place, condition.predicate)
        return place, condition.predicate


def _lives(entry: Entry | None) -> bool:
    return entry is not None and entry.operation is Operation.PUT
