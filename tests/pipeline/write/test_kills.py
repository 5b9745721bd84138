"""Killed exports and loads: nothing incomplete counts as complete, and a repeated run completes them."""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvctl.errors import ConflictError
from kvctl.pipeline.files import contents, export_files, target_folder
from kvctl.pipeline.files.export_manifest import MANIFEST
from kvctl.pipeline.jobs.export import export
from kvctl.pipeline.jobs.load import Order, load, open_export
from kvctl.pipeline.options import SourceOptions
from kvctl.server import Server
from tests.support.readme import ROOT

SCRIPT = """
import os, sys, threading, time
from functools import partial
from pathlib import Path
from kvctl import atomic_file
from kvctl.pipeline.files import contents, target_folder
from kvctl.pipeline.spark.engine import Engine
from kvctl.pipeline.jobs import export as exporting, load as loading
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.spark.engine import SparkTarget
from tests.pipeline.killing import kill

job, point, whom, url, bucket, folder = sys.argv[1:]

def kill_before(module, name):
    before = getattr(module, name)
    def killed(*args, **settings):
        kill(whom)
        return before(*args, **settings)
    setattr(module, name, killed)

def kill_between(replace, *args):
    if Path(args[1]).name == "part-00001.parquet":
        kill(whom)
    replace(*args)

def kill_at_manifest(replace, path, *args, **settings):
    if path == Path(folder, target_folder.MANIFEST):
        kill(whom)
    replace(path, *args, **settings)

def kill_while(begun):
    def look():
        while not begun():
            time.sleep(0.002)
        kill(whom)
    threading.Thread(target=look, daemon=True).start()

if point == "writing" and job == "export":
    kill_while(lambda: any(Path(folder).glob("_incomplete/*/part-*")))
elif point == "staged":
    kill_before(target_folder, "staged")
elif point == "half moved":
    os.replace = partial(kill_between, os.replace)
elif point == "moved":
    atomic_file.replace = partial(kill_at_manifest, atomic_file.replace)

with Engine(SparkTarget(master="local[2]")) as engine:
    options = SourceOptions(bucket=bucket, url=url, partitions=2, on_evicted="fail")
    if job == "export":
        exporting.export(engine, lambda: contents.of_bucket(options), Path(folder), overwrite=True)
    else:
        from tests.support.raw import RawClient
        looking = RawClient(url)
        def loaded():
            found = looking.api("STREAM.INFO.KV_" + bucket)
            return found.get("state", {}).get("messages", 0) > 1000
        kill_while(loaded)
        options = SourceOptions(bucket=bucket, url=url)
        loading.load(engine, loading.open_export(Path(folder)), options, loading.Order(create=True))
"""
"""A job that is killed at a point of it, or some of its processes are."""
POINTS = ["writing", "staged", "moved"]


@dataclass(frozen=True)
class Killed:
    """Result of a killed job."""

    exit_code: int
    errors: str


def run_killed(job: str, point: str, whom: str, server: Server, bucket: str, folder: Path) -> Killed:
    """Run the script; what outlives a killed driver for a moment holds up nothing."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder.parent)}
    command = [sys.executable, "-c", SCRIPT, job, point, whom, server.url, bucket, str(folder)]
    with tempfile.TemporaryFile() as errors:
        exit_code = subprocess.run(command, env=environment, stderr=errors, timeout=900).returncode
        errors.seek(0)
        said = errors.read().decode()
    assert whom == "driver" or f"killed {whom}" in said, said
    return Killed(exit_code, said)


@pytest.mark.guarantee("pipeline-22", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize("point", [*POINTS, "half moved"])
def test_an_export_whose_driver_is_killed_is_none_until_it_is_run_again(point, engine, server, fill, tmp_path):
    bucket = fill({f"k.{n}": b"x" * 100 for n in range(3000)})
    folder = tmp_path / "out"
    killed = run_killed("export", point, "driver", server, bucket, folder)
    assert killed.exit_code == -signal.SIGKILL, killed.errors
    assert not (folder / MANIFEST).exists()
    assert any(folder.rglob("part-*"))
    asked = SourceOptions(bucket=bucket, url=server.url)
    with pytest.raises(ConflictError, match="not a complete export"):
        target_folder.check_vacant(folder, overwrite=False)
    made = export(engine, lambda: contents.of_bucket(asked), folder, overwrite=True)
    assert made.removed.files > 0
    assert not made.removed.whole
    assert made.manifest.rows == 3000
    assert export_files.damages(folder, export_files.read_manifest(folder)) == []
    assert not (folder / target_folder.STAGING).exists()


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["jvm", "worker"])
def test_an_export_whose_spark_is_killed_fails_in_one_line_and_leaves_the_one_before(
    whom, engine, server, fill, tmp_path
):
    bucket = fill({f"k.{n}": b"x" * 1000 for n in range(20_000)})
    asked = SourceOptions(bucket=bucket, url=server.url)
    folder = tmp_path / "out"
    export(engine, lambda: contents.of_bucket(asked), folder)
    killed = run_killed("export", "writing", whom, server, bucket, folder)
    if whom == "worker":  # a task is tried again
        assert killed.exit_code == 0, killed.errors
    else:
        assert killed.exit_code == 1
        assert "KvctlError: Spark ended unexpectedly" in killed.errors
    assert export_files.damages(folder, export_files.read_manifest(folder)) == []


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["driver", "jvm", "worker"])
async def test_a_load_that_is_killed_completes_when_it_is_run_again(
    whom, engine, server, fill, client, unique, tmp_path
):
    bucket = fill({f"k.{n}": b"%d" % n for n in range(20_000)}, max_msgs_per_subject=5)
    folder = tmp_path / "out"
    asked = SourceOptions(bucket=bucket, url=server.url)
    export(engine, lambda: contents.of_bucket(asked), folder)
    copy = unique()
    killed = run_killed("load", "writing", whom, server, copy, folder)
    assert killed.exit_code == {"driver": -signal.SIGKILL, "jvm": 1, "worker": 0}[whom], killed.errors
    load(engine, open_export(folder), SourceOptions(bucket=copy, url=server.url), Order(create=True))
    held = sorted([(entry.key, entry.value) async for entry in client.bucket(copy).history()])
    assert held == sorted((f"k.{n}", b"%d" % n) for n in range(20_000))
