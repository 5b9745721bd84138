"""How far a running job is, as Spark's own trackers tell it. Not behind Spark Connect, which does not say."""

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = "number of output rows"
"""The metric of every operator that reads or makes rows; kept up to date while a task runs."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The stage that runs, of how many of the job; its tasks under way, done and in all; rows, where Spark tells."""

    stage: int
    stages: int
    active: int
    done: int
    tasks: int
    rows: int | None = None


def standing(spark: "SparkSession") -> Standing | None:
    """How far the newest job of a classic session is; None between jobs, and when it cannot be told."""
    with suppress(Exception):  # the session may end meanwhile
        tracker = spark.sparkContext.statusTracker()
        job = tracker.getJobInfo(max(tracker.getActiveJobsIds(), default=-1))
        stages = sorted(job.stageIds) if job else []
        running = [(number, info) for number in stages if (info := tracker.getStageInfo(number)) is not None]
        active = [(number, info) for number, info in running if info.numCompletedTasks < info.numTasks] or running
        if active:
            number, info = active[0]
            place = stages.index(number) + 1
            tasks = (info.numActiveTasks, info.numCompletedTasks, info.numTasks)
            return Standing(place, len(stages), *tasks, _rows(spark))
    return None


def _rows(spark: "SparkSession") -> int | None:
    """Rows that the newest query has come by. No public way tells this while a task runs."""
    with suppress(Exception):
        store: Any = spark._jsparkSession.sharedState().statusStore()
        query = store.executionsList().apply(int(store.executionsCount()) - 1)
        found, metrics = store.executionMetrics(query.executionId()), query.metrics()
        every = (metrics.apply(number) for number in range(metrics.size()))
        texts = [found.get(metric.accumulatorId()).toString() for metric in every if metric.name() == ROWS]
        return max(int(text[5:-1].replace(",", "")) for text in texts if text.startswith("Some("))
    return None
