"""Export a bucket into a table, as of one revision.

Tasks read the rows and write files of them, hashed on the way; the driver makes a table of the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kvctl.errors import KvctlError
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.jetstream.streams import ServerClock
from kvctl.pipeline import worker_connection
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read.batch_reader import KvReader
from kvctl.pipeline.read.columns import schema_of
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.spark.tasks import TaskRows
from kvctl.pipeline.tables import parts, stored_table
from kvctl.pipeline.tables.origin import EXPORT, TableOrigin
from kvctl.pipeline.tables.parts import COLUMNS, PartForm, WrittenRows
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.tables.stored_table import DELTA, PARQUET, RemovedFiles, StoredTable
from kvctl.units import format_time

if TYPE_CHECKING:
    from kvctl.pipeline.spark.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Rows with the data source's columns, and their origin as far as it is known before they are read."""

    rows: TaskRows
    origin: TableOrigin


def of_bucket(options: SourceOptions) -> Contents:
    """Return a bucket's latest entries or its history, as of its current last revision, with remaining ttls.

    Raises BucketNotFound, RefusedError.
    """
    wanted = replace(options, columns=COLUMNS, include_deleted=options.mode == "latest")
    reader = KvReader(schema_of(COLUMNS), wanted)

    async def planned() -> tuple[StreamInfo, int, Sequence[Any]]:
        async with worker_connection.connected(options) as client:
            plan, items = await reader.planned(client.bucket(options.bucket))
            return plan.info, plan.cut.revision, items

    info, cut, items = worker_connection.run(planned())
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
    return Contents(rows=TaskRows(items, partial(_rows, reader, now_us)), origin=origin)


def _rows(reader: KvReader, now_us: int, part: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, each ttl as the seconds left at a time, at least one."""
    for batch in reader.read(part):
        ttl = batch["ttl"]
        if ttl.null_count < len(batch):
            age = pc.divide(pc.subtract(float(now_us), batch["created"].cast(pa.int64()).cast(pa.float64())), 1e6)
            left = pc.round(pc.subtract(ttl, age), round_mode="half_towards_infinity")
            ttl = pc.max_element_wise(left, 1.0, skip_nulls=False)
            batch = batch.set_column(batch.schema.get_field_index("ttl"), "ttl", ttl)
        yield batch


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result of an export."""

    table: StoredTable
    removed: RemovedFiles


def export(
    engine: Engine, contents: Callable[[], Contents], place: TablePlace, *, format: str = DELTA, overwrite: bool = False
) -> ExportResult:
    """Write the rows that `contents` returns, and make a table of them once all of them are there.

    Raises ConflictError if the place is not empty, unless `overwrite`; its content stays until the end.
    """
    removed = stored_table.occupants(place, overwrite=overwrite)
    with engine.explaining():
        found = contents()
        engine.doing = "writing"
        form = PartForm.of(
            place,
            folder=stored_table.STAGING if format == PARQUET else "",
            deletions=found.origin.history,
            cut=found.origin.cut,
        )
        try:
            written = tasks.over(engine, found.rows, partial(parts.write, form=form))
            files = [part for one in written for part in one.parts]
            parts.require_visible(place, files)
            origin = _origin(found.origin, written)
            table = stored_table.publish(place, format, table_schema(), origin, files, overwrite=overwrite)
        except BaseException:
            with suppress(KvctlError):
                stored_table.discard(place, form.job)
            raise
    return ExportResult(table, removed)


def table_schema() -> pa.Schema:
    """Return the Arrow schema of a table with the columns of an entry."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(schema_of(COLUMNS), timezone="UTC")])


def _origin(begun: TableOrigin, written: Sequence[WrittenRows]) -> TableOrigin:
    """Return the origin with what is known of the rows once they are written."""
    counts = {"ttl": sum(one.ttls for one in written), "headers": sum(one.headers for one in written)}
    columns = tuple(name for name in COLUMNS if counts.get(name, 1))
    newer = sum(one.newer for one in written)
    return replace(begun, newer=newer, columns=columns, created=format_time(time.time_ns()))
