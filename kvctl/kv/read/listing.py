"""Finite listings of a bucket: key names, latest entries, history; a key that lives throughout appears once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from kvctl.jetstream.consumers.ordered.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.ordered.server_consumer import Selection
from kvctl.kv.entry import Entry, from_frame, is_tombstone
from kvctl.kv.names import check_filter, check_literal, disjoint, literal_filter, matches, overlapping
from kvctl.kv.resolve import Binding


def subjects_of(
    binding: Binding, filters: Sequence[str], *, literal: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the consumer's subjects for the filters, and the filters left to apply to its messages.

    Servers refuse filters that overlap partially (10138): then everything is read and filtered here. A non-conforming
    key, taken literally, may come with others that its subject matches as a wildcard.
    """
    filters = [literal_filter(check_literal(text)) if literal else check_filter(text) for text in filters]
    wanted = disjoint(list(filters)) or [">"]
    if overlapping(wanted):
        return (binding.prefix + ">",), tuple(wanted)
    return tuple(binding.prefix + text for text in wanted), ()


async def key_batches(
    binding: Binding, filters: Sequence[str], *, deleted: bool = False
) -> AsyncGenerator[list[bytes], None]:
    """Yield names of live keys (with `deleted` of all keys) in batches, none twice.

    A name is the bytes after the bucket's prefix. Keeps a set of the names seen: some 100 bytes per key.
    """
    subjects, rest = subjects_of(binding, filters)
    cut = len(binding.prefix.encode())
    seen: set[bytes] = set()
    async with OrderedConsumer(
        binding.api, binding.stream, Selection(subjects=subjects, headers_only=True)
    ) as consumer:
        async for batch in consumer.batches():
            names = [
                subject[cut:]
                for subject, _, header, _ in batch
                if deleted or not (b"KV-Operation:" in header or b"Nats-Marker-Reason:" in header)
            ]
            before = len(seen)
            fresh = [name for name in names if name not in seen]
            seen.update(fresh)
            if len(seen) - before != len(fresh):
                fresh = list(dict.fromkeys(fresh))  # twice in one batch: overwritten during the reading
            if rest:
                fresh = [key for key in fresh if matches(key.decode(errors="surrogateescape"), rest)]
            if fresh:
                yield fresh


async def entry_batches(
    binding: Binding, filters: Sequence[str], *, deleted: bool = False, values: bool = True, literal: bool = False
) -> AsyncGenerator[list[Entry], None]:
    """Yield the latest entry of each key in batches, none twice; without `values`, only what the headers say."""
    subjects, rest = subjects_of(binding, filters, literal=literal)
    only = set(filters) if literal else None
    cut = len(binding.prefix.encode())
    seen: set[bytes] = set()
    selection = Selection(subjects=subjects, headers_only=not values)
    async with OrderedConsumer(binding.api, binding.stream, selection) as consumer:
        async for batch in consumer.batches():
            found = []
            for frame in batch:
                if frame[0] in seen or (not deleted and is_tombstone(frame[2])):
                    continue
                seen.add(frame[0])
                entry = from_frame(binding.bucket, cut, frame)
                if not rest or matches(entry.key, rest):
                    found.append(entry)
            if only is not None:
                found = [entry for entry in found if entry.key in only]
            if found:
                yield found


async def history_batches(
    binding: Binding, filters: Sequence[str], *, start: int | None = None, headers_only: bool = False,
    literal: bool = False,
) -> AsyncGenerator[list[Entry], None]:  # fmt: skip
    """Yield every stored entry from the revision `start` on, oldest first, deletions included."""
    subjects, rest = subjects_of(binding, filters, literal=literal)
    only = set(filters) if literal else None
    cut = len(binding.prefix.encode())
    last = 0
    selection = Selection(subjects=subjects, deliver="all", headers_only=headers_only)
    if start is not None:
        selection = replace(selection, deliver="by_start_sequence", start=start)
    async with OrderedConsumer(binding.api, binding.stream, selection) as consumer:
        async for batch in consumer.batches():
            found = []
            for frame in batch:
                entry = from_frame(binding.bucket, cut, frame)
                if entry.revision > last:
                    last = entry.revision
                    found.append(entry)
            if rest:
                found = [entry for entry in found if matches(entry.key, rest)]
            if only is not None:
                found = [entry for entry in found if entry.key in only]
            if found:
                yield found
