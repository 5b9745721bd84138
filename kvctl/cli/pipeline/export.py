"""`kvctl pipeline export` and `verify`: files of a bucket, with a manifest to verify them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any, TypeVar

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, DryRun, Force, argument, flag, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.facts import row_of
from kvctl.cli.flows import require_current
from kvctl.cli.keys import arguments
from kvctl.cli.pipeline.runner import OnSpark, StorageOptions, run_job, source_options
from kvctl.cli.records import EXPORT, EXPORT_PLAN, VERIFIED
from kvctl.cli.repo.options import At, open_repository, parse_at
from kvctl.errors import ConflictError, PartlyDone, UsageError
from kvctl.kv.names import check_bucket, check_filter, is_ref
from kvctl.phrases import counted, quoted
from kvctl.pipeline import options as pipeline_options
from kvctl.pipeline import require_spark
from kvctl.pipeline.jobs import commit
from kvctl.pipeline.jobs import export as export_job
from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document
from kvctl.topology.hazards import hazards

To = Annotated[str, option("--to", "URI", "Folder, or URL of an object store; new or empty")]
Format = Annotated[
    str,
    option(
        "--format", "FORMAT", "`delta` table, or folder of `parquet` files with a manifest", one_of("delta", "parquet")
    ),
]
Mode = Annotated[str, option("--mode", "MODE", "`latest` values, or all `history`", one_of("latest", "history"))]
Filter = Annotated[list[str] | None, option("--filter", "FILTER", "Only matching keys; repeatable")]
OnEvicted = Annotated[
    str | None,
    option(
        "--on-evicted",
        "WHAT",
        "On values overwritten while reading: export the `newer` ones, or `fail`",
        one_of("newer", "fail"),
    ),
]
Overwrite = Annotated[bool, flag("--overwrite", "Replace the contents of URI once the new export is complete")]

SUMMARY = columns("bucket path format mode cut rows files bytes seconds", cut="Revision")


@command(
    "pipeline export",
    examples=[
        "kvctl pipeline export orders --to orders.export",
        "kvctl pipeline export orders --to new-orders.export --filter 'NEW.>'",
        "kvctl pipeline export orders --to s3://lake/orders --mode history --overwrite",
        "kvctl pipeline export orders --to /lake/orders --format parquet",
        "kvctl pipeline export config@v1 --to config-v1.export",
    ],
    see=["pipeline verify", "pipeline load", "dump", "bucket backup", "help pipeline"],
    prints=(EXPORT, EXPORT_PLAN),
    forces=lambda: (hazards.LAGGING_REPLICA,),
)
async def export(
    session: Session,
    bucket: BucketName,
    to: To,
    format: Format = "delta",
    mode: Mode = "latest",
    filter: Filter = None,
    on_evicted: OnEvicted = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    force: Force = None,
    storage_option: StorageOptions = None,
    *,
    target: OnSpark,
) -> None:
    """Export a bucket into a Delta table.

    Writes the current keys, or every entry with --mode history, as of one revision, the snapshot revision. URI is a
    folder, or an s3://, gs:// or az:// URL. The table records the snapshot revision, the bucket's configuration, and
    the hash of every file.

    With --overwrite an existing Delta table gets a new version; earlier ones stay until `kvctl pipeline compact`. With
    --format parquet the result is a folder of files with a manifest, `_manifest.json`, which is written last.

    Values are exact, and times have microsecond precision. `kvctl dump` writes JSON lines.

    If a value is overwritten before it is read and is no longer in the bucket's history, the newer value is exported
    and the command exits 7. With --on-evicted newer it exits 0; with --on-evicted fail nothing is exported (3).

    A mirror or an aggregate that lacks entries of its origins after five seconds is not exported without --force
    lagging-replica.

    `NAME@REF` exports a commit of a versioned bucket, or those of its keys that match --filter. Its keys have no
    revisions, and carry the time of the commit.

    For a bucket that one machine can hold, `kvctl dump` is as fast and needs no Spark.
    """
    at = _parse_commit(bucket, mode, on_evicted, force) if is_ref(bucket) else None
    name = check_bucket(bucket) if at is None else at.repository
    _check_one_of("--format", format, "delta", "parquet")
    _check_one_of("--mode", mode, "latest", "history")
    _check_one_of("--on-evicted", on_evicted, "newer", "fail")
    filters = [check_filter(text) for text in filter or ()]
    place = TablePlace.parse(to, storage_option or ())
    removed = await asyncio.to_thread(stored_table.occupants, place, overwrite=overwrite)
    if at is None:
        binding = await (await session.client()).bucket(name).locate()
        await require_current(session, binding.api, binding.info, force, dry_run=dry_run)
    if dry_run:
        found = {"path": place.uri, "format": format, "mode": mode, **await _snapshot_of(session, bucket, at)}
        row = {"bucket": name, **found, "removed": removed.files}
        session.show(document(row, *map(Column, row), name="path"))
        return
    reading = {"mode": mode, "filter": ",".join(filters), "onEvicted": on_evicted or ""}
    contents = _contents_of(name, None if at is None else at.ref, reading, source_options(session, target))
    job = partial(export_job.export, contents=contents, place=place, format=format, overwrite=overwrite)
    left = f"Interrupted: the export to `{place}` was not completed; run the command again"
    async with nullcontext() if at else arguments.noticing_unindexed(session, name):
        made, seconds = await run_job(session, target, f"Exporting {bucket}", job, incomplete=left)
    _note_replaced(session, made)
    origin = made.table.origin
    known = {"path": place.uri, "format": format, "files": len(made.table.parts), "removed": made.removed.files}
    known |= {"rows": made.table.rows, "bytes": made.table.bytes, "seconds": seconds}
    session.show(document(row_of(EXPORT, origin, **known), *SUMMARY, tsv=EXPORT.columns, name="path"))
    if on_evicted is None:
        _require_exact(bucket, origin.newer)


def _require_exact(bucket: str, newer: int) -> None:
    """Raise PartlyDone if there are newer values than those of the snapshot revision."""
    if newer:
        raise PartlyDone(
            f"Inconsistent export: {newer} keys or entries were overwritten before they were read",
            hint=f"Keep more history with `kvctl bucket edit {bucket} --history N`, or pass `--on-evicted newer` to "
            "accept newer values",
        )


def _note_replaced(session: Session, made: "export_job.ExportResult") -> None:
    if made.removed.files:
        what = counted(made.removed.files, "file")
        stays = "; its earlier versions stay until `kvctl pipeline compact`" if made.table.version else ""
        session.note(f"Replaced {what} in `{made.table.place}`: {made.removed.what}{stays}", always=True)


def _contents_of(
    name: str, ref: str | None, reading: dict[str, str], connection: dict[str, str]
) -> "Callable[[], export_job.Contents]":
    """Return the reader for the rows of a bucket, or of a repository at `ref`."""
    if ref is not None:
        given = {"filter": reading["filter"]} if reading["filter"] else {}
        return partial(commit.of_commit, pipeline_options.parse({"bucket": name, **given, **connection}), ref)
    given = {option: text for option, text in reading.items() if text}
    return partial(export_job.of_bucket, pipeline_options.parse({"bucket": name, **given, **connection}))


async def _snapshot_of(session: Session, bucket: str, at: At | None) -> dict[str, Any]:
    """Return the bucket's last revision as `cut`, or the commit as `ref`.

    Raises BucketNotFound, RepositoryNotFound, RefNotFound.
    """
    if at is not None:
        return {"ref": (await (await open_repository(session, at.repository)).show(at.ref)).id}
    return {"cut": (await (await session.client()).bucket(bucket).status()).last_revision}


def _parse_commit(place: str, mode: str, on_evicted: str | None, force: Force) -> At:
    """Parse NAME@REF. Raises UsageError, also for options that are for buckets only."""
    at = parse_at(place)
    given = {"--mode history": mode == "history", "--on-evicted": on_evicted is not None, "--force": bool(force)}
    for name, is_given in given.items():
        if is_given:
            raise UsageError(f"`{name}` applies only to buckets; `{place}` is a commit")
    return at


def _check_one_of(option: str, value: str | None, *words: str) -> None:
    if value is not None and value not in words:
        shown = quoted(words)
        raise UsageError(
            f"`{option} {value}` is not one of {shown}" if len(words) > 1 else f"`{option}` must be {shown}"
        )


T = TypeVar("T")

TableUri = Annotated[str, argument("URI", "Folder of an export, or URL of an object store")]


@command(
    "pipeline verify",
    examples=["kvctl pipeline verify orders.export", "kvctl pipeline verify s3://lake/orders"],
    see=["pipeline export", "pipeline audit", "bucket diff"],
    prints=(VERIFIED,),
)
async def verify(session: Session, uri: TableUri, storage_option: StorageOptions = None, *, target: OnSpark) -> None:
    """Verify the files of an export or a capture.

    Finds every file that was changed, truncated, removed or added (4), without Spark. Files that `kvctl pipeline
    compact` wrote have no hash; all of their rows are read instead.

    To compare contents with a bucket, use `kvctl pipeline audit`.
    """
    require_spark()
    place = TablePlace.parse(uri, storage_option or ())
    table = await asyncio.to_thread(stored_table.open_table, place)
    begun = time.monotonic()
    found = await hashing(session, f"Verifying {place.name}", table.bytes, partial(stored_table.damages, table))
    damage = [{"file": item.file, "problem": item.problem} for item in found]
    known = {"path": place.uri, "format": table.format, "rows": table.rows, "files": len(table.parts)}
    known |= {"bytes": table.bytes, "whole": not found, "damage": damage, "seconds": round(time.monotonic() - begun, 3)}
    sections = [("Damage", View(columns=DAMAGE, rows=damage, name="file"))] if damage else []
    row = row_of(VERIFIED, table.origin, **known)
    session.show(document(row, *_VERIFIED, tsv=VERIFIED.columns, name="path", sections=sections))
    if found:
        raise ConflictError(f"The table in `{place}` is damaged: {stored_table.in_words(found)}")


_VERIFIED = columns(
    "path bucket format mode cut rows files bytes whole seconds",
    cut="Revision",
    whole=Column(
        "whole",
        "Complete",
        text=lambda whole: "yes" if whole else "no",
        style=lambda whole: "green" if whole else "red",
    ),
)
DAMAGE = (Column("file"), Column("problem", style="red", wrap=True))


class _HashingStopped(Exception):
    """Interruption of the command, which stops the hashing."""


async def hashing(session: Session, what: str, total: int, work: Callable[..., T]) -> T:
    """Run the work in a thread under a progress bar; it stops with the command."""
    stopped = False
    with session.progress(what, total, unit="bytes") as bar:

        def advance(count: int) -> None:
            if stopped:
                raise _HashingStopped
            bar.advance(count)

        try:
            return await asyncio.to_thread(work, advance=advance)
        except asyncio.CancelledError:
            stopped = True
            raise
