"""Store on JetStream: a key is a subject, its revision the sequence of its last message.

Partition and key are one token each, so that no two partitions or keys collide. Reads are as new as the leader's: other
replicas may lag behind a successful write.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import lru_cache

from kvctl.errors import KvctlError, OutcomeUnknown, PermissionDenied, ServerError
from kvctl.jetstream import streams
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import is_tombstone
from kvctl.kv.ordered_token import token, untoken
from kvctl.versions.store import reads
from kvctl.versions.store.protocol import (
    ABSENT,
    Place,
    Store,
    StoreChange,
    StoreCondition,
    StoredValue,
    StoreEntry,
    check_size,
)
from kvctl.versions.store.writes import BucketWriting, BulkWrites, Fence, PendingWrite, map_store_errors

HEADERS = 1024
"""Maximum bytes of a message's headers: conditions on the longest names, and its place in a batch."""


@dataclass(frozen=True, slots=True)
class _FencedPartition:
    """What the fenced messages into one partition share."""

    condition: StoreCondition
    partition: bytes
    head: str
    """Prefix of the partition's keys."""
    fence: Fence


class BucketStore(Store):
    """Keys of a bucket whose stream allows atomic batches and message ttls, with one revision per key."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._writing = BucketWriting(bucket)
        self._fenced: _FencedPartition | None = None
        """What `put_while` prepared last."""

    @property
    def largest(self) -> int:
        return self.bucket.binding.api.connection.max_payload - HEADERS

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[StoredValue | None]:
        self.check_open()
        names = [self._place(*place) for place in places]
        stored = await (reads.lasting if lasting else reads.latest)(self.bucket, names)
        return [stored.get(name) for name in names]

    async def pages(
        self, partition: bytes, start: bytes = b"", *, values: bool = True, beside: int = 0
    ) -> AsyncGenerator[list[StoreEntry], None]:
        self.check_partition(partition)
        listing = reads.pages(self.bucket, _prefix(bytes(partition)), bytes(start), values=values, beside=beside)
        async with aclosing(listing) as pages:
            async for page in pages:
                yield page
                self.check_open()

    def fill(self, partition: bytes) -> BulkWrites:
        """See `Store.fill`: pipelined messages."""
        self.check_partition(partition)
        self.bucket.check_writable(None)
        return BulkWrites(self.bucket.binding, _prefix(bytes(partition)), self.largest)

    async def clear(self, partition: bytes) -> None:
        self.check_partition(partition)
        self.bucket.check_writable(None)
        binding = self.bucket.binding
        await streams.purge(binding.api, binding.stream, filter=self._subjects(partition))

    async def clear_soon(self, partition: bytes) -> None:
        self.check_partition(partition)
        api = self.bucket.binding.api
        request = json.dumps({"filter": self._subjects(partition)}).encode()
        with suppress(KvctlError):
            self.bucket.check_writable(None)
            api.connection.publish(f"{api.prefix}.STREAM.PURGE.{self.bucket.binding.stream}", request)

    async def is_empty(self, partition: bytes) -> bool:
        self.check_partition(partition)
        newest = await reads.newest(self.bucket, _prefix(bytes(partition)))
        if newest is None or not is_tombstone(newest.header):
            return newest is None
        async with aclosing(self.pages(partition, values=False)) as pages:  # the newest was deleted, others may exist
            return await anext(pages, None) is None

    async def partitions(self) -> list[bytes]:
        self.check_open()
        binding = self.bucket.binding
        subjects = await streams.subjects(binding.api, binding.stream, f"{binding.prefix}>")
        heads = {subject[len(binding.prefix) :].partition(".")[0] for subject in subjects}
        return sorted(untoken(head[1:].encode()) for head in heads)

    async def now_ns(self) -> int:
        return (await ServerClock.of_connection(self.bucket.binding.api)).now_ns()

    async def write(self, conditions: Sequence[StoreCondition], changes: Sequence[StoreChange]) -> list[int]:
        self.bucket.check_writable(None)
        self.check_write(conditions, changes)
        values = [None if item.value is None else bytes(item.value) for item in changes]
        places = [self._place(item.partition, item.key) for item in changes]
        pending = PendingWrite(
            [(self._place(item.partition, item.key), item.revision) for item in conditions],
            dict(zip(places, values, strict=True)),
            {place for place, item in zip(places, changes, strict=True) if item.traceless},
        )
        with map_store_errors(self.bucket.binding):
            revisions = await self._writing.write(pending)
        return [ABSENT if value is None else revisions[place] for place, value in pending.changes.items()]

    async def put_while(self, fence: StoreCondition, partition: bytes, key: bytes, value: bytes) -> int:
        """See `Store.put_while`: one message on one replica, a share of a batch on several."""
        self.check_open()
        fenced = self._fenced
        if fenced is None or fenced.condition is not fence or fenced.partition != partition:
            fenced = self._fenced = await self._prepared(fence, partition)
        if not key or len(value) > self.largest:
            self.check_place(partition, key)
            check_size(value, self.largest)
        try:
            return await self._writing.put_while(fenced.fence, fenced.head + token(key).decode(), value)
        except (OutcomeUnknown, PermissionDenied, ServerError):
            with map_store_errors(self.bucket.binding):
                raise

    async def _prepared(self, condition: StoreCondition, partition: bytes) -> _FencedPartition:
        self.bucket.check_writable(None)
        self.check_partition(partition)
        fence = await self._writing.fence(self._place(condition.partition, condition.key), condition.revision)
        return _FencedPartition(condition, partition, _prefix(partition), fence)

    def _place(self, partition: bytes, key: bytes) -> str:
        """Return partition and key as tokens: the end of a subject."""
        self.check_place(partition, key)
        return _prefix(bytes(partition)) + token(key).decode()

    def _subjects(self, partition: bytes) -> str:
        return self.bucket.binding.subject(f"{_prefix(bytes(partition))}*")


@lru_cache(maxsize=1024)
def _prefix(partition: bytes) -> str:
    """Return the common prefix of the places of a partition's keys."""
    return f"p{token(partition).decode()}."
