"""Contents of an export: rows, and their origin for the manifest.

They come from a bucket at one revision, or from other rows of the same columns, such as a commit's tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kvctl.jetstream.stream_info import StreamInfo
from kvctl.jetstream.streams import ServerClock
from kvctl.pipeline import worker_connection
from kvctl.pipeline.options import SourceOptions, given_as
from kvctl.pipeline.tables.origin import EXPORT, TableOrigin
from kvctl.pipeline.tables.parts import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kvctl.pipeline.read.batch_reader import KvReader


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Rows that tasks read themselves, without Spark SQL: `read` is called with each of the parts, in a task."""

    parts: Sequence[Any]
    read: Callable[[Any], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Rows with the data source's columns, and their origin as far as it is known before they are read."""

    rows: DataFrame | TaskRows
    origin: TableOrigin


def of_bucket(options: SourceOptions) -> Contents:
    """Return a bucket's latest entries or its history, as of its current last revision, with remaining ttls.

    Raises BucketNotFound, RefusedError.
    """
    from kvctl.pipeline.read.batch_reader import KvReader
    from kvctl.pipeline.read.columns import schema_of

    wanted = replace(options, columns=COLUMNS, include_deleted=options.mode == "latest")
    reader = KvReader(schema_of(COLUMNS), wanted)

    async def planned() -> tuple[StreamInfo, int, Sequence[Any]]:
        async with worker_connection.connected(options) as client:
            plan, parts = await reader.planned(client.bucket(options.bucket))
            return plan.info, plan.cut.revision, parts

    info, cut, parts = worker_connection.run(planned())
    now_us = ServerClock.from_info(info).now_ns() // 1000
    origin = TableOrigin(
        kind=EXPORT,
        bucket=options.bucket,
        instance=info["created"],
        config=info["config"],
        cut=cut,
        mode=options.mode,
        filters=options.filter,
    )
    return Contents(rows=TaskRows(parts, partial(_rows, reader, now_us)), origin=origin)


def _rows(reader: KvReader, now_us: int, part: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, each ttl as the seconds left at a time, at least one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in reader.read(part):
        ttl = batch["ttl"]
        if ttl.null_count < len(batch):
            age = pc.divide(pc.subtract(float(now_us), batch["created"].cast(pa.int64()).cast(pa.float64())), 1e6)
            left = pc.round(pc.subtract(ttl, age), round_mode="half_towards_infinity")
            ttl = pc.max_element_wise(left, 1.0, skip_nulls=False)
            batch = batch.set_column(batch.schema.get_field_index("ttl"), "ttl", ttl)
        yield batch


def read(spark: SparkSession, options: SourceOptions) -> DataFrame:
    """Read with the data source and these options."""
    return spark.read.format("nats-kv").options(**given_as(options)).load()
