"""`kvctl pipeline capture` and `compact`: a Delta table of a bucket's changes, and its files combined."""

import asyncio
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from typing import Annotated

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, Force, argument, duration, flag, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.facts import row_of
from kvctl.cli.flows import require_current
from kvctl.cli.pipeline.runner import OnSpark, StorageOptions, run_job, source_options
from kvctl.cli.records import CAPTURED, COMPACTED
from kvctl.errors import ConflictError, HistoryLost, NotFoundError, UsageError
from kvctl.kv import names
from kvctl.pipeline import options as pipeline_options
from kvctl.pipeline import require_spark
from kvctl.pipeline.jobs import capture as capture_job
from kvctl.pipeline.tables import delta
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.render.fields import columns
from kvctl.render.view import document
from kvctl.topology.hazards import hazards

LOSS = "data-loss"
CaptureMode = Annotated[
    str, option("--mode", "MODE", "All `changes`, or the `latest` value of each key", one_of("changes", "latest"))
]
ValueFormat = Annotated[
    str | None, option("--value-format", "FORMAT", "Decode values into a column, with --schema: `json`", one_of("json"))
]
Schema = Annotated[str | None, option("--schema", "SQL", "Fields of the values, such as `name string, n bigint`")]
Vacuum = Annotated[
    timedelta | None, duration("--vacuum", "Delete files of versions older than this; 7d by default, 0s for all")
]
RETENTION = timedelta(days=7)
PATIENCE_S = 0.3
"""Seconds for a commit in progress. Nothing is to be cleaned up: the table is its own checkpoint, and Spark ends with
this process, while its orderly end takes seconds."""


@command(
    "pipeline capture",
    examples=[
        "kvctl pipeline capture orders --to /lake/orders",
        "kvctl pipeline capture orders --to s3://lake/orders --once -o json",
        "kvctl pipeline capture orders --to /lake/latest --mode latest",
        "kvctl pipeline capture orders --to /lake/orders --value-format json --schema 'sku string, n int'",
    ],
    see=["pipeline compact", "pipeline export", "help pipeline"],
    prints=(CAPTURED,),
    forces=lambda: (LOSS, hazards.LAGGING_REPLICA),
)
async def capture(
    session: Session,
    bucket: BucketName,
    to: Annotated[str, option("--to", "URI", "Delta table: folder, or URL of an object store")],
    mode: CaptureMode = "changes",
    keep_deleted: Annotated[
        bool, flag("--keep-deleted", "In mode latest, keep the rows of deleted keys, without values")
    ] = False,
    value_format: ValueFormat = None,
    schema: Schema = None,
    once: Annotated[bool, flag("--once", "Capture the current entries, then exit")] = False,
    trigger: Annotated[timedelta | None, duration("--trigger", "Time between batches; 1s by default")] = None,
    max_revisions: Annotated[
        int | None, option("--max-revisions", "N", "Maximum revisions per batch; 1000000 by default", min=1)
    ] = None,
    force: Force = None,
    storage_option: StorageOptions = None,
    *,
    target: OnSpark,
) -> None:
    """Capture a bucket's changes into a Delta table.

    Every change, including deletions, becomes one row, and stays there after the bucket has dropped it. With --mode
    latest the table has one row for each key instead. The table is its own checkpoint: run the command again to
    continue where it ends. Readers see each revision once, also after crashes. A second capture into the table fails
    (4).

    A capture begins with the bucket's current entries and runs until Ctrl-C. Changes that newer ones push out of the
    bucket's history before they are read are not captured. This is not data loss, as every key's newest state is
    captured. If other entries were purged or expired before they were read, the command exits 3; use --force data-loss
    to continue.

    With --once, a mirror or an aggregate that lacks entries of its origins after five seconds is not captured without
    --force lagging-replica.

    With --value-format json the column `json` has the values' fields. A later run may add fields; values that do not
    fit are null.

    A recreated bucket is a different bucket and needs its own table.
    """
    names.check_bucket(bucket)
    _check_together(mode, keep_deleted, value_format, schema, trigger, once)
    require_spark()
    place = TablePlace.parse(to, storage_option or ())
    await asyncio.to_thread(capture_job.find, place)
    binding = await (await session.client()).bucket(bucket).locate()
    if once:  # a capture that runs on receives late entries
        await require_current(session, binding.api, binding.info, force)
    options = replace(
        pipeline_options.parse({"bucket": bucket, **source_options(session, target)}),
        max_revisions_per_trigger=max_revisions,
        fail_on_data_loss=LOSS not in (force or ()),
    )
    order = capture_job.CaptureOrder(
        mode=mode, keep_deleted=keep_deleted, schema=schema, once=once, trigger=trigger or capture_job.TRIGGER
    )
    job = partial(capture_job.capture, options=options, place=place, order=order)
    try:
        left = partial(_interrupted, place)
        done, seconds = await run_job(session, target, f"Capturing {bucket}", job, incomplete=left, patience=PATIENCE_S)
    except HistoryLost as error:
        error.hint = f"Use `--force {LOSS}` to continue with the remaining entries"
        raise
    _show(session, done, seconds)


@command(
    "pipeline compact",
    examples=["kvctl pipeline compact /lake/orders", "kvctl pipeline compact s3://lake/orders --vacuum 30d"],
    see=["pipeline capture", "pipeline verify", "help pipeline"],
    prints=(COMPACTED,),
)
async def compact(
    session: Session,
    uri: Annotated[str, argument("URI", "Delta table of a capture or an export")],
    vacuum: Vacuum = None,
    storage_option: StorageOptions = None,
    *,
    target: OnSpark,
) -> None:
    """Combine the small files of a Delta table, and delete old ones.

    Every batch of a capture adds files. This combines them, and deletes files that only versions older than --vacuum
    have, and those of killed jobs after a day. A capture can run concurrently. Needs no Spark.

    With a short --vacuum, readers of earlier versions may miss files.
    """
    require_spark()
    place = TablePlace.parse(uri, storage_option or ())
    place.require_existing()
    table = await asyncio.to_thread(delta.KvTable.find, place)
    if table is None:
        if place.path is None and not await asyncio.to_thread(place.listing):
            raise NotFoundError(f"`{place}` does not exist")
        raise ConflictError(f"`{place}` is not a Delta table", hint="Folders of Parquet files need no compaction")
    origin, loss = table.origin, table.loss
    if loss is not None:
        session.warn(
            f"The capture continued after data loss (`--force {LOSS}`) at revision {loss} and may lack changes"
        )
    with session.progress(f"Compacting {place.name}"):
        done = await asyncio.to_thread(table.compact, RETENTION if vacuum is None else vacuum)
    parts = table.parts
    known = {"bucket": origin.bucket, "path": place.uri, "files": len(parts), **asdict(done)}
    known["bytes"] = sum(part.bytes for part in parts)
    session.show(document(row_of(COMPACTED, known), *columns(" ".join(COMPACTED.columns)), name="path"))


def _show(session: Session, done: "capture_job.CaptureResult", seconds: float) -> None:
    table, files, origin = done.table, done.table.parts, done.table.origin
    known = {"bucket": origin.bucket, "path": table.place.uri, "mode": origin.mode, "rows": done.rows}
    known |= {"files": len(files), "captured": sum(part.rows for part in files), "seconds": seconds}
    row = row_of(CAPTURED, table, **known, revision=table.offset.revision)
    session.show(document(row, *columns(" ".join(CAPTURED.columns)), name="path"))


def _check_together(
    mode: str, keep_deleted: bool, value_format: str | None, schema: str | None, trigger: timedelta | None, once: bool
) -> None:
    """Raise UsageError for options that do not belong together."""
    for name, value, words in (("mode", mode, ("changes", "latest")), ("value-format", value_format, ("json",))):
        if value is not None and value not in words:
            raise UsageError(f"`--{name} {value}` is not one of {', '.join(f'`{word}`' for word in words)}")
    if keep_deleted and mode != "latest":
        raise UsageError("`--keep-deleted` requires `--mode latest`", hint="Mode `changes` has a row for each deletion")
    if (value_format is None) != (schema is None):
        raise UsageError("`--value-format` and `--schema` require each other")
    if once and trigger is not None:
        raise UsageError("`--once` and `--trigger` cannot be combined")
    if trigger is not None and trigger <= timedelta():
        raise UsageError("`--trigger` must be greater than 0")


def _interrupted(place: TablePlace) -> str:
    table = capture_job.find(place)
    reached = "is still empty"
    if table is not None and (rows := sum(part.rows for part in table.parts)):
        reached = f"holds {rows:,} rows, up to revision {table.offset.revision:,}"
    return f"Interrupted: `{place}` {reached}; run the command again to continue"
