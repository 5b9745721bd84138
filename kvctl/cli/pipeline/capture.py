"""`kvctl pipeline capture` and `compact`: a bucket's changes as files, and the bucket again from them."""

from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import BucketName, Force, duration
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_forced
from kvctl.cli.pipeline.runner import (
    Conf,
    Master,
    Remote,
    run_job,
    source_options,
    spark_target,
)
from kvctl.errors import HistoryLost, UsageError
from kvctl.render.view import Column, document, duration_text, size_text

if TYPE_CHECKING:
    from kvctl.pipeline.jobs.capture import Captured
    from kvctl.pipeline.jobs.compact import Compacted

app = group()

LOSS = "data-loss"
CAPTURED = (
    Column("bucket"), Column("path"), Column("checkpoint"), Column("revision"), Column("rows"), Column("files"),
    Column("captured"), Column("seconds", "Time", text=duration_text),
)  # fmt: skip
COMPACTED = (
    Column("bucket"), Column("path"), Column("revision"), Column("keys"), Column("files"),
    Column("bytes", "Size", text=size_text), Column("captured"), Column("seconds", "Time", text=duration_text),
)  # fmt: skip


@command(
    app,
    "capture",
    examples=[
        "kvctl pipeline capture orders --to /data/orders --checkpoint /data/orders-checkpoint",
        "kvctl pipeline capture orders --to /data/orders --checkpoint /data/orders-checkpoint --once -o json",
    ],
    see=["pipeline compact", "pipeline export", "help pipeline"],
)
async def capture(
    session: Session,
    bucket: BucketName,
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="Folder to capture into")],
    checkpoint: Annotated[str, typer.Option("--checkpoint", metavar="DIR", help="Where Spark keeps how far it is")],
    once: Annotated[bool, typer.Option("--once", help="Capture what there is now, then end")] = False,
    trigger: Annotated[timedelta | None, duration("--trigger", help="Time between two batches; 1s if left out")] = None,
    max_revisions: Annotated[
        int | None,
        typer.Option("--max-revisions", metavar="N", min=1, help="Most revisions of a batch; 1000000 if left out"),
    ] = None,
    force: Force = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Capture a bucket's changes into Parquet files by day.

    Every change, deletions included, becomes one row in PATH/day=YYYY-MM-DD, and stays there when the bucket has long
    forgotten it. Any reader of the folder sees each revision once, whatever was killed meanwhile: files appear when
    they are whole and counted, and running it again goes on from where the folder ends.

    It begins with what the bucket holds, and runs until Ctrl-C. Changes that newer ones push out of the bucket's
    history before they are read are not captured, and that is no loss: every key's newest state is. Where anything
    else is gone, purged or expired, it ends with 3; --force data-loss goes on.

    A bucket that was deleted and created anew is another one: it takes a folder and a checkpoint of its own.
    """
    from kvctl.kv.names import check_bucket
    from kvctl.pipeline.files.export_files import folder_of
    from kvctl.pipeline.jobs import capture as jobs
    from kvctl.pipeline.options import parse

    check_bucket(bucket)
    check_forced(force, LOSS)
    _check_trigger(trigger, once=once)
    target, folder, kept = spark_target(master, remote, conf), folder_of(to), folder_of(checkpoint)
    jobs.check_places(folder, kept)
    await (await session.client()).bucket(bucket).locate()
    options = replace(
        parse({"bucket": bucket, **source_options(session, target)}),
        max_revisions_per_trigger=max_revisions,
        fail_on_data_loss=LOSS not in (force or ()),
    )
    job = partial(
        jobs.capture, options=options, folder=folder, checkpoint=kept, once=once, trigger=trigger or jobs.TRIGGER
    )
    try:
        left = partial(_where_it_stands, folder)
        found = await run_job(session, target, f"Capturing {bucket}", job, incomplete=left)
    except HistoryLost as error:
        error.hint = f"`--force {LOSS}` goes on with what is left"
        raise
    session.show(document(_captured(found), *CAPTURED, name="path"))


@command(
    app,
    "compact",
    examples=[
        "kvctl pipeline compact /data/orders --to /data/orders-latest",
        "kvctl pipeline load /data/orders-latest --into orders-copy --create",
    ],
    see=["pipeline capture", "pipeline load", "pipeline verify", "help pipeline"],
)
async def compact(
    session: Session,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder of a capture")],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="Folder for the bucket's latest state")],
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Make the latest state of a bucket from a capture of it.

    The folder then holds what the bucket held at the revision that is said: the newest value of every key that was
    not deleted, purged or expired. It is an export, with a manifest, for `kvctl pipeline load` and `verify`. The
    capture is only read, and may go on meanwhile.

    An older compaction of the bucket in the folder is replaced when the new one is whole; anything else there is
    refused.
    """
    from kvctl.pipeline.files.export_files import folder_of
    from kvctl.pipeline.jobs import compact as jobs

    target, source, folder = spark_target(master, remote, conf), folder_of(path), folder_of(to)
    state = jobs.check_places(source, folder)
    if state.forced:
        session.warn(f"The capture went on over lost changes (`--force {LOSS}`): it may lack some, deletions too")
    found = await run_job(
        session, target, f"Compacting {source}", partial(jobs.compact, capture=source, folder=folder),
        incomplete=f"Interrupted: nothing was put into `{folder}`; run it again",
    )  # fmt: skip
    session.show(document(_compacted(found), *COMPACTED, name="path"))


def _check_trigger(trigger: timedelta | None, *, once: bool) -> None:
    if once and trigger is not None:
        raise UsageError("`--once` and `--trigger` exclude each other")
    if trigger is not None and trigger <= timedelta():
        raise UsageError("`--trigger` must be longer than nothing")


def _where_it_stands(folder: Path) -> str:
    from kvctl.pipeline.files.capture_folder import CaptureFolder

    state = CaptureFolder(folder).state()
    reached = "holds nothing yet"
    if state is not None and state.rows:
        reached = f"holds {state.rows:,} rows, up to revision {state.revision:,}"
    return f"Interrupted: `{folder}` {reached}; run it again to go on"


def _captured(found: "Captured") -> dict[str, Any]:
    told = asdict(found)
    state = told.pop("state")
    told |= {"revision": state["revision"], "captured": state["rows"], "seconds": round(told["seconds"], 3)}
    return {"bucket": state["bucket"], **told}


def _compacted(found: "Compacted") -> dict[str, Any]:
    manifest = found.exported.manifest
    return {
        "bucket": manifest.bucket, "capture": found.capture, "path": found.path, "revision": manifest.cut,
        "keys": manifest.rows, "files": len(manifest.files), "bytes": manifest.bytes, "captured": found.captured,
        "replaced": found.replaced, "seconds": round(found.seconds, 3),
    }  # fmt: skip
