"""Store on JetStream: a key is a subject, its revision the sequence of its last message.

Partition and key are one token each, so that no two partitions or keys collide. Reads are as new as the leader's: other
replicas may lag behind a successful write.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import lru_cache
from typing import NamedTuple

from kvctl.errors import KvctlError, NoResponders, OutcomeUnknown, PermissionDenied, ServerError, Unanswered
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.consumers.message import sequence_token
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.direct_get import CannotAnswerMany, DirectRequest, StoredMessage
from kvctl.jetstream.multi_get import MessagePage, NotReached, last_of_each, pages
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import is_tombstone
from kvctl.kv.resolve import Binding
from kvctl.tokens import token, untoken
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

SINGLE_READ_KEYS = 16
"""Maximum number of keys read one by one; more are read a thousand at a time."""
KEYS_PER_REQUEST = 1000
PAGE_ENTRIES = 1000
"""Number of entries of a scan returned together."""
HELD_BYTES = 32 << 20
"""Maximum bytes of values that a scan holds; beyond that, values are fetched as the entries are read."""
FULL = 4
"""Number of scans open together that may hold so much each; more of them share it."""
FETCHED_BYTES = 8 << 20
"""Bytes of values fetched together."""
FIRST = 16
"""Number of values fetched first, before their size is known."""
OBJECTS_PER_REQUEST = 64
"""Number of objects read in one request: some 500 KB, which keep a server busy for few milliseconds."""

Listed = dict[bytes, tuple[bytes, int]]
"""Value and revision by the tokens of keys, which sort as the keys; values are empty if they were not read."""

_ELSEWISE = (CannotAnswerMany, NotReached, NoResponders, PermissionDenied, Unanswered)


async def latest(bucket: Bucket, keys: Sequence[str]) -> dict[str, StoredValue]:
    """Return the existing ones of these keys, as the leader has them."""
    found: dict[str, StoredValue] = {}
    left = list(dict.fromkeys(keys))
    if len(left) > SINGLE_READ_KEYS:
        binding = bucket.binding
        reached = await streams.last_sequence(binding.api, binding.stream)
        for at in range(0, len(left), KEYS_PER_REQUEST):
            some = left[at : at + KEYS_PER_REQUEST]
            messages = await _at_once(binding, [binding.subject(key) for key in some], reached)
            if messages is None:
                found |= await _one_by_one(bucket, some, leader=True)
            else:
                found |= _living(binding, messages)
                answered = {message.subject for message in messages}  # a replica whose storage is damaged may miss one
                absent = [key for key in some if binding.subject(key) not in answered]
                found |= await _one_by_one(bucket, absent, leader=True)
        return found
    return await _one_by_one(bucket, left, leader=True)


async def latest_lasting(bucket: Bucket, keys: Sequence[str]) -> dict[str, StoredValue]:
    """Return the existing ones of keys that are only written with one value: from any replica, else from the leader."""
    found: dict[str, StoredValue] = {}
    if bucket.binding.direct:
        try:
            for at in range(0, len(keys), OBJECTS_PER_REQUEST):
                found |= await _from_any(bucket, keys[at : at + OBJECTS_PER_REQUEST])
        except (NoResponders, PermissionDenied):
            found = {}
    missing = [key for key in keys if key not in found]
    return {**found, **await _one_by_one(bucket, missing, leader=True)} if missing else found


async def _from_any(bucket: Bucket, keys: Sequence[str]) -> dict[str, StoredValue]:
    """Return those of some keys that the answering replicas have."""
    binding = bucket.binding
    if len(keys) > SINGLE_READ_KEYS:
        request = DirectRequest(last_of=tuple(map(binding.subject, keys)))
        with suppress(*_ELSEWISE):
            async with aclosing(pages(binding.api, binding.stream, request)) as answers:
                return {key: one async for page in answers for key, one in _living(binding, page.messages).items()}
    return await _one_by_one(bucket, keys, leader=False)


async def pages_of(
    bucket: Bucket, head: str, start: bytes, *, values: bool, beside: int
) -> AsyncGenerator[list[StoreEntry], None]:
    """Yield the entries whose keys have a prefix; see `Store.pages`.

    Holds about 200 bytes per key, and the values if they are few.
    """
    share = max(1 + beside, FULL) / FULL
    listed = await _list(bucket, head, int(HELD_BYTES / share) if values else None)
    held = listed is not None
    if listed is None:
        listed = await _list(bucket, head, None) or {}
    keys = sorted(listed)
    at, size = bisect_left(keys, token(start)), PAGE_ENTRIES if held else max(int(FIRST / share), 1)
    make = tuple.__new__
    while some := keys[at : at + size]:
        at += len(some)
        await asyncio.sleep(0)  # yield, even if nothing has to be fetched
        if held:
            found: list[tuple[bytes, tuple[bytes, int]]] = [(key, listed[key]) for key in some]
        else:
            places = [head + key.decode() for key in some]
            known = await latest(bucket, places)
            found = [(key, known[place]) for key, place in zip(some, places, strict=True) if place in known]
            total = sum(len(value) for _, (value, _) in found)
            size = min(len(some) * 8, int(len(some) * FETCHED_BYTES / max(total * share, 1)), PAGE_ENTRIES) or 1
        if found:
            yield [make(StoreEntry, (untoken(key), *one)) for key, one in found]


async def _list(bucket: Bucket, head: str, most: int | None) -> Listed | None:
    """List the keys with a prefix. With `most`, list their values, too, and return None if these have more bytes."""
    messages = await partition(bucket, head)
    cut = len(bucket.binding.prefix) + len(head)
    if messages is not None:
        return {
            message.subject[cut:].encode(): (b"" if most is None else message.payload, message.sequence)
            for message in messages
            if not is_tombstone(message.header)
        }
    listed: Listed = {}
    size = 0
    selection = Selection(subjects=(bucket.binding.subject(f"{head}*"),), headers_only=most is None)
    async with OrderedConsumer(bucket.binding.api, bucket.binding.stream, selection) as consumer:
        async for batch in consumer.batches():
            place = sequence_token(batch[0][1]) if batch else 0
            for name, reply, header, payload in batch:
                if header and is_tombstone(header):
                    listed.pop(name[cut:], None)
                else:
                    listed[name[cut:]] = payload, int(reply.split(b".", place + 1)[place])
                    size += len(payload)
            if most is not None and size > most:
                return None
    return listed


async def partition(bucket: Bucket, head: str) -> list[StoredMessage] | None:
    """Return the last messages of all keys with a prefix, consistently; None if they are too many.

    The leader reports the last of them, which the answering replica must have.
    """
    binding = bucket.binding
    last, page = await asyncio.gather(newest(bucket, head), _first_page(binding, [binding.subject(f"{head}*")]))
    if last is None:
        return []
    if page is None or page.pending or (page.up_to_sequence or 0) < last.sequence:
        return None
    return page.messages


async def newest(bucket: Bucket, head: str) -> StoredMessage | None:
    """Return the newest message, deletions included, of all keys with a prefix, from the leader."""
    binding = bucket.binding
    subject = binding.subject(f"{head}*")
    answers = await last_of_each(binding.api, binding.stream, [subject], leader=True)
    if subject in answers:
        return answers[subject]
    return await direct_get.from_leader(binding.api, binding.stream, last_by_subj=subject)  # no answer: with retries


async def _at_once(binding: Binding, subjects: Sequence[str], reached: int) -> list[StoredMessage] | None:
    """Return the last messages of subjects in one answer; None if that is impossible, or older than required."""
    page = await _first_page(binding, subjects)
    if page is None or page.pending or (page.up_to_sequence or 0) < reached:
        return None
    return page.messages


async def _first_page(binding: Binding, subjects: Sequence[str]) -> MessagePage[StoredMessage] | None:
    if not binding.direct:
        return None
    try:
        request = DirectRequest(last_of=tuple(subjects))
        async with aclosing(pages(binding.api, binding.stream, request)) as answers:
            async for page in answers:
                return page
    except _ELSEWISE:
        pass
    return None


async def _one_by_one(bucket: Bucket, keys: Sequence[str], *, leader: bool) -> dict[str, StoredValue]:
    """Read one key per request, all in flight."""
    binding = bucket.binding
    if not keys:
        return {}
    subjects = [binding.subject(key) for key in keys]
    answers = await last_of_each(binding.api, binding.stream, subjects, leader=leader)
    found = _living(binding, [message for message in answers.values() if message is not None])
    for key in [key for key, subject in zip(keys, subjects, strict=True) if subject not in answers] if leader else ():
        entry = await bucket.last_entry(key, leader=True)  # no answer: with retries
        if entry is not None and not is_tombstone(entry.header):
            found[key] = StoredValue(entry.value, entry.revision)
    return found


def _living(binding: Binding, messages: Sequence[StoredMessage]) -> dict[str, StoredValue]:
    cut = len(binding.prefix)
    return {
        message.subject[cut:]: StoredValue(message.payload, message.sequence)
        for message in messages
        if not is_tombstone(message.header)
    }


HEADERS = 1024
"""Maximum bytes of a message's headers: conditions on the longest names, and its place in a batch."""


class _FencedPartition(NamedTuple):
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
        stored = await (latest_lasting if lasting else latest)(self.bucket, names)
        return [stored.get(name) for name in names]

    async def pages(
        self, partition: bytes, start: bytes = b"", *, values: bool = True, beside: int = 0
    ) -> AsyncGenerator[list[StoreEntry], None]:
        self.check_partition(partition)
        listing = pages_of(self.bucket, _prefix(bytes(partition)), bytes(start), values=values, beside=beside)
        async with aclosing(listing) as found:
            async for page in found:
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
        last = await newest(self.bucket, _prefix(bytes(partition)))
        if last is None or not is_tombstone(last.header):
            return last is None
        async with aclosing(self.pages(partition, values=False)) as left:  # the newest was deleted, others may exist
            return await anext(left, None) is None

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
