"""Finite listings of a bucket: key names, latest entries, history; a key that lives throughout appears once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from kvctl.jetstream.consumers.delivery import RawFrame
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.kv.entry import Entry, any_tombstone, from_frames, is_tombstone, newer
from kvctl.kv.names import check_filter, check_literal, disjoint, literal_filter, matches, overlapping
from kvctl.kv.read.distinct import Distinct
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

    A name is the bytes after the bucket's prefix. Names of keys written since the binding's info come last.
    """
    subjects, rest = subjects_of(binding, filters)
    cut = len(binding.prefix.encode())
    async with aclosing(_last_of_each(binding, subjects, deleted=deleted, values=False)) as batches:
        async for frames in batches:
            names = [frame[0][cut:] for frame in frames]
            if rest:
                names = [name for name in names if matches(name.decode(errors="surrogateescape"), rest)]
            if names:
                yield names


async def entry_batches(
    binding: Binding, filters: Sequence[str], *, deleted: bool = False, values: bool = True, literal: bool = False
) -> AsyncGenerator[list[Entry], None]:
    """Yield the latest entry of each key in batches, none twice; without `values`, only what the headers say."""
    subjects, rest = subjects_of(binding, filters, literal=literal)
    only = set(filters) if literal else None
    cut = len(binding.prefix.encode())
    async with aclosing(_last_of_each(binding, subjects, deleted=deleted, values=values)) as batches:
        async for frames in batches:
            found = from_frames(binding.bucket, cut, frames)
            if rest:
                found = [entry for entry in found if matches(entry.key, rest)]
            if only is not None:
                found = [entry for entry in found if entry.key in only]
            if found:
                yield found


async def _last_of_each(
    binding: Binding, subjects: tuple[str, ...], *, deleted: bool, values: bool
) -> AsyncGenerator[list[RawFrame], None]:
    """Yield the last message of each subject, none twice. Without values, later ones than the binding's info wait."""
    selection = Selection(subjects=subjects, headers_only=not values)
    async with OrderedConsumer(binding.api, binding.stream, selection) as consumer:
        distinct = Distinct(consumer, _last_before(binding, consumer), waiting=not values)
        async for batch in consumer.batches():
            wanted = batch
            if not deleted and any_tombstone([frame[2] for frame in batch]):
                wanted = [frame for frame in batch if not is_tombstone(frame[2])]
            if fresh := distinct.pick(batch, wanted):
                yield fresh
    if fresh := distinct.rest():
        yield fresh


def _last_before(binding: Binding, consumer: OrderedConsumer) -> int:
    """Return a revision that the bucket had before the consumer was created; 0 if unknown, as after a recreation."""
    before, now = binding.info, consumer.info
    if before is None or now is None or before["created"] != now["created"]:
        return 0
    last = int(before["state"]["last_seq"])
    return last if last <= now["state"]["last_seq"] else 0


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
            found = newer(from_frames(binding.bucket, cut, batch), last)
            last = found[-1].revision if found else last
            if rest:
                found = [entry for entry in found if matches(entry.key, rest)]
            if only is not None:
                found = [entry for entry in found if entry.key in only]
            if found:
                yield found
