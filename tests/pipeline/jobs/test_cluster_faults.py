"""Every job on a cluster of two workers while it loses an executor, Python workers, or the NATS server for 20 s."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.server import Server
from tests.pipeline.cluster import READY, SMALL, run_cluster
from tests.pipeline.killing import MARKS, below, kill
from tests.support.raw import RawClient
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ROWS = 40_000
OUTAGE_S = 20
JOBS = {
    "export": "export B --to DIR/out",
    "capture": "capture B --to DIR/out --once",
    "load": "load DIR/exported --into COPY --create",
    "audit": "audit B SAME",
    "commit": "commit REPO@main --from DIR/exported -m x",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with run_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def filled(own_server, tmp_path):
    """A bucket, an equal one, an export, and an empty repository."""
    with RawClient(own_server.url) as raw:
        for name in ("B", "SAME"):
            raw.create_bucket(name)
            for number in range(ROWS - 1):
                raw.publish(f"$KV.{name}.k.{number}", b"%d" % number * 50)
            raw.put(name, "last", b"x")
    kvctl(own_server, "repo", "init", "REPO")
    kvctl(own_server, "pipeline", "export", "B", "--to", str(tmp_path / "exported"), "--master", "local[2]")
    return own_server


@pytest.mark.guarantee("pipeline-22", "pipeline-24", "pipeline-29", by="kill")
@pytest.mark.parametrize("fault", ["none", "executor", "worker", "server"])
@pytest.mark.parametrize("job", JOBS)
def test_a_job_on_a_cluster_is_complete_after_a_fault(job, fault, cluster, filled, tmp_path):
    line = ["pipeline", *JOBS[job].replace("DIR", str(tmp_path)).split(), "--master", cluster.url, *SMALL, "-o", "json"]
    process = subprocess.Popen(
        command(filled, *line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        if fault != "none":
            until(lambda: process.poll() is not None or has("worker"), what="tasks", within=READY)
            FAULTS[fault](filled)
        out, errors = process.communicate(timeout=READY)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    CHECKS[job](filled, tmp_path, json.loads(out))


def stop(server: Server) -> None:
    server.stop()
    time.sleep(OUTAGE_S)
    server.start()


FAULTS: dict[str, Callable[[Server], None]] = {
    "executor": lambda _: kill("executor"),
    "worker": lambda _: kill("worker"),
    "server": stop,
}


def table(server: Server, folder: Path, told: dict[str, Any]) -> None:
    found = stored_table.open_table(TablePlace(str(folder / "out")))
    assert (found.rows, told["rows"]) == (ROWS, ROWS)
    assert stored_table.damages(found) == []


def copied(server: Server, folder: Path, told: dict[str, Any]) -> None:
    assert (told["rows"], told["rejected"]) == (ROWS, 0)
    assert told["written"] + told["unchanged"] == ROWS
    with RawClient(server.url) as raw:
        assert raw.api("STREAM.INFO.KV_COPY")["state"]["messages"] == ROWS
    kvctl(server, "bucket", "diff", "B", "COPY")


CHECKS: dict[str, Callable[[Server, Path, Any], None]] = {
    "export": table,
    "capture": table,
    "load": copied,
    "audit": lambda server, folder, told: None,
    "commit": lambda server, folder, told: kvctl(server, "get", "REPO@main", "last"),
}


def has(kind: str) -> bool:
    """Whether such a process runs below an executor of the cluster."""
    executors = [pid for pid in below(os.getpid()) if named(pid, MARKS["executor"])]
    return any(named(pid, MARKS[kind]) for executor in executors for pid in below(executor))


def named(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def command(server: Server, *line: str) -> list[str]:
    return [sys.executable, "-m", "kvctl", "-s", server.url, *line]


def kvctl(server: Server, *line: str) -> None:
    done = subprocess.run(command(server, *line), capture_output=True, text=True, timeout=READY)
    assert done.returncode == 0, done.stderr
