"""Reads of a bucket as of one revision, planned once and run by tasks at different times.

The cut is the last revision when the read is planned, or an older one on request, by its number or by a time. A task
reads the keys' state at the cut, unless writers evict entries from the bucket's history before its turn. That is
detected in one of two ways:

- A task with keys of its own (`Keys`) compares what it read with what was written since the cut. It returns the newer
  state of the keys that it missed, or fails.
- A task with a range of revisions (`Revisions`) knows the number of messages, counted when the read was planned without
  concurrent writes. It cannot tell whose messages are missing, so it fails if there are too few.

So ranges are for reads that prefer to fail (`onEvicted`), and for changes, which are the entries still stored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from kvctl.errors import BucketNotFound, RefusedError, RevisionNotFound, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.multi_get import first_since
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.jetstream.streams import ServerClock
from kvctl.kv import catalog
from kvctl.kv.bucket import Bucket
from kvctl.kv.names import is_wild, overlapping
from kvctl.kv.read.listing import key_filter
from kvctl.kv.resolve import Binding
from kvctl.kv.stream_kind import Kind, kind_of
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read.offsets import Revisions, even, starts_of
from kvctl.units import format_time, parse_time

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Keys:
    """Entries that these filters select; without filters, all."""

    filters: tuple[str, ...] = ()
    expected: int | None = None
    """Number of messages when the read was planned; None if not known."""


def probes(first: int, last: int, parts: int) -> list[int]:
    """Return revisions to count from in order to choose the split points; the first one is `first`."""
    return starts_of(first, last, max(parts, min(4 * parts, MOST_PROBES)) if parts > 1 else 1)


def cut_by_count(starts: Sequence[int], left: Sequence[int], last: int, parts: int) -> list[Revisions]:
    """Return at most `parts` ranges with about as many messages each, none of them empty.

    `left[i]` counts the messages from `starts[i]` on.
    """
    counts = [before - after for before, after in pairwise([*left, 0])]
    found = []
    for run in runs(range(len(starts)), counts, parts):
        count = sum(counts[index] for index in run)
        end = starts[run[-1] + 1] - 1 if run[-1] + 1 < len(starts) else last
        if count:
            found.append(Revisions(starts[run[0]], end, count))
    return found


def runs(items: Sequence[T], weights: Sequence[int], parts: int) -> list[list[T]]:
    """Split the items, in order, into at most `parts` runs of about the same weight; no run is empty."""
    total, taken, due = sum(weights), 0, -1
    found: list[list[T]] = []
    for item, weight in zip(items, weights, strict=True):
        # The run that the middle of the item's weight falls into.
        number = min((2 * taken + weight) * parts // (2 * total), parts - 1) if total else 0
        taken += weight
        if number > due:
            found.append([])
            due = number
        found[-1].append(item)
    return found


Part = Revisions | Keys
LATEST = 2**63 - 1

A_TASK = 500_000
"""Default number of revisions per task."""
MANY_TASKS = 16
KEYS_PER_CONSUMER = 250
"""Number of keys that one consumer selects by name."""
COUNTS = 3
"""Number of times that a stream is counted again because it was written concurrently."""
COUNTS_AT_ONCE = 8
MOST_PROBES = 64
"""Maximum number of revisions to count from, unless there are more tasks."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Snapshot to read: a stream instance up to its last revision at that time, or part of it."""

    bucket: str
    stream: str
    prefix: str
    api_prefix: str
    created: str
    revision: int
    filters: tuple[str, ...] = ()
    """Filters of keys; without filters, all."""
    first: int = 1
    last: int = LATEST
    """Range of revisions to read."""
    origin: str | None = None
    """For a mirror, the bucket that it replicates."""


class ReadPlan:
    """Plan of one read, and how its tasks share it."""

    def __init__(self, options: SourceOptions, binding: Binding) -> None:
        assert binding.info is not None
        self._options = options
        self._binding = binding
        self.info = binding.info
        state = self.info["state"]
        self._last = int(state["last_seq"])
        self._changes = options.mode == "changes"
        self.cut = Cut(
            binding.bucket,
            binding.stream,
            binding.prefix,
            binding.api.prefix,
            self.info["created"],
            self._last if options.as_of is None else options.as_of,
            options.filter,
            first=max(options.from_revision or 1, int(state["first_seq"])),
            last=LATEST if options.to_revision is None else options.to_revision,
            origin=binding.origin.source.bucket if binding.origin else None,
        )

    async def parts(self) -> list[Part]:
        """Return the tasks' shares; none if there is nothing to read."""
        if self.cut.first > min(self.cut.last, self.cut.revision):
            return []
        if self._changes or (self._options.on_evicted == "fail" and self._every_message_counts()):
            ranges = await self._ranges()
            if ranges is not None:
                return [replace(part, expected=None) for part in ranges] if self._changes else [*ranges]
        return [*await self._groups(self.cut.filters)]

    def _every_message_counts(self) -> bool:
        """Return whether every message in a range belongs to the result, and only writers can remove it."""
        state, config = self.info["state"], self.info["config"]
        if config.get("max_age") or config.get("allow_msg_ttl") or self.cut.revision < self._last:
            return False
        return self._options.mode == "history" or state["messages"] == state.get("num_subjects", 0)

    async def _ranges(self) -> list[Revisions] | None:
        """Return ranges of about the same number of messages; None if counts are needed and writers are too busy.

        Counted during writes, they might skip ranges that only seemed empty. A stream without gaps needs no count.
        """
        first, last = self.cut.first, min(self.cut.last, self.cut.revision)
        tasks = self._tasks(last - first + 1)
        if self._contiguous:
            return [replace(part, expected=part.last - part.first + 1) for part in even(first, last, tasks)]
        starts = probes(first, last, tasks)
        for _ in range(COUNTS):
            left = await self._counts([*starts, last + 1])
            beyond = left.pop()
            count = left[0] - beyond
            if await self._unchanged():
                return cut_by_count(starts, [number - beyond for number in left], last, self._tasks(count))
        return even(first, last, tasks) if self._changes else None

    def _tasks(self, count: int) -> int:
        """Return the number of tasks for a number of messages."""
        least = self._options.min_partitions or 1
        return self._options.partitions or max(min(-(-count // A_TASK), MANY_TASKS), least)

    @property
    def _contiguous(self) -> bool:
        """Return whether the stream has a message of the bucket at each revision, and all are read."""
        wanted = key_filter(self._binding, self.cut.filters).subjects
        return not self.info["state"].get("num_deleted") and list(wanted) == self.info["config"].get("subjects")

    async def _groups(self, filters: tuple[str, ...]) -> list[Keys]:
        """Share out filters; keys by name in groups that one consumer accepts."""
        if not filters:
            return [Keys((), self._whole())]
        wild = [text for text in filters if is_wild(text)]
        if wild and overlapping(list(filters)):
            groups = [Keys(filters)]
        else:
            tasks = max(
                self._options.partitions or min(len(wild), MANY_TASKS), -(-len(filters) // KEYS_PER_CONSUMER), 1
            )
            groups = [Keys(tuple(group)) for group in runs(filters, [1] * len(filters), tasks)]
        return groups if self._narrowed or len(groups) > MANY_TASKS else await self._counted(groups)

    async def _counted(self, groups: list[Keys]) -> list[Keys]:
        """Return the groups with their numbers of messages, if nobody writes concurrently."""
        deliver = "all" if self._options.mode == "history" else "last_per_subject"
        counted = []
        for group in groups:
            subjects = key_filter(self._binding, group.filters).subjects
            counted.append(replace(group, expected=await self._count(Selection(subjects=subjects, deliver=deliver))))
        return counted if await self._unchanged() else groups

    async def _counts(self, starts: Sequence[int]) -> list[int]:
        """Return the number of messages from each of these revisions on, counted concurrently."""
        subjects = key_filter(self._binding, self.cut.filters).subjects
        turns = asyncio.Semaphore(COUNTS_AT_ONCE)

        async def count(start: int) -> int:
            async with turns:
                return await self._count(Selection(subjects=subjects, deliver="by_start_sequence", start=start))

        return await asyncio.gather(*map(count, starts))

    async def _count(self, selection: Selection) -> int:
        counting = OrderedConsumer(self._binding.api, self._binding.stream, selection._replace(headers_only=True))
        async with counting as consumer:
            return consumer.expected or 0

    async def _unchanged(self) -> bool:
        """Return whether nothing was written or removed since the cut."""
        now = await streams.info(self._binding.api, self._binding.stream)
        return _extent(now) == _extent(self.info)

    def _whole(self) -> int | None:
        """Return the bucket's number of messages at the cut, if all of them are read."""
        state = self.info["state"]
        if self.info["config"].get("sources") or self._narrowed:
            return None
        return int(state["messages"] if self._options.mode == "history" else state.get("num_subjects", 0))

    @property
    def _narrowed(self) -> bool:
        """Return whether revisions are left out."""
        cut = self.cut
        return cut.first > int(self.info["state"]["first_seq"]) or min(cut.last, cut.revision) < self._last


async def plan(bucket: Bucket, options: SourceOptions) -> ReadPlan:
    """Fix the cut: the bucket's last revision at its leader, so that no acknowledged write is left out.

    Raises BucketNotFound, RefusedError for an incomplete bucket, RevisionNotFound for a cut in the future.
    """
    binding = await bucket.locate(fresh=True)
    assert binding.info is not None
    if kind_of(binding.info["config"]) is Kind.INCOMPLETE:
        raise RefusedError(f"`{bucket.name}` is incomplete: a restore or copy of it was interrupted")
    last = int(binding.info["state"]["last_seq"])
    options = await _with_revisions(binding, options)
    if options.as_of is not None and options.as_of > last:
        raise RevisionNotFound(f"The last revision of bucket `{bucket.name}` is {last}, not {options.as_of}")
    return ReadPlan(options, binding)


async def _with_revisions(binding: Binding, options: SourceOptions) -> SourceOptions:
    """Return the options with the revisions that belong to their times. Raises UsageError for a start in the future."""
    assert binding.info is not None
    clock, changes = ServerClock.from_info(binding.info), options.mode == "changes"
    if options.starting_time and changes:
        first = await first_since(binding.api, binding.stream, starting_time_ns(options.starting_time, clock))
        options = replace(options, from_revision=first)
    if options.ending_time:
        moment = parse_time(options.ending_time, clock.now_ns()) // 1000 * 1000
        last = min(await first_since(binding.api, binding.stream, moment) - 1, int(binding.info["state"]["last_seq"]))
        options = replace(options, to_revision=last) if changes else replace(options, as_of=last)
    return options


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


async def names_of(api: Api, options: SourceOptions) -> Sequence[str]:
    """Return the names of the buckets to read. Raises BucketNotFound if none matches the pattern."""
    if options.bucket_pattern is None:
        return options.buckets or (options.bucket,)
    matches = re.compile(options.bucket_pattern).fullmatch
    kinds = (Kind.BUCKET, Kind.AGGREGATE)
    found = [item.bucket for item in await catalog.statuses(api) if item.kind in kinds and matches(item.bucket)]
    if not found:
        raise BucketNotFound(
            f"No bucket has a name that matches `{options.bucket_pattern}`",
            hint="The pattern is a regular expression, such as `orders_.*`; `kvctl bucket ls` lists the names",
        )
    return found


def _extent(info: StreamInfo) -> tuple[int, ...]:
    """Return numbers that any write or removal changes."""
    return tuple(int(info["state"][name]) for name in ("first_seq", "last_seq", "messages", "bytes"))
