"""Functions run in tasks: in Python processes beside Spark's executors, with small results for the driver."""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kvctl.pipeline.spark.engine import Engine

T = TypeVar("T")
R = TypeVar("R")
RANGE_BYTES = 16 << 20
"""Bytes of rows that a task sorts."""
RUN_BYTES = 4 << 20
"""Bytes of rows that are divided into ranges at a time: Spark holds some ten of these in each task."""
SAMPLES = 16
"""Number of keys of these rows among which the bounds of the ranges are."""
BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Rows that tasks read themselves, without Spark SQL: `read` is called with each of the items, in a task."""

    items: Sequence[Any]
    read: Callable[[Any], Iterable[pa.RecordBatch]]
    schema: StructType | None = None
    """None for rows that never go through Spark SQL."""

    def frame(self, engine: Engine) -> DataFrame:
        """Return them as rows of Spark SQL."""
        assert self.schema is not None
        if not self.items:
            return engine.spark.createDataFrame([], self.schema)
        read = self.read
        rows = _frame(engine, self.items)
        return rows.mapInArrow(lambda batches: chain.from_iterable(map(read, _items(batches))), self.schema)


def over(
    engine: Engine,
    rows: DataFrame | TaskRows,
    work: Callable[[Iterator[pa.RecordBatch]], Iterable[R]],
    order: str | None = None,
) -> list[R]:
    """Apply the work to the rows of each item or partition, and return all results.

    With an `order`, a column, the work gets the rows of ranges of `key`, sorted by it, and results are in order of the
    ranges. Rows that tasks read are then read twice, and all of a range are in memory: rows of a key are in one range.
    Outside of Connect these need no Spark SQL.
    """
    if isinstance(rows, TaskRows):
        read = rows.read
        if order is None:
            return over_items(engine, rows.items, lambda item: work(iter(read(item))))
        if not engine.target.remote:
            return _over_ranges(engine, rows, work, order)
        rows = rows.frame(engine)
    return over_rows(rows if order is None else rows.repartitionByRange("key").sortWithinPartitions(order), work)


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


# -- rows in the order of their keys -------------------------------------------------------------------------


def _over_ranges(
    engine: Engine, rows: TaskRows, work: Callable[[Iterator[pa.RecordBatch]], Iterable[R]], order: str
) -> list[R]:
    bounds = _bounds(over(engine, rows, _sampled))
    items, read = rows.items, rows.read
    if not bounds:
        whole = [items] if items else []
        return over_items(engine, whole, lambda items: work(_sorted(chain.from_iterable(map(read, items)), order)))
    pieces = engine.context.parallelize(items, len(items)).flatMap(lambda item: _divided(read(item), bounds))
    ranges = pieces.partitionBy(len(bounds) + 1, int).values()
    return ranges.mapPartitions(lambda pieces: work(_sorted(chain.from_iterable(pieces), order))).collect()


def _sampled(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int]]:
    """Yield keys, each with the bytes of the rows from it to the next."""
    for run in _runs(batches):
        for piece in run.to_batches(max_chunksize=len(run) // SAMPLES + 1):
            yield piece["key"][0].as_py() or "", piece.nbytes


def _bounds(samples: Iterable[tuple[str, int]]) -> list[str]:
    """Return the first key of each range but the first. Text is in the order of its bytes in UTF-8."""
    ordered, size = sorted(samples), 0
    bounds = [key for key, _ in ordered[:1]]
    for key, count in ordered:
        if size + count > RANGE_BYTES and key > bounds[-1]:
            bounds.append(key)
            size = 0
        size += count
    return bounds[1:]


def _divided(batches: Iterable[pa.RecordBatch], bounds: Sequence[str]) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield the rows in pieces, each with the number of its range."""
    import pyarrow as pa

    for run in _runs(batches):
        keys, start, most = run["key"], 0, len(run) // (len(bounds) + 1) + 1
        ends = [bisect_left(range(len(run)), bound, key=lambda at: keys[at].as_py() or "") for bound in bounds]
        for number, end in enumerate([*ends, len(run)]):
            for at in range(start, end, most):
                rows = pa.array(range(at, min(at + most, end)))
                yield number, run.take(rows).to_batches()  # a slice would be sent with its run
            start = end


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows sorted by key, some at a time."""
    return (run.sort_by("key") for run in groups(batches, RUN_BYTES))


def groups(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """Yield the rows in groups of at least `size` bytes; the last one has the rest."""
    import pyarrow as pa

    held, held_bytes = [], 0
    for batch in batches:
        held += [batch] if len(batch) else []
        held_bytes += batch.nbytes
        if held_bytes >= size:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _sorted(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    held = list(batches)
    return iter(pa.Table.from_batches(held).sort_by(column).to_batches(BATCH_ROWS) if held else ())


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
