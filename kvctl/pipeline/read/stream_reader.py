"""Stream reader of buckets: every batch has the revisions from one offset of each to another.

Spark plans batches in one process, which lives as long as the query, and reads them in others. It asks for the initial
offset whenever no batch is committed yet, also after a crash, and keeps only the end of each batch: so a start that
depends on the time (`latest`, a time) is fixed by an empty first batch. A batch that was planned and not committed is
planned again from its offsets alone, without reading the bucket, and so has the same partitions.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

import kvctl
from kvctl.errors import BucketNotFound, PermissionDenied, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.direct_get import from_leader
from kvctl.jetstream.multi_get import first_since
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.bucket import Bucket
from kvctl.kv.resolve import Binding
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read.arrow_decoder import Decoder
from kvctl.pipeline.read.batch_reader import PartReading
from kvctl.pipeline.read.columns import check_schema
from kvctl.pipeline.read.offsets import (
    PARTITIONS,
    Offset,
    Revisions,
    StreamExtent,
    check,
    check_same,
    check_start,
    document_of,
    limits,
    offsets_of,
    ranges,
)
from kvctl.pipeline.read.snapshot_plan import Cut, names_of, starting_time_ns
from kvctl.pipeline.worker_connection import LastingConnection, connected, iterate
from kvctl.wire import RawFrame

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

Offsets = dict[str, Offset]
"""Offset of each bucket."""


@dataclass(frozen=True)
class RevisionRange(InputPartition):
    """Part of a task: revisions of a bucket, in order."""

    part: Revisions
    start: Offset
    """Start of the batch."""
    bucket: str


class KvStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of one or several buckets. Raises UsageError for an invalid schema, or options of other reads."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        check_schema(schema)
        _check_options(options)
        self._schema = schema
        self._options = options
        self._connection = LastingConnection(options)
        self._beginning: Offsets | None = None
        self._kept = False
        """True if the beginning is in a batch, or does not depend on the time."""
        self._until: dict[str, int] | None = None
        """Last revision to read of each bucket, for a query that reads existing data."""
        self._seen: Offsets = {}
        """The buckets' ends when they were last read."""
        self._behind: dict[str, int] = {}
        """Number of revisions of each bucket after the last batch."""
        self._planned = float("-inf")
        """Time at which the last batch was planned."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a committed batch: constant as long as this process lives."""
        with crossing():
            if self._beginning is None:
                self._beginning = self._connection.ask(self._begin)
                self._kept = self._options.starting_time is None and self._options.starting_revision != LATEST
            return self._document(self._beginning)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of `maxRevisionsPerTrigger`."""
        most = self._options.max_revisions_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the read to existing data."""
        with crossing():
            extents = self._connection.ask(lambda client: self._look(client, ()))
            self._until = {name: extent.last for name, (_, extent) in extents.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch. Raises StreamReplaced, HistoryLost."""
        with crossing():
            offsets = self._parsed(start)
            if not self._kept and offsets == self._beginning:
                self._kept = True
                return start
            ends = self._connection.ask(lambda client: self._ends(client, offsets, limit))
            if all(name in offsets and end.revision == offsets[name].revision for name, end in ends.items()):
                return start
            self._planned = time.monotonic()
            return self._document(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the buckets' ends, and how far the last batch is behind, for the query's progress."""
        if not self._seen:
            return None
        return {**self._document(self._seen), "behind": sum(self._behind.values())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the same partitions for the same offsets and options. Raises StreamReplaced."""
        with crossing():
            begins, ends = self._parsed(start), self._parsed(end)
            spans = {name: (begins.get(name, Offset(0, last.incarnation)), last) for name, last in ends.items()}
            for name, (begin, last) in spans.items():
                check_same(begin, last.incarnation, name)
            spans = {name: span for name, span in spans.items() if span[0].revision < span[1].revision}
            options = self._options.shared(max(len(spans), 1))
            least = options.min_partitions or 1
            most = options.partitions or max(PARTITIONS, least)
            return [
                RevisionRange(part, begin, name)
                for name, (begin, last) in spans.items()
                for part in ranges(begin.revision, last.revision, most, least)
            ]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of one partition, oldest first. Raises StreamReplaced, HistoryLost."""
        assert isinstance(partition, RevisionRange)
        return iterate(lambda: self._rows(partition))

    def stop(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for the processes that read, which connect themselves."""
        return {**vars(self), "_connection": None}

    def _document(self, offsets: Offsets) -> dict[str, Any]:
        return document_of(offsets, self._options.bucket)

    def _parsed(self, document: dict[str, Any]) -> Offsets:
        return offsets_of(document, self._options.bucket)

    async def _begin(self, client: kvctl.Client) -> Offsets:
        revision, time_text = self._options.starting_revision, self._options.starting_time
        extents = await self._look(client, ())
        return {name: await beginning(*extent, revision, time_text) for name, extent in extents.items()}

    async def _look(self, client: kvctl.Client, known: Iterable[str]) -> dict[str, tuple[Binding, StreamExtent]]:
        """Return each bucket's stream and its state; of a pattern, also of those `known` already."""
        names = await names_of(client.api, self._options)
        more = known if self._options.bucket_pattern else ()
        found = {}
        for name in dict.fromkeys((*names, *more)):
            try:
                found[name] = await look(client.bucket(name))
            except BucketNotFound:
                if self._options.bucket or self._options.fail_on_data_loss:
                    raise
        return found

    async def _ends(self, client: kvctl.Client, offsets: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of the next batch of each bucket; those of deleted buckets stay where they are."""
        extents = await self._look(client, offsets)
        begins = {name: self._since(name, offsets, now) for name, (_, now) in extents.items()}
        lasts = {}
        for name, (_, now) in extents.items():
            check(begins[name], now, loss=self._options.fail_on_data_loss)
            until = now.last if self._until is None else min(now.last, self._until.get(name, 0))
            lasts[name] = max(begins[name].revision, until)
        self._seen = {name: now.end for name, (_, now) in extents.items()}
        available = {name: last - begins[name].revision for name, last in lasts.items()}
        if self._too_few(sum(available.values())):
            lasts = {name: begin.revision for name, begin in begins.items()}
        elif isinstance(limit, ReadMaxRows):
            for name, most in limits(available, limit.max_rows).items():
                lasts[name] = await reach(*extents[name], begins[name].revision, lasts[name], most)
        self._behind = {name: now.last - lasts[name] for name, (_, now) in extents.items()}
        ends = {name: await after(*extents[name], last) for name, last in lasts.items()}
        return {**{name: offset for name, offset in offsets.items() if self._options.bucket_pattern}, **ends}

    def _since(self, name: str, offsets: Offsets, now: StreamExtent) -> Offset:
        """Return the start of a bucket's next batch: the beginning of one that the query did not know."""
        offset, seen = offsets.get(name), self._seen.get(name)
        if offset is None:
            return Offset(0, now.incarnation)
        if seen and seen.revision == offset.revision:
            return replace(offset, seen_ns=max(offset.seen_ns, seen.seen_ns))
        return offset

    def _too_few(self, available: int) -> bool:
        """Return whether a batch should wait for more revisions."""
        least, delay = self._options.min_revisions_per_trigger, self._options.max_trigger_delay.total_seconds()
        waits = least is not None and available < least and self._until is None
        return waits and time.monotonic() - self._planned < delay

    async def _rows(self, share: RevisionRange) -> AsyncGenerator[RecordBatch, None]:
        """Yield the rows; checks the bucket again, as a batch may be read long after it was planned."""
        options, name, part = self._options, share.bucket, share.part
        async with connected(options) as client:
            source, now = await look(client.bucket(name))
            start = replace(share.start, revision=part.first - 1)
            check(start, now, loss=options.fail_on_data_loss)
            watch = LossWatch(client.bucket(name), start, part.last) if options.fail_on_data_loss else None
            place = (name, source.stream, source.prefix, source.api.prefix)
            cut = Cut(*place, now.incarnation, part.last, options.filter)
            decoder = Decoder(self._schema, name, source.prefix)
            reading = PartReading(source.api, cut, replace(options, mode="changes"), decoder, watch)
            async with aclosing(reading.batches(part)) as batches:
                async for batch in batches:
                    yield batch


def _check_options(options: SourceOptions) -> None:
    if options.from_revision or options.to_revision:
        raise UsageError(
            "Options `fromRevision` and `toRevision` cannot be used with a stream",
            hint="Set `startingRevision` for the start of a stream",
        )
    if options.ending_time:
        raise UsageError(
            "Option `endingTime` cannot be used with a stream",
            hint="The trigger `availableNow` ends a stream; a read in mode changes ends at a time",
        )


EARLIEST, LATEST = "earliest", "latest"


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


async def reach(binding: Binding, extent: StreamExtent, after: int, last: int, most: int) -> int:
    """Return the end of a batch that begins after `after`: it has at most `most` entries up to `last`.

    If revisions in between are missing, existing ones are counted, so that a batch is seldom much smaller.
    """
    begin, entries, length = max(after, extent.first - 1), 0, most
    while extent.gaps and begin < last and 2 * entries <= most <= length:
        end = min(begin + length, last)
        counted = await _between(binding, after, end)
        if counted > most:
            length //= 2
        else:
            begin, entries, length = end, counted, 2 * length
    return min(begin + most - entries, last)


async def _between(binding: Binding, after: int, last: int) -> int:
    """Count the entries above one revision and up to another; may count too many during concurrent writes."""

    async def above(revision: int) -> int:
        config = {"deliver_policy": "by_start_sequence", "opt_start_seq": revision + 1}
        return await admin.count(binding.api, binding.stream, **config)

    beyond = await above(last)
    return await above(after) - beyond


ROWS = 10_000
"""Number of rows between two checks of the bucket."""


class LossWatch:
    """Watches one read of a range of revisions, which begins after an offset."""

    def __init__(self, bucket: Bucket, start: Offset, last: int) -> None:
        self._bucket = bucket
        self._last = last
        self._whole = start
        """Position up to which everything was read."""
        self._reached = start
        self._left = 0
        """Rows until the next check; the first one comes with the first rows."""

    async def take(self, frames: Sequence[RawFrame]) -> None:
        """Record what was read, in order. Raises HistoryLost, StreamReplaced."""
        if not frames:
            return
        if self._whole is self._reached:
            self._whole = _contiguous(self._whole, frames)
        sequence, _, time_ns, _ = delivery(frames[-1][1])
        whole = self._whole.revision == sequence
        self._reached = self._whole if whole else replace(self._whole, revision=sequence, seen_ns=time_ns, held=0)
        self._left -= len(frames)
        if self._left <= 0:
            await self.look()

    async def look(self) -> None:
        """Compare with the bucket's current first revision. Raises as `take`."""
        if self._whole.revision < self._last:
            _, now = await look(self._bucket)
            check(self._whole, now)
        self._whole, self._left = self._reached, ROWS


def _contiguous(offset: Offset, frames: Sequence[RawFrame]) -> Offset:
    """Return the offset moved over the frames, up to the first gap between them."""
    first = delivery(frames[0][1])[0]
    if first > offset.next:
        return offset
    count = bisect_left(range(len(frames)), True, key=lambda at: delivery(frames[at][1])[0] > first + at)
    sequence, _, time_ns, _ = delivery(frames[count - 1][1])
    return replace(offset, revision=sequence, seen_ns=time_ns, held=0)
