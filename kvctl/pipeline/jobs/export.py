"""Export a bucket into a folder of Parquet, JSON or CSV files with a manifest, as of one revision."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvctl.errors import KvctlError
from kvctl.pipeline.files import file_rows, target_folder
from kvctl.pipeline.files.contents import Contents
from kvctl.pipeline.files.export_files import Advance
from kvctl.pipeline.files.export_manifest import HISTORY, Manifest
from kvctl.pipeline.files.target_folder import Removed, Staged
from kvctl.units import format_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kvctl.pipeline.spark.engine import Engine


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export."""

    path: str
    manifest: Manifest
    removed: Removed
    seconds: float


def export(
    engine: Engine, contents: Callable[[SparkSession], Contents], folder: Path, *, format: str = "parquet",
    by_prefix: bool = False, overwrite: bool = False, hashed: Advance = lambda _: None,
) -> Exported:  # fmt: skip
    """Write the rows that `contents` returns into the folder, and a manifest once all of them are there.

    Raises ConflictError if the folder is not empty, unless `overwrite`; its content stays until the end.
    """
    begun = time.monotonic()
    target_folder.check_vacant(folder, overwrite=overwrite)
    removed = target_folder.occupants(folder)
    with target_folder.taken(folder) as staging, engine.explaining():
        found = contents(engine.spark)
        engine.doing = f"writing {format}"
        counts = _write(found, staging, format, by_prefix)
        engine.doing = "hashing"
        files = target_folder.staged(staging, format, hashed)
        _require_all(folder, files, counts["rows"])
        manifest = _manifest(found, files, format, by_prefix, counts)
        target_folder.take_over(folder, files, manifest)
    return Exported(str(folder), manifest, removed, time.monotonic() - begun)


def _write(contents: Contents, staging: Path, format: str, by_prefix: bool) -> dict[str, Any]:
    """Write the rows. Counts rows, entries newer than the cut (deletions included), ttls and headers."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import expr

    observation = Observation()
    wanted = "true" if contents.mode == HISTORY else "operation = 'PUT'"
    newer = "false" if contents.cut is None else f"revision > {contents.cut}"
    counted = {
        "rows": f"count_if({wanted})",
        "newer": f"count_if({newer})",
        "ttl": "count(ttl)",
        "headers": "count(headers)",
    }
    counts = [expr(text).alias(name) for name, text in counted.items()]
    rows = contents.rows.observe(observation, *counts).where(wanted)
    file_rows.write(rows, staging, format, bucket=contents.bucket, by_prefix=by_prefix)
    return observation.get


def _require_all(folder: Path, files: list[Staged], rows: int) -> None:
    """Raises KvctlError if the files visible on this machine do not have all rows."""
    there = sum(file.part.rows for file in files)
    if there != rows:
        raise KvctlError(
            f"{rows} rows were written, but `{folder}` has files with {there}",
            hint="On a cluster the folder must be shared by all its machines and this one",
        )


def _manifest(
    contents: Contents, files: list[Staged], format: str, by_prefix: bool, counts: Mapping[str, int]
) -> Manifest:
    parts = tuple(sorted((file.part for file in files), key=lambda part: part.name))
    return Manifest(
        bucket=contents.bucket,
        ref=contents.ref,
        incarnation=contents.incarnation,
        config=contents.config,
        cut=contents.cut,
        newer=counts["newer"],
        mode=contents.mode,
        filters=contents.filters,
        format=format,
        partitioned_by=file_rows.PREFIX if by_prefix else None,
        columns=tuple(name for name in file_rows.COLUMNS if counts.get(name, 1)),
        created=format_time(time.time_ns()),
        rows=sum(part.rows for part in parts),
        bytes=sum(part.bytes for part in parts),
        files=parts,
    )
