"""`kvctl pipeline capture` and `compact`: change files of a bucket, and the latest state from them."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, Force, argument, duration, flag, option
from kvctl.cli.app.session import Session
from kvctl.cli.facts import row_of
from kvctl.cli.pipeline.export import folder_of
from kvctl.cli.pipeline.runner import OnSpark, run_job, source_options
from kvctl.cli.records import CAPTURED, COMPACTED
from kvctl.errors import HistoryLost, UsageError
from kvctl.kv import names
from kvctl.pipeline import options as pipeline_options
from kvctl.pipeline.jobs import capture as capture_job
from kvctl.pipeline.jobs import capture_folder
from kvctl.pipeline.jobs import compact as compact_job
from kvctl.render.fields import columns
from kvctl.render.view import document

LOSS = "data-loss"


@command(
    "pipeline capture",
    examples=[
        "kvctl pipeline capture orders --to /data/orders --checkpoint /data/orders-checkpoint",
        "kvctl pipeline capture orders --to /data/orders --checkpoint /data/orders-checkpoint --once -o json",
    ],
    see=["pipeline compact", "pipeline export", "help pipeline"],
    prints=(CAPTURED,),
    forces=lambda: (LOSS,),
)
async def capture(
    session: Session,
    bucket: BucketName,
    to: Annotated[str, option("--to", "PATH", "Folder to capture into")],
    checkpoint: Annotated[str, option("--checkpoint", "DIR", "Spark checkpoint directory")],
    once: Annotated[bool, flag("--once", "Capture the current entries, then exit")] = False,
    trigger: Annotated[timedelta | None, duration("--trigger", "Time between batches; 1s by default")] = None,
    max_revisions: Annotated[
        int | None, option("--max-revisions", "N", "Maximum revisions per batch; 1000000 by default", min=1)
    ] = None,
    force: Force = None,
    *,
    target: OnSpark,
) -> None:
    """Capture a bucket's changes into Parquet files by day.

    Every change, including deletions, becomes one row in PATH/day=YYYY-MM-DD, and stays there after the bucket has
    dropped it. Readers of the folder see each revision once, even after a crash: files appear only when they are
    complete and counted. Run the command again to continue where the folder ends.

    A capture begins with the bucket's current entries and runs until Ctrl-C. Changes that newer ones push out of the
    bucket's history before they are read are not captured. This is not data loss, as every key's newest state is
    captured. If other entries were purged or expired before they were read, the command exits 3; use --force data-loss
    to continue.

    A recreated bucket is a different bucket and needs its own folder and checkpoint.
    """
    names.check_bucket(bucket)
    _check_trigger(trigger, once=once)
    folder, kept = folder_of(to), folder_of(checkpoint)
    capture_job.check_places(folder, kept)
    await (await session.client()).bucket(bucket).locate()
    options = replace(
        pipeline_options.parse({"bucket": bucket, **source_options(session, target)}),
        max_revisions_per_trigger=max_revisions,
        fail_on_data_loss=LOSS not in (force or ()),
    )
    wait = trigger or capture_job.TRIGGER
    job = partial(capture_job.capture, options=options, folder=folder, checkpoint=kept, once=once, trigger=wait)
    try:
        left = partial(_interrupted, folder)
        found = await run_job(session, target, f"Capturing {bucket}", job, incomplete=left)
    except HistoryLost as error:
        error.hint = f"Use `--force {LOSS}` to continue with the remaining entries"
        raise
    state, seconds = found.state, round(found.seconds, 3)
    known = {"bucket": state.bucket, "revision": state.revision, "captured": state.rows, "seconds": seconds}
    row = row_of(CAPTURED, found, **known)
    session.show(document(row, *columns(" ".join(CAPTURED.columns)), name="path"))


@command(
    "pipeline compact",
    examples=[
        "kvctl pipeline compact /data/orders --to /data/orders-latest",
        "kvctl pipeline load /data/orders-latest --into orders-copy --create",
    ],
    see=["pipeline capture", "pipeline load", "pipeline verify", "help pipeline"],
    prints=(COMPACTED,),
)
async def compact(
    session: Session,
    path: Annotated[str, argument("PATH", "Folder of a capture")],
    to: Annotated[str, option("--to", "PATH", "Folder for the bucket's latest state")],
    *,
    target: OnSpark,
) -> None:
    """Build a bucket's latest state from a capture.

    Writes the bucket's contents at the reported revision: the newest value of every key that was not deleted, purged
    or expired. The result is an export with a manifest, for `kvctl pipeline load` and `verify`. The capture is only
    read and can continue to run.

    An older compaction of the bucket in the folder is replaced once the new one is complete. Other files there are an
    error.
    """
    source, folder = folder_of(path), folder_of(to)
    state = compact_job.check_places(source, folder)
    if state.forced:
        session.warn(f"The capture continued after data loss (`--force {LOSS}`) and may lack changes and deletions")
    job = partial(compact_job.compact, capture=source, folder=folder)
    left = f"Interrupted: `{folder}` was not changed; run the command again"
    found = await run_job(session, target, f"Compacting {source}", job, incomplete=left)
    table = found.exported.table
    known = {"bucket": table.origin.bucket, "revision": table.origin.cut, "keys": table.rows, "files": len(table.parts)}
    row = row_of(COMPACTED, found, **known, bytes=table.bytes, seconds=round(found.seconds, 3))
    session.show(document(row, *columns(" ".join(COMPACTED.columns)), name="path"))


def _check_trigger(trigger: timedelta | None, *, once: bool) -> None:
    if once and trigger is not None:
        raise UsageError("`--once` and `--trigger` cannot be combined")
    if trigger is not None and trigger <= timedelta():
        raise UsageError("`--trigger` must be greater than 0")


def _interrupted(folder: Path) -> str:
    state = capture_folder.CaptureFolder(folder).state()
    reached = "is still empty"
    if state is not None and state.rows:
        reached = f"holds {state.rows:,} rows, up to revision {state.revision:,}"
    return f"Interrupted: `{folder}` {reached}; run the command again to continue"
