"""Runner of pipeline jobs: in a thread beside the event loop, with progress, until the end or Ctrl-C.

async def stats(session: Session, bucket: BucketName, master: Master = None, remote: Remote = None,
                conf: Conf = None) -> None:
    target = spark_target(master, remote, conf)
    options = {"bucket": bucket, **source_options(session, target)}
    summary = await run_job(session, target, f"Reading `{bucket}`", partial(statistics, options=options))
"""

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from kvctl.cli.app.session import Session
from kvctl.errors import UsageError
from kvctl.phrases import counted
from kvctl.render.escapes import escape
from kvctl.units import format_duration

if TYPE_CHECKING:
    from asyncio import Future
    from pathlib import Path

    from kvctl.pipeline.spark.engine import Engine
    from kvctl.pipeline.spark.job_progress import JobProgress
    from kvctl.pipeline.spark.session_config import Target

T = TypeVar("T")

Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark cluster to run on; all cores of this machine by default"),
]
Remote = Annotated[str | None, typer.Option("--remote", metavar="URL", help="Spark Connect server to run on")]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="K=V", help="Spark setting; repeatable")]

PROGRESS_INTERVAL_S = 0.5
"""Seconds between two updates of the progress."""
CANCEL_TIMEOUT_S = 10.0
"""Seconds that a cancelled job has to clean up."""
_FLAGS = {
    "context": "context", "server": "url", "user": "user", "password_file": "passwordFile", "token_file": "tokenFile",
    "creds": "creds", "nkey": "nkey", "tls_cert": "tlsCert", "tls_key": "tlsKey", "tls_ca": "tlsCa",
    "tls_first": "tlsFirst", "domain": "domain", "api_prefix": "apiPrefix", "inbox_prefix": "inboxPrefix",
    "timeout": "timeout",
}  # fmt: skip
"""Shared options, with the equivalent options of `nats-kv`."""
_FIELDS = {
    "url": "url", "user": "user", "creds": "creds", "nkey": "nkey", "cert": "tlsCert", "key": "tlsKey", "ca": "tlsCa",
    "tls_first": "tlsFirst", "domain": "domain", "api_prefix": "apiPrefix", "inbox_prefix": "inboxPrefix",
}  # fmt: skip
"""Fields of a context, with the equivalent options of `nats-kv`."""
_PATHS = ("passwordFile", "tokenFile", "creds", "nkey", "tlsCert", "tlsKey", "tlsCa")


def spark_target(master: str | None, remote: str | None, conf: list[str] | None) -> "Target":
    """Return the Spark target of the shared options. Raises UsageError, and KvctlError without the extra."""
    from kvctl.pipeline import require_spark
    from kvctl.pipeline.spark.session_config import Target, parse_conf

    require_spark()
    return Target(master, remote, parse_conf(conf or []))


def source_options(session: Session, target: "Target") -> dict[str, str]:
    """Return the options of `nats-kv` that connect like this command: names and paths, no secrets.

    Workers resolve them. Workers on this machine share its environment; for others, the settings that it implies are
    named. Raises UsageError where a secret would have to be handed over.
    """
    options = given_options(session)
    if target.local or "context" in options:
        return options
    context = session.context
    if context.name:
        return {"context": context.name, **options}
    if (context.password or context.token) and not options.keys() & {"passwordFile", "tokenFile"}:
        raise UsageError(
            "The password or token of this environment cannot be passed to remote workers",
            hint="Name a context that they have with `--context`, or a file with `--password-file` or `--token-file`",
        )
    implied = {option: getattr(context, name) for name, option in _FIELDS.items()}
    return {option: _written(option, value) for option, value in implied.items() if value} | options


def given_options(session: Session) -> dict[str, str]:
    """Return the given connection options as options of `nats-kv`."""
    given = session.options.connection_flags()
    return {_FLAGS[name]: _written(_FLAGS[name], value) for name, value in given.items() if name in _FLAGS}


async def run_job(
    session: Session,
    target: "Target",
    what: str,
    job: Callable[["Engine"], T],
    *,
    incomplete: str | Callable[[], str] = "",
    brief: bool = False,
) -> T:
    """Run the job and return its result. Errors of Spark are raised as KvctlError.

    The job begins while Spark starts. `brief` is for one whose work is done in Python (see `Engine.begin`).

    An interruption cancels the running queries and lets the job clean up, then warns with `incomplete`, which may be
    a function that is called only then.
    """
    import asyncio
    import tempfile
    from pathlib import Path

    scratch = Path(tempfile.mkdtemp(prefix="kvctl-spark-"))
    run = _Run(target, job, scratch, brief=brief)
    work = run.begin()
    try:
        with session.progress(what) as activity:
            while not (await asyncio.wait([work], timeout=PROGRESS_INTERVAL_S))[0]:
                activity.say(f"{what}  {run.progress()}")
    except asyncio.CancelledError:
        await run.cancel(work)
        if left := _incomplete_text(work, incomplete):
            session.warn(left)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _show_cause(session, work.exception())
    return work.result()


def _incomplete_text(work: "Future[T]", incomplete: str | Callable[[], str]) -> str:
    """Describe the state after an interruption; a job may have finished before it."""
    if not isinstance(incomplete, str):
        return incomplete()
    complete = work.done() and work.exception() is None and work.result() is not None
    return "Interrupted after the job had finished: nothing is incomplete" if incomplete and complete else incomplete


def in_thread(work: Callable[[], T]) -> "Future[T]":
    """Run the work in a daemon thread, as a blocked call of Spark must not delay the exit; return its result."""
    import asyncio

    loop = asyncio.get_running_loop()
    future: Future[T] = loop.create_future()

    def settle(error: BaseException | None, result: Any = None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(result)

    def run() -> None:
        outcome: tuple[BaseException | None, Any]
        try:
            outcome = (None, work())
        except BaseException as error:
            outcome = (error, None)
        with suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="job", daemon=True).start()
    return future


class _Run(Generic[T]):
    """A job in a thread, as Spark's calls block."""

    def __init__(self, target: "Target", job: Callable[["Engine"], T], scratch: "Path", *, brief: bool) -> None:
        self.engine: Engine | None = None
        self._target = target
        self._job = job
        self._scratch = scratch
        self._brief = brief
        self._cancelled = False
        self._standing = "starting Spark"
        self._rate = Rate()

    def begin(self) -> "Future[T]":
        """Start the job and return a future of its result."""
        future: Future[Any] = in_thread(self._run)
        threading.Thread(target=self._poll, args=[future], name="progress", daemon=True).start()
        return future

    def progress(self) -> str:
        """Describe the progress in words."""
        return self._standing

    async def cancel(self, work: "Future[T]") -> None:
        """Cancel the job or the start of Spark, and wait up to CANCEL_TIMEOUT_S for the job's end."""
        import asyncio

        self._cancelled = True
        if self.engine is not None:
            threading.Thread(target=self._keep_cancelling, args=[self.engine, work], name="cancel", daemon=True).start()
            await asyncio.wait([work], timeout=CANCEL_TIMEOUT_S)

    @staticmethod
    def _keep_cancelling(engine: "Engine", work: "Future[T]") -> None:
        """Cancel until the job has ended, as there is nothing to cancel while it plans and between queries."""
        while not work.done():
            engine.cancel()
            time.sleep(PROGRESS_INTERVAL_S / 2)

    def _run(self) -> T | None:
        from kvctl.pipeline.spark.engine import Engine

        with Engine.begin(self._target, scratch=self._scratch, brief=self._brief) as engine:
            self.engine = engine
            if self._cancelled:
                return None
            return self._job(engine)

    def _poll(self, work: "Future[T]") -> None:
        """Update the progress until the job ends; a call to the JVM can be slow."""
        while not work.done():
            time.sleep(PROGRESS_INTERVAL_S)
            if self.engine is not None and self.engine.started:
                with suppress(OSError):  # files that the job looks at may be moved
                    self._standing = self._read_progress(self.engine)

    def _read_progress(self, engine: "Engine") -> str:
        found, doing = engine.progress(), engine.doing
        rows = self._rate.text(found.rows) if found else ""
        tasks = tasks_text(found) if found else ""
        doing = doing if isinstance(doing, str) else doing()
        return ", ".join(filter(None, (doing, rows, tasks))) or "planning"


def tasks_text(found: "JobProgress") -> str:
    """Describe the running stage and its finished tasks."""
    waiting = "" if found.active or found.done else ", waiting for workers"
    return f"stage {found.stage} of {found.stages}, task {found.done} of {found.tasks}{waiting}"


class Rate:
    """A row count and its rate per second over the last 5 seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=int(5 / PROGRESS_INTERVAL_S))

    def text(self, rows: int | None) -> str:
        """Return a text like `1,200,000 rows, 430,000/s`; a lower count, of a new query, resets the rate."""
        if not rows:
            return ""
        now = time.monotonic()
        if self._seen and rows < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, rows))
        (begun, first), (ended, last) = self._seen[0], self._seen[-1]
        rate = (last - first) / (ended - begun) if ended > begun else 0
        return counted(rows, "row") + (f", {rate:,.0f}/s" if rate else "")


def _written(option: str, value: object) -> str:
    """Return a value as an option's text; paths are absolute, for workers with another working directory."""
    if isinstance(value, timedelta):
        return format_duration(value)
    if value is True:
        return "true"
    return os.path.abspath(str(value)) if option in _PATHS else str(value)


def _show_cause(session: Session, error: BaseException | None) -> None:
    """Show the complete error of Spark with `-v`."""
    if session.options.verbose and error is not None and error.__cause__ is not None:
        from kvctl.pipeline.spark.failure import text_of

        session.terminal.emit(escape(text_of(error.__cause__), keep="\n\t"))
