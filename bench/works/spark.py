"""Works on Spark, warm, beside one bare process; times and memory of all their processes together."""

import asyncio
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import worker

CORES = "local[2]"


def rows(_: str, folder: str, count: int) -> None:
    """Write two files of Parquet, one for each task."""
    import pyarrow as pa
    from pyarrow import parquet

    for part in range(2):
        numbers = range(part * count // 2, (part + 1) * count // 2)
        keys, values = [f"users.u{n:012d}" for n in numbers], [b"%0100d" % n for n in numbers]
        table = pa.table({"key": keys, "value": pa.array(values, pa.binary())})
        parquet.write_table(table, Path(folder) / f"{part}.parquet")


def read(url: str, bucket: str) -> dict[str, float]:
    """The bucket into Parquet, after a first read that warms the session up."""
    with _engine() as engine, tempfile.TemporaryDirectory() as place:
        frame = engine.spark.read.format("nats-kv").options(url=url, bucket=bucket)
        frame.load().write.parquet(f"{place}/first")
        with worker.family() as told:
            frame.load().write.parquet(f"{place}/second")
    return told


def read_bare(url: str, bucket: str) -> dict[str, float]:
    """The same reading and decoding into one file, without Spark."""
    from pyarrow.parquet import ParquetWriter

    import kvctl
    from kvctl.pipeline.options import parse
    from kvctl.pipeline.read.arrow_decoder import Decoder
    from kvctl.pipeline.read.batch_reader import PartReading
    from kvctl.pipeline.read.columns import schema_of
    from kvctl.pipeline.read.snapshot_plan import plan

    async def work(path: Path) -> None:
        options = parse({"url": url, "bucket": bucket})
        decoder = Decoder(schema_of(()), bucket, f"$KV.{bucket}.")
        async with kvctl.connect(url) as client:
            planned = await plan(client.bucket(bucket), options)
            reading = PartReading(client.api, planned.cut, options, decoder)
            with ParquetWriter(path, decoder.schema) as file:
                for part in await planned.parts():
                    async for batch in reading.batches(part):
                        file.write_batch(batch)

    with tempfile.TemporaryDirectory() as place, worker.family() as told:
        asyncio.run(work(Path(place) / "rows.parquet"))
    return told


async def gaps(url: str, bucket: str, count: int) -> None:
    """Write so many keys, and half of them again, every other one."""
    import kvctl

    async with kvctl.connect(url) as client:
        await client.bucket(bucket).put_many((f"k.{number}", b"x" * 100) for number in range(count))
        await client.bucket(bucket).put_many((f"k.{number}", b"x" * 100) for number in range(0, count, 2))


def read_divided(url: str, bucket: str, partitions: int, count: int) -> None:
    """Plan a read in ranges of revisions, and read them all."""
    from kvctl.pipeline.options import parse
    from kvctl.pipeline.read.batch_reader import KvReader
    from kvctl.pipeline.read.columns import schema_of

    options = {"url": url, "bucket": bucket, "onEvicted": "fail", "partitions": str(partitions)}
    reader = KvReader(schema_of(()), parse(options))
    rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
    assert rows == count, rows


def write(url: str, folder: str, bucket: str) -> dict[str, float]:
    """Parquet into a bucket, after a first write that warms the session up."""
    with _engine() as engine:
        frame = engine.spark.read.parquet(folder)
        target: dict[str, Any] = {"url": url, "bucket": bucket}
        frame.limit(10_000).write.format("nats-kv").options(**target).mode("append").save()
        with worker.family() as told:
            frame.write.format("nats-kv").options(**target).mode("append").save()
    return told


def write_bare(url: str, folder: str, bucket: str) -> dict[str, float]:
    """Parquet into a bucket over a blocking socket: a thousand puts a write, acknowledgements only counted."""
    import pyarrow.dataset as data

    address, pending, rest = urlsplit(url), 0, b""
    with worker.family() as told, socket.create_connection((address.hostname, address.port), timeout=30) as server:

        def settle(most: int) -> None:
            nonlocal pending, rest
            while pending > most:
                received = server.recv(1 << 16)
                rest += received
                assert received
                assert b'"error"' not in rest, rest
                pending -= rest.count(b'"seq":')
                rest = rest[-5:]

        server.sendall(b'CONNECT {"verbose":false}\r\nSUB acks 1\r\n')
        prefix = f"PUB $KV.{bucket}.".encode()
        for batch in data.dataset(folder).to_batches(batch_size=1000):
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            server.sendall(b"".join(b"%b%b acks %d\r\n%b\r\n" % (prefix, k.encode(), len(v), v) for k, v in rows))
            pending += len(batch)
            settle(7000)
        settle(0)
    return told


def capture(url: str, bucket: str) -> dict[str, float]:
    """A capture of all changes into a new table, after a first one that warms the session up."""
    return _second(lambda engine, folder: _capture(engine, url, bucket, folder))


def capture_once(url: str, bucket: str, times: int) -> dict[str, float]:
    """Captures of one change into the same table, in a warm session."""
    import kvctl

    async def put(value: bytes) -> None:
        async with kvctl.connect(url) as client:
            await client.bucket(bucket).put("key", value)

    clock = worker.Clock()
    with _engine() as engine, tempfile.TemporaryDirectory() as folder:
        _capture(engine, url, bucket, folder)
        for number in range(times):
            asyncio.run(put(b"%d" % number))
            with clock.block():
                _capture(engine, url, bucket, folder)
    return {**clock.medians(), "slowest": max(clock.seconds)}


def export_parquet(url: str, bucket: str) -> dict[str, float]:
    """An export into Parquet, after a first one that warms the session up."""
    from kvctl.pipeline.jobs import export
    from kvctl.pipeline.jobs.export import of_bucket
    from kvctl.pipeline.options import parse
    from kvctl.pipeline.tables.storage import TablePlace

    options = parse({"url": url, "bucket": bucket})
    return _second(
        lambda engine, folder: export.export(engine, lambda: of_bucket(options), TablePlace(folder), format="parquet")
    )


def _capture(engine: Any, url: str, bucket: str, folder: str) -> None:
    from kvctl.pipeline.jobs import capture as job
    from kvctl.pipeline.options import parse
    from kvctl.pipeline.tables.storage import TablePlace

    order = job.CaptureOrder(once=True)
    job.capture(engine, parse({"url": url, "bucket": bucket}), TablePlace(folder), order)


def _second(job: Callable[[Any, str], object]) -> dict[str, float]:
    """Run a job into a folder, and measure it into another one."""
    with _engine() as engine, tempfile.TemporaryDirectory() as folder:
        job(engine, f"{folder}/first")
        with worker.family() as told:
            job(engine, f"{folder}/second")
    return told


@contextmanager
def _engine() -> Iterator[Any]:
    from kvctl.pipeline.spark.engine import Engine, SparkTarget

    with Engine(SparkTarget(master=CORES)) as engine:
        yield engine


if __name__ == "__main__":
    worker.serve_plain(
        rows, read, read_bare, gaps, read_divided, write, write_bare, capture, capture_once, export_parquet
    )
