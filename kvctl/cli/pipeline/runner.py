"""Running a job of the pipeline: where, in a thread beside the event loop, with progress, to its end or Ctrl-C.

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
from kvctl.render.escapes import escape
from kvctl.units import format_duration

if TYPE_CHECKING:
    from asyncio import Future
    from pathlib import Path

    from kvctl.pipeline.spark.engine import Engine
    from kvctl.pipeline.spark.job_progress import Standing
    from kvctl.pipeline.spark.session_config import Target

T = TypeVar("T")

Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark cluster to run on; without one, all cores of this machine"),
]
Remote = Annotated[str | None, typer.Option("--remote", metavar="URL", help="Spark Connect server to run on")]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="K=V", help="A setting of Spark; repeatable")]

LOOKS = 0.5
"""Seconds between two looks at how far a job is."""
PATIENCE = 10.0
"""Seconds that a cancelled job has to put its things in order."""
_FLAGS = {
    "context": "context", "server": "url", "user": "user", "password_file": "passwordFile", "token_file": "tokenFile",
    "creds": "creds", "nkey": "nkey", "tls_cert": "tlsCert", "tls_key": "tlsKey", "tls_ca": "tlsCa",
    "tls_first": "tlsFirst", "domain": "domain", "api_prefix": "apiPrefix", "inbox_prefix": "inboxPrefix",
    "timeout": "timeout",
}  # fmt: skip
"""Shared options, and those of `nats-kv` that say the same."""
_FIELDS = {
    "url": "url", "user": "user", "creds": "creds", "nkey": "nkey", "cert": "tlsCert", "key": "tlsKey", "ca": "tlsCa",
    "tls_first": "tlsFirst", "domain": "domain", "api_prefix": "apiPrefix", "inbox_prefix": "inboxPrefix",
}  # fmt: skip
"""Fields of a context, and the options that say the same."""
_PATHS = ("passwordFile", "tokenFile", "creds", "nkey", "tlsCert", "tlsKey", "tlsCa")


def spark_target(master: str | None, remote: str | None, conf: list[str] | None) -> "Target":
    """Where the shared options of the pipeline say to run. Raises UsageError, and KvctlError without the extra."""
    from kvctl.pipeline import require_spark
    from kvctl.pipeline.spark.session_config import Target, parse_conf

    require_spark()
    return Target(master, remote, parse_conf(conf or []))


def source_options(session: Session, target: "Target") -> dict[str, str]:
    """The options of `nats-kv` that connect as the command line says: names and paths, no secret among them.

    Workers resolve them. Those of this machine share this environment; for others, what it implies is named. Raises
    UsageError where that cannot be.
    """
    given = session.options.connection_flags()
    options = {_FLAGS[name]: _written(_FLAGS[name], value) for name, value in given.items() if name in _FLAGS}
    if target.local or "context" in options:
        return options
    context = session.context
    if context.name:
        return {"context": context.name, **options}
    if (context.password or context.token) and not options.keys() & {"passwordFile", "tokenFile"}:
        raise UsageError(
            "The password or token of this environment cannot be handed to workers elsewhere",
            hint="Name a context that they have with `--context`, or a file with `--password-file` or `--token-file`",
        )
    implied = {option: getattr(context, name) for name, option in _FIELDS.items()}
    return {option: _written(option, value) for option, value in implied.items() if value} | options


async def run_job(
    session: Session,
    target: "Target",
    what: str,
    job: Callable[["Engine"], T],
    *,
    incomplete: str | Callable[[], str] = "",
) -> T:
    """What the job returns. Of what Spark says, KvctlErrors are raised.

    An interruption cancels what runs and lets the job put its things in order, then says what is `incomplete`,
    which may be found out only then.
    """
    import asyncio
    import tempfile
    from pathlib import Path

    from kvctl.render.progress import Activity

    scratch = Path(tempfile.mkdtemp(prefix="kvctl-spark-"))
    run = _Run(target, job, scratch)
    work = run.begin()
    try:
        with Activity(enabled=session.terminal.speaks and not session.options.quiet) as activity:
            while not (await asyncio.wait([work], timeout=LOOKS))[0]:
                activity.say(f"{what}  {run.standing()}")
    except asyncio.CancelledError:
        await run.cancel(work)
        if left := _left(work, incomplete):
            session.warn(left)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _show_cause(session, work.exception())
    _prepare_archive(session, run)
    return work.result()


def _left(work: "Future[T]", incomplete: str | Callable[[], str]) -> str:
    """What an interruption left; some jobs have done all before it reaches them."""
    if not isinstance(incomplete, str):
        return incomplete()
    complete = work.done() and work.exception() is None and work.result() is not None
    return "Interrupted when all was done: nothing is incomplete" if incomplete and complete else incomplete


class _Run(Generic[T]):
    """A job in a thread: Spark's calls block."""

    def __init__(self, target: "Target", job: Callable[["Engine"], T], scratch: "Path") -> None:
        self.engine: Engine | None = None
        self._target = target
        self._job = job
        self._scratch = scratch
        self._cancelled = False
        self._standing = "starting Spark"
        self._rate = Rate()

    def begin(self) -> "Future[T]":
        """What the job returns or raises, once it does."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: Future[T] = loop.create_future()

        def settle(error: BaseException | None, result: Any = None) -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(result)

        def work() -> None:
            outcome: tuple[BaseException | None, Any]
            try:
                outcome = (None, self._carry_out())
            except BaseException as error:
                outcome = (error, None)
            with suppress(RuntimeError):  # the loop may have ended
                loop.call_soon_threadsafe(settle, *outcome)

        # Daemons, both: nothing of Spark's may hold up an ending.
        threading.Thread(target=work, name="job", daemon=True).start()
        threading.Thread(target=self._look, args=[future], name="progress", daemon=True).start()
        return future

    def standing(self) -> str:
        """How far it is, in words."""
        return self._standing

    async def cancel(self, work: "Future[T]") -> None:
        """Stop what runs and wait for its end, not for ever; without a session there is nothing to wait for."""
        import asyncio

        self._cancelled = True
        if self.engine is not None:
            threading.Thread(target=self._press, args=[self.engine, work], name="cancel", daemon=True).start()
            await asyncio.wait([work], timeout=PATIENCE)

    @staticmethod
    def _press(engine: "Engine", work: "Future[T]") -> None:
        """Cancel until the job has ended: while it plans, and between two queries, there is nothing to cancel."""
        while not work.done():
            engine.cancel()
            time.sleep(LOOKS / 2)

    def _carry_out(self) -> T | None:
        from kvctl.pipeline.spark.engine import Engine

        with Engine.start(self._target, scratch=self._scratch) as engine:
            self.engine = engine
            if self._cancelled:
                return None
            return self._job(engine)

    def _look(self, work: "Future[T]") -> None:
        """Keep `standing` true; asking the JVM may take its time."""
        while not work.done():
            time.sleep(LOOKS)
            if self.engine is not None:
                found = self.engine.standing()
                rows = self._rate.text(found.rows) if found else ""
                tasks = tasks_text(found) if found else ""
                self._standing = ", ".join(filter(None, (self.engine.doing, rows, tasks))) or "planning"


def tasks_text(found: "Standing") -> str:
    """Which stage runs, and how many of its tasks are done."""
    waiting = "" if found.active or found.done else ", waiting for workers"
    return f"stage {found.stage} of {found.stages}, task {found.done} of {found.tasks}{waiting}"


class Rate:
    """Rows, and how many a second over the last while."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=int(5 / LOOKS))

    def text(self, rows: int | None) -> str:
        """`1,200,000 rows, 430,000/s`; a new query starts anew."""
        if not rows:
            return ""
        now = time.monotonic()
        if self._seen and rows < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, rows))
        (begun, first), (ended, last) = self._seen[0], self._seen[-1]
        rate = (last - first) / (ended - begun) if ended > begun else 0
        return f"{rows:,} row{'' if rows == 1 else 's'}" + (f", {rate:,.0f}/s" if rate else "")


def _written(option: str, value: object) -> str:
    """A value as an option's text; a path does not depend on where a worker stands."""
    if isinstance(value, timedelta):
        return format_duration(value)
    if value is True:
        return "true"
    return os.path.abspath(str(value)) if option in _PATHS else str(value)


def _show_cause(session: Session, error: BaseException | None) -> None:
    """With `-v`, all that Spark said."""
    if session.options.verbose and error is not None and error.__cause__ is not None:
        from kvctl.pipeline.spark.failure import text_of

        session.terminal.emit(escape(text_of(error.__cause__), keep="\n\t"))


def _prepare_archive(session: Session, run: _Run[T]) -> None:
    """Let the next start be faster: the archive of classes is made while nobody waits."""
    from kvctl.pipeline.spark.class_trainer import train_aside

    if run.engine is not None and run.engine.archive is not None and train_aside(run.engine.archive):
        session.note(f"Preparing in the background what starts Spark faster next time: {run.engine.archive.path}")
