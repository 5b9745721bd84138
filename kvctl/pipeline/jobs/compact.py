"""Compact a capture: the bucket's latest state from its captured changes, as an export that can be loaded."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvctl.atomic_file import flush_folder
from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.pipeline.jobs.capture_folder import CaptureFolder, CaptureState
from kvctl.pipeline.jobs.contents import TTL_LEFT, Contents
from kvctl.pipeline.jobs.export import ExportResult, export
from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.file_rows import literal
from kvctl.pipeline.tables.origin import LATEST
from kvctl.pipeline.tables.parts import COLUMNS
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.tables.stored_table import MANIFEST, PARQUET

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from kvctl.pipeline.spark.engine import Engine

MARK = "_compact.json"
"""File that marks a folder as a compaction, and names its source."""
_SCHEMA = (
    "key string, value binary, revision bigint, created timestamp, operation string, ttl double, "
    "headers map<string, string>"
)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Result of a compaction."""

    capture: str
    path: str
    exported: ExportResult
    captured: int
    """Rows of the capture; the compaction has only each key's latest."""
    replaced: bool
    """True if an older compaction was replaced."""
    seconds: float


def compact(engine: Engine, capture: Path, folder: Path) -> CompactionResult:
    """Write the state at the capture's last revision into the folder, replacing an older compaction.

    Raises NotFoundError without a capture, ConflictError for one that lacks files, and for a folder with other content.
    """
    begun = time.monotonic()
    state = check_places(capture, folder)
    source = CaptureFolder(capture)
    with beside(folder) as new:
        exported = export(engine, lambda: _contents(engine.spark, source, state), TablePlace(str(new)), format=PARQUET)
        _mark(new, capture, state)
        replaced = _check_own(folder, state)
        take_place(folder, new)
    return CompactionResult(str(capture), str(folder), exported, state.rows, replaced, time.monotonic() - begun)


def check_places(capture: Path, folder: Path) -> CaptureState:
    """Return the capture's progress. Raises as `compact`; needs no Spark."""
    if os.path.commonpath([capture, folder]) in (str(capture), str(folder)):
        raise UsageError(f"`{folder}` and the capture `{capture}` overlap", hint="Choose a folder outside the capture")
    state = CaptureFolder(capture).existing()
    _check_own(folder, state)
    return state


def _contents(spark: SparkSession, source: CaptureFolder, state: CaptureState) -> Contents:
    from pyspark.sql.functions import expr

    paths = source.files(state)
    _require_all(paths, source, state)
    rows = newest(_changes(spark, paths), state.config).withColumn("ttl", expr(TTL_LEFT))
    return Contents(
        rows=rows.select(*COLUMNS),
        bucket=state.bucket,
        incarnation=state.incarnation,
        config=state.config,
        mode=LATEST,
        cut=state.revision,
    )


def _changes(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], _SCHEMA)
    return spark.read.schema(_SCHEMA).parquet(*[literal(TablePlace(str(path))) for path in paths])


def _require_all(paths: Sequence[Path], source: CaptureFolder, state: CaptureState) -> None:
    """Raises ConflictError if files of the capture are missing or changed."""
    from pyarrow import ArrowException, parquet

    def rows(path: Path) -> int:
        try:
            return int(parquet.read_metadata(path).num_rows)
        except (ArrowException, OSError) as error:
            raise _damaged(source, f"could not read `{path.name}`: {error}") from None

    found = sum(stored_table.in_parallel(rows, paths))
    if found != state.rows:
        raise _damaged(source, f"it captured {state.rows:,} rows, but its files have {found:,}")


def _damaged(source: CaptureFolder, how: str) -> ConflictError:
    return ConflictError(
        f"The capture in `{source.path}` is incomplete: {how}", hint="Nothing was written; capture into a new folder"
    )


def _mark(folder: Path, capture: Path, state: CaptureState) -> None:
    mark = {"kvctl": "compact", "version": 1, "capture": str(capture), "bucket": state.bucket}
    (folder / MARK).write_text(json.dumps({**mark, "revision": state.revision}, indent=2) + "\n", encoding="utf-8")


def _check_own(folder: Path, state: CaptureState) -> bool:
    """Return whether the folder has an older compaction of the bucket. Raises ConflictError for any other content."""
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise UsageError(f"`{folder}` is not a folder")
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    if not present:
        return False
    if not present >= {MARK, MANIFEST}:
        raise _occupied(folder, "files that are not a compaction")
    bucket = _marked(folder)
    if bucket != state.bucket:
        raise _occupied(folder, f"a compaction of bucket `{bucket}`")
    extra = sorted(
        present - {MARK, MANIFEST} - {part.name for part in stored_table.open_table(TablePlace(str(folder))).parts}
    )
    if extra:
        raise _occupied(folder, f"`{extra[0]}` in addition to a compaction")
    return True


def _marked(folder: Path) -> str:
    """Return the bucket of a compaction."""
    try:
        return str(json.loads((folder / MARK).read_bytes())["bucket"])
    except (ValueError, KeyError, TypeError):
        raise _occupied(folder, f"a damaged `{MARK}`") from None


def _occupied(folder: Path, what: str) -> ConflictError:
    return ConflictError(f"`{folder}` contains {what}", hint="Choose another folder or remove its content")


_ENTRY = "struct<revision: bigint, created: timestamp, expires: timestamp, operation: string>"


def newest(changes: DataFrame, config: Mapping[str, Any]) -> DataFrame:
    """Return the last revision of each key that the bucket of this configuration has now, deletions included.

    The changes have the columns of an export, each revision once.
    """
    from pyspark.sql.functions import expr, max

    changes = changes.withColumn("expires", _expires(config))
    history = int(config.get("max_msgs_per_subject") or 1)
    if history > 1 and config.get("allow_msg_ttl"):
        last = _last_left(changes, history)
    else:
        last = changes.groupBy("key").agg(max("revision").alias("revision"))
    found = changes.join(last.select("revision"), "revision", "left_semi")
    return found.where("expires is null or expires > current_timestamp()").select(*COLUMNS, expr("expires"))


def _expires(config: Mapping[str, Any]) -> Column:
    """Return when an entry expires: by its own ttl, or the bucket's."""
    from pyspark.sql.functions import expr

    own = "timestamp_micros(unix_micros(created) + cast(nullif(ttl, double('Infinity')) * 1000000 as bigint))"
    age = int(config.get("max_age") or 0) // 1000
    limit = f"timestamp_micros(unix_micros(created) + {age})"  # does not end what never expires
    return expr(f"if(ttl <=> double('Infinity'), null, least({own}, {limit}))" if age else own)


def _last_left(changes: DataFrame, history: int) -> DataFrame:
    """Return the same if expiry uncovers earlier entries."""
    from pyspark.sql.functions import expr

    entries = "array_sort(collect_list(struct(revision, created, expires, operation)))"
    kept = "filter(kept, one -> one.expires is null or one.expires > entry.created)"
    after = f"concat(if(entry.operation = 'PURGE', array(), {kept}), array(entry))"
    trimmed = f"slice({after}, greatest(size({after}) - {history - 1}, 1), {history})"
    left = f"aggregate({entries}, cast(array() as array<{_ENTRY}>), (kept, entry) -> {trimmed})"
    now = f"filter({left}, one -> one.expires is null or one.expires > current_timestamp())"
    return changes.groupBy("key").agg(expr(f"try_element_at({now}, -1).revision").alias("revision"))


NEW, OLD = "new", "old"


@contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """Return a temporary place for the folder's successor, on the same disk. Raises KvctlError.

    Leftovers of killed processes are removed first; a folder that one of them had moved away is restored.
    """
    place = folder.parent / f"{_prefix(folder)}{secrets.token_hex(4)}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _tidy(folder)
        place.mkdir()
        with _held(place):
            try:
                yield place / NEW
            finally:
                shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        raise KvctlError(f"Could not write `{folder}`: {error.strerror}") from None


def take_place(folder: Path, new: Path) -> None:
    """Move the new folder into place; readers see one or the other, or for a moment neither."""
    old = new.with_name(OLD)
    if folder.exists():
        os.rename(folder, old)
    os.rename(new, folder)
    flush_folder(folder.parent)


def _tidy(folder: Path) -> None:
    for place in folder.parent.glob(f"{escape(_prefix(folder))}*"):
        with suppress(BlockingIOError, FileNotFoundError), _held(place):  # unless its process is still running
            if (place / OLD).exists() and not folder.exists():
                os.rename(place / OLD, folder)
            shutil.rmtree(place)


@contextmanager
def _held(place: Path) -> Iterator[None]:
    """Lock the place for this process. Raises BlockingIOError while another one holds it."""
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _prefix(folder: Path) -> str:
    return f".{folder.name}.kvctl-"
