"""`kvctl pipeline export`: a bucket in files, with the proof that they are whole."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import BucketName, DryRun
from kvctl.cli.app.session import Session
from kvctl.cli.pipeline.runner import (
    Conf,
    Master,
    Remote,
    run_job,
    source_options,
    spark_target,
)
from kvctl.cli.repo.options import open_repository, parse_at
from kvctl.errors import PartlyDone, UsageError
from kvctl.kv.names import check_bucket, check_filter
from kvctl.render.view import Column, document, duration_text, size_text

if TYPE_CHECKING:
    from pathlib import Path

    from kvctl.pipeline.files.contents import Contents
    from kvctl.pipeline.jobs.export import Exported
    from kvctl.pipeline.spark.session_config import Target

app = group()


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Completes one of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


To = Annotated[str, typer.Option("--to", metavar="DIR", help="Folder for the files; new or empty")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="`parquet`, `json` or `csv`",
        autocompletion=one_of("parquet", "json", "csv"),
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode", metavar="MODE", help="`latest` values, or all `history`", autocompletion=one_of("latest", "history")
    ),
]
Filter = Annotated[
    list[str] | None, typer.Option("--filter", metavar="FILTER", help="Only keys that match it; repeatable")
]
PartitionBy = Annotated[
    str | None,
    typer.Option(
        "--partition-by", metavar="WHAT", help="`prefix`: a folder for each first token of the keys",
        autocompletion=one_of("prefix"),
    ),
]  # fmt: skip
OnEvicted = Annotated[
    str | None,
    typer.Option(
        "--on-evicted", metavar="WHAT", help="Overwritten before it is read: take the `newer` value, or `fail`",
        autocompletion=one_of("newer", "fail"),
    ),
]  # fmt: skip
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Remove what DIR holds once the new export is whole")]

SUMMARY = (
    Column("bucket"), Column("path"), Column("format"), Column("mode"), Column("cut"), Column("ref", table=False),
    Column("exact", table=False), Column("rows"), Column("files"), Column("bytes", "Size", text=size_text),
    Column("removed", table=False), Column("seconds", "Time", text=duration_text),
)  # fmt: skip


@command(
    app,
    "export",
    examples=[
        "kvctl pipeline export orders --to orders.export",
        "kvctl pipeline export orders --to orders.csv --format csv --filter 'NEW.>'",
        "kvctl pipeline export orders --to /lake/orders --mode history --partition-by prefix --overwrite",
        "kvctl pipeline export config@v1 --to config-v1.export",
    ],
    see=["pipeline verify", "pipeline load", "dump", "bucket backup", "help pipeline"],
)
async def export(
    session: Session,
    bucket: BucketName,
    to: To,
    format: Format = "parquet",
    mode: Mode = "latest",
    filter: Filter = None,
    partition_by: PartitionBy = None,
    on_evicted: OnEvicted = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Export a bucket into Parquet, JSON or CSV files.

    Writes the living keys, or with --mode history every entry, as they are at one revision, the cut. The manifest,
    `_manifest.json`, is written last: it says the cut, the bucket's configuration, and the hash of every file. A folder
    without one is what an interrupted export left.

    Values are exact. Parquet holds them as bytes; JSON has an entry object of `kvctl get` a line, and CSV the same
    columns: text as it is, with `encoding` `utf-8`, anything else as `base64`; in CSV text with control characters,
    too, so that a record is a line. Times are to the microsecond.

    Where a writer overwrites what has not been read yet, and the bucket's history does not hold it any more, the newer
    value is taken and the command exits 7; with --on-evicted newer it does not, with --on-evicted fail nothing is
    exported (3).

    `NAME@REF` exports a commit of a versioned bucket, or the keys of it that match --filter. Its keys have no
    revisions, and the time of the commit.

    For a bucket that one machine can hold, `kvctl dump` is as fast and needs no Spark.
    """
    from kvctl.pipeline.files import export_files, target_folder

    _check_commit(bucket, mode, on_evicted) if "@" in bucket else check_bucket(bucket)
    _check_one_of("--format", format, "parquet", "json", "csv")
    _check_one_of("--mode", mode, "latest", "history")
    _check_one_of("--partition-by", partition_by, "prefix")
    _check_one_of("--on-evicted", on_evicted, "newer", "fail")
    filters = [check_filter(text) for text in filter or ()]
    folder = export_files.folder_of(to)
    target_folder.check_vacant(folder, overwrite=overwrite)
    target = spark_target(master, remote, conf)
    cut = await _cut_of(session, bucket)
    if dry_run:
        _show_plan(session, bucket, cut, folder, format, mode)
        return
    reading = {"mode": mode, "filter": ",".join(filters), "onEvicted": on_evicted or ""}
    made = await _export(session, target, bucket, reading, folder, format, partition_by is not None, overwrite)
    if made.removed.files:
        what = "an export" if made.removed.whole else "what was no whole export"
        session.note(f"Removed {made.removed.files} files from `{folder}`: {what}", always=True)
    row = _export_row(made)
    session.show(document(row, *SUMMARY, name="path"))
    if made.manifest.newer and on_evicted is None:
        raise PartlyDone(
            f"The export is not of one exact cut: {made.manifest.newer} keys or entries were overwritten before they "
            "were read, and are newer",
            hint=f"Keep more: `kvctl bucket edit {bucket} --history N`; `--on-evicted newer` says that it is as wanted",
        )


async def _export(
    session: Session, target: "Target", bucket: str, reading: dict[str, str], folder: "Path",
    format: str, by_prefix: bool, overwrite: bool,
) -> "Exported":  # fmt: skip
    from kvctl.pipeline.jobs.export import export

    contents = _contents_of(session, target, bucket, reading)
    job = partial(export, contents=contents, folder=folder, format=format, by_prefix=by_prefix, overwrite=overwrite)
    return await run_job(
        session, target, f"Exporting {bucket}", job,
        incomplete=f"Interrupted: the export to `{folder}` is incomplete, and was not put there; run it again",
    )  # fmt: skip


def _contents_of(
    session: Session, target: "Target", bucket: str, reading: dict[str, str]
) -> "Callable[[Any], Contents]":
    """What gives the rows of a bucket, or of a commit."""
    from kvctl.pipeline.files.contents import of_bucket
    from kvctl.pipeline.options import parse

    if "@" in bucket:
        from kvctl.pipeline.jobs.commit_rows import of_commit

        at = parse_at(bucket)
        chosen = {"filter": reading["filter"]} if reading["filter"] else {}
        options = parse({"bucket": at.repository, **chosen, **source_options(session, target)})
        return partial(of_commit, options=options, ref=at.ref)
    given = {name: text for name, text in reading.items() if text}
    options = parse({"bucket": bucket, **given, **source_options(session, target)})
    return partial(of_bucket, options=options)


async def _cut_of(session: Session, bucket: str) -> dict[str, Any]:
    """The bucket's last revision, or the commit. Raises BucketNotFound, RepositoryNotFound, RefNotFound."""
    if "@" in bucket:
        at = parse_at(bucket)
        return {"ref": (await (await open_repository(session, at.repository)).show(at.ref)).id}
    return {"cut": (await (await session.client()).bucket(bucket).status()).last_revision}


def _show_plan(session: Session, bucket: str, cut: dict[str, Any], folder: "Path", format: str, mode: str) -> None:
    """What an export would be of, and what would have to go for it."""
    from kvctl.pipeline.files import target_folder

    removed, name = target_folder.occupants(folder), bucket.partition("@")[0]
    row = {"bucket": name, "path": str(folder), "format": format, "mode": mode, **cut, "removed": removed.files}
    session.show(document(row, *map(Column, row), name="path"))


def _export_row(made: "Exported") -> dict[str, Any]:
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


def _check_commit(place: str, mode: str, on_evicted: str | None) -> None:
    """Raises UsageError for what goes with buckets only."""
    parse_at(place)
    given = {"--mode history": mode == "history", "--on-evicted": on_evicted is not None}
    for option, is_given in given.items():
        if is_given:
            raise UsageError(f"`{option}` is for buckets; `{place}` is a commit, which does not change")


def _check_one_of(option: str, value: str | None, *words: str) -> None:
    if value is not None and value not in words:
        shown = ", ".join(f"`{word}`" for word in words)
        raise UsageError(f"`{option} {value}` is none of {shown}" if len(words) > 1 else f"`{option}` is {shown}")
