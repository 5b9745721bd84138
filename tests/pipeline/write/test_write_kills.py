"""Writes whose processes are killed: a task's worker, the driver with all it started, the server."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kvctl
from kvctl.server import Server
from tests.pipeline.killing import below
from tests.support.raw import RawClient

JOB = """
import json, sys
from kvctl.pipeline.spark.engine import Engine
from kvctl.pipeline.spark.failure import explained
from kvctl.pipeline.spark.engine import SparkTarget

asked = json.loads(sys.argv[1])
with Engine(SparkTarget(master="local[2]")) as engine:
    try:
        if "stream" in asked:
            rows = engine.spark.readStream.schema("key string, value string").json(asked["stream"])
            rows = rows.repartition(asked["partitions"])
            query = rows.writeStream.format("nats-kv").options(**asked["options"])
            query.trigger(availableNow=True).start().awaitTermination()
        else:
            rows = engine.spark.range(0, asked["rows"], 1, 4)
            rows = rows.selectExpr("concat('k.', id) as key", "cast(concat('v', id) as binary) as value")
            rows.write.format("nats-kv").options(**asked["options"]).mode(asked["mode"]).save()
    except Exception as error:
        sys.exit(f"error: {explained(error)}")
"""
ROWS = 60_000


class Job:
    """A job on a Spark of its own, whose processes can be killed."""

    def __init__(self, directory: Path, **asked: Any) -> None:
        self._log = (directory / "job.log").open("a+")
        command = [sys.executable, "-c", JOB, json.dumps({"rows": ROWS, "mode": "append", **asked})]
        environment = {**os.environ, "TMPDIR": str(directory)}
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, cwd=directory, env=environment)

    def wait(self) -> int:
        return self.process.wait(600)

    @property
    def told(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def processes(self) -> list[int]:
        """The job's process and all below it."""
        return [self.process.pid, *below(self.process.pid)]

    def writers(self, port: int) -> list[int]:
        """Those that are connected to a server."""
        sockets = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines() if _port(line) == port}
        return [pid for pid in self.processes() if sockets & _sockets(pid)]

    def kill(self) -> None:
        for pid in self.processes():
            _kill(pid)
        self.process.wait(10)
        self._log.close()


def _port(line: str) -> int:
    address = line.split()[2]
    return int(address.partition(":")[2], 16) if ":" in address else 0


def _sockets(pid: int) -> set[str]:
    found = set()
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            found.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    return found


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(tmp_path):
    jobs: list[Job] = []

    def start(**asked: Any) -> Job:
        jobs.append(Job(tmp_path, **asked))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


def last_seq(raw: RawClient, bucket: str) -> int:
    answer = raw.api(f"STREAM.INFO.KV_{bucket}")
    return int(answer["state"]["last_seq"]) if "state" in answer else 0


def reach(raw: RawClient, bucket: str, sequence: int, job: Job) -> None:
    """Wait until a bucket has come to a revision while the job runs."""
    while last_seq(raw, bucket) < sequence:
        assert job.process.poll() is None, job.told
        time.sleep(0.002)


def keys(raw: RawClient, bucket: str) -> int:
    return int(raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["num_subjects"])


def port(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.fixture
def bucket(raw, unique):
    name = unique("KILL")
    raw.create_bucket(name, max_msgs_per_subject=5, duplicate_window=100_000_000)
    return name


def write_with_a_killed_worker(
    server: Server, raw: RawClient, start: Callable[..., Job], bucket: str, **more: str
) -> None:
    job = start(options={"url": server.url, "bucket": bucket, **more})
    reach(raw, bucket, 5_000, job)
    killed = job.writers(port(server))[:1]
    for pid in killed:
        _kill(pid)
    assert killed
    assert last_seq(raw, bucket) < ROWS
    assert job.wait() == 0, job.told
    assert (last_seq(raw, bucket), keys(raw, bucket)) == (ROWS, ROWS)


@pytest.mark.guarantee("pipeline-14", by="kill")
@pytest.mark.slow
def test_a_killed_worker_adds_no_second_revision(server, raw, start, bucket):
    write_with_a_killed_worker(server, raw, start, bucket)


@pytest.mark.guarantee("pipeline-14", by="kill")
@pytest.mark.slow
def test_conditions_hold_although_a_worker_is_killed(server, raw, start, bucket):
    write_with_a_killed_worker(server, raw, start, bucket, writeMode="create")


@pytest.mark.guarantee("pipeline-15", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize("sequence", [1, 20_000, 55_000])
def test_killed_driver_continues_under_the_same_id(server, raw, start, bucket, sequence):
    asked = {"options": {"url": server.url, "bucket": bucket, "writeId": "one"}}
    job = start(**asked)
    reach(raw, bucket, sequence, job)
    job.kill()
    assert last_seq(raw, bucket) < ROWS
    again = start(**asked)
    assert again.wait() == 0, again.told
    assert (last_seq(raw, bucket), keys(raw, bucket)) == (ROWS, ROWS)


@pytest.mark.guarantee("pipeline-18", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize(("sequence", "partitions"), [(1, 2), (30_000, 2), (30_000, 5)])
def test_a_killed_batch_of_a_stream_is_completed(server, raw, start, bucket, tmp_path, sequence, partitions):
    """In the same partitions or others; what somebody wrote since over a row of it stays."""
    folder = tmp_path / "input"
    folder.mkdir()
    for name in range(2):
        rows = ({"key": f"k.{n}", "value": f"v{n}"} for n in range(name * ROWS // 2, (name + 1) * ROWS // 2))
        (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"url": server.url, "bucket": bucket, "checkpointLocation": str(tmp_path / "checkpoint")}
    job = start(stream=str(folder), options=options, partitions=2)
    reach(raw, bucket, sequence, job)
    job.kill()
    assert last_seq(raw, bucket) < ROWS
    first = raw.api(f"STREAM.MSG.GET.KV_{bucket}", {"seq": 1})["message"]["subject"].removeprefix(f"$KV.{bucket}.")
    raw.put(bucket, first, b"theirs")
    again = start(stream=str(folder), options=options, partitions=partitions)
    assert again.wait() == 0, again.told
    assert (last_seq(raw, bucket), keys(raw, bucket)) == (ROWS + 1, ROWS)
    last = raw.api(f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": f"$KV.{bucket}.{first}"})["message"]
    assert base64.b64decode(last["data"]) == b"theirs"


@pytest.mark.guarantee("pipeline-17", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize("place", ["writing", "removal"])
def test_a_killed_overwrite_is_completed_by_the_next(server, raw, start, unique, place):
    bucket = unique("KILL")
    raw.create_bucket(bucket)
    before = 3000
    for n in range(before):
        raw.publish(f"$KV.{bucket}.old.{n}", b"old")
    while last_seq(raw, bucket) < before:
        time.sleep(0.01)
    asked = {"options": {"url": server.url, "bucket": bucket}, "mode": "overwrite"}
    job = start(**asked)
    reach(raw, bucket, {"writing": before + 5_000, "removal": before + ROWS + 1}[place], job)
    job.kill()
    if place == "writing":
        assert {f"old.{n}" for n in range(before)} <= asyncio.run(_living(server, bucket))
    again = start(**asked)
    assert again.wait() == 0, again.told
    assert asyncio.run(_living(server, bucket)) == {f"k.{n}" for n in range(ROWS)}


async def _living(server: Server, bucket: str) -> set[str]:
    async with kvctl.connect(server.url) as client:
        return {key async for key in client.bucket(bucket).keys()}


@pytest.mark.slow
def test_a_server_that_is_lost_is_one_clear_error(own_server, start):
    with RawClient(own_server.url) as raw:
        raw.create_bucket("LOST")
        job = start(options={"url": own_server.url, "bucket": "LOST"})
        reach(raw, "LOST", 5_000, job)
    own_server.kill()
    assert job.wait() == 1
    lines = [line for line in job.told.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert len(job.told) < 2_000
