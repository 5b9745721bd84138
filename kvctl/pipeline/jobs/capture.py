"""Capture a bucket's changes into a folder of Parquet files: each revision once, for any reader of the folder.

The folder, not Spark's checkpoint, determines what is captured: a batch that is repeated, because its query was killed
before it recorded the batch as done, only adds what the folder lacks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from kvctl.errors import ConflictError, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.phrases import counted
from kvctl.pipeline import worker_connection
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.files.capture_folder import CaptureFolder, CaptureState, Piece
from kvctl.pipeline.files.file_rows import COLUMNS
from kvctl.pipeline.options import SourceOptions, given_as
from kvctl.pipeline.read import checkpoints
from kvctl.pipeline.spark.failure import worker_lost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from kvctl.pipeline.spark.engine import Engine

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
    from kvctl.pipeline.files.capture_pieces import PIECES, write_pieces

    target = CaptureFolder(Path(folder))
    state = target.existing()
    target.settle(state)
    staging = str(target.staging)
    new = rows.where(f"revision > {state.revision}")
    written = new.mapInArrow(lambda batches: write_pieces(batches, staging), PIECES).collect()
    target.publish(state, [Piece(**row.asDict()) for row in written], checkpoints.read(Path(checkpoint)).query)


def _begin(target: CaptureFolder, options: SourceOptions, checkpoint: Path) -> CaptureState:
    """Return the state to continue from, with a checkpoint that belongs to it."""
    before = target.state()
    checkpoints.recover(checkpoint)
    reached = checkpoints.read(checkpoint)
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
