"""`kvctl pipeline verify`: verification of an export, and its comparison with a bucket."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import bucket_names
from kvctl.cli.app.session import Session
from kvctl.cli.pipeline.runner import OnSpark, run_job, source_options
from kvctl.cli.records import KEY_DIFFERENCE, VERIFIED
from kvctl.errors import ConflictError
from kvctl.kv.names import check_bucket
from kvctl.phrases import counted
from kvctl.pipeline import options as pipeline_options
from kvctl.pipeline.files import export_files
from kvctl.pipeline.jobs import verify as verify_job
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document

T = TypeVar("T")

ExportPath = Annotated[str, typer.Argument(metavar="DIR", help="Folder of the export")]


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
        str | None,
        typer.Option(
            "--against", metavar="BUCKET", help="Compare with this bucket as well", autocompletion=bucket_names
        ),
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
    differences = [
        {
            "key": item.key,
            "difference": str(item.difference),
            "revision": item.revision,
            "other_revision": item.other_revision,
        }
        for item in (compared.differences if compared else ())
    ]
    if differences and session.output in ("tsv", "name"):
        session.show(View(columns=DIFFERENCES, rows=differences, name="key"))
        return
    damage = [{"file": item.file, "problem": item.problem} for item in found.damage]
    row = {
        "path": found.path,
        "bucket": found.manifest.bucket,
        "format": found.manifest.format,
        "mode": found.manifest.mode,
        "cut": found.manifest.cut,
        "rows": found.manifest.rows,
        "files": len(found.manifest.files),
        "bytes": found.manifest.bytes,
        "whole": found.whole,
        "damage": damage,
        "against": _against_row(compared, differences) if compared else None,
        "seconds": round(found.seconds + (compared.seconds if compared else 0), 3),
    }
    sections = [("Damage", View(columns=DAMAGE, rows=damage, name="file"))] if damage else []
    sections += [("Differences", View(columns=DIFFERENCES, rows=differences, name="key"))] if differences else []
    session.show(document(row, *_VERIFIED, tsv=VERIFIED.columns, name="path", sections=sections))


def _against_row(compared: "verify_job.BucketComparison", differences: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "bucket": compared.bucket,
        "at": str(compared.at),
        "revision": compared.revision,
        **compared.counts,
        "differences": differences,
    }


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
