"""Check that Spark and its workers run, as jobs use them: a read is planned and run, and files are written."""

from __future__ import annotations

import io
import platform
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import kvctl
from kvctl.errors import KvctlError
from kvctl.phrases import quoted
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.spark.java import find_java
from kvctl.pipeline.tables.storage import TablePlace

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kvctl.pipeline.spark.engine import Engine

TASKS = 8
"""Number of tasks of a session that does not tell its cores."""
TASK_S = 0.3
"""Seconds of a task, so that no worker runs those of another one, too."""
ALL_EXECUTORS = {"spark.scheduler.minRegisteredResourcesRatio": "1.0"}


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """Machine that runs tasks: its Python and its kvctl."""

    host: str
    python: str
    kvctl: str


@dataclass(frozen=True, slots=True)
class SparkCheck:
    """Versions and workers of a session."""

    spark: str
    java: str | None
    """None behind a Connect server, which does not report it."""
    master: str | None
    workers: tuple[Worker, ...]
    to: str | None = None
    """Place of tables in which each task wrote a file, and this machine saw it."""


def check(engine: Engine, place: TablePlace | None = None) -> SparkCheck:
    """Plan a read and run it on the workers, which then write a file each into a place.

    Raises KvctlError if kvctl is missing or has another version, or if this machine does not see the files.
    """
    engine.doing = "asking the workers"
    if engine.target.master:  # waits for all executors, 30 s by default
        engine.target = replace(engine.target, conf={**ALL_EXECUTORS, **engine.target.conf})
    with engine.explaining():
        engine.spark.dataSource.register(CheckSource)
        count = TASKS if engine.target.remote else 2 * engine.context.defaultParallelism
        rows = engine.spark.read.format(CheckSource.name()).option("tasks", count).load().collect()
    workers = tuple(sorted({Worker(*row) for row in rows}))
    for worker in workers:
        if worker.kvctl != kvctl.__version__:
            raise KvctlError(
                f"The workers on `{worker.host}` have kvctl {worker.kvctl}, but this is {kvctl.__version__}",
                hint="Install the same version on both",
            )
    if place is not None:
        engine.doing = "writing files"
        with engine.explaining():
            _write_files(engine, place, count)
    to = place.uri if place is not None else None
    if engine.target.remote:
        return SparkCheck(engine.spark.version, None, None, workers, to)
    return SparkCheck(engine.context.version, find_java().build, engine.context.master, workers, to)


def _write_files(engine: Engine, place: TablePlace, count: int) -> None:
    """Raises KvctlError that names the workers whose files are not visible here, in full."""
    prefix = f".kvctl-check-{secrets.token_hex(8)}"
    written = dict(tasks.over_items(engine, [f"{prefix}/{number}" for number in range(count)], partial(_write, place)))
    sizes = place.sizes(written)
    place.remove(sizes)
    if place.path is not None:
        place.path.mkdir(exist_ok=True)  # it may have been there, and empty
    if hosts := {host for name, host in written.items() if sizes.get(name) != len(host.encode())}:
        raise KvctlError(
            f"Files that the workers on {quoted(sorted(hosts))} wrote to `{place}` are not there for this machine",
            hint="All machines have to share the folder, under the same path",
        )


def _write(place: TablePlace, name: str) -> Iterator[tuple[str, str]]:
    """Write a file (runs on a worker); return its name, and its content: the name of this machine."""
    with crossing():
        host = platform.node()
        place.write(name, io.BytesIO(host.encode()))
        time.sleep(TASK_S)
        yield name, host


class CheckSource(DataSource):
    """Source whose rows describe the workers that read them."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "kvctl-check"

    def schema(self) -> str:
        """Return the fields of a Worker."""
        return "host string, python string, kvctl string"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of one row a task."""
        return _CheckReader(int(self.options["tasks"]))


class _CheckReader(DataSourceReader):
    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str, str]]:
        from kvctl.pipeline.read import arrow_decoder  # raises the errors that a read would raise

        assert arrow_decoder
        time.sleep(TASK_S)
        yield platform.node(), platform.python_version(), kvctl.__version__
