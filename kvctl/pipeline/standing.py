"""What a stream read asks of the server: where a bucket stands, where to begin, and how far a batch goes."""

from __future__ import annotations

import time

from kvctl.errors import UsageError
from kvctl.jetstream import consumers, streams
from kvctl.jetstream.gathered import first_since
from kvctl.kv.binding import Binding
from kvctl.kv.bucket import Bucket
from kvctl.pipeline.offsets import Offset, Standing, check_start
from kvctl.quantities import format_time, parse_time

EARLIEST, LATEST = "earliest", "latest"
_PROBES = 40
"""Halvings of the largest range there can be."""


async def look(bucket: Bucket) -> tuple[Binding, Standing]:
    """The stream that takes the bucket's writes, whose revisions are read, and where it stands.

    Raises BucketNotFound, PermissionDenied.
    """
    source = (await bucket.locate()).source
    info = await streams.info(source.api, source.stream)
    return source, Standing.of(bucket.name, info)


async def beginning(binding: Binding, standing: Standing, revision: str, time_text: str | None) -> Offset:
    """The offset of a query that has none: `startingRevision` is a number, `earliest` or `latest`.

    Raises UsageError for a revision that the bucket has not reached, and a time in the future.
    """
    if time_text is not None:
        first = await first_since(binding.api, binding.stream, starting_time_ns(time_text))
        return Offset(first - 1, standing.incarnation, standing.at_ns)
    if revision == LATEST:
        return standing.end
    if revision == EARLIEST:
        return Offset(0, standing.incarnation)
    check_start(int(revision), standing)
    return Offset(int(revision) - 1, standing.incarnation)


def starting_time_ns(text: str) -> int:
    """`startingTime` as nanoseconds, cut to the microseconds that Spark's times have. Raises UsageError."""
    now = time.time_ns()
    moment = parse_time(text, now)
    if moment > now:
        raise UsageError(
            f"`startingTime` {format_time(moment)} is in the future",
            hint="`startingRevision=latest` starts with what is written from now on",
        )
    return moment // 1000 * 1000


async def reach(binding: Binding, standing: Standing, after: int, last: int, most: int) -> int:
    """The revision at which a batch ends that goes on after `after`: it holds at most so many entries up to `last`.

    Where revisions in between are gone, those that are there are counted, so that a batch is seldom much smaller.
    """
    low = max(after, standing.first - 1) + most
    if low >= last or not standing.gaps:
        return min(low, last)
    high = last + 1  # the range up to here holds more than `most`, unless it is everything
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
    """How many entries lie above one revision and up to another; rather too many while others write."""
    beyond = await _above(binding, last)
    return await _above(binding, after) - beyond


async def _above(binding: Binding, revision: int) -> int:
    return await consumers.count(
        binding.api, binding.stream, deliver_policy="by_start_sequence", opt_start_seq=revision + 1
    )
