"""Requests of a stream read: the bucket's position, the starting offset, and the end of a batch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from kvctl.errors import PermissionDenied, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.direct_get import from_leader
from kvctl.jetstream.multi_get import first_since
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.bucket import Bucket
from kvctl.kv.resolve import Binding
from kvctl.pipeline.read.offsets import Offset, StreamExtent, check_start
from kvctl.units import format_time, parse_time

EARLIEST, LATEST = "earliest", "latest"
_PROBES = 40
"""Number of halvings of the largest possible range."""


async def look(bucket: Bucket) -> tuple[Binding, StreamExtent]:
    """Return the bucket's leader stream, whose revisions are read, and its state.

    Raises BucketNotFound, PermissionDenied.
    """
    source = (await bucket.locate()).source
    info = await streams.info(source.api, source.stream)
    return source, StreamExtent.of(bucket.name, info)


async def beginning(binding: Binding, extent: StreamExtent, revision: str, time_text: str | None) -> Offset:
    """Return the offset of a new query: `startingRevision` is a number, `earliest` or `latest`.

    Raises UsageError for a revision that the bucket has not reached, or a time in the future.
    """
    if time_text is not None:
        since = starting_time_ns(time_text, await ServerClock.read(binding.api, binding.stream))
        first = await first_since(binding.api, binding.stream, since)
        return await after(binding, extent, first - 1)
    if revision == LATEST:
        return extent.end
    if revision == EARLIEST:
        return await after(binding, extent, 0)
    check_start(int(revision), extent)
    found = await after(binding, extent, int(revision) - 1)
    return replace(found, held=0)  # revisions missing from there on count as lost


async def after(binding: Binding, extent: StreamExtent, revision: int) -> Offset:
    """Return the offset after a revision, with what the bucket tells about later ones.

    Their earliest write time is known: entries that expire before they are read can then be detected.
    """
    offset = Offset(revision, extent.incarnation)
    if revision >= extent.last:
        return replace(offset, seen_ns=extent.at_ns)
    if revision < extent.first:
        return replace(offset, seen_ns=(extent.first_ns or extent.at_ns) - 1, held=extent.first)
    with suppress(PermissionDenied):
        found = await from_leader(binding.api, binding.stream, seq=revision + 1, next_by_subj=">")
        if found is not None:
            return replace(offset, seen_ns=found.time_ns - 1, held=found.sequence)
    return offset


def starting_time_ns(text: str, clock: ServerClock) -> int:
    """Parse `startingTime` as nanoseconds, truncated to the microseconds of Spark's times. Raises UsageError."""
    now = clock.now_ns()
    moment = parse_time(text, now)
    if moment > now:
        raise UsageError(
            f"`startingTime` {format_time(moment)} is in the future",
            hint="`startingRevision=latest` starts with new writes",
        )
    return moment // 1000 * 1000


async def reach(binding: Binding, extent: StreamExtent, after: int, last: int, most: int) -> int:
    """Return the end of a batch that begins after `after`: it has at most `most` entries up to `last`.

    If revisions in between are missing, existing ones are counted, so that a batch is seldom much smaller.
    """
    low = max(after, extent.first - 1) + most
    if low >= last or not extent.gaps:
        return min(low, last)
    high = last + 1  # the range up to here has more than `most`, unless it is everything
    for _ in range(_PROBES):
        if high - low <= 1:
            break
        middle = low + (high - low) // 2 if high <= last else last
        counted = await _between(binding, after, middle)
        if counted > most:
            high = middle
        else:
            low = middle
            if 2 * counted > most:
                break
    return low


async def _between(binding: Binding, after: int, last: int) -> int:
    """Count the entries above one revision and up to another; may count too many during concurrent writes."""
    beyond = await _above(binding, last)
    return await _above(binding, after) - beyond


async def _above(binding: Binding, revision: int) -> int:
    return await admin.count(
        binding.api, binding.stream, deliver_policy="by_start_sequence", opt_start_seq=revision + 1
    )
