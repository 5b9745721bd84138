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

from kvctl.errors import KvctlError
from kvctl.pipeline.jobs.contents import Contents, TaskRows
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.tables import parts, stored_table
from kvctl.pipeline.tables.origin import TableOrigin
from kvctl.pipeline.tables.parts import COLUMNS, PartForm, WrittenRows
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.tables.stored_table import DELTA, PARQUET, RemovedFiles, StoredTable
from kvctl.units import format_time

if TYPE_CHECKING:
    from kvctl.pipeline.spark.engine import Engine


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result of an export."""

    table: StoredTable
    removed: RemovedFiles
    seconds: float


def export(
    engine: Engine, contents: Callable[[], Contents], place: TablePlace, *, format: str = DELTA, overwrite: bool = False
) -> ExportResult:
    """Write the rows that `contents` returns, and make a table of them once all of them are there.

    Raises ConflictError if the place is not empty, unless `overwrite`; its content stays until the end.
    """
    begun = time.monotonic()
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
            written = _write(engine, found, form)
            files = [part for one in written for part in one.parts]
            parts.require_visible(place, files)
            origin = _origin(found.origin, written)
            table = stored_table.publish(place, format, table_schema(), origin, files, overwrite=overwrite)
        except BaseException:
            with suppress(KvctlError):
                stored_table.discard(place, form.job)
            raise
    return ExportResult(table, removed, time.monotonic() - begun)


def table_schema() -> Any:
    """Return the Arrow schema of a table with the columns of an entry."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from kvctl.pipeline.read.columns import schema_of

    schema = to_arrow_schema(schema_of(COLUMNS), timezone="UTC")
    for number, field in enumerate(schema):
        schema = schema.set(number, field.with_nullable(True))
    return schema


def _write(engine: Engine, contents: Contents, form: PartForm) -> list[WrittenRows]:
    rows = contents.rows
    if isinstance(rows, TaskRows):
        return tasks.over_items(engine, rows.parts, partial(_write_part, rows, form))
    return tasks.over_rows(rows.select(*COLUMNS), partial(parts.write, form=form))


def _write_part(rows: TaskRows, form: PartForm, part: Any) -> Iterator[WrittenRows]:
    return parts.write(rows.read(part), form)


def _origin(begun: TableOrigin, written: Sequence[WrittenRows]) -> TableOrigin:
    """Return the origin with what is known of the rows once they are written."""
    counts = {"ttl": sum(one.ttls for one in written), "headers": sum(one.headers for one in written)}
    columns = tuple(name for name in COLUMNS if counts.get(name, 1))
    newer = sum(one.newer for one in written)
    return replace(begun, newer=newer, columns=columns, created=format_time(time.time_ns()))
