"""Stream reader of a bucket: every batch has the revisions from one offset to another.

Spark plans batches in one process, which lives as long as the query, and reads them in others. It asks for the initial
offset whenever no batch is committed yet, also after a crash, and keeps only the end of each batch: so a start that
depends on the time (`latest`, a time) is fixed by an empty first batch. A batch that was planned and not committed is
planned again from its offsets alone, without reading the bucket, and so has the same partitions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

import kvctl
from kvctl.errors import PermissionDenied, UsageError
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
from kvctl.pipeline.read.offsets import PARTITIONS, Offset, StreamExtent, check, check_same, check_start, ranges
from kvctl.pipeline.read.snapshot_plan import Cut, Revisions
from kvctl.pipeline.worker_connection import LastingConnection, connected, iterate
from kvctl.units import format_time, parse_time
from kvctl.wire import RawFrame

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class RevisionRange(InputPartition):
    """Part of a task: all revisions from `first` to `last`, in order."""

    first: int
    last: int
    start: Offset
    """Start of the batch."""


class KvStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader. Raises UsageError for an invalid schema or options that do not apply to a stream."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        check_schema(schema)
        _check_options(options)
        self._schema = schema
        self._options = options
        self._connection = LastingConnection(options)
        self._beginning: Offset | None = None
        self._kept = False
        """True if the beginning is in a batch, or does not depend on the time."""
        self._until: int | None = None
        """Last revision to read, for a query that reads existing data."""
        self._seen: Offset | None = None
        """The bucket's end when it was last read."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a committed batch: constant as long as this process lives."""
        with crossing():
            if self._beginning is None:
                self._beginning = self._connection.ask(self._begin)
                self._kept = self._options.starting_time is None and self._options.starting_revision != LATEST
            return self._beginning.document()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of `maxRevisionsPerTrigger`."""
        most = self._options.max_revisions_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the read to existing data."""
        with crossing():
            self._until = self._connection.ask(self._look).last

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch. Raises StreamReplaced, HistoryLost."""
        with crossing():
            offset = Offset.parse(start)
            if not self._kept and offset == self._beginning:
                self._kept = True
                return start
            end = self._connection.ask(lambda client: self._end(client, offset, limit))
            return start if end.revision == offset.revision else end.document()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the bucket's end, for the query's progress."""
        return self._seen.document() if self._seen else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the same partitions for the same offsets and options. Raises StreamReplaced."""
        with crossing():
            begin, last = Offset.parse(start), Offset.parse(end)
            check_same(begin, last.incarnation, self._options.bucket)
            most = self._options.partitions or PARTITIONS
            return [RevisionRange(*edges, begin) for edges in ranges(begin.revision, last.revision, most)]

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

    async def _begin(self, client: kvctl.Client) -> Offset:
        binding, now = await look(client.bucket(self._options.bucket))
        options = self._options
        return await beginning(binding, now, options.starting_revision, options.starting_time)

    async def _look(self, client: kvctl.Client) -> StreamExtent:
        return (await look(client.bucket(self._options.bucket)))[1]

    async def _end(self, client: kvctl.Client, offset: Offset, limit: ReadLimit) -> Offset:
        binding, now = await look(client.bucket(self._options.bucket))
        if self._seen and self._seen.revision == offset.revision:
            offset = replace(offset, seen_ns=max(offset.seen_ns, self._seen.seen_ns))
        check(offset, now, loss=self._options.fail_on_data_loss)
        self._seen = now.end
        last = max(offset.revision, min(now.last, self._until)) if self._until is not None else now.last
        if isinstance(limit, ReadMaxRows):
            last = await reach(binding, now, offset.revision, last, limit.max_rows)
        return await after(binding, now, last)

    async def _rows(self, part: RevisionRange) -> AsyncGenerator[RecordBatch, None]:
        """Yield the rows; checks the bucket again, as a batch may be read long after it was planned."""

        options = self._options
        async with connected(options) as client:
            source, now = await look(client.bucket(options.bucket))
            start = (
                part.start if part.first == part.start.revision + 1 else replace(part.start, revision=part.first - 1)
            )
            check(start, now, loss=options.fail_on_data_loss)
            watch = LossWatch(client.bucket(options.bucket), start, part.last) if options.fail_on_data_loss else None
            cut = Cut(
                options.bucket,
                source.stream,
                source.prefix,
                source.api.prefix,
                now.incarnation,
                part.last,
                options.filter,
            )
            decoder = Decoder(self._schema, options.bucket, source.prefix)
            reading = PartReading(source.api, cut, replace(options, mode="changes"), decoder, watch)
            async with aclosing(reading.batches(Revisions(part.first, part.last))) as batches:
                async for batch in batches:
                    yield batch


def _check_options(options: SourceOptions) -> None:
    if options.from_revision or options.to_revision:
        raise UsageError(
            "Options `fromRevision` and `toRevision` cannot be used with a stream",
            hint="Set `startingRevision` for the start of a stream",
        )


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
