"""The pipeline on Spark: how long a session takes to start.

Each contender is a process of its own: `python -m bench.pipeline WORK`, which prints its seconds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Run, run
from bench.pipeline_files import files
from bench.pipeline_reads import reads
from bench.pipeline_streams import streams
from bench.pipeline_writes import writes

if TYPE_CHECKING:
    from bench.harness import Bench

C1 = "-XX:TieredStopAtLevel=1"
"""Options for quick compilation without optimisation."""


def pipeline(bench: Bench) -> None:
    """All cases on Spark."""
    with tempfile.TemporaryDirectory() as place:
        starting(bench, Path(place))
        files(bench, Path(place) / "trained", Path(place))
    reads(bench)
    writes(bench)
    streams(bench)


def starting(bench: Bench, place: Path) -> None:
    """From nothing to the first count, with and without the archive of classes."""
    trained, empty = place / "trained", place / "empty"
    spark(bench, trained, "train")()
    bench.compare_slow("Spark session and first count", "under half the time without the archive", {
        "kvctl, with the archive": spark(bench, trained, "start"),
        "kvctl, archive and C1 alone": spark(bench, trained, "start", C1),
        "kvctl, without": spark(bench, empty, "start"),
        "pyspark as it comes": spark(bench, empty, "start_bare"),
    })  # fmt: skip


def spark(bench: Bench, cache: Path, work: str, *arguments: str) -> Callable[[], Run]:
    """A contender with this cache; its processor time is that of Python, JVM and workers together."""

    def timed() -> Run:
        environment = {**bench.env, "XDG_CACHE_HOME": str(cache), "KVCTL_SPARK_ARCHIVE": "off"}
        command = (sys.executable, "-m", "bench.pipeline", work, *arguments)
        whole = run(command, env=environment, timeout=600, keep=True)
        return replace(whole, seconds=float(whole.output.split()[-1]))

    return timed


def train() -> None:
    """Create the archive."""
    from kvctl.pipeline.spark.class_trainer import train

    begun = time.perf_counter()
    train()
    print(time.perf_counter() - begun)


def start(java_options: str = "") -> None:
    """A session of kvctl's."""
    from kvctl.pipeline.spark.engine import Engine
    from kvctl.pipeline.spark.session_config import Target

    begun = time.perf_counter()
    conf = {"spark.driver.extraJavaOptions": java_options} if java_options else {}
    with Engine.start(Target(conf=conf)) as engine:
        engine.spark.range(10).count()
        print(time.perf_counter() - begun)
    engine.end_jvm(60)  # else its processor time is not ours


def start_bare() -> None:
    """A session created as in pyspark's guide."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    begun = time.perf_counter()
    session = SparkSession.builder.getOrCreate()
    session.range(10).count()
    print(time.perf_counter() - begun)
    session.stop()


WORKS = (train, start, start_bare)

if __name__ == "__main__":
    {work.__name__: work for work in WORKS}[sys.argv[1]](*sys.argv[2:])
