"""Load an export, or a table from elsewhere, into a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from kvctl.errors import BucketNotFound, HazardRefused, NoServer, NotFoundError, UsageError
from kvctl.kv import catalog
from kvctl.kv.bulk.bulk_writer import target_of
from kvctl.kv.bulk.loader import SHORTER_HISTORY
from kvctl.kv.config import BucketConfig
from kvctl.kv.maintenance.copy_bucket import copied_config
from kvctl.kv.settings import MAX_HISTORY
from kvctl.pipeline import worker_connection
from kvctl.pipeline.options import SourceOptions, given_as
from kvctl.pipeline.read.columns import PROBLEM
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.spark.failure import explained
from kvctl.pipeline.spark.tasks import TaskRows
from kvctl.pipeline.tables import file_rows, stored_table
from kvctl.pipeline.tables.origin import CAPTURE
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.tables.stored_table import Advance, StoredTable
from kvctl.pipeline.write.arrow_rows import chunk_of
from kvctl.pipeline.write.decision import WriteMode
from kvctl.pipeline.write.write_task import TaskResult
from kvctl.pipeline.write.writer import KvWriter, WriteSummary

if TYPE_CHECKING:
    import pyarrow as pa

    from kvctl.pipeline.spark.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Rows to load: an export that was verified, or a table with its columns of keys and values."""

    place: TablePlace
    format: str
    table: StoredTable | None = None
    key: str = "key"
    value: str = "value"

    @property
    def history(self) -> bool:
        """True if it has every entry of its keys."""
        return self.table is not None and self.table.origin.history


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Settings of a load."""

    create: bool = False
    """Create the bucket like the export's, or with a bucket's defaults for a table."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the stream configuration."""
    shorter_history: bool = False
    """Allow a history that is longer than the bucket keeps."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult(WriteSummary):
    """Result of a load."""

    created: bool
    """True if the bucket was created by the load."""
    rows: int


def open_export(place: TablePlace, advance: Advance = lambda _: None) -> Input:
    """Open a table of kvctl, after all its files were compared with what was written.

    Raises NotFoundError, and ConflictError for a damaged one: nothing was written.
    """
    table = stored_table.open_table(place)
    stored_table.require_whole(table, advance)
    return Input(place=place, format=table.format, table=table)


def open_table(place: TablePlace, *, key: str | None, value: str | None, format: str | None = None) -> Input:
    """Open a table from elsewhere: a file, a folder of files, or a Delta table. Raises NotFoundError, UsageError."""
    if place.path is not None and not place.path.exists():
        raise NotFoundError(f"`{place}` does not exist")
    if stored_table.is_own(place):
        raise UsageError("`--key` and `--value` cannot be used with an export", hint="Omit them")
    known = format or file_rows.format_of(place)
    if known not in file_rows.FORMATS:
        formats = ", ".join(file_rows.FORMATS)
        problem = f"`{format}` is not a table format" if format else f"Unknown format of `{place}`"
        raise UsageError(problem, hint=f"Set `--format` to one of {formats}")
    named = (key or "key", value or "value")
    if named[0] == named[1]:
        raise UsageError(f"Column `{named[0]}` cannot be both key and value")
    return Input(place=place, format=known, key=named[0], value=named[1])


def load(engine: Engine, source: Input, target: SourceOptions, order: Order) -> LoadResult:
    """Write the rows into the bucket; run again after a kill, it produces the same result.

    Raises BucketNotFound without `create`, BucketExists if the bucket has another configuration, HazardRefused.
    """
    with engine.explaining():
        depth = 0 if order.shorter_history else _depth(engine, source)
        created, entries = worker_connection.run(_prepare(source, target, order, depth))
        if order.dry_run:
            summary = WriteSummary(source.table.rows) if source.table else _checked(engine, rows_of(engine, source))
        else:
            if order.create and entries and not source.history:
                target = replace(target, if_different=True)  # left by an interrupted load
            engine.doing = "writing"
            if source.table is not None and source.history and entries:
                summary = write(engine, _missing(engine, source.table, target), target)
            else:
                summary = write(engine, rows_of(engine, source), target, "revision" if source.history else None)
    written, rejected, samples = summary.written, summary.rejected, summary.samples
    rows = source.table.rows if source.table else written + rejected + summary.unchanged
    unchanged = rows - written - rejected
    return LoadResult(
        created=created, rows=rows, written=written, unchanged=unchanged, rejected=rejected, samples=samples
    )


def _depth(engine: Engine, source: Input) -> int:
    """Return the largest number of entries of a key; a capture collects more of them than its bucket keeps."""
    if source.table is None or not source.history:
        return 0
    depth = int(source.table.origin.config.get("max_msgs_per_subject", 0))
    if depth > 0 and source.table.origin.kind != CAPTURE:
        return depth
    engine.doing = "counting entries"
    return max(tasks.over(engine, file_rows.rows_of(source.table, ["key"]), _most, "key"), default=0)


def _most(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """Yield the largest number of rows of a key; those of a key follow each other."""
    keys = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
    yield max((sum(1 for _ in same) for _, same in groupby(keys)), default=0)


async def _prepare(source: Input, options: SourceOptions, order: Order, depth: int) -> tuple[bool, int]:
    """Create the bucket if requested, and check that it accepts the rows; return its number of entries before."""
    async with worker_connection.connected(options) as client:
        created = False
        if order.create:
            wanted = _wanted(source, options.bucket, order.changes)
            if order.dry_run:
                created = await catalog.existing(client.api, wanted) is None
            else:
                created = (await catalog.create_like(client.api, wanted)).created
            if created and order.dry_run:
                return True, 0
        try:
            target = await target_of(client.bucket(options.bucket), dry_run=order.dry_run)
        except BucketNotFound as error:
            error.hint = f"{error.hint}; `--create` creates it"
            raise
    if depth > target.history:
        keeps = f"`kvctl bucket edit {options.bucket} --history {depth}` keeps them; " if depth <= MAX_HISTORY else ""
        raise HazardRefused(
            SHORTER_HISTORY,
            f"The export has up to {depth} entries per key, but bucket `{options.bucket}` keeps {target.history}: "
            "the oldest would be lost",
            hint=f"{keeps}`--force {SHORTER_HISTORY}` loses them",
        )
    return created, int(target.info["state"]["messages"])


def _wanted(source: Input, bucket: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stream configuration of a bucket created for the rows."""
    if source.table is not None:
        return copied_config(dict(source.table.origin.config), bucket, dict(changes))
    return {**BucketConfig(bucket).to_stream(), **changes}


def rows_of(engine: Engine, source: Input, columns: Sequence[str] | None = None) -> DataFrame | TaskRows:
    """Return the rows as columns that the data source writes, or some of these; those of others with `_problem`."""
    if source.table is not None:
        return file_rows.rows_of(source.table, columns)
    rows = file_rows.read_table(engine, source.place, source.format, source.key, source.value)
    return rows if columns is None else rows.select([name for name in (*columns, PROBLEM) if name in rows.columns])


def _missing(engine: Engine, table: StoredTable, target: SourceOptions) -> DataFrame:
    """Return the entries of a history that the bucket lacks, partitioned by key and in order."""
    columns = ("key", "value", "revision", "operation")
    reading = given_as(replace(target, mode="history", columns=columns))
    there = engine.spark.read.format("nats-kv").options(**reading).load()
    return missing(file_rows.rows_of(table).frame(engine), there).repartition("key").sortWithinPartitions("revision")


def _checked(engine: Engine, rows: DataFrame | TaskRows) -> WriteSummary:
    """Return the result of a write as far as known without the bucket: rows that no bucket accepts."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[TaskResult]:
        checked = TaskResult("")
        for batch in batches:
            chunk = chunk_of(batch, 0, WriteMode.PUT)
            checked.counts.written += len(chunk.keys) - len(chunk.bad)
            checked.counts.rejected += len(chunk.bad)
            checked.take(chunk, chunk.bad)
        yield checked

    return WriteSummary.of(tasks.over(engine, rows, check))


def write(engine: Engine, rows: DataFrame | TaskRows, target: SourceOptions, order: str | None = None) -> WriteSummary:
    """Write the rows in tasks, as the data source does, and return what they did; with an order, as `tasks.over`.

    Raises as the data source.
    """
    try:
        assert rows.schema is not None
        writer = KvWriter(rows.schema, target)
        try:
            messages = tasks.over(engine, rows, lambda batches: [writer.write(batches)], order)
        except BaseException:
            writer.abort()
            raise
        return writer.finish(messages)
    except Exception as error:
        found = explained(error)
        if isinstance(found, NoServer):
            found.hint = f"Bucket `{target.bucket}` may have some of the rows; run it again to complete it"
            raise found from error
        raise


_DIGEST = "struct(revision, operation, sha2(coalesce(value, cast('' as binary)), 256) as digest) as entry"
_OVERLAP = """
    array_max(filter(sequence(0, least(size(wanted), size(there))), n ->
        slice(contents(there), size(there) - n + 1, n) = slice(contents(wanted), 1, n)))
"""
"""Number of the last existing entries that equal the first wanted ones."""
_CONTENTS = "transform({0}, entry -> struct(entry.operation, entry.digest))"


def missing(wanted: DataFrame, there: DataFrame) -> DataFrame:
    """Return the entries of a history that a bucket, by its own history, lacks."""
    overlap = _OVERLAP.replace("contents(there)", _CONTENTS.format("there"))
    overlap = overlap.replace("contents(wanted)", _CONTENTS.format("wanted"))
    both = histories(wanted, "wanted").join(histories(there, "there"), "key")
    done = both.withColumn("overlap", expr(overlap)).where("overlap > 0")
    stored = done.selectExpr("key", "wanted[overlap - 1].revision as stored")
    return wanted.join(stored, "key", "left").where("stored is null or revision > stored").drop("stored")


def histories(rows: DataFrame, name: str) -> DataFrame:
    """Return a row per key: its entries in order, as revision, operation and a hash of the value."""
    entries = rows.selectExpr("key", _DIGEST)
    return entries.groupBy("key").agg(expr("sort_array(collect_list(entry))").alias(name))
