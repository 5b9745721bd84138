"""Buckets read into Parquet: by Spark, by one bare process, and by nats-py's KeyValue.

Each contender is a process: `python -m bench.pipeline_reads WORK URL BUCKET [OPTION=VALUE...]`, which prints its
seconds, warm, and the peak memory of all its processes together.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Run

if TYPE_CHECKING:
    from bench.__main__ import Bench

ROUNDS = 3
SIZES = (100_000, 1_000_000, 3_000_000)


def reads(bench: Bench, sizes: tuple[int, ...] = SIZES) -> None:
    """All cases; small sizes for a look."""
    million = sizes[1]
    name = bench.bucket(f"P{million}", million)
    bench.compare(f"Spark: {million:,} keys of 100 B into Parquet, 2 cores", "1.2x of the bare process", {
        "nats-kv, 2 tasks": _timed(bench, "spark", name, "onEvicted=fail", "partitions=2"),
        "nats-kv, one task": _timed(bench, "spark", name),
        "nats-kv, one core": _timed(bench, "spark", name, "cores=1"),
        "one bare process": _timed(bench, "bare", name),
        "nats-py watchall": _timed(bench, "nats_py", name),
    }, rounds=ROUNDS)  # fmt: skip
    bench.compare(f"Spark: {million:,} keys, fewer columns", "", {
        "nats-kv, all columns": _timed(bench, "spark", name),
        "nats-kv, columns key,revision": _timed(bench, "spark", name, "columns=key,revision"),
    }, rounds=ROUNDS)  # fmt: skip
    bench.compare("Spark: the same for more keys", "as many rows a second, no more memory", {
        f"nats-kv, {size:,} keys": _timed(bench, "spark", bench.bucket(f"P{size}", size)) for size in sizes
    }, rounds=ROUNDS)  # fmt: skip


def _timed(bench: Bench, work: str, bucket: str, *options: str) -> Callable[[], Run]:
    def timed() -> Run:
        command = (sys.executable, "-m", "bench.pipeline_reads", work, bench.server.url, bucket, *options)
        whole = bench.process(*command, timeout=900, keep=True)
        seconds, peak = whole.output.split()[-2:]
        return replace(whole, seconds=float(seconds), peak=int(peak))

    return timed


def spark(url: str, bucket: str, *options: str) -> None:
    """The data source, after a first read that warms the session up."""
    from kvctl.pipeline.engine import Engine
    from kvctl.pipeline.settings import Target

    asked = dict(option.split("=", 1) for option in options)
    cores = asked.pop("cores", "2")
    with Engine.start(Target(master=f"local[{cores}]")) as engine, tempfile.TemporaryDirectory() as place:
        rows = engine.spark.read.format("nats-kv").options(url=url, bucket=bucket, **asked)
        rows.load().write.parquet(f"{place}/first")
        with _measured():
            rows.load().write.parquet(f"{place}/second")


def bare(url: str, bucket: str) -> None:
    """One process without Spark: the same reading, and the same decoding, into one file."""
    from pyarrow.parquet import ParquetWriter

    from kvctl.pipeline.columns import schema_of
    from kvctl.pipeline.cut import plan
    from kvctl.pipeline.decoding import Decoder
    from kvctl.pipeline.options import parse
    from kvctl.pipeline.part_reading import PartReading
    from kvctl.pipeline.pushdown import Narrowing

    async def work(path: Path) -> None:
        import kvctl

        options, wanted = parse({"url": url, "bucket": bucket}), Narrowing()
        decoder = Decoder(schema_of(()), bucket, f"$KV.{bucket}.")
        async with kvctl.connect(url) as client:
            planned = await plan(client.bucket(bucket), options, wanted)
            reading = PartReading(client.api, planned.cut, options, wanted, decoder)
            with ParquetWriter(path, decoder.schema) as file:
                for part in await planned.parts():
                    async for batch in reading.batches(part):
                        file.write_batch(batch)

    with tempfile.TemporaryDirectory() as place, _measured():
        asyncio.run(work(Path(place) / "rows.parquet"))


def nats_py(url: str, bucket: str) -> None:
    """What it takes with nats-py's KeyValue."""
    import nats
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schema = pa.schema({"key": pa.string(), "value": pa.binary(), "revision": pa.int64(), "operation": pa.string()})

    async def work(path: Path) -> None:
        client = await nats.connect(url)
        watcher = await (await client.jetstream().key_value(bucket)).watchall()
        with ParquetWriter(path, schema) as file:
            held: list[tuple[object, ...]] = []
            async for entry in watcher:
                if entry is None:
                    break
                held.append((entry.key, entry.value, entry.revision, entry.operation or "PUT"))
                if len(held) == 10_000:
                    file.write_batch(pa.record_batch(list(map(list, zip(*held, strict=True))), schema=schema))
                    held = []
            if held:
                file.write_batch(pa.record_batch(list(map(list, zip(*held, strict=True))), schema=schema))
        await client.close()

    with tempfile.TemporaryDirectory() as place, _measured():
        asyncio.run(work(Path(place) / "rows.parquet"))


@contextmanager
def _measured() -> Iterator[None]:
    """Prints the seconds that this takes, and the peak of the memory of this process and all below it."""
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, _memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - begun
        done.set()
        watcher.join()
        print(seconds, max(peak, _memory()))


def _memory() -> int:
    """Bytes of this process and all below it; pages that they share count once."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(") ")[2].split()[1])
    own = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in own} - own:
        own |= more
    total = 0
    for process in own:
        with suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


WORKS = (spark, bare, nats_py)

if __name__ == "__main__":
    {work.__name__: work for work in WORKS}[sys.argv[1]](*sys.argv[2:])
