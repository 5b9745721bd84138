"""Statistics of a bucket: keys, deletions, entries and sizes, as a whole and by prefix, in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from heapq import nlargest

from kvctl.errors import UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry, Operation, from_frames, newer
from kvctl.kv.read import listing
from kvctl.kv.resolve import Binding

MAX_PREFIXES = 100_000
"""Maximum number of prefixes in memory."""
SHORTEST_HISTORY_NS = 3600 * 10**9
"""Minimum time between the first and the last stored entry for a number of writes per day."""
DAY_NS = 24 * 3600 * 10**9

Advance = Callable[[int], None]
"""Called with the number of entries read."""


@dataclass(slots=True)
class KeyGroup:
    """Some of the bucket's keys together; sizes in bytes, times in nanoseconds since the epoch."""

    prefix: str = ""
    """Common prefix of their names, up to a dot; empty for keys without one, and for all keys."""
    keys: int = 0
    """Existing keys."""
    deleted: int = 0
    """Deleted keys that still have a marker."""
    entries: int = 0
    """Entries, history and markers included."""
    bytes: int = 0
    """Bytes of the latest values."""
    held: int = 0
    """Bytes of all values, history included."""
    changed_today: int = 0
    """Keys that were written or deleted within a day."""
    oldest: int | None = None
    """Last change of the key that was unchanged for longest."""
    newest: int | None = None
    """Last change of any key."""
    first: int | None = None
    """Time of the first stored entry."""

    @property
    def writes_a_day(self) -> float | None:
        """Return the writes per day over the stored entries; None for less than an hour of them."""
        if self.first is None or self.newest is None or self.newest - self.first < SHORTEST_HISTORY_NS:
            return None
        return (self.entries - 1) / (self.newest - self.first) * DAY_NS

    def add_latest(self, entry: Entry, now_ns: int) -> None:
        """Count the latest entry of a key."""
        if entry.operation is Operation.PUT:
            self.keys += 1
            self.bytes += entry.size
        else:
            self.deleted += 1
        self.changed_today += entry.created_ns >= now_ns - DAY_NS
        self.oldest = entry.created_ns if self.oldest is None else min(self.oldest, entry.created_ns)
        self.newest = entry.created_ns if self.newest is None else max(self.newest, entry.created_ns)

    def add_entry(self, entry: Entry) -> None:
        """Count a stored entry."""
        self.entries += 1
        self.held += entry.size
        self.first = entry.created_ns if self.first is None else min(self.first, entry.created_ns)


@dataclass(slots=True)
class Statistics:
    """Statistics of a bucket up to a revision."""

    bucket: str
    last_revision: int
    """Last revision that was counted."""
    history: int
    """Entries kept per key."""
    stored: int
    """Bytes of the stream, with subjects and headers."""
    total: KeyGroup = field(default_factory=KeyGroup)
    prefixes: dict[str, KeyGroup] = field(default_factory=dict)
    """Groups by prefix; empty unless prefixes were asked for."""
    largest: list[tuple[int, str]] = field(default_factory=list)
    """Bytes and keys of the largest values, as many as were asked for, the largest first."""


async def statistics(
    bucket: Bucket, *, tokens: int | None = None, largest: int = 0, advance: Advance = lambda _: None
) -> Statistics:
    """Count what a bucket, mirror or aggregate has, by prefixes of `tokens` tokens if given. Values are not sent.

    Reads the latest entry of each key, and all entries if there is history. Memory grows with the prefixes only. Keys
    that are written in the meantime may be missing. Raises BucketNotFound, UsageError for more than MAX_PREFIXES.
    """
    if tokens is not None and tokens < 1:
        raise UsageError(f"`{tokens}` is not a positive number")
    binding = await bucket.readable()
    info = await streams.info(binding.api, binding.stream)
    now_ns = ServerClock.from_info(info).now_ns()
    history, last = info["config"].get("max_msgs_per_subject", 0), info["state"]["last_seq"]
    found = Statistics(bucket.name, last, history, info["state"]["bytes"])
    if not info["state"]["messages"]:
        return found
    async with aclosing(_latest(binding, last)) as latest:
        async for batch in latest:
            for entry in batch:
                for group in _groups(found, entry.key, tokens):
                    group.add_latest(entry, now_ns)
                    if history == 1:
                        group.add_entry(entry)
            if largest:
                values = [(entry.size, entry.key) for entry in batch if entry.operation is Operation.PUT]
                found.largest = nlargest(largest, [*found.largest, *values])
            advance(len(batch))
    if history != 1:
        async with aclosing(listing.history_batches(binding, (), headers_only=True)) as entries:
            async for batch in entries:
                for entry in batch:
                    if entry.revision <= last:
                        for group in _groups(found, entry.key, tokens):
                            group.add_entry(entry)
                advance(len(batch))
    return found


async def _latest(binding: Binding, last: int) -> AsyncGenerator[list[Entry], None]:
    """Yield the latest entry of each key without its value, up to a revision; keeps no set of the keys seen."""
    cut, seen = len(binding.prefix.encode()), 0
    selection = Selection(subjects=(binding.prefix + ">",), headers_only=True)
    async with OrderedConsumer(binding.api, binding.stream, selection) as consumer:
        async for batch in consumer.batches():
            if entries := newer(from_frames(binding.bucket, cut, batch), seen):
                seen = entries[-1].revision
                yield [entry for entry in entries if entry.revision <= last]


def _groups(found: Statistics, key: str, tokens: int | None) -> tuple[KeyGroup, ...]:
    if tokens is None:
        return (found.total,)
    parts = key.split(".")
    prefix = ".".join(parts[: min(tokens, len(parts) - 1)])
    group = found.prefixes.get(prefix)
    if group is None:
        if len(found.prefixes) >= MAX_PREFIXES:
            raise UsageError(
                f"`{found.bucket}` has more than {MAX_PREFIXES} prefixes of {tokens} tokens",
                hint="Give fewer tokens with `--by-prefix`",
            )
        group = found.prefixes[prefix] = KeyGroup(prefix)
    return (found.total, group)
