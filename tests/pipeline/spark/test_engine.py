"""The session: what is set in it, what of Spark's errors reaches a user, and a machine that has only Python."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvctl.errors import BucketNotFound, KvctlError, UsageError, WrongRevision
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.spark.engine import Engine
from tests.support.raw import RawClient
from tests.support.readme import ROOT

if TYPE_CHECKING:
    import pyarrow as pa

Batches = Iterator["pa.RecordBatch"]


def test_filters_are_pushed_down_and_times_are_utc(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_tables_leave_nothing_in_the_working_directory(spark, tmp_path):
    spark.sql("create table kept (x int) using parquet")
    spark.sql("insert into kept values (1)")
    assert spark.table("kept").count() == 1
    spark.sql("drop table kept")
    assert not list(Path.cwd().glob("spark-warehouse"))


class TestErrors:
    def test_an_error_of_kvctl_in_a_task_is_the_same_error_here(self, engine):
        caught = failure_of(engine, lambda: on_workers(engine, refuse))
        assert isinstance(caught, WrongRevision)
        assert (caught.message, caught.hint, caught.found) == ("Revision 1 is not the last", "Read it again", 3)

    def test_a_bucket_that_is_missing_is_known_while_planning(self, engine, server):
        options = {"bucket": "MISSING", "url": server.url}
        caught = failure_of(engine, engine.spark.read.format("nats-kv").options(**options).load().count)
        assert isinstance(caught, BucketNotFound)
        assert "`MISSING`" in caught.message

    def test_an_option_that_is_wrong_is_a_usage_error(self, engine):
        reader = engine.spark.read.format("nats-kv").option("bukket", "B")
        caught = failure_of(engine, lambda: reader.load().count())
        assert isinstance(caught, UsageError)
        assert "bukket" in caught.message

    def test_a_killed_worker_is_one_line(self, engine):
        caught = failure_of(engine, lambda: on_workers(engine, die))
        assert caught.message == "A Python worker of Spark ended unexpectedly"

    def test_any_other_error_of_python_is_its_last_line(self, engine):
        caught = failure_of(engine, lambda: on_workers(engine, stumble))
        assert re.fullmatch("Spark failed: ZeroDivisionError: .* by zero", caught.message)

    def test_a_column_that_is_missing_is_a_usage_error(self, engine):
        caught = failure_of(engine, lambda: engine.spark.range(1).select("nothing").count())
        assert isinstance(caught, UsageError)
        assert "`nothing`" in caught.message
        assert "SQLSTATE" not in caught.message

    def test_an_error_of_java_is_its_cause(self, engine):
        caught = failure_of(engine, lambda: engine.spark.range(1).write.parquet("/proc/nothing/here"))
        assert "/proc/nothing" in caught.message
        assert "\n" not in caught.message
        assert "org.apache" not in caught.message


def test_how_far_a_job_is_can_be_seen_meanwhile(engine, tmp_path):
    import threading

    rows = engine.spark.range(0, 400_000, 1, 4).mapInArrow(slowly, "id bigint")
    job = threading.Thread(target=rows.write.format("noop").mode("overwrite").save)
    job.start()
    seen = []
    while job.is_alive():
        seen.append(engine.progress())
        job.join(0.1)
    known = [progress for progress in seen if progress is not None]
    assert {(progress.stage, progress.stages, progress.tasks) for progress in known} == {(1, 1, 4)}
    assert any(progress.rows and progress.rows < 400_000 for progress in known)
    assert engine.progress() is None


BARE = """
import json, logging, os, sys
from kvctl.pipeline.spark.engine import Engine
from kvctl.pipeline.spark.session_config import Target

options, out = json.loads(sys.argv[1]), sys.argv[2]
logging.getLogger().addHandler(logging.NullHandler())
with Engine.start(Target(master="local[1]")) as engine:
    engine.spark.read.format("nats-kv").options(**options).load().write.parquet(out)
    print(json.dumps(engine.archive.java.build), flush=True)
    engine._jvm.kill()
    try:
        with engine.explaining():
            engine.spark.range(1).count()
    except Exception as error:
        print(json.dumps([type(error).__name__, error.message]))
"""
"""Exports a bucket, then loses its JVM. What libraries log is not shown, as in a command."""
SYSTEM = (
    "basename",
    "bash",
    "cat",
    "chmod",
    "dirname",
    "env",
    "ls",
    "mkdir",
    "ps",
    "readlink",
    "rm",
    "sed",
    "sh",
    "uname",
)
"""What Spark's scripts call, of what every machine has."""


@pytest.fixture(scope="module")
def bare(server, tmp_path_factory):
    """Run `BARE` on a machine without a Java; return its output, its stderr, and its directory."""
    place = tmp_path_factory.mktemp("bare")
    (place / "bin").mkdir()
    (place / "tmp").mkdir()
    for name in filter(shutil.which, SYSTEM):
        (place / "bin" / name).symlink_to(str(shutil.which(name)))
    with RawClient(server.url) as raw:
        raw.create_bucket("BARE")
        for number in range(20):
            raw.put("BARE", f"key.{number}", b"\xff%d" % number)
    options = json.dumps({"bucket": "BARE", "url": server.url})
    environment = {
        "PATH": str(place / "bin"),
        "HOME": str(place),
        "TMPDIR": str(place / "tmp"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", BARE, options, str(place / "out")]
    done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr, place


class TestAMachineWithOnlyPython:
    def test_exports_a_bucket_by_the_java_that_comes_with_kvctl(self, bare, spark):
        (build, _), _, place = bare
        rows = spark.read.parquet(str(place / "out")).collect()
        assert {row["key"]: bytes(row["value"]) for row in rows} == {f"key.{n}": b"\xff%d" % n for n in range(20)}
        assert build.startswith("25.")

    def test_hears_nothing_of_what_spark_and_java_print(self, bare):
        assert bare[1] == ""

    def test_finds_nothing_left_behind(self, bare):
        assert sorted(path.name for path in bare[2].iterdir()) == [".cache", "bin", "out", "tmp"]
        assert not [path.name for path in (bare[2] / "tmp").iterdir() if path.name.startswith("kvctl")]

    def test_a_jvm_that_ends_is_one_line(self, bare):
        assert bare[0][1] == ["KvctlError", "Spark ended unexpectedly"]


def failure_of(engine: Engine, action: Callable[[], object]) -> KvctlError:
    """The error that an action ends in; one that a person can read."""
    with pytest.raises(KvctlError) as caught, engine.explaining():
        action()
    assert len(f"{caught.value.message}{caught.value.hint}") < 1000
    assert "\tat " not in f"{caught.value.message}{caught.value.hint}"
    return caught.value


def on_workers(engine: Engine, work: Callable[[Batches], Batches]) -> None:
    engine.spark.range(10).mapInArrow(work, "id bigint").collect()


def refuse(batches: Batches) -> Batches:
    with crossing():
        raise WrongRevision("Revision 1 is not the last", found=3, hint="Read it again")
    yield from batches


def stumble(batches: Batches) -> Batches:
    yield from (batch for batch in batches if 1 // 0)


def die(batches: Batches) -> Batches:
    os.kill(os.getpid(), 9)
    yield from batches


def slowly(batches: Batches) -> Batches:
    import time

    for batch in batches:
        time.sleep(0.2)
        yield batch


def test_engine_is_a_public_name_of_the_pipeline():
    import kvctl.pipeline

    assert kvctl.pipeline.Engine is Engine
    assert not hasattr(kvctl.pipeline, "nothing")
