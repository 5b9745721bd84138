"""Buckets read into Parquet: by Spark, by one bare process, and by nats-py's KeyValue.

Each contender is a process: `python -m bench.pipeline_reads WORK URL BUCKET [OPTION=VALUE...]`, which prints its
seconds, warm, and the peak memory of all its processes together.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.warm import measured, warm

if TYPE_CHECKING:
    from bench.harness import Bench

PATIENCE = 120.0
"""Seconds for nats-py, whose watcher never ends once it was too slow and lost messages."""
SIZES = (100_000, 1_000_000, 3_000_000)


def reads(bench: Bench) -> None:
    """All cases."""
    timed = partial(warm, bench, "pipeline_reads")
    sizes = tuple(map(bench.sized, SIZES))
    million = sizes[1]
    name = bench.bucket(f"P{million}", million)
    bench.compare_slow(f"Spark: {million:,} keys of 100 B into Parquet, 2 cores", "1.2x of the bare process", {
        "nats-kv, 2 tasks": timed("spark", name, "onEvicted=fail", "partitions=2"),
        "nats-kv, one task": timed("spark", name),
        "nats-kv, one core": timed("spark", name, "cores=1"),
        "one bare process": timed("bare", name),
        "nats-py watchall": timed("nats_py", name),
    })  # fmt: skip
    bench.compare_slow(f"Spark: {million:,} keys, fewer columns", "", {
        "nats-kv, all columns": timed("spark", name),
        "nats-kv, columns key,revision": timed("spark", name, "columns=key,revision"),
    })  # fmt: skip
    bench.compare_slow("Spark: the same for more keys", "as many rows a second, no more memory", {
        f"nats-kv, {size:,} keys": timed("spark", bench.bucket(f"P{size}", size)) for size in sizes
    })  # fmt: skip


def spark(url: str, bucket: str, *options: str) -> None:
    """The data source, after a first read that warms the session up."""
    from kvctl.pipeline.spark.engine import Engine
    from kvctl.pipeline.spark.session_config import Target

    asked = dict(option.split("=", 1) for option in options)
    cores = asked.pop("cores", "2")
    with Engine.start(Target(master=f"local[{cores}]")) as engine, tempfile.TemporaryDirectory() as place:
        rows = engine.spark.read.format("nats-kv").options(url=url, bucket=bucket, **asked)
        rows.load().write.parquet(f"{place}/first")
        with measured():
            rows.load().write.parquet(f"{place}/second")


def bare(url: str, bucket: str) -> None:
    """One process without Spark: the same reading, and the same decoding, into one file."""
    from pyarrow.parquet import ParquetWriter

    from kvctl.pipeline.options import parse
    from kvctl.pipeline.read.arrow_decoder import Decoder
    from kvctl.pipeline.read.columns import schema_of
    from kvctl.pipeline.read.partition import PartReading
    from kvctl.pipeline.read.pushdown import Narrowing
    from kvctl.pipeline.read.snapshot_plan import plan

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

    with tempfile.TemporaryDirectory() as place, measured():
        asyncio.run(work(Path(place) / "rows.parquet"))


def nats_py(url: str, bucket: str) -> None:
    """The same with nats-py's KeyValue."""
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

    with tempfile.TemporaryDirectory() as place, measured():
        asyncio.run(asyncio.wait_for(work(Path(place) / "rows.parquet"), PATIENCE))


WORKS = (spark, bare, nats_py)

if __name__ == "__main__":
    {work.__name__: work for work in WORKS}[sys.argv[1]](*sys.argv[2:])
