"""Export a bucket into a folder of Parquet files with a manifest, as of one revision.

Tasks read the rows and write files of them, hashed on the way; the driver names the files and writes the manifest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvctl.errors import KvctlError
from kvctl.pipeline.files import export_writer, file_rows, target_folder
from kvctl.pipeline.files.contents import Contents, TaskRows
from kvctl.pipeline.files.export_manifest import HISTORY, ExportManifest
from kvctl.pipeline.files.export_writer import ExportForm, WrittenRows
from kvctl.pipeline.files.target_folder import RemovedFiles, StagedFile
from kvctl.pipeline.spark import tasks
from kvctl.units import format_size, format_time

if TYPE_CHECKING:
    from kvctl.pipeline.spark.engine import Engine


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result of an export."""

    path: str
    manifest: ExportManifest
    removed: RemovedFiles
    seconds: float


def export(engine: Engine, contents: Callable[[], Contents], folder: Path, *, overwrite: bool = False) -> ExportResult:
    """Write the rows that `contents` returns into the folder, and a manifest once all of them are there.

    Raises ConflictError if the folder is not empty, unless `overwrite`; its content stays until the end.
    """
    begun = time.monotonic()
    target_folder.check_vacant(folder, overwrite=overwrite)
    removed = target_folder.occupants(folder)
    with target_folder.taken(folder) as staging, engine.explaining():
        found = contents()
        engine.doing = lambda: f"writing, {format_size(target_folder.occupants(staging).bytes)}"
        written = _write(engine, found, staging)
        files = target_folder.staged(staging, filter(None, (one.file for one in written)))
        _require_all(folder, files)
        manifest = _manifest(found, files, written)
        target_folder.take_over(folder, files, manifest)
    return ExportResult(str(folder), manifest, removed, time.monotonic() - begun)


def _write(engine: Engine, contents: Contents, staging: Path) -> list[WrittenRows]:
    form = ExportForm(staging=str(staging), history=contents.mode == HISTORY, cut=contents.cut)
    staging.mkdir(parents=True)
    rows = contents.rows
    if isinstance(rows, TaskRows):
        return tasks.over_items(engine, rows.parts, partial(_write_part, rows, form))
    return tasks.over_rows(rows.select(*file_rows.COLUMNS), partial(export_writer.write, form=form))


def _write_part(rows: TaskRows, form: ExportForm, part: Any) -> Iterator[WrittenRows]:
    return export_writer.write(rows.read(part), form)


def _require_all(folder: Path, files: Sequence[StagedFile]) -> None:
    """Raises KvctlError if files of the tasks are not visible on this machine, in full."""
    there = [file for file in files if target_folder.size_of(file.path) == file.part.bytes]
    if len(there) < len(files):
        rows, found = (sum(file.part.rows for file in some) for some in (files, there))
        raise KvctlError(
            f"{rows} rows were written, but `{folder}` has files with {found}",
            hint="On a cluster the folder must be shared by all its machines and this one",
        )


def _manifest(contents: Contents, files: Sequence[StagedFile], written: Sequence[WrittenRows]) -> ExportManifest:
    counts = {"ttl": sum(one.ttls for one in written), "headers": sum(one.headers for one in written)}
    parts = tuple(file.part for file in files)
    return ExportManifest(
        bucket=contents.bucket,
        ref=contents.ref,
        incarnation=contents.incarnation,
        config=contents.config,
        cut=contents.cut,
        newer=sum(one.newer for one in written),
        mode=contents.mode,
        filters=contents.filters,
        format="parquet",
        columns=tuple(name for name in file_rows.COLUMNS if counts.get(name, 1)),
        created=format_time(time.time_ns()),
        rows=sum(part.rows for part in parts),
        bytes=sum(part.bytes for part in parts),
        files=parts,
    )
