"""`kvctl pipeline export`: files of a bucket, with a manifest to verify them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, DryRun, one_of
from kvctl.cli.app.session import Session
from kvctl.cli.pipeline.runner import OnSpark, run_job, source_options
from kvctl.cli.records import EXPORT, EXPORT_PLAN
from kvctl.cli.repo.options import At, open_repository, parse_at
from kvctl.errors import PartlyDone, UsageError
from kvctl.kv.names import check_bucket, check_filter, is_ref
from kvctl.phrases import counted, quoted
from kvctl.pipeline import options
from kvctl.pipeline.files import contents as files_contents
from kvctl.pipeline.files import export_files, target_folder
from kvctl.pipeline.jobs import commit
from kvctl.pipeline.jobs import export as export_job
from kvctl.render.fields import columns
from kvctl.render.view import Column, document

To = Annotated[str, typer.Option("--to", metavar="DIR", help="Folder for the files; new or empty")]
Format = Annotated[
    str,
    typer.Option("--format", metavar="FORMAT", help="Format of the files: `parquet`", autocompletion=one_of("parquet")),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode", metavar="MODE", help="`latest` values, or all `history`", autocompletion=one_of("latest", "history")
    ),
]
Filter = Annotated[list[str] | None, typer.Option("--filter", metavar="FILTER", help="Only matching keys; repeatable")]
OnEvicted = Annotated[
    str | None,
    typer.Option(
        "--on-evicted",
        metavar="WHAT",
        help="On values overwritten while reading: export the `newer` ones, or `fail`",
        autocompletion=one_of("newer", "fail"),
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the contents of DIR once the new export is complete")
]

SUMMARY = columns("bucket path format mode cut rows files bytes seconds", cut="Revision")


@command(
    "pipeline export",
    examples=[
        "kvctl pipeline export orders --to orders.export",
        "kvctl pipeline export orders --to new-orders.export --filter 'NEW.>'",
        "kvctl pipeline export orders --to /lake/orders --mode history --overwrite",
        "kvctl pipeline export config@v1 --to config-v1.export",
    ],
    see=["pipeline verify", "pipeline load", "dump", "bucket backup", "help pipeline"],
    prints=(EXPORT, EXPORT_PLAN),
)
async def export(
    session: Session,
    bucket: BucketName,
    to: To,
    format: Format = "parquet",
    mode: Mode = "latest",
    filter: Filter = None,
    on_evicted: OnEvicted = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    *,
    target: OnSpark,
) -> None:
    """Export a bucket into Parquet files.

    Writes the current keys, or every entry with --mode history, as of one revision, the snapshot revision. The
    manifest, `_manifest.json`, is written last. It records the snapshot revision, the bucket's configuration, and the
    hash of every file. A folder without a manifest is an interrupted export.

    Values are exact, and times have microsecond precision. `kvctl dump` writes JSON lines.

    If a value is overwritten before it is read and is no longer in the bucket's history, the newer value is exported
    and the command exits 7. With --on-evicted newer it exits 0; with --on-evicted fail nothing is exported (3).

    `NAME@REF` exports a commit of a versioned bucket, or those of its keys that match --filter. Its keys have no
    revisions, and carry the time of the commit.

    For a bucket that one machine can hold, `kvctl dump` is as fast and needs no Spark.
    """
    at = _parse_commit(bucket, mode, on_evicted) if is_ref(bucket) else None
    name = check_bucket(bucket) if at is None else at.repository
    _check_one_of("--format", format, "parquet")
    _check_one_of("--mode", mode, "latest", "history")
    _check_one_of("--on-evicted", on_evicted, "newer", "fail")
    filters = [check_filter(text) for text in filter or ()]
    folder = export_files.folder_of(to)
    target_folder.check_vacant(folder, overwrite=overwrite)
    if dry_run:
        _show_plan(session, name, await _snapshot_of(session, bucket, at), folder, format, mode)
        return
    reading = {"mode": mode, "filter": ",".join(filters), "onEvicted": on_evicted or ""}
    contents = _contents_of(name, None if at is None else at.ref, reading, source_options(session, target))
    job = partial(export_job.export, contents=contents, folder=folder, overwrite=overwrite)
    left = f"Interrupted: the export to `{folder}` was not completed; run the command again"
    made = await run_job(session, target, f"Exporting {bucket}", job, incomplete=left)
    if made.removed.files:
        what = "an export" if made.removed.whole else "an incomplete export"
        session.note(f"Removed {counted(made.removed.files, 'file')} from `{folder}`: {what}", always=True)
    session.show(document(_export_row(made), *SUMMARY, tsv=EXPORT.columns, name="path"))
    if made.manifest.newer and on_evicted is None:
        raise PartlyDone(
            f"Inconsistent export: {made.manifest.newer} keys or entries were overwritten before they were read",
            hint=f"Keep more history with `kvctl bucket edit {bucket} --history N`, or pass `--on-evicted newer` to "
            "accept newer values",
        )


def _contents_of(
    name: str, ref: str | None, reading: dict[str, str], connection: dict[str, str]
) -> "Callable[[], files_contents.Contents]":
    """Return the reader for the rows of a bucket, or of a repository at `ref`."""
    if ref is not None:
        given = {"filter": reading["filter"]} if reading["filter"] else {}
        return partial(commit.of_commit, options.parse({"bucket": name, **given, **connection}), ref)
    given = {option: text for option, text in reading.items() if text}
    return partial(files_contents.of_bucket, options.parse({"bucket": name, **given, **connection}))


async def _snapshot_of(session: Session, bucket: str, at: At | None) -> dict[str, Any]:
    """Return the bucket's last revision as `cut`, or the commit as `ref`.

    Raises BucketNotFound, RepositoryNotFound, RefNotFound.
    """
    if at is not None:
        return {"ref": (await (await open_repository(session, at.repository)).show(at.ref)).id}
    return {"cut": (await (await session.client()).bucket(bucket).status()).last_revision}


def _show_plan(session: Session, name: str, snapshot: dict[str, Any], folder: "Path", format: str, mode: str) -> None:
    """Show the snapshot to export and the number of files to remove."""
    removed = target_folder.occupants(folder)
    row = {"bucket": name, "path": str(folder), "format": format, "mode": mode, **snapshot, "removed": removed.files}
    session.show(document(row, *map(Column, row), name="path"))


def _export_row(made: "export_job.ExportResult") -> dict[str, Any]:
    manifest = made.manifest
    return {
        "bucket": manifest.bucket,
        "path": made.path,
        "format": manifest.format,
        "mode": manifest.mode,
        "cut": manifest.cut,
        "ref": manifest.ref,
        "exact": manifest.exact,
        "rows": manifest.rows,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "removed": made.removed.files,
        "seconds": round(made.seconds, 3),
    }


def _parse_commit(place: str, mode: str, on_evicted: str | None) -> At:
    """Parse NAME@REF. Raises UsageError, also for options that are for buckets only."""
    at = parse_at(place)
    given = {"--mode history": mode == "history", "--on-evicted": on_evicted is not None}
    for option, is_given in given.items():
        if is_given:
            raise UsageError(f"`{option}` applies only to buckets; `{place}` is a commit")
    return at


def _check_one_of(option: str, value: str | None, *words: str) -> None:
    if value is not None and value not in words:
        shown = quoted(words)
        raise UsageError(
            f"`{option} {value}` is not one of {shown}" if len(words) > 1 else f"`{option}` must be {shown}"
        )
