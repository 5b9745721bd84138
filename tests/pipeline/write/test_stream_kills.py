"""Streams whose driver, JVM or worker is killed at recorded points: run again, every revision is there once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kvctl.pipeline.jobs.capture import capture
from kvctl.pipeline.options import parse
from kvctl.pipeline.read import checkpoints
from kvctl.server import Server
from tests.support.readme import ROOT

SCRIPT = """
import sys, threading, time
from itertools import count
from pathlib import Path
from kvctl.pipeline.files import capture_folder
from kvctl.pipeline.spark.engine import Engine
from kvctl.pipeline.jobs import capture as capturing
from kvctl.pipeline.options import given_as, parse
from kvctl.pipeline.spark.engine import SparkTarget
from tests.pipeline.killing import kill

sink, point, whom, url, bucket, folder = sys.argv[1:]
place, checkpoint = Path(folder, "capture"), Path(folder, "checkpoint")
calls = count(1)

def at(module, name, number, *, after=False):
    real = getattr(module, name)
    def call(*args, **settings):
        hit = next(calls) == number
        if hit and not after:
            kill(whom)
        result = real(*args, **settings)
        if hit and after:
            kill(whom)
        return result
    setattr(module, name, call)

def while_there(pattern):
    def look():
        while not any(checkpoint.parent.glob(pattern)):
            time.sleep(0.001)
        kill(whom)
    threading.Thread(target=look, daemon=True).start()

POINTS = {
    "first offset": lambda: while_there("checkpoint/offsets/.*"),
    "first plan": lambda: while_there("checkpoint/offsets/0"),
    "first rows": lambda: while_there("capture/_staging/*"),
    "first commit": lambda: while_there("checkpoint/commits/.*"),
    "second plan": lambda: while_there("checkpoint/offsets/1"),
    "third plan": lambda: while_there("checkpoint/offsets/2"),
    "written": lambda: at(capture_folder.CaptureFolder, "publish", 2),
    "counted": lambda: at(capture_folder.CaptureFolder, "_store", 3, after=True),
    "published": lambda: at(capture_folder.CaptureFolder, "publish", 2, after=True),
    "first rows of the sink": lambda: while_there("capture/*.parquet"),
}
POINTS[point]()
options = parse({"bucket": bucket, "url": url, "maxRevisionsPerTrigger": "1000", "partitions": "2"})
with Engine(SparkTarget(master="local[2]")) as engine:
    if sink == "capture":
        capturing.capture(engine, options, place, checkpoint, once=True)
    else:
        rows = engine.spark.readStream.format("nats-kv").options(**given_as(options)).load()
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start(str(place)).awaitTermination()
"""
"""A capture, or a stream into Spark's file sink, of 3,000 revisions in three batches, killed at a point of it."""
REVISIONS = 3000
CAPTURE_POINTS = [
    "first offset",
    "first plan",
    "first rows",
    "first commit",
    "second plan",
    "written",
    "counted",
    "published",
]


@pytest.fixture
def bucket(fill, raw):
    """A bucket of 3,000 revisions."""
    name = fill()
    for number in range(REVISIONS - 1):
        raw.publish(f"$KV.{name}.k{number}", b"value")
    raw.put(name, "last", b"value")
    return name


def run_killed(sink: str, point: str, whom: str, server: Server, bucket: str, folder: Path) -> None:
    """Run the script: a lost driver or JVM ends it; a worker, and what plans the batches, are made again."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    command = [sys.executable, "-c", SCRIPT, sink, point, whom, server.url, bucket, str(folder)]
    run = subprocess.run(command, env=environment, capture_output=True, timeout=600)
    expected = {"driver": -signal.SIGKILL, "jvm": 1}.get(whom, 0)
    said = run.stderr.decode()
    assert run.returncode == expected, said
    assert whom == "driver" or f"killed {whom}" in said, said
    assert whom != "jvm" or "KvctlError: Spark ended unexpectedly" in said


def captured(folder: Path) -> list[int]:
    """Revisions in all Parquet files below the folder, in whatever place."""
    files = sorted(folder.rglob("*.parquet"))
    return sorted(revision for path in files for revision in pq.read_table(path, columns=["revision"])[0].to_pylist())


@pytest.mark.guarantee("pipeline-29", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "whom"),
    [
        *((point, "driver") for point in CAPTURE_POINTS),
        ("first plan", "jvm"),
        ("written", "jvm"),
        ("first rows", "worker"),
        ("second plan", "worker"),
        ("written", "planner"),
    ],
)
def test_a_capture_that_is_killed_holds_every_revision_once_when_it_ran_again(
    point, whom, engine, server, bucket, tmp_path
):
    run_killed("capture", point, whom, server, bucket, tmp_path)
    before = captured(tmp_path / "capture")
    assert before == list(range(1, len(before) + 1))
    options = parse({"bucket": bucket, "url": server.url, "maxRevisionsPerTrigger": "1000"})
    found = capture(engine, options, tmp_path / "capture", tmp_path / "checkpoint", once=True)
    assert captured(tmp_path / "capture") == list(range(1, REVISIONS + 1))
    assert (found.state.rows, found.state.revision) == (REVISIONS, REVISIONS)
    assert not list((tmp_path / "capture" / "_staging").iterdir())


@pytest.mark.guarantee("pipeline-25", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize("whom", ["driver", "jvm", "worker"])
@pytest.mark.parametrize("point", ["first offset", "first rows of the sink", "second plan", "third plan"])
def test_a_stream_that_is_killed_is_in_a_file_sink_once_as_spark_reads_it(point, whom, spark, server, bucket, tmp_path):
    if (point, whom) == ("first offset", "worker"):
        pytest.skip("no worker reads there yet")
    run_killed("sink", point, whom, server, bucket, tmp_path)
    checkpoints.recover(tmp_path / "checkpoint")
    rows = spark.readStream.format("nats-kv").options(bucket=bucket, url=server.url, partitions=2).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "capture")).awaitTermination()
    found = spark.read.parquet(str(tmp_path / "capture")).select("revision").collect()
    assert sorted(row[0] for row in found) == list(range(1, REVISIONS + 1))


@pytest.mark.guarantee("pipeline-28", by="kill")
@pytest.mark.slow
def test_a_checkpoint_from_a_kill_in_the_first_write_is_refused_by_spark_until_it_is_cleared(
    spark, server, bucket, tmp_path
):
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / ".0.8f2c.tmp").write_bytes(b"v1\n")
    rows = spark.readStream.format("nats-kv").options(bucket=bucket, url=server.url).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    with pytest.raises(Exception, match="LOCATION_NOT_EMPTY"):
        writer.start().awaitTermination()
    assert checkpoints.recover(checkpoint)
    writer.start().awaitTermination()
    assert checkpoints.read(checkpoint).committed == 1
