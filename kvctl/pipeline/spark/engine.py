"""Spark sessions: on this machine, on a cluster, or behind Spark Connect."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kvctl.errors import KvctlError
from kvctl.pipeline import register, require_spark
from kvctl.pipeline.spark.cache import cache_directory
from kvctl.pipeline.spark.class_archive import Archive, find_archive
from kvctl.pipeline.spark.failure import explained, not_started
from kvctl.pipeline.spark.home import spark_home
from kvctl.pipeline.spark.java import find_java
from kvctl.pipeline.spark.job_progress import JobProgress, current_progress
from kvctl.pipeline.spark.preflight import check_reachable
from kvctl.pipeline.spark.session_config import Target, session_settings, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2.properties")
LOG_LINES = 12
"""Number of last lines of Spark's log that an error shows."""


class Engine:
    """Session that a job runs on: `with Engine.start() as engine: engine.spark.read.format("nats-kv")...`.

    Spark errors raised in the block leave it as KvctlErrors.
    """

    def __init__(self, spark: "SparkSession", target: Target, started: "_Start") -> None:
        self.spark = spark
        self.target = target
        self.archive = started.archive
        """Class archive that a JVM of this machine starts with, or would; None behind a Connect server."""
        self.doing = ""
        """Current activity of the job beyond Spark's own stages, for the user; set by the job."""
        self._scratch = started.scratch
        self._jvm = started.jvm

    @classmethod
    def start(cls, target: Target | None = None, *, scratch: Path | None = None, record: Path | None = None) -> Self:
        """Start a session with `nats-kv` registered.

        `scratch` is a directory of its own, removed when it is closed; `record` is the file for the JVM's class
        archive. Raises KvctlError: without the extra or a Java, or for an unreachable master.
        """
        require_spark()
        target = target or Target()
        check_reachable(target)
        _keep_quiet()
        started = _Start(target, scratch or Path(tempfile.mkdtemp(prefix="kvctl-spark-")), record)
        try:
            return cls(started.session(), target, started)
        except BaseException as error:
            tail = log_tail(started.scratch)
            shutil.rmtree(started.scratch, ignore_errors=True)
            if isinstance(error, KvctlError) or not isinstance(error, Exception):
                raise
            raise not_started(error, tail) from error

    def progress(self) -> JobProgress | None:
        """Return the progress of the newest job; None between jobs, and behind Spark Connect. Thread-safe."""
        return None if self.target.remote else current_progress(self.spark)

    def log_tail(self) -> str:
        """Return the last lines that Spark logged on this machine."""
        return log_tail(self._scratch)

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
        """Stop running jobs, streams first; the waiting thread gets an error. Thread-safe."""
        with suppress(Exception):
            for query in self.spark.streams.active:
                query.stop()
        with suppress(Exception):
            self.spark.interruptAll()
        with suppress(Exception):
            if not self.target.remote:
                self.spark.sparkContext.cancelAllJobs()

    def end_jvm(self, patience: float) -> None:
        """End the JVM after `close`, which otherwise lives as long as this process; no session can start afterwards.

        Raises KvctlError when it takes longer than `patience` seconds.
        """
        if self._jvm is not None:
            self._jvm.stdin.close()
            try:
                self._jvm.wait(patience)
            except subprocess.TimeoutExpired:
                self._jvm.kill()
                raise KvctlError("Spark's JVM did not end") from None

    def close(self) -> None:
        """End the session and remove its files on this machine."""
        with suppress(Exception):
            self.spark.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            found = explained(error, self.log_tail) if isinstance(error, Exception) else error
            if found is not None and found is not error:
                raise found from error
        finally:
            self.close()


def archive_here() -> Archive:
    """Return the class archive for the Java and the Spark of this machine. Raises KvctlError."""
    cache = cache_directory(Path(tempfile.gettempdir()))
    return find_archive(find_java(), spark_home(cache), cache)


def log_tail(scratch: Path) -> str:
    """Return the last meaningful lines of the log in an engine's directory; stacks are left out."""
    try:
        lines = (scratch / "spark.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    meaningful = [line.rstrip()[:300] for line in lines if line.strip() and not line.startswith(("\tat ", "\t..."))]
    return "\n".join(meaningful[-LOG_LINES:])


class _Start:
    """Start of a session."""

    def __init__(self, target: Target, scratch: Path, record: Path | None) -> None:
        self._target = target
        self.scratch = scratch
        self.archive: Archive | None = None
        self.jvm: Any = None
        """The JVM's process, if it was started here: there is one per Python process."""
        self._record = record
        self._log = scratch / "spark.log"

    def session(self) -> "SparkSession":
        """Return a session with `nats-kv` registered."""
        spark = self._connect() if self._target.remote else self._classic()
        try:
            register(spark)
        except BaseException:
            spark.stop()
            raise
        return spark

    def _classic(self) -> "SparkSession":
        """Start driver and JVM on this machine. The JVM's output goes only to the log."""
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        with _environment(self._surroundings()), open(self._log, "ab") as log:
            conf = SparkConf(loadDefaults=False).setAll(list(self._settings().items()))
            gateway = None
            if SparkContext._gateway is None:
                gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
                self.jvm = gateway.proc
            return SparkSession(SparkContext(conf=conf, gateway=gateway))

    def _connect(self) -> "SparkSession":
        """Start a client of a Connect server; `local[N]` starts one here, as pyspark does."""
        remote = str(self._target.remote)
        if not remote.startswith("local"):
            return _builder({**session_settings(), **self._target.conf}).remote(remote).getOrCreate()
        with _environment(self._surroundings()), open(self._log, "ab") as log, _descriptor_2(log.fileno()):
            settings = {name: value for name, value in self._settings().items() if name != "spark.master"}
            return _builder(settings).remote(remote).getOrCreate()

    def _settings(self) -> dict[str, str]:
        options = [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"]
        if self.archive is not None:
            options += self.archive.record(self._record) if self._record else self.archive.use()
        quoted = " ".join(f'"{option}"' if " " in option else option for option in options)
        return settings(self._target, cores=_cores(), scratch=str(self.scratch), java_options=quoted)

    def _surroundings(self) -> dict[str, str | None]:
        """Return environment variables for the JVM, and so for the Python workers that it starts."""
        java = find_java()
        cache = cache_directory(self.scratch)
        here = self._target.local or bool(self._target.remote)
        python = None if here else os.environ.get("PYSPARK_PYTHON")
        home = spark_home(cache, python)
        self.archive = find_archive(java, home, cache)
        return {
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(java.java_home(cache)),
            "PYSPARK_PYTHON": python or sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1" if here or self._target.loopback else os.environ.get("SPARK_LOCAL_IP"),
            "SPARK_REMOTE": None,
        }


def _keep_quiet() -> None:
    """Suppress pyspark's own output: query errors as JSON, and a traceback when the JVM has ended."""
    from pyspark.accumulators import AccumulatorTCPServer
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    AccumulatorTCPServer.handle_error = lambda *_: None  # type: ignore[method-assign]


def _builder(settings: Mapping[str, str]) -> "SparkSession.Builder":
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
