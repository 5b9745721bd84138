"""Check that Spark runs, where, and that its workers have the pipeline's dependencies."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import kvctl
from kvctl.errors import KvctlError
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.spark.java import find_java

if TYPE_CHECKING:
    from kvctl.pipeline.spark.engine import Engine

TASKS = 4
"""Number of tasks run: on a small cluster, each worker gets one."""


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


def check(engine: "Engine") -> SparkCheck:
    """Run a task on the workers. Raises KvctlError if kvctl is missing or has another version."""
    engine.doing = "asking the workers"
    workers = tuple(sorted(set(tasks.over_items(engine, range(TASKS), _answer))))
    for worker in workers:
        if worker.kvctl != kvctl.__version__:
            raise KvctlError(
                f"The workers on `{worker.host}` have kvctl {worker.kvctl}, but this is {kvctl.__version__}",
                hint="Install the same version on both",
            )
    if engine.target.remote:
        return SparkCheck(engine.spark.version, None, None, workers)
    return SparkCheck(engine.context.version, find_java().build, engine.context.master, workers)


def _answer(_: int) -> Iterator[Worker]:
    """Report this worker's versions (runs on a worker)."""
    from kvctl.pipeline.read import arrow_decoder  # raises the errors that a read would raise

    assert arrow_decoder
    yield Worker(platform.node(), platform.python_version(), kvctl.__version__)
