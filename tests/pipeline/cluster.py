"""Spark's own servers on loopback, from the pip package: a standalone cluster of two workers, and a Connect server."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pyspark

from kvctl.pipeline.spark.java import find_java
from tests.support.waiting import until

SPARK_HOME = Path(pyspark.__file__).parent
READY = 600.0
"""Seconds for a server of Spark to be up on a machine that is busy."""
SMALL = ("--conf", "spark.executor.memory=512m", "--conf", "spark.cores.max=2", "--conf", "spark.executor.cores=1")
"""Options for a job on the small cluster: an executor on each worker."""
WORKERS = 2


@dataclass(frozen=True)
class Cluster:
    """A master and its workers: the master's URL, its page, and where workers keep the files of their executors."""

    url: str
    page: str
    work: Path


@contextmanager
def run_cluster(place: Path, variables: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster whose workers have these variables in their environment; its logs are in `place`."""
    port, page, *worker_pages = free_ports(2 + WORKERS)
    url, work = f"spark://127.0.0.1:{port}", place / "work"
    master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
    worker = ["worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "1g", url]
    workers = [
        [*worker, "--webui-port", str(worker_page), "-d", str(work / str(number))]
        for number, worker_page in enumerate(worker_pages)
    ]
    with ExitStack() as stack:
        for number, (name, *options) in enumerate([master, *workers]):
            command = ["spark-class", f"org.apache.spark.deploy.{name}", *options]
            stack.enter_context(_running(command, place / f"{number}.log", environment(place, variables)))
        until(lambda: _workers(page) == WORKERS, what="the cluster", within=READY)
        yield Cluster(url, f"http://127.0.0.1:{page}", work)


@contextmanager
def run_connect(place: Path, variables: Mapping[str, str] | None = None) -> Iterator[str]:
    """A Spark Connect server; its URL."""
    (port,) = free_ports(1)
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    service = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = ["spark-submit", "--class", service, "--master", "local[2,4]", *settings]
    with _running(command, place / "connect.log", environment(place, variables)):
        until(lambda: _listens(port), what="the Connect server", within=READY)
        yield f"sc://127.0.0.1:{port}"


def environment(place: Path, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for Spark's scripts: a Java, this Python, loopback; nothing of NATS or the user."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    ours = {
        "HOME": str(place),
        "JAVA_HOME": str(find_java().java_home(place)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(place / "local"),
    }
    return {**kept, **ours, **(variables or {})}


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@contextmanager
def _running(command: list[str], log: Path, variables: Mapping[str, str]) -> Iterator[None]:
    with open(log, "wb") as output:
        program = str(SPARK_HOME / "bin" / command[0])
        process = subprocess.Popen([program, *command[1:]], stdout=output, stderr=output, env=variables, cwd=log.parent)
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()
        shutil.rmtree(log.parent / "local", ignore_errors=True)


def _workers(page: int) -> int:
    with suppress(OSError), urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
        return int(json.load(answer)["aliveworkers"])
    return 0


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
