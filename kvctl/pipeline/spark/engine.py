"""Spark sessions: on this machine, on a cluster, or behind Spark Connect."""

import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from kvctl.errors import KvctlError, NoServer, UsageError
from kvctl.pipeline import INSTALL, register, require_spark
from kvctl.pipeline.spark.failure import explained, not_started
from kvctl.pipeline.spark.java import find_java, spark_home

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2.properties")
LOG_LINES = 12
"""Number of last lines of Spark's log that an error shows."""
CONNECT_TIMEOUT_S = 5.0
"""Seconds for a TCP connection."""
ANSWER_TIMEOUT_S = 20.0
"""Seconds for the first response of a Connect server."""
PORTS = {"spark": 7077, "sc": 15002}
QUICKLY = "-XX:TieredStopAtLevel=1"
"""Option of a JVM that compiles in a fraction of the time, to slower code."""
SETTINGS = {"spark.sql.session.timeZone": "UTC"}
"""Settings of any session, a Connect server's too."""
PYTHON = "spark.pyspark.python"
OF_SERVER = (PYTHON, "spark.archives", "spark.submit.pyFiles")
"""Settings that a client of a Connect server cannot change."""
LOCAL = "local[*,4]"
"""All cores of this machine, and four attempts at a task: without them one killed worker ends a job."""
_MASTER = re.compile(r"local(\[.+\]|-cluster\[.+\])?|(spark|k8s)://.*|yarn")


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """Place of a session: on this machine, on the cluster of `master`, or behind the Connect server `remote`."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises UsageError for invalid values."""
        if self.master and self.remote:
            raise UsageError("`--master` and `--remote` cannot be combined")
        if self.master is not None and not _MASTER.fullmatch(self.master):
            raise UsageError(
                f"`--master {self.master}` is not a Spark cluster", hint="Write it like `--master spark://HOST:7077`"
            )
        if self.remote is not None and not self.remote.startswith(("sc://", "local")):
            raise UsageError(
                f"`--remote {self.remote}` is not a Spark Connect server",
                hint="Write it like `--remote sc://HOST:15002`",
            )
        for name in (name for name in OF_SERVER if name in self.conf and (self.remote or "").startswith("sc://")):
            raise UsageError(f"`{name}` is a setting of the Spark Connect server", hint="Start the server with it")
        if "spark.archives" in self.conf and self.python is None:
            raise UsageError(
                "`spark.archives` has a Python that nothing names",
                hint="Name it with `--conf spark.pyspark.python=./NAME/bin/python`, for an archive `FILE#NAME`",
            )
        if ".." in Path(self.conf.get(PYTHON) or "").parts:
            raise UsageError(f"`{PYTHON}` {self.conf[PYTHON]} leads out of the directory of an executor")

    @property
    def python(self) -> str | None:
        """Python of the workers by `spark.pyspark.python`, or, on a cluster, PYSPARK_PYTHON; None for this one."""
        environment = None if self.local or self.remote else os.environ.get("PYSPARK_PYTHON")
        return self.conf.get(PYTHON) or environment or None

    @property
    def local(self) -> bool:
        """True if driver and executors are one process on this machine."""
        return not self.remote and (self.master or "local").startswith("local")

    @property
    def loopback(self) -> bool:
        """True if all of it is on this machine, so that the driver can listen on loopback only."""
        cluster = (self.master or "").removeprefix("spark://").startswith(("127.", "localhost:", "[::1]"))
        return self.local or cluster


class Engine:
    """Session that a job runs on: `with Engine() as engine: engine.spark.read.format("nats-kv")...`.

    Spark starts when `spark` or `context` is first used, which raises KvctlError without a Java, and NoServer for an
    unreachable master. Spark errors raised in the block leave it as KvctlErrors.
    """

    def __init__(self, target: SparkTarget | None = None) -> None:
        """Raises KvctlError without the extra."""
        require_spark()
        self.target = target or SparkTarget()
        self.doing: str | Callable[[], str] = ""
        """Current activity of the job beyond Spark's own stages, for the user; set by the job."""
        self.scratch = Path(tempfile.mkdtemp(prefix="kvctl-spark-"))
        """Directory of its files on this machine, which `close` removes."""
        self._cancelled = False
        self._own_jvm = False

    @property
    def started(self) -> bool:
        """Return whether Spark runs, so that it can be asked without waiting."""
        return bool({"context", "spark"} & vars(self).keys())

    @cached_property
    def context(self) -> "SparkContext":
        """Context of a classic session, which runs tasks without Spark SQL; loading that takes seconds.

        If it is used first, the JVM compiles quickly rather than well: the work is done in Python.
        """
        return self._begin(QUICKLY)

    @cached_property
    def spark(self) -> "SparkSession":
        """Session, with `nats-kv` registered."""
        from pyspark.sql import SparkSession

        if not self.target.remote:
            if not self.started:
                vars(self)["context"] = self._begin()
            spark = SparkSession(self.context)
        else:
            with self._starting():
                spark = self._connected(self.target.remote)
        register(spark)
        return spark

    def log_tail(self) -> str:
        """Return the last meaningful lines that Spark logged on this machine; stacks are left out."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        meaningful = [line.rstrip()[:300] for line in lines if line.strip() and not line.startswith(("\tat ", "\t..."))]
        return "\n".join(meaningful[-LOG_LINES:])

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Convert Spark errors raised in the block to KvctlErrors."""
        try:
            yield
        except Exception as error:
            found = explained(error, self.log_tail)
            if found is error:
                raise
            raise found from error

    def cancel(self) -> None:
        """Stop running jobs, streams first, or the start; the waiting thread gets an error. Thread-safe."""
        self._cancelled = True
        with suppress(Exception):
            for query in vars(self)["spark"].streams.active:
                query.stop()
        with suppress(Exception):
            vars(self)["spark"].interruptAll()
        with suppress(Exception):
            vars(self)["context"].cancelAllJobs()

    def close(self) -> None:
        """End the session and its JVM, and remove its files on this machine."""
        with suppress(Exception):
            running: Any = vars(self).get("spark", vars(self).get("context"))
            running.stop()
        if self._own_jvm:
            _end_jvm()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            with self.explaining():
                if error is not None:
                    raise error
        finally:
            self.close()

    @property
    def _log(self) -> Path:
        return self.scratch / "spark.log"

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Check that Spark can start; convert the error if it does not. Suppress pyspark's own output."""
        self.require_wanted()
        check_reachable(self.target)
        from pyspark.logger import PySparkLogger

        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):  # query errors as JSON
            PySparkLogger.getLogger(name).disabled = True
        try:
            yield
        except KvctlError:
            raise
        except Exception as error:
            raise not_started(error, self.log_tail()) from error
        self.require_wanted()

    def require_wanted(self) -> None:
        """Raises KvctlError if the job was cancelled."""
        if self._cancelled:
            raise KvctlError("The job was cancelled")

    def _begin(self, java_options: str = "") -> "SparkContext":
        with self._starting(), _environment(self._surroundings()):
            return self._classic(java_options)

    def _classic(self, java_options: str) -> "SparkContext":
        """Start driver and JVM on this machine. The JVM's output goes only to the log."""
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        given = settings(self.target, str(self.scratch), java_options)
        conf = SparkConf(loadDefaults=False).setAll(list(given.items()))
        with open(self._log, "ab") as log:
            gateway = None
            if SparkContext._gateway is None:
                surroundings = {"stdout": log, "stderr": log, "cwd": self._directory()}
                gateway = launch_gateway(conf, surroundings)  # type: ignore[no-untyped-call]
            context = SparkContext(conf=conf, gateway=gateway)
        # It would print a traceback when the JVM ends, which is reported by the call that fails.
        context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        return context

    def _directory(self) -> str | None:
        """Return the working directory of the JVM; None for that of this process.

        Executors unpack `spark.archives` into theirs, where a relative path names the workers' Python. The driver plans
        with the same path, so in its directory this Python answers to it.
        """
        python = self.target.python
        if python is None or "/" not in python or python.startswith("/"):
            return None
        program = self.scratch / "driver" / python
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return str(self.scratch / "driver")

    def _connected(self, remote: str) -> "SparkSession":
        """Start a client of a Connect server; `local[N]` starts one here, as pyspark does."""
        from pyspark.sql import SparkSession

        if not remote.startswith("local"):
            return SparkSession.builder.config(map={**SETTINGS, **self.target.conf}).remote(remote).getOrCreate()
        ours: dict[str, Any] = {
            k: v for k, v in settings(self.target, str(self.scratch)).items() if k != "spark.master"
        }
        with _environment(self._surroundings()), open(self._log, "ab") as log, _descriptor_2(log.fileno()):
            return SparkSession.builder.config(map=ours).remote(remote).getOrCreate()

    def _surroundings(self) -> dict[str, str | None]:
        """Return environment variables for the JVM, and so for the Python workers that it starts."""
        from pyspark import SparkContext

        self._own_jvm = self._own_jvm or SparkContext._gateway is None
        here, python = self.target.local or bool(self.target.remote), self.target.python
        return {
            "SPARK_HOME": str(spark_home(self.scratch, python)),
            "JAVA_HOME": str(find_java().java_home(self.scratch)),
            "PYSPARK_PYTHON": python or sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1" if here or self.target.loopback else os.environ.get("SPARK_LOCAL_IP"),
            "SPARK_REMOTE": None,
            # Arrow's own default keeps what was freed: some 50 MiB in each worker.
            "ARROW_DEFAULT_MEMORY_POOL": os.environ.get("ARROW_DEFAULT_MEMORY_POOL", "system"),
        }


def _end_jvm() -> None:
    """End the JVM of this process, whose files are those of its session; it ends when its standard input does."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(Exception):
        gateway.shutdown()
        gateway.proc.stdin.close()


# -- settings ------------------------------------------------------------------------------------------------


def settings(target: SparkTarget, scratch: str, java_options: str = "") -> dict[str, str]:
    """Return every setting of a classic session; `target.conf` overrides ours."""
    ours = {
        **SETTINGS,
        "spark.app.name": "kvctl",
        "spark.master": with_retries(target.master or LOCAL),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
    }
    if target.loopback:
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if target.local:
        ours |= {"spark.local.dir": f"{scratch}/local", "spark.sql.shuffle.partitions": str(_cores())}
    ours |= target.conf
    options = (f"-Dlog4j2.configurationFile={LOGGING.as_uri()}", java_options)
    given = target.conf.get("spark.driver.extraJavaOptions", "")
    return ours | {"spark.driver.extraJavaOptions": " ".join(filter(None, (*options, given)))}


def with_retries(master: str) -> str:
    """Return `local`, `local[N]` with the attempts at a task of `LOCAL`; any other master unchanged."""
    if master == "local":
        return "local[1,4]"
    inside = master.removeprefix("local[").removesuffix("]")
    return f"local[{inside},4]" if master == f"local[{inside}]" and "," not in inside else master


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- checks before Spark waits for a server for minutes --------------------------------------------------------


def check_reachable(target: SparkTarget) -> None:
    """Raises NoServer for an unreachable master or Connect server, KvctlError if Connect is not installed."""
    if target.remote:
        _check_connect()
    url = target.remote or target.master or ""
    scheme, found, rest = url.partition("://")
    if found and scheme in PORTS:
        place = re.split("[/;]", rest)[0]  # a token may follow
        addresses = place.split(",")  # standby masters have commas between them
        refusals = [_refusal(address, PORTS[scheme]) for address in addresses]
        if all(refusals):
            kind = "Spark master" if scheme == "spark" else "Spark Connect server"
            raise NoServer(f"Could not reach the {kind} `{scheme}://{place}`: {refusals[0]}")
    if scheme == "sc":
        _check_answer(url, place)


def _check_connect() -> None:
    """Raises KvctlError if grpc is missing: pyspark would end the process as if successful."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would report each attempt
    try:
        import grpc  # noqa: F401
    except ImportError as error:
        raise KvctlError(f"Spark Connect is not available: {error}", hint=INSTALL) from None


def _check_answer(url: str, address: str) -> None:
    """Check for a Connect server: pyspark's own client would keep asking another kind of server for ten minutes."""
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        with DefaultChannelBuilder(url).toChannel() as channel:
            grpc.channel_ready_future(channel).result(ANSWER_TIMEOUT_S)
    except PySparkException:
        raise UsageError(
            f"`--remote {url.split(';')[0]}` is not the URL of a Spark Connect server",
            hint="Write it like `--remote sc://HOST:15002`",
        ) from None
    except grpc.FutureTimeoutError:
        raise NoServer(f"`sc://{address}` is not a Spark Connect server") from None


def _refusal(address: str, port: int) -> str:
    """Return why no connection could be opened; empty if one could."""
    try:
        parts = urlsplit(f"//{address}")
        host, chosen = parts.hostname or "", parts.port or port
    except ValueError:
        raise UsageError(f"`{address}` is not a server address") from None
    if not host:
        raise UsageError(f"`{address}` is not a server address")
    try:
        socket.create_connection((host, chosen), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


# -- surroundings of the JVM ---------------------------------------------------------------------------------


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set these environment variables in the block; None removes one."""
    before = {name: os.environ.get(name) for name in variables}
    _put(variables)
    try:
        yield
    finally:
        _put(before)


def _put(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _descriptor_2(target: int) -> Iterator[None]:
    """Redirect standard error of processes started in the block."""
    kept = os.dup(2)
    os.dup2(target, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
