"""Spark sessions: on this machine, on a cluster, or behind Spark Connect."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from socketserver import TCPServer
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
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2.properties")
LOG_LINES = 12
"""Number of last lines of Spark's log that an error shows."""


class Engine:
    """Session that a job runs on: `with Engine.start() as engine: engine.spark.read.format("nats-kv")...`.

    Spark errors raised in the block leave it as KvctlErrors.
    """

    def __init__(self, target: Target, started: "_Start") -> None:
        self.target = target
        self.doing: str | Callable[[], str] = ""
        """Current activity of the job beyond Spark's own stages, for the user; set by the job."""
        self._start = started

    @classmethod
    def start(cls, target: Target | None = None, *, scratch: Path | None = None, record: Path | None = None) -> Self:
        """Start a session with `nats-kv` registered.

        `scratch` is a directory of its own, removed when it is closed; `record` is the file for the JVM's class
        archive. Raises KvctlError: without the extra or a Java, or for an unreachable master.
        """
        engine = cls.begin(target, scratch=scratch, record=record)
        try:
            _ = engine.spark
        except BaseException:
            engine.close()
            raise
        return engine

    @classmethod
    def begin(
        cls, target: Target | None = None, *, scratch: Path | None = None, record: Path | None = None,
        brief: bool = False,
    ) -> Self:  # fmt: skip
        """Return while Spark is still starting; the first use of `spark` or `context` raises what `start` would.

        With `brief`, the JVM compiles quickly rather than well, for jobs whose work is done in Python.
        """
        require_spark()
        target = target or Target()
        check_reachable(target)
        _keep_quiet()  # imports pyspark, whose modules two threads cannot import at a time
        started = _Start(target, scratch or Path(tempfile.mkdtemp(prefix="kvctl-spark-")), record, brief=brief)
        threading.Thread(target=started.run, name="spark", daemon=True).start()
        return cls(target, started)

    @property
    def started(self) -> bool:
        """Return whether Spark runs, so that it can be asked without waiting."""
        outcome = self._start.outcome
        return outcome.done() and outcome.exception() is None

    @property
    def archive(self) -> Archive | None:
        """Class archive that a JVM of this machine starts with, or would; None behind a Connect server."""
        return self._start.archive

    @property
    def context(self) -> "SparkContext":
        """Context of a classic session, which runs tasks without Spark SQL."""
        found: SparkContext = self._start.wait()
        return found

    @cached_property
    def spark(self) -> "SparkSession":
        """Session, created when it is first used: loading Spark SQL takes seconds that some jobs do not need."""
        from pyspark.sql import SparkSession

        spark: SparkSession = self._start.wait() if self.target.remote else SparkSession(self.context)
        register(spark)
        return spark

    def progress(self) -> JobProgress | None:
        """Return the progress of the newest job; None between jobs, and behind Spark Connect. Thread-safe."""
        if self.target.remote or not self.started:
            return None
        return current_progress(self.context, vars(self).get("spark"))

    def log_tail(self) -> str:
        """Return the last lines that Spark logged on this machine."""
        return log_tail(self._start.scratch)

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
        self._start.abandon()
        with suppress(Exception):
            for query in vars(self)["spark"].streams.active:
                query.stop()
        with suppress(Exception):
            vars(self)["spark"].interruptAll()
        with suppress(Exception):
            if not self.target.remote:
                self.context.cancelAllJobs()

    def end_jvm(self, patience: float) -> None:
        """End the JVM after `close`, which otherwise lives as long as this process; no session can start afterwards.

        Raises KvctlError when it takes longer than `patience` seconds, or fails.
        """
        jvm = self._jvm
        if jvm is not None:
            jvm.stdin.close()
            try:
                code = jvm.wait(patience)
            except subprocess.TimeoutExpired:
                jvm.kill()
                raise KvctlError("Spark's JVM did not end") from None
            if code:
                raise KvctlError(f"Spark's JVM failed with exit code {code}")

    def close(self) -> None:
        """End the session and remove its files on this machine."""
        self._start.abandon()
        if self.started:
            with suppress(Exception):
                vars(self).get("spark", self._start.wait()).stop()
        shutil.rmtree(self._start.scratch, ignore_errors=True)

    @property
    def _jvm(self) -> Any:
        return self._start.jvm

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
    """Return the class archive for the Java and the Spark of this machine.

    Raises KvctlError without a Java, or without a place for it.
    """
    cache = cache_directory()
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
    """Start of Spark, in a thread of its own."""

    def __init__(self, target: Target, scratch: Path, record: Path | None, *, brief: bool) -> None:
        self.outcome: Future[Any] = Future()
        """The context, or the session of a Connect server."""
        self.scratch = scratch
        self.archive: Archive | None = None
        self.jvm: Any = None
        """The JVM's process, if it was started here: there is one per Python process."""
        self._target = target
        self._record = record
        self._brief = brief
        self._log = scratch / "spark.log"

    def run(self) -> None:
        """Start, and settle the outcome."""
        try:
            found = self._connect() if self._target.remote else self._classic()
        except BaseException as error:
            with suppress(InvalidStateError):
                self.outcome.set_exception(error)
            return
        try:
            self.outcome.set_result(found)
        except InvalidStateError:
            found.stop()

    def wait(self) -> Any:
        """Return the outcome. Raises KvctlError if Spark did not start."""
        try:
            return self.outcome.result()
        except KvctlError:
            raise
        except Exception as error:
            raise not_started(error, log_tail(self.scratch)) from error

    def abandon(self) -> None:
        """Give up the start: who waits for it gets an error. No effect once Spark runs."""
        with suppress(InvalidStateError):
            self.outcome.set_exception(KvctlError("Spark was not started: it is no longer needed"))

    def _classic(self) -> "SparkContext":
        """Start driver and JVM on this machine. The JVM's output goes only to the log."""
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        with _environment(self._surroundings()), open(self._log, "ab") as log:
            conf = SparkConf(loadDefaults=False).setAll(list(self._settings().items()))
            gateway = None
            if SparkContext._gateway is None:
                gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
                self.jvm = gateway.proc
                if self.outcome.done():  # it was given up
                    self.jvm.stdin.close()
                    raise KvctlError("Spark is no longer needed")
            return SparkContext(conf=conf, gateway=gateway)

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
        if self._brief:
            options.append("-XX:TieredStopAtLevel=1")
        quoted = " ".join(f'"{option}"' if " " in option else option for option in options)
        return settings(self._target, cores=_cores(), scratch=str(self.scratch), java_options=quoted)

    def _surroundings(self) -> dict[str, str | None]:
        """Return environment variables for the JVM, and so for the Python workers that it starts."""
        java = find_java()
        try:
            cache = cache_directory()
        except KvctlError:
            cache = self.scratch
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
    """Suppress pyspark's own output: query errors as JSON, and a traceback when the JVM has ended.

    Stopping a session must not wait for its server of accumulators, which looks for the end every half second.
    """
    from pyspark.accumulators import AccumulatorTCPServer
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    AccumulatorTCPServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    AccumulatorTCPServer.shutdown = _shut_down_aside  # type: ignore[method-assign, assignment]


def _shut_down_aside(server: Any) -> None:
    def work() -> None:
        server.server_shutdown = True
        TCPServer.shutdown(server)
        server.server_close()

    threading.Thread(target=work, name="accumulators", daemon=True).start()


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
