"""Jobs on a cluster, behind Spark Connect, and by spark-submit, on loopback."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kvctl.server import Server
from tests.cli.conftest import Result, run_process
from tests.pipeline.cluster import READY, SMALL, SPARK_HOME, environment, run_cluster, run_connect
from tests.support.readme import ROOT

pytestmark = pytest.mark.slow

ENTRIES = {f"key.{number}": b"\xff\0%d" % number for number in range(50)}
SUBMITTED = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
try:
    import kvctl
    sys.exit("kvctl is installed here")
except ImportError:
    pass
spark.sparkContext.addPyFile(sys.argv[1])
import kvctl.pipeline
kvctl.pipeline.register(spark)
rows = spark.read.format("nats-kv").options(**json.loads(sys.argv[2])).load()
rows.write.parquet(sys.argv[3])
copy = {**json.loads(sys.argv[2]), "bucket": sys.argv[4]}
rows.select("key", "value").write.format("nats-kv").options(**copy).mode("append").save()
spark.stop()
"""
"""Copies a bucket, with kvctl shipped and not installed."""

MISSING = """
import json, sys
from kvctl.errors import KvctlError
from kvctl.pipeline.spark.engine import Engine
from kvctl.pipeline.spark.engine import SparkTarget

place = json.loads(sys.argv[1])
given = {place[0].removeprefix("--"): place[1]}
conf = dict(word.split("=", 1) for word in place[2:] if "=" in word)
try:
    with Engine(SparkTarget(**given, conf=conf)) as engine:
        engine.spark.read.format("nats-kv").options(**json.loads(sys.argv[2])).load().count()
except KvctlError as error:
    print(type(error).__name__, error.exit_code, error.message, sep="\\n")
"""
"""Reads a bucket that does not exist."""
HERE = {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with run_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    with run_connect(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture(params=["cluster", "remote", "remote-local"])
def place(request):
    """Options that name the place."""
    if request.param == "cluster":
        return ["--master", request.getfixturevalue("cluster").url, *SMALL]
    if request.param == "remote":
        return ["--remote", request.getfixturevalue("remote")]
    return ["--remote", "local[2]"]


def test_check_lists_the_workers(place):
    done = pipeline("check", *place, "-o", "json")
    found = json.loads(done.out)
    assert [worker["python"] for worker in found["workers"]] == [".".join(map(str, sys.version_info[:3]))]
    assert done.err == ""


def test_a_python_in_an_archive_runs_the_tasks(cluster, server, fill, tmp_path):
    """Packed as venv-pack and conda-pack do; only executors have it, below their own directory."""
    program = tmp_path / "env" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$PWD" >> {tmp_path}/used\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    archive = shutil.make_archive(str(tmp_path / "packed"), "gztar", tmp_path / "env")
    shutil.rmtree(tmp_path / "env")
    where = ["--master", cluster.url, *SMALL, "--conf", f"spark.archives={archive}#env"]
    where += ["--conf", "spark.pyspark.python=./env/bin/python"]
    pipeline("check", *where)
    used = set((tmp_path / "used").read_text().splitlines())
    assert used
    assert all(directory.startswith(str(cluster.work)) for directory in used)


@pytest.mark.guarantee("pipeline-12")
def test_rejected_rows_are_counted_where_spark_shares_no_folder_with_the_command(remote, server, fill, tmp_path):
    bucket, table = fill(), tmp_path / "stock.csv"
    table.write_text("sku,count\na,1\nb c,2\nd,3\n")
    line = ["load", str(table), "--into", bucket, "--key", "sku", "--value", "count", "--remote", remote]
    line += ["--dead-letter", str(tmp_path / "dead"), "-s", server.url, "-o", "json"]
    # The folder for temporary files is another one in each process.
    done = run_process("pipeline", *line, timeout=READY, env={"TMPDIR": "/proc/self/cwd"})
    assert done.exit_code == 7, done.err
    counts = {"rows": 3, "written": 2, "unchanged": 0, "rejected": 1}
    assert counts.items() <= json.loads(done.out).items()


def test_an_error_of_a_worker_is_the_same_error_everywhere(place, server):
    options = {"bucket": "missing", "url": server.url}
    command = [sys.executable, "-c", MISSING, json.dumps(place), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY, env={**os.environ, **HERE})
    assert done.stdout.splitlines() == ["BucketNotFound", "3", "Bucket `missing` does not exist"], done.stderr[-3000:]


def test_spark_submit_with_kvctl_shipped_copies_a_bucket(cluster, server, fill, tmp_path):
    source, target = fill(ENTRIES), fill()
    (tmp_path / "submitted.py").write_text(SUBMITTED)
    shipped = shipped_package(tmp_path)
    options = json.dumps({"bucket": source, "url": server.url})
    line = [str(tmp_path / "submitted.py"), str(shipped), options, str(tmp_path / "out"), target]
    settings = ["--master", cluster.url, *SMALL, "--conf", "spark.ui.enabled=false"]
    done = subprocess.run(
        [SPARK_HOME / "bin" / "spark-submit", *settings, *line],
        env=environment(tmp_path, without_kvctl(tmp_path)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=READY,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert contents(target, server) == contents(source, server)


def pipeline(*line: str) -> Result:
    """Run `kvctl pipeline`; it has to succeed."""
    done = run_process("pipeline", *line, timeout=READY)
    assert done.exit_code == 0, done.err
    return done


def contents(bucket: str, server: Server) -> dict[str, str]:
    """Keys and values of a bucket, as kvctl lists them."""
    listed = run_process("get", bucket, ">", "-o", "json", "-s", server.url)
    return {entry["key"]: entry["value"] for entry in json.loads(listed.out)}


def shipped_package(place: Path) -> Path:
    """kvctl as a zip."""
    (place / "ship").mkdir()
    shutil.copytree(ROOT / "kvctl", place / "ship" / "kvctl", ignore=shutil.ignore_patterns("__pycache__"))
    return Path(shutil.make_archive(str(place / "kvctl"), "zip", place / "ship"))


def without_kvctl(place: Path) -> dict[str, str]:
    """Variables for a Python that has everything that is installed here but kvctl."""
    packages, python = place / "packages", place / "python"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "kvctl" not in path.name:
            (packages / path.name).symlink_to(path)
    # Executors have the environment of their cluster, so the program brings the packages along.
    variable = f"{packages}${{PYTHONPATH:+:$PYTHONPATH}}"
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{variable}"\nexec {sys.executable} -S "$@"\n')
    os.chmod(python, 0o755)
    return {"PYSPARK_PYTHON": str(python)}
