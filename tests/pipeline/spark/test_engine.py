"""The session: what is set in it, what of Spark's errors reaches a user, and a machine that has only Python."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from kvctl.errors import KvctlError, NoServer, UsageError, WrongRevision
from kvctl.pipeline import _check_python, register
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.spark import engine as engine_module
from kvctl.pipeline.spark.engine import LOGGING, Engine, SparkTarget, check_reachable, settings, with_retries
from kvctl.pipeline.spark.tasks import progress_text
from tests.support.raw import RawClient
from tests.support.readme import ROOT

if TYPE_CHECKING:
    import pyarrow as pa

Batches = Iterator["pa.RecordBatch"]


def test_times_are_utc(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_tables_are_kept_in_the_directory_of_the_session(engine, spark):
    spark.sql("create table kept (x int) using parquet")
    try:
        (row,) = spark.sql("describe extended kept").where("col_name = 'Location'").collect()
        assert row.data_type == f"file:{engine.scratch}/warehouse/kept"
    finally:
        spark.sql("drop table kept")


class TestErrors:
    def test_an_error_of_kvctl_in_a_task_is_the_same_error_here(self, engine):
        caught = failure_of(engine, lambda: on_workers(engine, refuse))
        assert isinstance(caught, WrongRevision)
        assert (caught.message, caught.hint, caught.found) == ("Revision 1 is not the last", "Read it again", 3)

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


def test_progress_of_a_job_is_its_stage_and_tasks(engine):
    rows = engine.spark.range(0, 400_000, 1, 4).mapInArrow(slowly, "id bigint")
    job = threading.Thread(target=rows.write.format("noop").mode("overwrite").save)
    job.start()
    seen = set()
    while job.is_alive():
        seen.add(progress_text(engine))
        job.join(0.1)
    assert seen - {""} <= {f"stage 1 of 1, task {done} of 4{more}" for done in range(5) for more in WAITING}
    assert len(seen - {""}) > 1
    assert progress_text(engine) == ""


WAITING = ("", ", waiting for workers")
BARE = """
import json, logging, os, sys
from kvctl.pipeline.spark.engine import Engine, SparkTarget
from kvctl.pipeline.spark.java import find_java

options, out = json.loads(sys.argv[1]), sys.argv[2]
logging.getLogger().addHandler(logging.NullHandler())
with Engine(SparkTarget(master="local[1]")) as engine:
    engine.spark.read.format("nats-kv").options(**options).load().write.parquet(out)
    print(json.dumps(find_java().build), flush=True)
    engine.context._gateway.proc.kill()
    try:
        with engine.explaining():
            engine.spark.range(1).count()
    except Exception as error:
        print(json.dumps([type(error).__name__, error.message]))
"""
"""Exports a bucket, then loses its JVM. What libraries log is not shown, as in a command."""
SYSTEM = "basename bash cat chmod dirname env ls mkdir ps readlink rm sed sh uname".split()
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
        raw.create_bucket("BARE", {f"key.{number}": b"\xff%d" % number for number in range(20)})
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


@pytest.mark.slow
class TestAMachineWithOnlyPython:
    def test_exports_a_bucket_by_the_java_that_comes_with_kvctl(self, bare, spark):
        (build, _), _, place = bare
        rows = spark.read.parquet(str(place / "out")).collect()
        assert {row["key"]: bytes(row["value"]) for row in rows} == {f"key.{n}": b"\xff%d" % n for n in range(20)}
        assert build.startswith("25.")

    def test_hears_nothing_of_what_spark_and_java_print(self, bare):
        assert bare[1] == ""

    def test_finds_nothing_left_behind(self, bare):
        assert sorted(path.name for path in bare[2].iterdir()) == ["bin", "out", "tmp"]
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


# -- without a session ---------------------------------------------------------------------------------------


def told(target: SparkTarget) -> dict[str, str]:
    return settings(target, "/scratch")


@pytest.mark.parametrize(
    ("master", "told_as"),
    [
        ("local", "local[1,4]"),
        ("local[3]", "local[3,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://a:7077", "spark://a:7077"),
    ],
)
def test_a_task_has_four_attempts_on_this_machine_too(master, told_as):
    assert with_retries(master) == told_as


def test_a_driver_listens_on_loopback_unless_a_cluster_has_to_reach_it():
    local, here, away = (told(SparkTarget(master)) for master in (None, "spark://127.0.0.1:7077", "spark://a:7077"))
    assert local["spark.driver.host"] == local["spark.driver.bindAddress"] == here["spark.driver.host"] == "127.0.0.1"
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & away.keys()
    assert (local["spark.ui.enabled"], local["spark.sql.warehouse.dir"]) == ("false", "/scratch/warehouse")


def test_user_settings_override_ours_and_extend_java_options():
    conf = {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Xss4m"}
    found = told(SparkTarget(conf=conf))
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.driver.extraJavaOptions"] == f"-Dlog4j2.configurationFile={LOGGING.as_uri()} -Xss4m"


@pytest.mark.parametrize(
    "target",
    [{"master": "local", "remote": "sc://a"}, {"master": ""}, {"remote": ""}, {"remote": "spark://a"}],
    ids=str,
)
def test_invalid_masters_and_remotes_are_refused(target):
    with pytest.raises(UsageError):
        SparkTarget(**target)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"remote": "sc://a", "conf": {"spark.pyspark.python": "/x"}}, "is a setting of the Spark Connect server"),
        ({"remote": "sc://a", "conf": {"spark.archives": "x#y"}}, "is a setting of the Spark Connect server"),
        ({"master": "spark://a:1", "conf": {"spark.archives": "x#y"}}, "has a Python that nothing names"),
        ({"master": "spark://a:1", "conf": {"spark.pyspark.python": "../python"}}, "leads out of the directory"),
    ],
    ids=str,
)
def test_settings_of_the_workers_python_that_cannot_work_are_refused(monkeypatch, target, words):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with pytest.raises(UsageError, match=words):
        SparkTarget(**target)


def test_the_workers_python_is_that_of_the_setting_then_of_the_environment(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/of/environment")
    named = {"spark.pyspark.python": "/of/setting"}
    assert SparkTarget("spark://a:1", conf=named).python == "/of/setting"
    assert SparkTarget("spark://a:1").python == "/of/environment"
    assert SparkTarget(conf=named).python == "/of/setting"
    assert SparkTarget().python is None


def test_registering_warns_of_another_python(spark, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register(spark)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3-of-the-system")
    with pytest.warns(UserWarning, match=f"with `python3-of-the-system`.* set PYSPARK_PYTHON={sys.executable}"):
        _check_python(spark)


@pytest.mark.parametrize("kind", ["master", "remote"])
def test_unreachable_server_is_reported_immediately(kind):
    scheme = {"master": "spark", "remote": "sc"}[kind]
    with pytest.raises(NoServer, match=r"Could not reach .*: Connection refused"):
        check_reachable(SparkTarget(**{kind: f"{scheme}://127.0.0.1:1"}))


def test_listener_that_is_not_a_connect_server_is_reported_quickly(server, monkeypatch):
    monkeypatch.setattr(engine_module, "ANSWER_TIMEOUT_S", 0.5)
    with pytest.raises(NoServer, match="is not a Spark Connect server"):
        check_reachable(SparkTarget(remote=f"sc://127.0.0.1:{server.port}"))
    with pytest.raises(UsageError, match="is not the URL of a Spark Connect server"):
        check_reachable(SparkTarget(remote=f"sc://127.0.0.1:{server.port}/path;token=hush"))


@pytest.mark.parametrize("address", ["", ":7077", "a:b", "[::1"])
def test_invalid_address_is_refused(address):
    with pytest.raises(UsageError, match="not a server address"):
        check_reachable(SparkTarget(f"spark://{address}"))
