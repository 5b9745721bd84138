"""Runner of pipeline jobs: in a thread beside the event loop, with progress, until the end or Ctrl-C.

async def check(session: Session, *, target: OnSpark) -> None:
    checked, seconds = await run_job(session, target, "Checking Spark", jobs.check)
"""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from os.path import abspath
from typing import Annotated, Any, TypeVar

from kvctl import pipeline
from kvctl.cli.app.options import OptionGroup, option
from kvctl.cli.app.session import Session, in_thread
from kvctl.cli.bucket.options import parse_pairs
from kvctl.contexts import FLAGS
from kvctl.errors import UsageError
from kvctl.pipeline import options as pipeline_options
from kvctl.pipeline.spark import engine as spark_engine
from kvctl.pipeline.spark import failure, tasks
from kvctl.render.escapes import escape

T = TypeVar("T")

PROGRESS_INTERVAL_S = 0.5
"""Seconds between two updates of the progress."""
CANCEL_TIMEOUT_S = 10.0
"""Seconds that a cancelled job has to clean up, once it writes."""
PLANNING_TIMEOUT_S = 0.3
"""Seconds that it has while it starts Spark and plans: nothing is to be cleaned up, and some waits cannot be ended."""


def _target(given: Mapping[str, Any]) -> "spark_engine.SparkTarget":
    """Return the Spark target of the options. Raises UsageError."""
    conf = parse_pairs(given["conf"] or (), repeated=True, example="spark.executor.memory=4g")
    stripped = {name.strip(): value for name, value in conf.items()}
    return spark_engine.SparkTarget(given["master"], given["remote"], stripped)


Master = Annotated[
    str | None, option("--master", "URL", "Spark cluster to run on; all cores of this machine by default")
]
Remote = Annotated[str | None, option("--remote", "URL", "Spark Connect server to run on")]
Conf = Annotated[list[str] | None, option("--conf", "K=V", "Spark setting; repeatable")]
OnSpark = Annotated[
    "spark_engine.SparkTarget",
    OptionGroup({"master": (Master, None), "remote": (Remote, None), "conf": (Conf, None)}, _target),
]
"""Place of the Spark session of a job."""


StorageOptions = Annotated[
    list[str] | None,
    option("--storage-option", "K=V", "Setting of an object store, as delta-rs names it; @FILE as V reads a file"),
]


def source_options(session: Session, target: "spark_engine.SparkTarget") -> dict[str, str]:
    """Return the options of `nats-kv` that connect like this command: names and paths, no secrets.

    Workers resolve them. Workers on this machine share its environment; for others, the settings that it implies are
    named. Raises UsageError where a secret would have to be handed over, and KvctlError without the extra.
    """
    pipeline.require_spark()
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
    return (
        pipeline_options.from_flags({flag: getattr(context, name) for name, flag in FLAGS.items()}, abspath) | options
    )


def given_options(session: Session) -> dict[str, str]:
    """Return the given connection options as options of `nats-kv`."""
    return pipeline_options.from_flags(session.options.connection_flags(), abspath)


async def run_job(
    session: Session,
    target: "spark_engine.SparkTarget",
    what: str,
    job: Callable[["spark_engine.Engine"], T],
    *,
    incomplete: str | Callable[[], str] = "",
    patience: float = CANCEL_TIMEOUT_S,
) -> tuple[T, float]:
    """Run the job, which starts Spark when it needs it, and return its result and its duration in seconds.

    Errors of Spark are KvctlErrors.

    An interruption cancels the running queries and lets the job clean up for `patience` seconds, then warns with
    `incomplete`, which may be a function that is called only then. Spark ends with this process.
    """
    engine, progress = spark_engine.Engine(target), _Progress()
    ended, begun = Future[T | None](), time.monotonic()
    work = in_thread(partial(_run, engine, job, ended))
    threading.Thread(target=progress.watch, args=[engine, work], name="progress", daemon=True).start()
    try:
        with session.progress(what) as activity:
            while not (await asyncio.wait([work], timeout=PROGRESS_INTERVAL_S))[0]:
                activity.say(f"{what}  {progress.text}")
    except asyncio.CancelledError:
        threading.Thread(target=_keep_cancelling, args=[engine, work], name="cancel", daemon=True).start()
        patience = patience if engine.doing else PLANNING_TIMEOUT_S
        await asyncio.wait([asyncio.wrap_future(ended)], timeout=patience)
        if left := _incomplete_text(ended, incomplete):
            session.warn(left)
        raise
    finally:
        shutil.rmtree(engine.scratch, ignore_errors=True)
    error = work.exception()
    if session.options.verbose and error is not None and error.__cause__ is not None:
        session.terminal.emit(escape(failure.text_of(error.__cause__), keep="\n\t"))
    return work.result(), round(time.monotonic() - begun, 3)


def _run(engine: "spark_engine.Engine", job: Callable[["spark_engine.Engine"], T], ended: "Future[T | None]") -> T:
    """Run the job; `ended` gets its result, None for an error, before the end of Spark, which takes seconds."""
    with engine:
        try:
            result = job(engine)
        except BaseException:
            ended.set_result(None)
            raise
        ended.set_result(result)
        return result


def _incomplete_text(ended: "Future[T | None]", incomplete: str | Callable[[], str]) -> str:
    """Describe the state after an interruption; a job may have finished before it."""
    if not isinstance(incomplete, str):
        return incomplete()
    complete = ended.done() and ended.result() is not None
    return "Interrupted after the job had finished: nothing is incomplete" if incomplete and complete else incomplete


class _Progress:
    """Description of a job's progress."""

    def __init__(self) -> None:
        self.text = "starting"

    def watch(self, engine: "spark_engine.Engine", work: "asyncio.Future[Any]") -> None:
        """Update the text until the job ends; a call to the JVM can be slow."""
        while not work.done():
            time.sleep(PROGRESS_INTERVAL_S)
            with suppress(OSError):  # files that the job looks at may be moved
                doing = engine.doing if isinstance(engine.doing, str) else engine.doing()
                waiting = "planning" if engine.started else "starting Spark"
                self.text = ", ".join(filter(None, (doing, tasks.progress_text(engine)))) or waiting


def _keep_cancelling(engine: "spark_engine.Engine", work: "asyncio.Future[Any]") -> None:
    """Cancel until the job has ended, as there is nothing to cancel while it plans and between queries."""
    while not work.done():
        engine.cancel()
        time.sleep(PROGRESS_INTERVAL_S / 2)
