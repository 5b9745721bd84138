"""Whether Spark runs, where, and whether its workers have what the pipeline needs."""

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
"""Tasks asked: on a small cluster, each worker answers one."""


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """A machine that runs tasks: its Python and its kvctl."""

    host: str
    python: str
    kvctl: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What a session is made of."""

    spark: str
    java: str | None
    """None behind a Connect server, which does not say."""
    master: str | None
    workers: tuple[Worker, ...]


def check(engine: "Engine") -> Checked:
    """Run a task on the workers. Raises KvctlError where kvctl is missing or of another version."""
    engine.doing = "asking the workers"
    rows = engine.spark.range(0, TASKS, 1, TASKS).mapInArrow(_answer, FIELDS).distinct().collect()
    workers = tuple(sorted(Worker(row["host"], row["python"], row["kvctl"]) for row in rows))
    for worker in workers:
        if worker.kvctl != kvctl.__version__:
            raise KvctlError(
                f"The workers on `{worker.host}` have kvctl {worker.kvctl}, this is {kvctl.__version__}",
                hint="Install the same version on both",
            )
    java = engine.archive.java if engine.archive else None
    master = None if engine.target.remote else str(engine.spark.conf.get("spark.master"))
    return Checked(engine.spark.version, java.build if java else None, master, workers)


def _answer(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """On a worker: what it is."""
    import pyarrow as pa

    from kvctl.pipeline.data_source import KvDataSource  # raises here what a read would raise

    assert KvDataSource.name()
    names = ("host", "python", "kvctl")
    here = (platform.node(), platform.python_version(), kvctl.__version__)
    for _ in batches:
        yield pa.RecordBatch.from_arrays([pa.array([text]) for text in here], names=list(names))
