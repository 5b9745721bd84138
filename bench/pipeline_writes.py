"""A million rows from Parquet into a bucket, all acknowledged: by Spark, by one bare process, and by nats-py.

Each contender is a process: `python -m bench.pipeline_writes WORK URL FILE BUCKET [OPTION=VALUE...]`, which prints its
seconds, warm, and the peak memory of all its processes together.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Run
from bench.warm import measured, warm

if TYPE_CHECKING:
    from bench.harness import Bench

ROWS = 1_000_000
_numbers = count(1)


def writes(bench: Bench) -> None:
    """All cases."""
    rows = bench.sized(ROWS)
    with tempfile.TemporaryDirectory() as place:
        file = _input(Path(place), rows)
        bench.compare_slow(f"Spark: {rows:,} rows of 100 B written, 2 cores", "1.3x of the bare process", {
            "nats-kv, 2 tasks": _timed(bench, "spark", file),
            "nats-kv, with messageIds": _timed(bench, "spark", file, "messageIds=true"),
            "nats-kv, ifDifferent": _timed(bench, "spark", file, "ifDifferent=true"),
            "nats-kv, mode overwrite": _timed(bench, "spark", file, "overwrite"),
            "one bare process": _timed(bench, "bare", file),
            "nats-py put, 100 at once": _timed(bench, "nats_py", file),
        })  # fmt: skip


def _input(place: Path, rows: int) -> Path:
    """Two files of Parquet, one for each task."""
    import pyarrow as pa
    from pyarrow import parquet

    for part in range(2):
        numbers = range(part * rows // 2, (part + 1) * rows // 2)
        keys, values = [f"users.u{n:012d}" for n in numbers], [b"%0100d" % n for n in numbers]
        parquet.write_table(pa.table({"key": keys, "value": pa.array(values, pa.binary())}), place / f"{part}.parquet")
    return place


def _timed(bench: Bench, work: str, file: Path, *options: str) -> Callable[[], Run]:
    def timed() -> Run:
        bucket = bench.bucket(f"W{next(_numbers)}")
        done = warm(bench, "pipeline_writes", work, str(file), bucket, *options)()
        bench.process(sys.executable, "-m", "kvctl", "bucket", "rm", bucket, "--yes")
        return done

    return timed


def spark(url: str, file: str, bucket: str, *options: str) -> None:
    """The data source, after a first write that warms the session up."""
    from kvctl.pipeline.spark.engine import Engine
    from kvctl.pipeline.spark.session_config import Target

    asked = dict(option.split("=", 1) for option in options if "=" in option)
    mode = "overwrite" if "overwrite" in options else "append"
    with Engine.start(Target(master="local[2,4]")) as engine:
        rows = engine.spark.read.parquet(file)
        rows.limit(10_000).write.format("nats-kv").options(url=url, bucket=bucket, **asked).mode("append").save()
        with measured():
            rows.write.format("nats-kv").options(url=url, bucket=bucket, **asked).mode(mode).save()


def bare(url: str, file: str, bucket: str) -> None:
    """One process without Spark: Parquet, and puts in one window without ids."""
    import pyarrow.dataset as data

    import kvctl
    from kvctl.jetstream.publish import PublishWindow

    written = 0

    def done(_: int, __: int) -> None:
        nonlocal written
        written += 1

    def failed(_: int, error: Exception) -> None:
        raise error

    async def work() -> None:
        prefix = f"$KV.{bucket}."
        async with kvctl.connect(url) as client, PublishWindow(client.connection, done, failed, window=8000) as window:
            for batch in data.dataset(file).to_batches(batch_size=10_000):
                keys, values = (column.to_pylist() for column in batch.columns)
                rows = zip(range(len(keys)), keys, values, strict=True)
                await window.send_all(((n, (prefix + key).encode(), value, b"") for n, key, value in rows), lambda: 0)

    with measured():
        asyncio.run(work())


def nats_py(url: str, file: str, bucket: str) -> None:
    """The same with nats-py's KeyValue."""
    import nats
    import pyarrow.dataset as data

    async def work() -> None:
        client = await nats.connect(url)
        store = await client.jetstream().key_value(bucket)
        for batch in data.dataset(file).to_batches(batch_size=10_000):
            keys, values = (column.to_pylist() for column in batch.columns)
            for first in range(0, len(keys), 100):
                part = zip(keys[first : first + 100], values[first : first + 100], strict=True)
                await asyncio.gather(*(store.put(key, value) for key, value in part))
        await client.close()

    with measured():
        asyncio.run(work())


WORKS = (spark, bare, nats_py)

if __name__ == "__main__":
    {work.__name__: work for work in WORKS}[sys.argv[1]](*sys.argv[2:])
