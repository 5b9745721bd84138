"""Spark's own servers on loopback, from the pip package: a standalone cluster of two workers, and a Connect server."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import pyspark

from kvctl.pipeline.spark.java import find_java
from tests.pipeline.killing import below
from tests.support.waiting import until

SPARK_HOME = Path(pyspark.__file__).parent
CLASS = str(SPARK_HOME / "bin" / "spark-class")
READY = 1200.0
"""Seconds for a server of Spark to be up on a machine that is busy."""
QUICK = "-XX:TieredStopAtLevel=1"
"""Option of JVMs that compile quickly and not well: most of their time is their start."""
_SMALL = {
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{READY:.0f}s",  # what `check` waits for executors
}
SMALL = tuple(word for name, value in _SMALL.items() for word in ("--conf", f"{name}={value}"))
"""Options for a job on the small cluster: an executor on each worker."""
WORKERS = 2


@dataclass(frozen=True)
class Cluster:
    """A master and its workers: the master's URL, its page, where workers keep the files of their executors.

    `lose` kills a worker with its executors, as a machine that fails, and starts it again.
    """

    url: str
    page: str
    work: Path
    lose: Callable[[], None]


@contextmanager
def run_cluster(
    place: Path, variables: Mapping[str, str] | None = None, inside: Sequence[Sequence[str]] = ((),) * WORKERS
) -> Iterator[Cluster]:
    """A cluster whose workers have these variables in their environment; its logs are in `place`.

    Each worker is started by a command `inside` of which it runs, such as `unshare -m`.
    """
    port, page = free_ports(2)
    url, work = f"spark://127.0.0.1:{port}", place / "work"
    master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
    surroundings = environment(place, variables)
    with ExitStack() as stack:

        def start(*command: str, log: str) -> "subprocess.Popen[bytes]":
            return stack.enter_context(_running(command, place / log, surroundings))

        def start_worker(number: int, *words: str) -> "subprocess.Popen[bytes]":
            worker = ["--host", "127.0.0.1", "-c", "1", "-m", "1g", "-d", str(work / str(number)), url]
            return start(*words, CLASS, "org.apache.spark.deploy.worker.Worker", *worker, log=f"{number}.log")

        def lose() -> None:
            lost = workers.pop(0)
            for pid in [*below(lost.pid), lost.pid]:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            wrapped.append(wrapped.pop(0))
            workers.append(start_worker(next(numbers), *wrapped[-1]))

        start(CLASS, "org.apache.spark.deploy.master.Master", *master, log="master.log")
        numbers = count(1)
        wrapped = [*inside]
        workers = [start_worker(next(numbers), *words) for words in wrapped]
        until(lambda: _workers(page) == len(inside), what="the cluster", within=READY)
        yield Cluster(url, f"http://127.0.0.1:{page}", work, lose)


@contextmanager
def run_connect(place: Path, variables: Mapping[str, str] | None = None) -> Iterator[str]:
    """A Spark Connect server; its URL."""
    (port,) = free_ports(1)
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    service = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", service, "--master", "local[2,4]", *settings]
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
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
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
def _running(command: Sequence[str], log: Path, variables: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=variables, cwd=log.parent)
    try:
        yield process
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
