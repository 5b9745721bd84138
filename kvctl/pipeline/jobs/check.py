"""Check that Spark runs, where, and that its workers have the pipeline's dependencies."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import kvctl
from kvctl.errors import KvctlError

if TYPE_CHECKING:
    import pyarrow as pa

    from kvctl.pipeline.spark.engine import Engine

FIELDS = "host string, python string, kvctl string"
TASKS = 4
"""Number of tasks run: on a small cluster, each worker gets one."""


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """Machine that runs tasks: its Python and its kvctl."""

    host: str
    python: str
    kvctl: str


@dataclass(frozen=True, slots=True)
class Checked:
    """Versions and workers of a session."""

    spark: str
    java: str | None
    """None behind a Connect server, which does not report it."""
    master: str | None
    workers: tuple[Worker, ...]


def check(engine: "Engine") -> Checked:
    """Run a task on the workers. Raises KvctlError if kvctl is missing or has another version."""
    engine.doing = "asking the workers"
    rows = engine.spark.range(0, TASKS, 1, TASKS).mapInArrow(_answer, FIELDS).distinct().collect()
    workers = tuple(sorted(Worker(row["host"], row["python"], row["kvctl"]) for row in rows))
    for worker in workers:
        if worker.kvctl != kvctl.__version__:
            raise KvctlError(
                f"The workers on `{worker.host}` have kvctl {worker.kvctl}, but this is {kvctl.__version__}",
                hint="Install the same version on both",
            )
    java = engine.archive.java if engine.archive else None
    master = None if engine.target.remote else str(engine.spark.conf.get("spark.master"))
    return Checked(engine.spark.version, java.build if java else None, master, workers)


def _answer(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Report this worker's versions (runs on a worker)."""
    import pyarrow as pa

    from kvctl.pipeline.data_source import KvDataSource  # raises the errors that a read would raise

    assert KvDataSource.name()
    names = ("host", "python", "kvctl")
    here = (platform.node(), platform.python_version(), kvctl.__version__)
    for _ in batches:
        yield pa.RecordBatch.from_arrays([pa.array([text]) for text in here], names=list(names))
