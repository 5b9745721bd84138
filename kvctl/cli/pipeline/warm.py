"""`kvctl pipeline warm`: archive of Spark's classes, for faster starts."""

import time

from kvctl.cli.app.command import command, group
from kvctl.cli.app.session import Session
from kvctl.cli.pipeline.runner import CANCEL_TIMEOUT_S, PROGRESS_INTERVAL_S, in_thread
from kvctl.render.view import Column, document, elapsed_text, size_text

app = group()


@command(app, "warm", examples=["kvctl pipeline warm"], see=["pipeline check", "help pipeline"])
async def warm(session: Session) -> None:
    """Prepare an archive of Spark's classes, for faster starts.

    Runs Spark once on this machine and stores the classes that it loads, about 190 MB in ~/.cache/kvctl/spark. Later
    jobs start with them. The archive belongs to one Java and one version of Spark: run the command again after an
    upgrade. It takes half a minute or more, and nothing else runs it.
    """
    import asyncio

    from kvctl.pipeline import require_spark

    require_spark()
    from kvctl.pipeline.spark.class_trainer import Training

    begun, training = time.monotonic(), Training()
    work = in_thread(training.run)
    try:
        with session.progress("Recording") as activity:
            while not (await asyncio.wait([work], timeout=PROGRESS_INTERVAL_S))[0]:
                activity.say("Recording Spark's classes")
    except asyncio.CancelledError:
        training.stop()
        await asyncio.wait([work], timeout=CANCEL_TIMEOUT_S)
        raise
    path = work.result()
    row = {"path": str(path), "bytes": path.stat().st_size, "seconds": round(time.monotonic() - begun, 3)}
    columns = (Column("path"), Column("bytes", "Size", text=size_text), Column("seconds", "Time", text=elapsed_text))
    session.show(document(row, *columns, name="path"))
