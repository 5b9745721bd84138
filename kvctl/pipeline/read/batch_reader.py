"""Batch read of `nats-kv`: planned in one of Spark's processes, run in others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read.columns import check_schema
from kvctl.pipeline.read.worker_connection import connected, iterate, run

if TYPE_CHECKING:
    import pyarrow as pa

    from kvctl.kv.bucket import Bucket
    from kvctl.pipeline.read.arrow_decoder import Decoder
    from kvctl.pipeline.read.snapshot_plan import Cut, Part, Plan


class KvPartition(InputPartition):
    """One task's part of a cut."""

    def __init__(self, cut: Cut, part: Part) -> None:
        super().__init__(part)
        self.cut = cut
        self.part = part


class KvReader(DataSourceReader):
    """Reads a bucket as of its last revision when Spark plans the read."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        """Raises UsageError for an unknown column."""
        check_schema(schema)
        self._schema = schema
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return the tasks' parts. Raises BucketNotFound, NoServer and other connection errors."""
        return run(self._parts())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, in Arrow batches; if closed early it leaves nothing on the server."""
        from kvctl.pipeline.read.arrow_decoder import Decoder

        if isinstance(partition, KvPartition):  # there are none if there is nothing to read
            cut = partition.cut
            decoder = Decoder(self._schema, cut.bucket, cut.prefix, cut.origin)
            yield from iterate(partial(read_part, self._options, partition, decoder))

    async def planned(self, bucket: Bucket) -> tuple[Plan, list[KvPartition]]:
        """Return the plan and the tasks' parts. Raises as `partitions`."""
        from kvctl.pipeline.read.snapshot_plan import plan

        planned = await plan(bucket, self._options)
        parts = await planned.parts()
        return planned, [KvPartition(planned.cut, part) for part in parts]

    async def _parts(self) -> list[InputPartition]:
        async with connected(self._options) as client:
            return [*(await self.planned(client.bucket(self._options.bucket)))[1]]


async def read_part(
    options: SourceOptions, partition: KvPartition, decoder: Decoder
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield what the decoder makes of a part's entries, over a connection of its own."""
    from kvctl.pipeline.read.partition import PartReading

    async with connected(options) as client:
        reading = PartReading(client.api, partition.cut, options, decoder)
        async with aclosing(reading.batches(partition.part)) as batches:
            async for batch in batches:
                yield batch
