"""Stream reader of a bucket: every batch has the revisions from one offset to another.

Spark plans batches in one process, which lives as long as the query, and reads them in others. It asks for the initial
offset whenever no batch is committed yet, also after a crash, and keeps only the end of each batch: so a start that
depends on the time (`latest`, a time) is fixed by an empty first batch. A batch that was planned and not committed is
planned again from its offsets alone, without reading the bucket, and so has the same partitions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

import kvctl
from kvctl.errors import UsageError
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read import stream_position
from kvctl.pipeline.read.columns import check_schema
from kvctl.pipeline.read.offsets import PARTITIONS, Offset, StreamExtent, check, check_same, ranges
from kvctl.pipeline.read.planner_connection import LastingConnection
from kvctl.pipeline.read.snapshot_plan import Cut
from kvctl.pipeline.read.splits import Revisions
from kvctl.pipeline.read.worker_connection import connected, iterate

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
                self._kept = (
                    self._options.starting_time is None and self._options.starting_revision != stream_position.LATEST
                )
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
            after, last = Offset.parse(start), Offset.parse(end)
            check_same(after, last.incarnation, self._options.bucket)
            most = self._options.partitions or PARTITIONS
            return [RevisionRange(*edges, after) for edges in ranges(after.revision, last.revision, most)]

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
        binding, now = await stream_position.look(client.bucket(self._options.bucket))
        options = self._options
        return await stream_position.beginning(binding, now, options.starting_revision, options.starting_time)

    async def _look(self, client: kvctl.Client) -> StreamExtent:
        return (await stream_position.look(client.bucket(self._options.bucket)))[1]

    async def _end(self, client: kvctl.Client, offset: Offset, limit: ReadLimit) -> Offset:
        binding, now = await stream_position.look(client.bucket(self._options.bucket))
        if self._seen and self._seen.revision == offset.revision:
            offset = replace(offset, seen_ns=max(offset.seen_ns, self._seen.seen_ns))
        check(offset, now, loss=self._options.fail_on_data_loss)
        self._seen = now.end
        last = max(offset.revision, min(now.last, self._until)) if self._until is not None else now.last
        if isinstance(limit, ReadMaxRows):
            last = await stream_position.reach(binding, now, offset.revision, last, limit.max_rows)
        return await stream_position.after(binding, now, last)

    async def _rows(self, part: RevisionRange) -> AsyncGenerator[RecordBatch, None]:
        """Yield the rows; checks the bucket again, as a batch may be read long after it was planned."""
        from kvctl.pipeline.read.arrow_decoder import Decoder
        from kvctl.pipeline.read.loss_watch import LossWatch
        from kvctl.pipeline.read.partition import PartReading

        options = self._options
        async with connected(options) as client:
            source, now = await stream_position.look(client.bucket(options.bucket))
            start = (
                part.start if part.first == part.start.revision + 1 else replace(part.start, revision=part.first - 1)
            )
            check(start, now, loss=options.fail_on_data_loss)
            watch = LossWatch(client.bucket(options.bucket), start, part.last) if options.fail_on_data_loss else None
            cut = Cut(
                options.bucket, source.stream, source.prefix, source.api.prefix, now.incarnation, part.last,
                options.filter,
            )  # fmt: skip
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
