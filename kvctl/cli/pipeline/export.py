"""`kvctl pipeline export` and `verify`: files of a bucket, with a manifest to verify them."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, DryRun, argument, bucket_names, flag, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.facts import row_of
from kvctl.cli.pipeline.runner import OnSpark, run_job, source_options
from kvctl.cli.records import EXPORT, EXPORT_PLAN, KEY_DIFFERENCE, PARTS, VERIFIED
from kvctl.cli.repo.options import At, open_repository, parse_at
from kvctl.errors import ConflictError, PartlyDone, UsageError
from kvctl.kv.names import check_bucket, check_filter, is_ref
from kvctl.phrases import counted, quoted
from kvctl.pipeline import options as pipeline_options
from kvctl.pipeline.files import contents as files_contents
from kvctl.pipeline.files import export_files, target_folder
from kvctl.pipeline.jobs import commit
from kvctl.pipeline.jobs import export as export_job
from kvctl.pipeline.jobs import verify as verify_job
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document

To = Annotated[str, option("--to", "DIR", "Folder for the files; new or empty")]
Format = Annotated[str, option("--format", "FORMAT", "Format of the files: `parquet`", one_of("parquet"))]
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
Overwrite = Annotated[bool, flag("--overwrite", "Replace the contents of DIR once the new export is complete")]

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
    manifest, seconds = made.manifest, round(made.seconds, 3)
    known = {"path": made.path, "files": len(manifest.files), "removed": made.removed.files, "seconds": seconds}
    session.show(document(row_of(EXPORT, manifest, **known), *SUMMARY, tsv=EXPORT.columns, name="path"))
    if manifest.newer and on_evicted is None:
        raise PartlyDone(
            f"Inconsistent export: {manifest.newer} keys or entries were overwritten before they were read",
            hint=f"Keep more history with `kvctl bucket edit {bucket} --history N`, or pass `--on-evicted newer` to "
            "accept newer values",
        )


def _contents_of(
    name: str, ref: str | None, reading: dict[str, str], connection: dict[str, str]
) -> "Callable[[], files_contents.Contents]":
    """Return the reader for the rows of a bucket, or of a repository at `ref`."""
    if ref is not None:
        given = {"filter": reading["filter"]} if reading["filter"] else {}
        return partial(commit.of_commit, pipeline_options.parse({"bucket": name, **given, **connection}), ref)
    given = {option: text for option, text in reading.items() if text}
    return partial(files_contents.of_bucket, pipeline_options.parse({"bucket": name, **given, **connection}))


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


def _parse_commit(place: str, mode: str, on_evicted: str | None) -> At:
    """Parse NAME@REF. Raises UsageError, also for options that are for buckets only."""
    at = parse_at(place)
    given = {"--mode history": mode == "history", "--on-evicted": on_evicted is not None}
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

ExportPath = Annotated[str, argument("DIR", "Folder of the export")]


@command(
    "pipeline verify",
    examples=["kvctl pipeline verify orders.export", "kvctl pipeline verify orders.export --against orders"],
    see=["pipeline export", "bucket diff"],
    prints=(VERIFIED, KEY_DIFFERENCE),
)
async def verify(
    session: Session,
    path: ExportPath,
    against: Annotated[
        str | None, option("--against", "BUCKET", "Compare with this bucket as well", bucket_names)
    ] = None,
    *,
    target: OnSpark,
) -> None:
    """Verify that an export is undamaged.

    Hashes every file, without Spark, and lists the files that were changed, truncated, removed or added. Exits 4 if
    there are any.

    --against compares the rows with a live bucket, with Spark. If the bucket is that of the export and still holds the
    snapshot revision, it is compared as of that revision, else as it is now; the result shows which. Differing keys are
    counted, and the first thousand are listed as in `bucket diff`: `missing` in the bucket, `extra` in it, or
    `differs`. Exits 4 if there are any. For an export of history, all entries of a key are compared.
    """
    folder = export_files.folder_of(path)
    manifest = export_files.read_manifest(folder)
    if against:
        check_bucket(against)
    found = await hashing(session, f"Verifying {folder.name}", manifest.bytes, partial(verify_job.verify, folder))
    compared = None
    if against and found.whole:
        options = pipeline_options.parse({"bucket": against, **source_options(session, target)})
        await (await session.client()).bucket(against).locate()
        work = partial(verify_job.compare, folder=folder, manifest=manifest, options=options)
        compared = await run_job(session, target, f"Comparing with {against}", work)
    _show_verified(session, found, compared)
    if not found.whole:
        raise ConflictError(f"The export in `{folder}` is damaged: {export_files.in_words(found.damage)}")
    if compared is not None and (count := sum(compared.counts.values())):
        when = f"as it was at revision {compared.revision}" if compared.at == "cut" else "as it is now"
        raise ConflictError(f"Bucket `{against}`, {when}, differs in {counted(count, 'key')}")


def _show_verified(
    session: Session, found: "verify_job.ExportVerification", compared: "verify_job.BucketComparison | None"
) -> None:
    found_differences = compared.differences if compared else ()
    differences = [row_of(KEY_DIFFERENCE, item, difference=str(item.difference)) for item in found_differences]
    if differences and session.output in ("tsv", "name"):
        session.show(View(columns=DIFFERENCES, rows=differences, name="key"))
        return
    damage = [{"file": item.file, "problem": item.problem} for item in found.damage]
    against = None
    if compared:
        known = {"at": str(compared.at), "differences": differences, **compared.counts}
        against = row_of(PARTS["against"][0], compared, **known)
    row = row_of(
        VERIFIED,
        found.manifest,
        path=found.path,
        files=len(found.manifest.files),
        whole=found.whole,
        damage=damage,
        against=against,
        seconds=round(found.seconds + (compared.seconds if compared else 0), 3),
    )
    sections = [("Damage", View(columns=DAMAGE, rows=damage, name="file"))] if damage else []
    sections += [("Differences", View(columns=DIFFERENCES, rows=differences, name="key"))] if differences else []
    session.show(document(row, *_VERIFIED, tsv=VERIFIED.columns, name="path", sections=sections))


def _against_text(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    counts = ", ".join(f"{row[name]} {name}" for name in ("missing", "extra", "differs") if row[name])
    when = "at the snapshot revision" if row["at"] == "cut" else f"now, at revision {row['revision']}"
    return f"{row['bucket']} {when}: {counts or 'no differences'}"


_VERIFIED = columns(
    "path bucket format mode cut rows files bytes whole against seconds",
    cut="Revision",
    whole=Column(
        "whole",
        "Complete",
        text=lambda whole: "yes" if whole else "no",
        style=lambda whole: "green" if whole else "red",
    ),
    against=Column("against", text=_against_text),
)
DAMAGE = (Column("file"), Column("problem", style="red", wrap=True))
DIFFERENCES = columns(
    "key difference revision other_revision",
    difference=Column("difference", style=lambda what: {"missing": "red", "extra": "green"}.get(what, "yellow")),
    other_revision=Column("other_revision", "In bucket", right=True),
)


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
