"""Functions run in tasks: in Python processes beside Spark's executors, with small results for the driver."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kvctl.pipeline.spark.engine import Engine

T = TypeVar("T")
R = TypeVar("R")


def over_items(engine: Engine, items: Sequence[T], work: Callable[[T], Iterable[R]]) -> list[R]:
    """Apply the work to each item, in a task each, and return all results.

    A classic session needs no Spark SQL for that, which takes longer to load and to plan than a small job to run; a
    Connect server offers nothing else.
    """
    if not items:
        return []
    if not engine.target.remote:
        return engine.context.parallelize(items, len(items)).flatMap(work).collect()
    return over_rows(
        _frame(engine, items), lambda batches: (result for item in _items(batches) for result in work(item))
    )


def rows_of(
    engine: Engine, items: Sequence[T], read: Callable[[T], Iterable[pa.RecordBatch]], schema: StructType | str
) -> DataFrame:
    """Return the rows that tasks read of each item, in a task each."""
    if not items:
        return engine.spark.createDataFrame([], schema)
    return _frame(engine, items).mapInArrow(lambda batches: chain.from_iterable(map(read, _items(batches))), schema)


def _frame(engine: Engine, items: Sequence[Any]) -> DataFrame:
    rows = [(number, pickle.dumps(item)) for number, item in enumerate(items)]
    return engine.spark.createDataFrame(rows, "number int, item binary").repartitionByRange(len(items), "number")


def _items(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        yield from map(pickle.loads, batch.column(1).to_pylist())


def over_rows(rows: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterable[R]]) -> list[R]:
    """Apply the work to the rows of each partition, and return all results."""

    def pickled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for result in work(batches):
            yield pa.RecordBatch.from_pydict({"result": pa.array([pickle.dumps(result)], pa.binary())})

    found: list[Any] = rows.mapInArrow(pickled, "result binary").collect()
    return [pickle.loads(row.result) for row in found]


def progress_text(engine: Engine) -> str:
    """Describe the running stage of the newest job and its finished tasks; empty between jobs.

    Spark Connect does not report it.
    """
    if not engine.started or engine.target.remote:
        return ""
    with suppress(Exception):  # the session may end concurrently
        tracker = engine.context.statusTracker()
        job = tracker.getJobInfo(max(tracker.getActiveJobsIds(), default=-1))
        stages = sorted(job.stageIds) if job else []
        running = [(place, info) for place, stage in enumerate(stages, 1) if (info := tracker.getStageInfo(stage))]
        for place, info in [item for item in running if item[1].numCompletedTasks < item[1].numTasks] or running:
            waiting = "" if info.numActiveTasks or info.numCompletedTasks else ", waiting for workers"
            tasks = f"task {info.numCompletedTasks} of {info.numTasks}"
            return f"stage {place} of {len(stages)}, {tasks}{waiting}"
    return ""
