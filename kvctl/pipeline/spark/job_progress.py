"""Progress of a running job, from Spark's own trackers. Not behind Spark Connect, which does not report it."""

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

ROWS = "number of output rows"
"""Metric of every operator that reads or produces rows; updated while a task runs."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Running stage and number of stages; its tasks running, done and in total; rows, if Spark reports them."""

    stage: int
    stages: int
    active: int
    done: int
    tasks: int
    rows: int | None = None


def current_progress(context: "SparkContext", spark: "SparkSession | None") -> JobProgress | None:
    """Return the progress of the newest job; None between jobs, and if unknown. Rows need a session."""
    with suppress(Exception):  # the session may end concurrently
        tracker = context.statusTracker()
        job = tracker.getJobInfo(max(tracker.getActiveJobsIds(), default=-1))
        stages = sorted(job.stageIds) if job else []
        running = [(number, info) for number in stages if (info := tracker.getStageInfo(number)) is not None]
        active = [(number, info) for number, info in running if info.numCompletedTasks < info.numTasks] or running
        if active:
            number, info = active[0]
            place = stages.index(number) + 1
            tasks = (info.numActiveTasks, info.numCompletedTasks, info.numTasks)
            return JobProgress(place, len(stages), *tasks, _rows(spark) if spark else None)
    return None


def _rows(spark: "SparkSession") -> int | None:
    """Return the rows that the newest query has processed. No public API reports this while a task runs."""
    with suppress(Exception):
        store: Any = spark._jsparkSession.sharedState().statusStore()
        query = store.executionsList().apply(int(store.executionsCount()) - 1)
        found, metrics = store.executionMetrics(query.executionId()), query.metrics()
        every = (metrics.apply(number) for number in range(metrics.size()))
        texts = [found.get(metric.accumulatorId()).toString() for metric in every if metric.name() == ROWS]
        return max(int(text[5:-1].replace(",", "")) for text in texts if text.startswith("Some("))
    return None
