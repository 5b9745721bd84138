"""Jobs on Spark while a link is cut or a server dies: complete, or a promised exit code and a complete second run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import kvctl
from kvctl.errors import KvctlError
from kvctl.jetstream.consumers import admin
from kvctl.pipeline.tables.file_rows import data_files
from tests.faults.network import CLIENT
from tests.faults.test_cluster import Servers, answers_lost, clients_away, killed, leader_of, leader_ready
from tests.faults.workload import Workload
from tests.support.readme import ROOT

pytestmark = pytest.mark.faults

ROWS = 40_000
HISTORY = 5
"""Of the bucket that is written: a row that is written twice is seen."""
SHARE = 20
"""The fault begins when this part of the rows has been written."""
EXPORT_RATE = "8mbit"
"""Of each server while it is exported: it takes about 13 s, so that the fault begins in the middle of it."""
PROMISED = {0, 5, 6, 7}
LONGEST_S = 400
POLL_S = 0.1
VALUES = {f"k.{number % 50}.{number}": b"%d " % number * 40 for number in range(ROWS)}

STREAM = """
import sys
from kvctl.pipeline.spark.engine import Engine
from kvctl.pipeline.spark.failure import explained
from kvctl.pipeline.spark.engine import SparkTarget

url, rows, checkpoint = sys.argv[1:]
with Engine(SparkTarget(master="local[2]")) as engine:
    try:
        frame = engine.spark.readStream.schema("key string, value string").json(rows).repartition(3)
        write = frame.writeStream.format("nats-kv").options(url=url, bucket="B").trigger(availableNow=True)
        write.option("checkpointLocation", checkpoint).start().awaitTermination()
    except Exception as error:
        found = explained(error)
        print(found, found.hint, file=sys.stderr)
        sys.exit(found.exit_code)
"""


class Job:
    """A job of one kind: prepared while all is well, run as a process, checked at the end."""

    def __init__(self, folder: Path, urls: str) -> None:
        self.folder, self.urls = folder, urls

    async def prepare(self, client: kvctl.Client) -> None:
        """Make what the job reads, and the bucket that it writes."""
        await client.create_bucket("B", replicas=3, history=HISTORY)

    def command(self) -> list[str]:
        """The arguments of Python."""
        raise NotImplementedError

    async def progress(self, client: kvctl.Client) -> int:
        """How much the job has done."""
        info = (await client.bucket("B").locate(fresh=True)).info
        return int(info["state"]["messages"])

    async def found(self, client: kvctl.Client) -> list[tuple[str, bytes]]:
        """Every row that was written, as often as it was."""
        return [(entry.key, entry.value) async for entry in client.bucket("B").history()]


class Export(Job):
    async def prepare(self, client: kvctl.Client) -> None:
        bucket = await client.create_bucket("B", replicas=3)
        await bucket.put_many(VALUES.items())

    def command(self) -> list[str]:
        return _kvctl(self.urls, "pipeline", "export", "B", "--to", str(self.folder / "export"), "--overwrite")

    async def progress(self, client: kvctl.Client) -> int:
        """What its reader was sent: a file appears only when it is complete."""
        readers, _ = await admin.listing(client.api, "KV_B")
        return max((reader["delivered"]["stream_seq"] for reader in readers), default=0)

    async def found(self, client: kvctl.Client) -> list[tuple[str, bytes]]:
        tables = [pq.ParquetFile(path).read(["key", "value"]) for path in data_files(self.folder / "export")]
        return [(row["key"], row["value"]) for table in tables for row in table.to_pylist()]


class Load(Job):
    async def prepare(self, client: kvctl.Client) -> None:
        await super().prepare(client)
        _write_rows(self.folder / "rows.json")

    def command(self) -> list[str]:
        table = str(self.folder / "rows.json")
        return _kvctl(self.urls, "pipeline", "load", table, "--into", "B", "--key", "key", "--if-different")


class Stream(Job):
    async def prepare(self, client: kvctl.Client) -> None:
        await super().prepare(client)
        (self.folder / "rows").mkdir()
        _write_rows(self.folder / "rows" / "1.json")

    def command(self) -> list[str]:
        return ["-c", STREAM, self.urls, str(self.folder / "rows"), str(self.folder / "checkpoint")]


def _kvctl(urls: str, *words: str) -> list[str]:
    return ["-m", "kvctl", "-s", urls, *words, "--master", "local[2]"]


def _write_rows(path: Path) -> None:
    rows = ({"key": key, "value": value.decode()} for key, value in VALUES.items())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Running:
    """The process of a job."""

    def __init__(self, job: Job, log: Path) -> None:
        self.job, self.log = job, log
        self.seconds = self.longest_gap = 0.0

    async def run(self, client: kvctl.Client, fault: Callable[[], Awaitable[None]] | None = None) -> int:
        """Run it to its end; `fault` begins in the middle of it. The exit code."""
        begun = time.monotonic()
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *self.job.command(), stdout=log, stderr=log, cwd=self.job.folder, env=_environment()
            )
        try:
            async with asyncio.timeout(LONGEST_S):
                if fault is not None:
                    await self._reach(client, ROWS // SHARE, process)
                    await asyncio.gather(fault(), self._watch(client, process))
                return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            self.seconds = time.monotonic() - begun

    async def _reach(self, client: kvctl.Client, amount: int, process: asyncio.subprocess.Process) -> None:
        while await self.job.progress(client) < amount:
            assert process.returncode is None, f"ended before the fault: {self.told()}"
            await asyncio.sleep(POLL_S / 10)

    async def _watch(self, client: kvctl.Client, process: asyncio.subprocess.Process) -> None:
        """Note the longest time without progress."""
        done, since = 0, time.monotonic()
        while process.returncode is None:
            with suppress(KvctlError):  # it may be cut off, too
                if (now := await self.job.progress(client)) != done:
                    done, since = now, time.monotonic()
            self.longest_gap = max(self.longest_gap, time.monotonic() - since)
            await asyncio.sleep(POLL_S)

    def told(self) -> str:
        """The end of what it said."""
        return self.log.read_text()[-3000:]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NATS_")}
    return {**kept, "PYTHONPATH": str(ROOT)}


KINDS = pytest.mark.parametrize("kind", [Export, Load, Stream], ids=lambda kind: kind.__name__.lower())
Note = Callable[[Workload, int], None]


@pytest.mark.parametrize("fault", [clients_away, answers_lost, killed], ids=lambda fault: fault.__name__)
@KINDS
async def test_pipeline(cluster3, tmp_path, kind, fault, report):
    """Every row is there once at the end, whatever the first run said."""
    job, running = await _prepared(cluster3, tmp_path, kind)
    leader = await leader_of(cluster3, "B")
    async with kvctl.connect(job.urls) as client:
        code = await running.run(client, lambda: fault(cluster3, leader))
    await _complete(running, code, report)


@KINDS
async def test_pipeline_without_any_server(cluster3, tmp_path, kind, report):
    """The first run gives up, the second one completes."""
    job, running = await _prepared(cluster3, tmp_path, kind)
    network = next(iter(cluster3.values())).network

    async def away() -> None:
        network.isolate(CLIENT)

    async with kvctl.connect(job.urls) as client:
        code = await running.run(client, away)
        network.heal()
    assert code, "the job ended well without a server"
    await _complete(running, code, report)


async def _prepared(servers: Servers, folder: Path, kind: type[Job]) -> tuple[Job, Running]:
    urls = [server.url for server in servers.values()]
    await leader_ready(urls)
    job = kind(folder, ",".join(urls))
    async with kvctl.connect(job.urls) as client:
        await job.prepare(client)
    for name, server in servers.items() if kind is Export else ():
        server.network.slow(name, EXPORT_RATE)
    return job, Running(job, folder / "log")


async def _complete(running: Running, code: int, report: Note) -> None:
    """Run the job again where it failed, and compare all rows."""
    work = Workload("B", operations=ROWS, failed=int(code == 5), unknown=int(code == 6))
    work.longest_gap, work.longest_wait = running.longest_gap, running.seconds
    assert code in PROMISED, running.told()
    async with kvctl.connect(running.job.urls) as client:
        if code:
            again = Running(running.job, running.job.folder / "again")
            assert await again.run(client) == 0, again.told()
        found = await running.job.found(client)
    counted = dict(found)
    work.violations += [f"lost {key}" for key in VALUES if counted.get(key) != VALUES[key]]
    work.violations += [f"{len(found) - len(VALUES)} rows too many"] * (len(found) != len(VALUES))
    report(work, 1)
    assert not work.violations, work.violations[:5]
