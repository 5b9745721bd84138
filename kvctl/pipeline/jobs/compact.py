"""Compact a capture: the bucket's latest state from its captured changes, as an export that can be loaded."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvctl.errors import ConflictError, UsageError
from kvctl.pipeline.files import export_files, folder_swap
from kvctl.pipeline.files.capture_folder import CaptureFolder, State
from kvctl.pipeline.files.contents import Contents, ttl_left
from kvctl.pipeline.files.export_manifest import LATEST, MANIFEST
from kvctl.pipeline.files.file_rows import COLUMNS, literal
from kvctl.pipeline.jobs.export import Exported, export
from kvctl.pipeline.jobs.latest_state import newest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kvctl.pipeline.spark.engine import Engine

MARK = "_compact.json"
"""Says in a folder that it is a compaction, and of what."""
_SCHEMA = (
    "key string, value binary, revision bigint, created timestamp, operation string, ttl double, "
    "headers map<string, string>"
)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction came to."""

    capture: str
    path: str
    exported: Exported
    captured: int
    """Rows of the capture, of which it holds each key's latest."""
    replaced: bool
    """Whether an older compaction stood there."""
    seconds: float


def compact(engine: Engine, capture: Path, folder: Path) -> Compacted:
    """Write the state of the capture's last revision into the folder, in the place of an older compaction.

    Raises NotFoundError without a capture, ConflictError for one that lacks files, and for a folder that holds
    anything else.
    """
    begun = time.monotonic()
    state = check_places(capture, folder)
    source = CaptureFolder(capture)
    with folder_swap.beside(folder) as new:
        exported = export(engine, lambda spark: _contents(spark, source, state), new)
        _mark(new, capture, state)
        replaced = _check_own(folder, state)
        folder_swap.take_place(folder, new)
    return Compacted(str(capture), str(folder), exported, state.rows, replaced, time.monotonic() - begun)


def check_places(capture: Path, folder: Path) -> State:
    """How far the capture is. Raises as `compact`; needs no Spark."""
    if os.path.commonpath([capture, folder]) in (str(capture), str(folder)):
        raise UsageError(f"`{folder}` and the capture `{capture}` lie in one another", hint="Choose a folder beside it")
    state = CaptureFolder(capture).existing()
    _check_own(folder, state)
    return state


def _contents(spark: SparkSession, source: CaptureFolder, state: State) -> Contents:
    from pyspark.sql.functions import expr

    paths = source.files(state)
    _require_all(paths, source, state)
    rows = newest(_changes(spark, paths), state.config).withColumn("ttl", expr(ttl_left()))
    return Contents(
        rows=rows.select(*COLUMNS), bucket=state.bucket, incarnation=state.incarnation, config=state.config,
        mode=LATEST, cut=state.revision,
    )  # fmt: skip


def _changes(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], _SCHEMA)
    return spark.read.schema(_SCHEMA).parquet(*[literal(path) for path in paths])


def _require_all(paths: Sequence[Path], source: CaptureFolder, state: State) -> None:
    """Raises ConflictError where files of the capture are missing, or are not what was written."""
    from pyarrow import ArrowException, parquet

    def rows(path: Path) -> int:
        try:
            return int(parquet.read_metadata(path).num_rows)
        except (ArrowException, OSError) as error:
            raise _damaged(source, f"`{path.name}` cannot be read: {error}") from None

    found = sum(export_files.in_parallel(rows, paths))
    if found != state.rows:
        raise _damaged(source, f"it captured {state.rows:,} rows, its files hold {found:,}")


def _damaged(source: CaptureFolder, how: str) -> ConflictError:
    return ConflictError(
        f"The capture in `{source.path}` is not whole: {how}", hint="Nothing was written; capture into a new folder"
    )


def _mark(folder: Path, capture: Path, state: State) -> None:
    told = {"kvctl": "compact", "version": 1, "capture": str(capture), "bucket": state.bucket}
    (folder / MARK).write_text(json.dumps({**told, "revision": state.revision}, indent=2) + "\n", encoding="utf-8")


def _check_own(folder: Path, state: State) -> bool:
    """Whether an older compaction of the bucket stands in the folder. Raises ConflictError for anything else there."""
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise UsageError(f"`{folder}` is no folder")
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    if not present:
        return False
    if not present >= {MARK, MANIFEST}:
        raise _occupied(folder, "something that is no compaction")
    bucket = _marked(folder)
    if bucket != state.bucket:
        raise _occupied(folder, f"a compaction of bucket `{bucket}`")
    extra = sorted(present - {MARK, MANIFEST} - {part.name for part in export_files.read_manifest(folder).files})
    if extra:
        raise _occupied(folder, f"`{extra[0]}` beside a compaction")
    return True


def _marked(folder: Path) -> str:
    """The bucket that a compaction is of."""
    try:
        return str(json.loads((folder / MARK).read_bytes())["bucket"])
    except (ValueError, KeyError, TypeError):
        raise _occupied(folder, f"a `{MARK}` that is damaged") from None


def _occupied(folder: Path, what: str) -> ConflictError:
    return ConflictError(f"`{folder}` holds {what}", hint="Choose another folder, or remove what is there")
