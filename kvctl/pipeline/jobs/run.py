"""Run a declared pipeline: read the sources, transform the rows, write them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from kvctl.errors import ConflictError, NotFoundError
from kvctl.pipeline.files import file_rows
from kvctl.pipeline.jobs.load import write
from kvctl.pipeline.options import SourceOptions, parse
from kvctl.pipeline.pipeline_file import Bucket, Declared, Files
from kvctl.pipeline.read import worker_connection
from kvctl.pipeline.write.decision import WriteMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kvctl.pipeline.spark.engine import Engine


@dataclass(frozen=True, slots=True)
class Planned:
    """Description of a run, without its effect."""

    sources: Mapping[str, str]
    """Source descriptions by name."""
    columns: Mapping[str, str]
    """Columns written, each with its type."""
    sink: str
    plan: str
    """Spark's own plan."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a run."""

    sink: str
    written: int
    unchanged: int
    rejected: int
    samples: tuple[tuple[str, str], ...]
    """First rejected rows: key and cause."""
    seconds: float


async def check(declared: Declared, connection: Mapping[str, str], *, dry_run: bool = False) -> None:
    """Check without Spark for missing sources and existing targets. Raises NotFoundError, ConflictError, NoServer."""
    for place in (*declared.sources.values(), declared.sink):
        if isinstance(place, Bucket):
            async with worker_connection.connected(_options(place, connection)) as client:
                await client.bucket(place.options["bucket"]).locate()
        elif place is not declared.sink:
            _check_source(place)
        elif not dry_run:
            _check_sink(place)


def plan(engine: Engine, declared: Declared, connection: Mapping[str, str]) -> Planned:
    """Plan a run without running it. Raises NotFoundError, UsageError for an invalid query."""
    with engine.explaining():
        rows = _rows(engine.spark, declared, connection)
        _check_rows(rows, declared.sink)
        text = StringIO()
        with redirect_stdout(text):
            rows.explain(mode="formatted")
        columns = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    sources = {name: source.title for name, source in declared.sources.items()}
    return Planned(sources, columns, declared.sink.title, text.getvalue().strip())


def run(engine: Engine, declared: Declared, connection: Mapping[str, str]) -> Ran:
    """Run the pipeline; `connection` applies to buckets for which the file has none.

    Raises NotFoundError, ConflictError for a folder that is not empty, UsageError, and as the data source.
    """
    begun = time.monotonic()
    sink = declared.sink
    with engine.explaining():
        if isinstance(sink, Files):
            _check_sink(sink)
        rows = _rows(engine.spark, declared, connection)
        engine.doing = f"writing {sink.title}"
        if isinstance(sink, Files):
            return Ran(sink.title, _write_files(rows, sink), 0, 0, (), time.monotonic() - begun)
        summary = write(rows, _options(sink, connection))
    samples = tuple((key, cause) for key, cause in summary.get("samples", ()))
    unchanged, rejected = summary.get("unchanged", 0), summary.get("rejected", 0)
    return Ran(sink.title, summary["written"], unchanged, rejected, samples, time.monotonic() - begun)


def connection_of(bucket: Bucket, connection: Mapping[str, str]) -> Mapping[str, str]:
    """Return the connection options for a bucket without its own."""
    return {} if {"context", "url"} & set(bucket.options) else connection


def _options(bucket: Bucket, connection: Mapping[str, str]) -> SourceOptions:
    return parse({**connection_of(bucket, connection), **bucket.options})


def _check_source(files: Files) -> None:
    if not files.path.exists():
        raise NotFoundError(f"`{files.path}` does not exist")


def _check_sink(files: Files) -> None:
    if files.mode == "error" and files.path.exists():
        raise ConflictError(
            f"`{files.path}` already exists",
            hint="Set `mode: overwrite` or `mode: append` in the sink, or use another path",
        )


def _check_rows(rows: DataFrame, sink: Bucket | Files) -> None:
    """Raises UsageError for columns that the sink does not accept."""
    from kvctl.pipeline.write.arrow_rows import check_columns

    if isinstance(sink, Files):
        file_rows.check_form(rows, sink.format)
    else:
        check_columns(rows.schema, WriteMode(parse(sink.options).write_mode))


def _rows(spark: SparkSession, declared: Declared, connection: Mapping[str, str]) -> DataFrame:
    found = {name: _read(spark, source, connection) for name, source in declared.sources.items()}
    if declared.sql is not None:
        for name, frame in found.items():
            frame.createOrReplaceTempView(name)
        return spark.sql(declared.sql)
    (rows,) = found.values()
    if declared.where is not None:
        rows = rows.where(declared.where)
    if declared.columns is None:
        return rows
    return rows.selectExpr(*(f"{expression} AS `{name}`" for name, expression in declared.columns.items()))


def _read(spark: SparkSession, source: Bucket | Files, connection: Mapping[str, str]) -> DataFrame:
    if isinstance(source, Bucket):
        return spark.read.format("nats-kv").options(**connection_of(source, connection), **source.options).load()
    _check_source(source)
    return file_rows.read_files(spark, source.path, source.format)


def _write_files(rows: DataFrame, sink: Files) -> int:
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    observation = Observation()
    counted = rows.observe(observation, count(lit(1)).alias("rows"))
    try:
        file_rows.write_files(counted, sink.path, sink.format, sink.mode)
    except BaseException:
        if sink.mode == "error":
            with suppress(OSError):
                sink.path.rmdir()  # Spark leaves an empty folder, which would block the next run
        raise
    return int(observation.get["rows"])
