"""Capture a bucket's changes into a Delta table, which is its own checkpoint.

A batch is the revisions from one offset to another. Rows and the new offset are one transaction: a capture that is
killed at any moment continues with the offset of the table, and what a killed batch had written belongs to no version.
A second capture moves the same numbers of the log, so one of the two fails.

In mode changes, tasks write the files, and the driver commits their names. In mode latest, the driver reads the batch
and merges the last revision of each key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kvctl.errors import Away, ConflictError, StreamReplaced, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.phrases import counted
from kvctl.pipeline import worker_connection
from kvctl.pipeline.jobs.export import table_schema
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read.columns import schema_of
from kvctl.pipeline.read.offsets import Offset
from kvctl.pipeline.read.stream_reader import KvStreamReader
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.spark.tasks import TaskRows
from kvctl.pipeline.tables import json_values, parts
from kvctl.pipeline.tables.delta import KvTable
from kvctl.pipeline.tables.origin import CAPTURE, CHANGES, LATEST, TableOrigin
from kvctl.pipeline.tables.parts import COLUMNS, PartForm
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.units import format_time

if TYPE_CHECKING:
    from kvctl.pipeline.spark.engine import Engine

TRIGGER = timedelta(seconds=1)
A_BATCH = 1_000_000
"""Maximum number of revisions of a batch, which a killed capture may read again."""
BATCH_BYTES = 256 << 20
"""Maximum bytes of rows that the driver merges at a time; larger batches are read again in smaller ones."""
PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOrder:
    """Settings of a capture."""

    mode: str = CHANGES
    keep_deleted: bool = False
    """In mode latest, keep the rows of deleted keys, with their operation and without a value."""
    schema: str | None = None
    """Schema of JSON values to decode, in SQL; None for that of the table, if it has one."""
    once: bool = False
    trigger: timedelta = TRIGGER


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """Result of a capture."""

    table: KvTable
    rows: int
    """Revisions captured by this run."""


def capture(engine: Engine, options: SourceOptions, place: TablePlace, order: CaptureOrder) -> CaptureResult:
    """Capture until the job is cancelled, or with `once` until all existing changes are captured.

    Raises ConflictError for other content of the place or another capture into it, StreamReplaced if the bucket was
    recreated, HistoryLost if changes are lost that were not captured.
    """
    most = min(options.max_revisions_per_trigger or A_BATCH, A_BATCH)
    options = replace(options, columns=COLUMNS, max_revisions_per_trigger=most)
    with engine.explaining():
        table = _opened(engine, options, place, order)
        running = _Capture(engine, options, table, order)
        try:
            running.run()
        finally:
            running.stream.stop()
    return CaptureResult(table, running.rows)


def find(place: TablePlace) -> KvTable | None:
    """Return the table of a capture; None for an empty place. Raises ConflictError for other content."""
    if place.path is not None and place.path.exists():
        place.require_existing()
    table = KvTable.find(place)
    if table is None:
        if place.listing():
            raise ConflictError(f"`{place}` has files that are not a capture", hint="Choose another folder or empty it")
    elif table.origin.kind != CAPTURE:
        raise ConflictError(f"`{place}` is an export, not a capture", hint="Choose another folder")
    return table


def _opened(engine: Engine, options: SourceOptions, place: TablePlace, order: CaptureOrder) -> KvTable:
    """Return the table to continue, created if needed."""
    table = find(place)
    schema = table_schema() if order.schema is None else _with_json(engine, order.schema)
    info = worker_connection.run(_info(options))
    origin = TableOrigin(
        kind=CAPTURE,
        bucket=options.bucket,
        instance=info["created"],
        config=info["config"],
        mode=order.mode,
        filters=options.filter,
        columns=COLUMNS,
        marks=order.keep_deleted,
        created=format_time(time.time_ns()),
    )
    if table is None:
        first = KvStreamReader(schema_of(COLUMNS), options)
        try:
            begin = Offset.parse(first.initialOffset())
        finally:
            first.stop()
        table = KvTable.create(place, schema, origin, offset=begin)
    _check_same(table.origin, origin, table.offset, place)
    table.evolve(schema)
    return table


async def _info(options: SourceOptions) -> StreamInfo:
    async with worker_connection.connected(options) as client:
        source = (await client.bucket(options.bucket).locate(fresh=True)).source
        return await streams.info(source.api, source.stream)


def _check_same(found: TableOrigin, wanted: TableOrigin, offset: Offset, place: TablePlace) -> None:
    """Raises ConflictError for a capture of something else, StreamReplaced for one of another stream instance."""
    names = {"bucket": "bucket", "mode": "mode", "filters": "filters", "marks": "deleted keys"}
    for name, text in names.items():
        present = getattr(found, name)
        if present != getattr(wanted, name):
            shown = {"marks": "kept" if found.marks else "not kept"}.get(name, f"`{present}`")
            raise ConflictError(f"`{place}` has a capture with {text} {shown}", hint="Choose another folder")
    if found.instance != wanted.instance:
        raise StreamReplaced(
            f"`{place}` has a capture of the bucket `{found.bucket}` created at {found.instance}, up to revision "
            f"{offset.revision}; it was recreated at {wanted.instance}",
            hint="Capture the new one into another folder",
        )


def _with_json(engine: Engine, schema: str) -> pa.Schema:
    """Return the schema of a table with JSON values of a schema in SQL. Raises UsageError."""
    from pyspark.sql.pandas.types import to_arrow_schema

    kind = pa.struct(list(to_arrow_schema(engine.spark.createDataFrame([], schema).schema, timezone="UTC")))
    json_values.check_type(kind)
    if not kind.num_fields:
        raise UsageError("The schema of the values has no fields")
    return table_schema().append(pa.field(json_values.COLUMN, kind))


class _Capture:
    """Capture that runs."""

    def __init__(self, engine: Engine, options: SourceOptions, table: KvTable, order: CaptureOrder) -> None:
        self.stream = KvStreamReader(schema_of(COLUMNS), options)
        self.rows = 0
        self._engine, self._table, self._order = engine, table, order
        self._most = options.max_revisions_per_trigger or A_BATCH
        self._json = table.type_of(json_values.COLUMN)
        self._loss = None if options.fail_on_data_loss else table.offset.revision + 1
        """Revision from which changes may be missing, until it is in the table."""

    def run(self) -> None:
        """Capture batches; a batch is repeated while the server is away."""
        if self._order.once:
            self.stream.prepareForTriggerAvailableNow()
        while True:
            captured = self._patient_batch()
            if not captured and self._order.once:
                return
            if not captured or not self._order.once:
                self._pause(self._order.trigger.total_seconds())

    def _patient_batch(self) -> int:
        deadline = time.monotonic() + worker_connection.AWAY_S
        while True:
            try:
                with self._engine.explaining():
                    return self._batch()
            except Away:
                if time.monotonic() > deadline:
                    raise
                self._engine.doing = "waiting for the server"
                self._pause(1)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._engine.require_wanted()
            time.sleep(min(left, PAUSE_S))

    def _batch(self) -> int:
        """Capture the next batch; return how far it moved the offset."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        begin = self._table.offset
        so_far = f", {counted(self.rows, 'row')} captured" if self.rows else ""
        self._engine.doing = f"from revision {begin.revision + 1:,}{so_far}"
        end = Offset.parse(self.stream.latestOffset(begin.document(), ReadMaxRows(self._most)))
        if end.revision == begin.revision:
            return 0
        rows = (self._merged if self._order.mode == LATEST else self._appended)(begin, end)
        if rows is not None:
            self.rows += rows
            self._loss = None
        return end.revision - begin.revision

    def _read(self, begin: Offset, end: Offset) -> TaskRows:
        items = self.stream.partitions(begin.document(), end.document())
        return TaskRows(items, partial(_rows, self.stream, self._json))

    def _appended(self, begin: Offset, end: Offset) -> int:
        form = PartForm.of(self._table.place)
        written = tasks.over(self._engine, self._read(begin, end), partial(parts.write, form=form))
        files = [part for one in written for part in one.parts]
        parts.require_visible(self._table.place, files)
        self._table.append(files, end, loss=self._loss)
        return sum(part.rows for part in files)

    def _merged(self, begin: Offset, end: Offset) -> int | None:
        """Merge the last revision of each key; None if the batch was too large, and the next one is smaller."""
        held: list[pa.RecordBatch] = []
        count = size = 0
        rows = self._read(begin, end)
        for item in rows.items:
            for batch in rows.read(item):
                self._engine.require_wanted()
                held.append(batch)
                count, size = count + len(batch), size + batch.nbytes
                if size > BATCH_BYTES:
                    held = _last_of_keys(held).to_batches()
                    size = sum(batch.nbytes for batch in held)
                    if size > BATCH_BYTES // 2 and count > 1:
                        self._most = count // 2
                        return None
        if held:
            self._table.merge(_last_of_keys(held), end, keep_deleted=self._order.keep_deleted, loss=self._loss)
        else:
            self._table.append((), end, loss=self._loss)
        return count


def _rows(stream: KvStreamReader, json_type: pa.DataType | None, part: Any) -> Iterator[pa.RecordBatch]:
    for batch in stream.read(part):
        yield batch if json_type is None else json_values.with_json(batch, json_type)


def _last_of_keys(batches: list[pa.RecordBatch]) -> pa.Table:
    """Return the last revision of each key."""
    rows = pa.Table.from_batches(batches)
    last = rows.group_by("key").aggregate([("revision", "max")])["revision_max"]
    return rows.filter(pc.is_in(rows["revision"], value_set=last)).combine_chunks()
