"""A million changes replayed into Parquet: by streams of Spark, by a capture, by one bare process, and by nats-py.

Each contender is a process: `python -m bench.pipeline_streams WORK URL BUCKET [OPTION=VALUE...]`, which prints its
seconds, warm, and the peak memory of all its processes together.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.warm import measured, warm

if TYPE_CHECKING:
    from bench.harness import Bench

SIZES = (100_000, 1_000_000, 3_000_000)


def streams(bench: Bench) -> None:
    """All cases."""
    timed = partial(warm, bench, "pipeline_streams")
    sizes = tuple(map(bench.sized, SIZES))
    million = sizes[1]
    name = bench.bucket(f"P{million}", million)
    bench.compare_slow(f"Spark: {million:,} changes of 100 B replayed into Parquet, 2 cores", "", {
        "nats-kv stream, file sink": timed("replay", name),
        "the same in batches of 100,000": timed("replay", name, "maxRevisionsPerTrigger=100000"),
        "pipeline capture": timed("capture", name),
        "pipeline compact of it": timed("compact", name),
        "one bare process": warm(bench, "pipeline_reads", "bare", name),
        "nats-py watchall": warm(bench, "pipeline_reads", "nats_py", name),
    })  # fmt: skip
    bench.compare_slow("Spark: captures of more changes", "as many rows a second, no more memory", {
        f"pipeline capture, {size:,} changes": timed("capture", bench.bucket(f"P{size}", size))
        for size in sizes
    })  # fmt: skip


def replay(url: str, bucket: str, *options: str) -> None:
    """A stream into Spark's file sink, after a first one that warms the session up."""
    from kvctl.pipeline.spark.engine import Engine
    from kvctl.pipeline.spark.session_config import Target

    asked = dict(option.split("=", 1) for option in options)
    with Engine.start(Target(master="local[2]")) as engine, tempfile.TemporaryDirectory() as place:
        rows = engine.spark.readStream.format("nats-kv").options(url=url, bucket=bucket, **asked).load()

        def run(name: str) -> None:
            writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{place}/{name}-checkpoint")
            writer.trigger(availableNow=True).start(f"{place}/{name}").awaitTermination()

        run("first")
        with measured():
            run("second")


def capture(url: str, bucket: str) -> None:
    """A capture of everything there is."""
    _captured(url, bucket, compacted=False)


def compact(url: str, bucket: str) -> None:
    """The latest state from a capture."""
    _captured(url, bucket, compacted=True)


def _captured(url: str, bucket: str, *, compacted: bool) -> None:
    from kvctl.pipeline.jobs import capture as capturing
    from kvctl.pipeline.jobs import compact as compacting
    from kvctl.pipeline.options import parse
    from kvctl.pipeline.spark.engine import Engine
    from kvctl.pipeline.spark.session_config import Target

    options = parse({"url": url, "bucket": bucket})
    with Engine.start(Target(master="local[2]")) as engine, tempfile.TemporaryDirectory() as directory:
        place = Path(directory)

        def take(name: str) -> None:
            capturing.capture(engine, options, place / name, place / f"{name}-checkpoint", once=True)

        take("first")
        if compacted:
            compacting.compact(engine, place / "first", place / "warm")
        with measured():
            if compacted:
                compacting.compact(engine, place / "first", place / "latest")
            else:
                take("second")


WORKS = (replay, capture, compact)

if __name__ == "__main__":
    {work.__name__: work for work in WORKS}[sys.argv[1]](*sys.argv[2:])
