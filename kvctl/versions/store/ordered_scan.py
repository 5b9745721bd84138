"""Ordered scan of a store on JetStream. Servers do not sort: keys are listed at the first step, and sorted here."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from kvctl.jetstream.consumers.delivery import sequence_token
from kvctl.jetstream.consumers.ordered.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.ordered.server_consumer import Selection
from kvctl.kv.entry import is_tombstone
from kvctl.kv.ordered_token import token, untoken
from kvctl.versions.store import store_reads
from kvctl.versions.store.protocol import StoreClosed, StoreEntry
from kvctl.versions.store.store_reads import Stored

if TYPE_CHECKING:
    from kvctl.versions.store.jetstream_store import BucketStore

BATCH = 1000
"""Default number of entries fetched together."""
HELD = 32 << 20
"""Maximum bytes of values that a listing keeps; beyond that, values are fetched as the entries are read."""
FULL = 4
"""Number of scans open together that may hold so much each; more of them share it."""

FETCHED = 8 << 20
"""Bytes of values fetched together."""
FIRST = 16
"""Number of values fetched first, before their size is known."""

Listed = dict[bytes, Stored]
"""By the tokens of keys; values are empty if they were not read."""


class BucketEntries:
    """See `Entries`. Holds about 200 bytes per key, and the values if they are few."""

    def __init__(
        self, store: BucketStore, head: str, partition: bytes, start: bytes, batch: int, values: bool, beside: int
    ) -> None:
        self._store = store
        self._head = head
        """Prefix of the partition's keys."""
        self._partition = partition
        self._start = start
        self._batch = batch or BATCH
        self._values = values
        self._share = max(1 + beside, FULL) / FULL
        """Number of times by which it holds less, for the sake of others."""
        self._listed: Listed | None = None
        self._left_out = False
        """True if values are missing in it."""
        self._keys: list[bytes] = []
        """Tokens of the keys, sorted, which is the order of the keys."""
        self._next = 0
        self._ahead: list[StoreEntry] = []
        """Entries that were fetched, the next one last."""
        self._pace = max(int(FIRST / self._share), 1)
        """Number of values to fetch together, such that they add up to FETCHED bytes if they are like the last ones."""
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoreEntry:
        self._check_open()
        while not self._ahead:
            if not (found := await self._fetch()):
                raise StopAsyncIteration
            self._ahead = self._entries(found)
        return self._ahead.pop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def page(self) -> list[tuple[bytes, bytes]]:
        """See `Entries.page`."""
        self._check_open()
        if self._ahead:
            ahead, self._ahead = self._ahead[::-1], []
            return [(entry.key, entry.value) for entry in ahead]
        return [(untoken(key), value) for key, (_, value) in await self._fetch()]

    async def seek(self, key: bytes) -> None:
        """See `Entries.seek`."""
        self._check_open()
        self._start = bytes(key)
        self._ahead.clear()
        self._next = bisect_left(self._keys, token(self._start))

    async def close(self) -> None:
        """See `Entries.close`."""
        self._closed = True
        self._ahead.clear()
        self._keys.clear()
        self._listed = {}

    async def _list(self) -> Listed:
        messages = await store_reads.partition(self._store.bucket, self._head)
        if messages is None:
            return await self._list_many()
        cut = len(self._store.bucket.binding.prefix) + len(self._head)
        return {
            message.subject[cut:].encode(): (message.sequence, message.payload if self._values else b"")
            for message in messages
            if not is_tombstone(message.header)
        }

    async def _list_many(self) -> Listed:
        """List the keys, with the values if they are few."""
        listed: Listed = {}
        if not await self._take(listed, values=self._values):
            self._left_out = True
            listed.clear()
            await self._take(listed, values=False)
        return listed

    async def _take(self, listed: Listed, *, values: bool) -> bool:
        """List all keys; return False, with some missing, if there are too many values to hold."""
        binding = self._store.bucket.binding
        subject = binding.subject(f"{self._head}*")
        cut = len(binding.prefix) + len(self._head)
        selection = Selection(subjects=(subject,), headers_only=not values)
        size = 0
        async with OrderedConsumer(binding.api, binding.stream, selection) as consumer:
            async for batch in consumer.batches():
                place = sequence_token(batch[0][1]) if batch else 0
                for name, reply, header, payload in batch:
                    if header and is_tombstone(header):
                        listed.pop(name[cut:], None)
                    else:
                        listed[name[cut:]] = int(reply.split(b".", place + 1)[place]), payload
                        size += len(payload)
                if size * self._share > HELD:
                    return False
        return True

    async def _fetch(self) -> list[tuple[bytes, Stored]]:
        """Return the next keys that exist, as tokens, each with its revision and value; none at the end."""
        if self._listed is None:
            self._listed = await self._list()
            self._keys = sorted(self._listed)
            self._next = bisect_left(self._keys, token(self._start))
        found: list[tuple[bytes, Stored]] = []
        while not found and self._next < len(self._keys):
            await asyncio.sleep(0)  # yield, even if nothing has to be fetched
            size = min(self._batch, self._pace) if self._left_out else self._batch
            some = self._keys[self._next : self._next + size]
            self._next += len(some)
            known = self._listed
            found = await self._read(some) if self._left_out else [(key, known[key]) for key in some]
        return found

    async def _read(self, keys: Sequence[bytes]) -> list[tuple[bytes, Stored]]:
        """Read the values of keys that were listed without them."""
        places = [self._head + key.decode() for key in keys]
        known = await store_reads.latest(self._store.bucket, places)
        size = sum(len(value) for _, value in known.values())
        self._pace = max(min(len(keys) * 8, int(len(keys) * FETCHED / max(size * self._share, 1))), 1)
        return [(key, known[place]) for key, place in zip(keys, places, strict=True) if place in known]

    def _entries(self, found: Sequence[tuple[bytes, Stored]]) -> list[StoreEntry]:
        """Return the entries, the first one last."""
        partition, predicate = self._partition, self._store.predicate
        return [
            StoreEntry(partition, untoken(key), value, predicate(self._head + key.decode(), revision))
            for key, (revision, value) in reversed(found)
        ]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("The scan was closed")
        self._store.check_open()
