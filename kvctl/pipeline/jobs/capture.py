"""Capture a bucket's changes into a folder of Parquet files: each revision once, for any reader of the folder.

The folder, not Spark's checkpoint, determines what is captured: a batch that is repeated, because its query was killed
before it recorded the batch as done, only adds what the folder lacks.

A checkpoint of Spark has the query's id in `metadata`, the offset up to which batch N is planned in `offsets/N`, and
`commits/N` if batch N is done. Spark's first write leaves a file with a dot before its name until it is complete. If it
is killed there, it always refuses the checkpoint, as it expects an empty one for a query without a batch
(STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.phrases import counted
from kvctl.pipeline import worker_connection
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.jobs.capture_folder import CaptureFolder, CaptureState, Piece
from kvctl.pipeline.options import SourceOptions, given_as
from kvctl.pipeline.read.offsets import Offset
from kvctl.pipeline.spark.failure import worker_lost
from kvctl.pipeline.tables.parts import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from kvctl.pipeline.spark.engine import Engine


OFFSETS, COMMITS, METADATA = "offsets", "commits", "metadata"
_UNFINISHED = re.compile(r"\..*\.(tmp|crc)\Z")
_MORE = ("sources", "state")
"""Subfolders of other kinds of queries."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Progress of a query."""

    query: str | None
    """Query id; None if no query has started."""
    planned: int
    """Number of batches started."""
    committed: int
    """Number of batches done."""
    offset: Offset | None
    """End of the last batch that is done."""


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the progress in a checkpoint. Raises ConflictError if it is not a checkpoint of a single nats-kv source."""
    try:
        query = _query(folder / METADATA)
        planned, committed = _batches(folder / OFFSETS), _batches(folder / COMMITS)
        offset = _offset(folder / OFFSETS / str(committed[-1])) if committed else None
        return Checkpoint(query, len(planned) and planned[-1] + 1, len(committed) and committed[-1] + 1, offset)
    except (ValueError, KeyError, TypeError, IndexError, FileNotFoundError) as error:
        raise ConflictError(
            f"`{folder}` is not a checkpoint of a stream of one bucket: {error!r}", hint="Choose another folder"
        ) from None
    except OSError as error:
        raise KvctlError(f"Could not read the checkpoint `{folder}`: {error.strerror}") from None


def recover_checkpoint(folder: Path) -> bool:
    """Empty a checkpoint whose query was killed in its very first write; return whether it was one.

    Nothing is lost: no batch had been planned. Any other checkpoint is left unchanged.
    """
    try:
        if not _killed_at_first(folder):
            return False
        for name in (OFFSETS, COMMITS, *_MORE):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
        return True
    except OSError as error:
        raise KvctlError(f"Could not clear the checkpoint `{folder}`: {error.strerror}") from None


def _killed_at_first(folder: Path) -> bool:
    """Return whether there are only unfinished files, and at least one of them."""
    left = [*_names(folder / OFFSETS), *_names(folder / COMMITS)]
    others = [name for part in _MORE for name in _names(folder / part)]
    return bool(left) and not others and all(_UNFINISHED.match(name) for name in left)


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _batches(folder: Path) -> list[int]:
    """Return the numbers of the batches recorded in a log, in order."""
    return sorted(int(name) for name in _whole(_names(folder)))


def _whole(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if name.isdecimal())


def _query(path: Path) -> str | None:
    return str(json.loads(path.read_bytes())["id"]) if path.is_file() else None


def _offset(path: Path) -> Offset:
    """Return the offset of the query's one source: after a line with the version and one of Spark's own."""
    _, _, *sources = path.read_text(encoding="utf-8").splitlines()
    document: dict[str, Any] = json.loads(sources[0])
    if len(sources) != 1:
        raise ValueError(f"{len(sources)} sources")
    return Offset.parse(document)


PIECES = "staged string, day string, first long, last long, rows long, bytes long"
"""Schema of pieces as rows, for Spark."""
GROUP = 16 << 20
"""Bytes of a row group, before encoding."""
LARGEST = 512 << 20
"""Bytes after which another file is started, before encoding."""


def write_pieces(batches: Iterable[pa.RecordBatch], staging: str) -> Iterator[pa.RecordBatch]:
    """Write the rows, which are sorted by revision, and yield each file. Leftovers of a killed task are ignored."""
    current: _File | None = None
    for batch in batches:
        for day, rows in _by_day(batch):
            if current is None or current.day != day or current.size >= LARGEST:
                if current is not None:
                    yield current.close()
                current = _File(Path(staging), day, batch.schema)
            current.add(rows)
    if current is not None:
        yield current.close()


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    """Split the batch where the day of `created` (UTC) changes."""
    if not batch.num_rows:
        return
    days = pc.run_end_encode(batch.column("created").cast(pa.timestamp("us")).cast(pa.date32()))
    start = 0
    for day, end in zip(days.values.to_pylist(), days.run_ends.to_pylist(), strict=True):
        yield day, batch.slice(start, end - start)
        start = end


class _File:
    """File that is being written."""

    def __init__(self, staging: Path, day: date, schema: pa.Schema) -> None:
        self.day = day
        self.size = 0
        self._path = staging / f"{secrets.token_hex(8)}.tmp"
        self._writer = pq.ParquetWriter(self._path, schema)
        self._held: list[pa.RecordBatch] = []
        self._held_size = self._rows = 0
        self._first: int | None = None
        self._last = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of higher revisions than those before."""
        revisions = batch.column("revision")
        self._first = self._first or revisions[0].as_py()
        self._last = revisions[-1].as_py()
        self._rows += batch.num_rows
        self.size += batch.nbytes
        self._held.append(batch)
        self._held_size += batch.nbytes
        if self._held_size >= GROUP:
            self._write()

    def close(self) -> pa.RecordBatch:
        """Finish the file and flush it to disk; return its piece."""
        self._write()
        self._writer.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        piece = Piece(self._path.name, self.day.isoformat(), self._first or 0, self._last, self._rows, size)
        return pa.RecordBatch.from_pylist([{name: getattr(piece, name) for name in Piece.__slots__}])

    def _write(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held))
            self._held, self._held_size = [], 0


TRIGGER = timedelta(seconds=1)
A_BATCH = 1_000_000
"""Default maximum number of revisions of a batch, which a killed capture may repeat."""
POLL_PAUSE_S = 0.2
ATTEMPTS = 4
"""Number of times that a query is started without progress."""


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """Result of a capture."""

    path: str
    checkpoint: str
    state: CaptureState
    rows: int
    """Rows captured by this run."""
    files: int
    seconds: float


def capture(
    engine: Engine,
    options: SourceOptions,
    folder: Path,
    checkpoint: Path,
    *,
    once: bool = False,
    trigger: timedelta = TRIGGER,
) -> CaptureResult:
    """Capture until the query is stopped, or with `once` until all existing changes are captured.

    Raises ConflictError if the folder or the checkpoint belongs to another capture, StreamReplaced if the bucket was
    recreated, HistoryLost if changes are lost that were not captured.
    """
    begun = time.monotonic()
    check_places(folder, checkpoint)
    target = CaptureFolder(folder)
    with target.claimed(), engine.explaining():
        start = _begin(target, options, checkpoint)
        end = _run(engine, options, target, checkpoint, start, None if once else trigger)
    rows, files = end.rows - start.rows, end.files - start.files
    return CaptureResult(str(folder), str(checkpoint), end, rows, files, time.monotonic() - begun)


def check_places(folder: Path, checkpoint: Path) -> None:
    """Raises UsageError for a checkpoint among the data, ConflictError for a folder of something else.

    Needs no Spark.
    """
    if folder == checkpoint or checkpoint in folder.parents:
        raise UsageError(f"`{folder}` is inside the checkpoint")
    if folder in checkpoint.parents and not checkpoint.relative_to(folder).parts[0].startswith(("_", ".")):
        raise UsageError(
            f"The checkpoint `{checkpoint}` is among the data",
            hint="Choose a folder outside it, or a subfolder whose name begins with `_`",
        )
    CaptureFolder(folder).state()


def store_batch(rows: DataFrame, folder: str, checkpoint: str) -> None:
    """Add a batch to a capture: only revisions newer than the captured ones."""
    from kvctl.pipeline.jobs.capture import PIECES, write_pieces

    target = CaptureFolder(Path(folder))
    state = target.existing()
    target.settle(state)
    staging = str(target.staging)
    new = rows.where(f"revision > {state.revision}")
    written = new.mapInArrow(lambda batches: write_pieces(batches, staging), PIECES).collect()
    target.publish(state, [Piece(**row.asDict()) for row in written], read_checkpoint(Path(checkpoint)).query)


def _begin(target: CaptureFolder, options: SourceOptions, checkpoint: Path) -> CaptureState:
    """Return the state to continue from, with a checkpoint that belongs to it."""
    before = target.state()
    recover_checkpoint(checkpoint)
    reached = read_checkpoint(checkpoint)
    if reached.committed and (before is None or before.query != reached.query):
        raise ConflictError(
            f"The checkpoint `{checkpoint}` does not belong to the capture in `{target.path}`",
            hint="Use its own checkpoint, or an empty folder: the capture then continues where it stopped",
        )
    info = worker_connection.run(_info(options))
    return target.begun(options.bucket, info["created"], info["config"], forced=not options.fail_on_data_loss)


def _run(
    engine: Engine,
    options: SourceOptions,
    target: CaptureFolder,
    checkpoint: Path,
    start: CaptureState,
    trigger: timedelta | None,
) -> CaptureState:
    """Run the query to its end. Continues after a lost Python process; Spark retries only tasks."""
    from pyspark.errors import StreamingQueryException

    reached, left = start, ATTEMPTS
    while True:
        query = _start(engine, _wanted(options, reached), target, checkpoint, trigger)
        try:
            while not query.awaitTermination(POLL_PAUSE_S):  # type: ignore[arg-type]
                engine.doing = _standing(target.existing(), start)
            return target.existing()
        except StreamingQueryException as error:
            now = target.existing()
            left = left - 1 if now.revision == reached.revision else ATTEMPTS - 1
            if not left or not worker_lost(error):
                raise
            reached = now
        finally:
            query.stop()


def _wanted(options: SourceOptions, state: CaptureState) -> SourceOptions:
    """Return the options to read with: if Spark has no checkpoint yet, from the folder's last revision."""
    begin = str(state.revision + 1) if state.revision else options.starting_revision
    since = None if state.revision else options.starting_time
    most = options.max_revisions_per_trigger or A_BATCH
    return replace(
        options, columns=COLUMNS, starting_revision=begin, starting_time=since, max_revisions_per_trigger=most
    )


def _start(
    engine: Engine, options: SourceOptions, target: CaptureFolder, checkpoint: Path, trigger: timedelta | None
) -> StreamingQuery:
    folder, kept = str(target.path), str(checkpoint)

    def store(rows: DataFrame, _: int) -> None:
        with crossing():
            store_batch(rows, folder, kept)

    changes = engine.spark.readStream.format("nats-kv").options(**given_as(options)).load()
    writer = changes.writeStream.option("checkpointLocation", f"file:{checkpoint}").foreachBatch(store)
    if trigger is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{trigger.total_seconds() * 1000:.0f} milliseconds").start()


async def _info(options: SourceOptions) -> StreamInfo:
    async with worker_connection.connected(options) as client:
        source = (await client.bucket(options.bucket).locate(fresh=True)).source
        return await streams.info(source.api, source.stream)


def _standing(state: CaptureState, start: CaptureState) -> str:
    captured = state.rows - start.rows
    if not captured:
        return f"from revision {state.revision + 1:,}"
    return f"at revision {state.revision:,}, {counted(captured, 'row')} captured"
