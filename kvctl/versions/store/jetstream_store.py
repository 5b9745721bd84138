"""Store on JetStream: a key is a subject, its predicate the sequence of its last message.

Partition and key are one token each, so that no two partitions or keys collide. Reads are as new as the leader's: other
replicas may lag behind a successful write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from kvctl.errors import (
    ConditionsFailed,
    KeyExists,
    KeyNotFound,
    KvctlError,
    OutcomeUnknown,
    PermissionDenied,
    ServerError,
    WrongRevision,
)
from kvctl.jetstream import streams
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry, Operation, is_tombstone
from kvctl.kv.ordered_token import token
from kvctl.kv.transaction.transaction import Transaction
from kvctl.kv.write import conditional_write
from kvctl.versions.store import store_reads
from kvctl.versions.store.bulk_writes import BulkWrites
from kvctl.versions.store.group_commit import PendingWrite
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
from kvctl.versions.store.store_errors import map_store_errors
from kvctl.versions.store.store_subjects import (
    expected_revision,
    is_read_token,
    partition_of_head,
    partition_prefix,
    predicate_of,
    subject_token,
)
from kvctl.versions.store.store_writes import MARKER_TTL, BucketWriting, Fence
from kvctl.wire import publish_frame

HEADERS = 1024
"""Maximum bytes of a message's headers: conditions on the longest names, and its place in a batch."""


@dataclass(frozen=True, slots=True)
class _Fenced:
    """What the fenced messages into one partition share."""

    condition: Condition
    partition: bytes
    head: str
    """Prefix of the partition's keys."""
    stream: str
    fence: Fence


class BucketStore:
    """Keys of a bucket whose stream allows atomic batches and message ttls, with one revision per key."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._closed = False
        self._writing = BucketWriting(bucket)
        self._fenced: _Fenced | None = None
        """What `put_while` prepared last."""

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
            raise EntryNotFound("The key does not exist")
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

    def scan(
        self, partition: bytes, start: bytes = b"", *, batch: int = 0, values: bool = True, beside: int = 0
    ) -> BucketEntries:
        """See `Store.scan`."""
        self.check_open()
        check_partition(partition)
        return BucketEntries(
            self, partition_prefix(bytes(partition)), bytes(partition), bytes(start), batch, values, beside
        )

    # -- writing -------------------------------------------------------------------------------------------

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        """See `Store.set`."""
        place, value = self._place(partition, key), check_value(value, self.largest)
        with self._mapped_errors():
            await self.bucket.put(place, value)

    async def set_many(self, partition: bytes, values: Mapping[bytes, bytes]) -> None:
        """See `Store.set_many`."""
        async with self.fill(partition) as filling:
            await filling.add(values)

    def fill(self, partition: bytes) -> BulkWrites:
        """See `Store.fill`: pipelined messages."""
        self.check_open()
        check_partition(partition)
        self.bucket.check_writable(None)
        return BulkWrites(self.bucket, bytes(partition), self.largest)

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> Predicate:
        """See `Store.set_if`."""
        place, value = self._place(partition, key), check_value(value, self.largest)
        try:
            with self._mapped_errors():
                if predicate == ABSENT:
                    revision = await self.bucket.create(place, value)
                elif predicate == EXISTS:
                    transaction = Transaction().expect(place, exists=True).put(place, value)
                    (revision,) = await self.bucket.commit(transaction)
                else:
                    expected = expected_revision(self.bucket.binding.stream, place, predicate)
                    revision = await self.bucket.update(place, value, expected)
        except (KeyExists, WrongRevision, ConditionsFailed):
            raise PredicateFailed("The condition does not hold") from None
        return self.predicate(place, revision)

    async def delete(self, partition: bytes, key: bytes, *, traceless: bool = False) -> None:
        """See `Store.delete`."""
        with suppress(KeyNotFound), self._mapped_errors():
            await self.bucket.purge(self._place(partition, key), ttl=MARKER_TTL if traceless else None)

    async def clear(self, partition: bytes) -> None:
        """See `Store.clear`."""
        self.check_open()
        check_partition(partition)
        self.bucket.check_writable(None)
        binding = self.bucket.binding
        await streams.purge(
            binding.api, binding.stream, filter=binding.subject(f"{partition_prefix(bytes(partition))}*")
        )

    async def clear_soon(self, partition: bytes, place: Place) -> None:
        """See `Store.clear_soon`."""
        name = self._place(*place)
        check_partition(partition)
        binding = self.bucket.binding
        connection = binding.api.connection
        request = json.dumps({"filter": binding.subject(f"{partition_prefix(bytes(partition))}*")}).encode()
        purge = publish_frame(f"{binding.api.prefix}.STREAM.PURGE.{binding.stream}".encode(), b"", b"", request)
        marker = conditional_write.write_headers(operation="PURGE", ttl=MARKER_TTL, rollup=True)
        with suppress(KvctlError):
            self.bucket.check_writable(None)
            connection.write_soon(purge)  # in one write with the next
            connection.publish(binding.write_prefix + name, b"", marker)

    async def is_empty(self, partition: bytes) -> bool:
        """See `Store.is_empty`."""
        self.check_open()
        check_partition(partition)
        newest = await store_reads.newest(self.bucket, partition_prefix(bytes(partition)))
        if newest is None or not is_tombstone(newest.header):
            return newest is None
        async with self.scan(partition, values=False) as entries:  # the newest was deleted, others may exist
            return not await entries.page()

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
        pending = PendingWrite(
            [self._wanted(item) for item in conditions],
            {
                subject_token(item.partition, item.key): None if item.value is None else bytes(item.value)
                for item in changes
            },
            {subject_token(item.partition, item.key) for item in changes if item.traceless},
        )
        with self._mapped_errors():
            revisions = await self._writing.write(pending)
        return [
            ABSENT if value is None else self.predicate(place, revisions[place])
            for place, value in pending.changes.items()
        ]

    async def put_while(self, fence: Condition, partition: bytes, key: bytes, value: bytes) -> Predicate:
        """See `Store.put_while`: one message on one replica, a share of a batch on several."""
        self.check_open()
        fenced = self._fenced
        if fenced is None or fenced.condition is not fence or fenced.partition != partition:
            fenced = self._fenced = await self._prepared(fence, partition)
        if not key or len(value) > self.largest:
            check_place(partition, key)
            check_value(value, self.largest)
        place = fenced.head + token(key).decode()
        try:
            revision = await self._writing.put_while(fenced.fence, place, value)
        except (OutcomeUnknown, PermissionDenied, ServerError):
            with self._mapped_errors():
                raise
        return predicate_of(fenced.stream, place, revision)

    async def _prepared(self, condition: Condition, partition: bytes) -> _Fenced:
        self.bucket.check_writable(None)
        check_partition(partition)
        check_place(condition.partition, condition.key)
        fence = await self._writing.fence(*self._wanted(condition))
        return _Fenced(condition, partition, partition_prefix(partition), self.bucket.binding.stream, fence)

    async def close(self) -> None:
        """See `Store.close`."""
        self._closed = True

    # -- inside --------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Check that the store is open. Raises StoreClosed."""
        if self._closed:
            raise StoreClosed("The store was closed")

    def predicate(self, place: str, revision: int) -> Predicate:
        """Return the predicate that this is the last revision of a place."""
        return predicate_of(self.bucket.binding.stream, place, revision)

    def _mapped_errors(self) -> AbstractContextManager[None]:
        """Map errors of a write to messages for repository users."""
        return map_store_errors(self.bucket.binding)

    def _place(self, partition: bytes, key: bytes) -> str:
        self.check_open()
        check_place(partition, key)
        return subject_token(partition, key)

    def _wanted(self, condition: Condition) -> tuple[str, Predicate]:
        """Return the condition of a place. Raises PredicateFailed for a predicate of another key or store."""
        place = subject_token(condition.partition, condition.key)
        if is_read_token(condition.predicate):
            expected_revision(self.bucket.binding.stream, place, condition.predicate)
        return place, condition.predicate


def _lives(entry: Entry | None) -> bool:
    return entry is not None and entry.operation is Operation.PUT
