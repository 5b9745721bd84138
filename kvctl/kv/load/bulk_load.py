"""A complete load: check the input, compare it with the target, resume an interrupted load, write the rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from kvctl.errors import HazardRefused, UsageError
from kvctl.kv.bucket import Bucket
from kvctl.kv.load import checkpoint
from kvctl.kv.load.bulk_writer import RowCounts
from kvctl.kv.load.checkpoint import Position, ProgressFile
from kvctl.kv.load.input_file import LoadInput
from kvctl.kv.load.leader_state import all_arrived
from kvctl.kv.load.loader import Loader
from kvctl.kv.load.row_reader import Batch
from kvctl.kv.load.rows import BadRow, Mode
from kvctl.kv.load.target import Target, target_of
from kvctl.kv.write.identity import Series, most_bytes

SHORTER_HISTORY = "shorter-history"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of a load."""

    mode: Mode = Mode.PUT
    strict: bool = False
    """Check every row first, and write nothing if one is invalid."""
    dry_run: bool = False
    resume: bool = False
    shorter_history: bool = False
    """Allow a dump with more history than the bucket keeps."""
    progress: Path | None = None
    """Base name of the checkpoint file, from which `resume` continues."""
    anew: Callable[[], None] = field(default=lambda: None)
    """Called when an interrupted load of the same file into the same target starts over at the first row."""
    rejected: Callable[[BadRow], None] = field(default=lambda _: None)
    """Called with every row that is not written."""
    advance: Callable[[int], None] = field(default=lambda _: None)
    advance_rows: Callable[[int], None] = field(default=lambda _: None)
    """Called with the number of input bytes done."""
    checked: Callable[[int], None] = field(default=lambda _: None)
    """Called with the number of bytes checked."""


async def load(bucket: Bucket, source: LoadInput, options: LoadOptions) -> RowCounts:
    """Write the rows of the input into the bucket; rejected rows are reported and counted.

    Raises UsageError (with `strict` also for an invalid row), HazardRefused, BucketNotFound, ReadOnly, PartlyDone,
    OutcomeUnknown, errors of the server, and ConflictError: `resume` without a checkpoint of the same load, or the
    same load is running.
    """
    _check_history(source, options.mode)
    target = await target_of(bucket, dry_run=options.dry_run)
    _check_depth(source, target, options)
    if options.strict:
        await _check_rows(source, target, options)
    with ExitStack() as stack:
        progress = await _progress_file(source, target, options)
        start = _start(stack.enter_context(progress), target, options) if progress is not None else None
        most = most_bytes(target.binding.api.connection.max_payload, target.info["config"])
        ids = Series(most)
        if start is not None:
            ids = Series(min(most, start.most), start.series.encode())
            await all_arrived(target.binding)
        loader = Loader(
            bucket, target, ids, options.mode,
            dry_run=options.dry_run, rejected=options.rejected, progress=progress, start=start,
            advance=options.advance, advance_rows=options.advance_rows,
        )  # fmt: skip
        return await loader.run(read(source, start.line if start else 0))


def read(source: LoadInput, after: int = 0) -> AsyncIterator[Batch]:
    """Return the rows of an input after a line; waiting for a pipe does not block the connection."""
    batches = source.batches(after)
    return _at_hand(batches) if source.repeatable else _arriving(batches)


def _check_history(source: LoadInput, mode: Mode) -> None:
    if source.dump is not None and source.dump.history and mode is not Mode.PUT:
        raise UsageError(f"`--{mode}` needs rows or a dump of live keys; this dump contains history")


def _check_depth(source: LoadInput, target: Target, options: LoadOptions) -> None:
    """Raise HazardRefused for a dump whose bucket kept more of each key than this one will."""
    if source.dump is None or not source.dump.history or options.shorter_history:
        return
    depth = source.dump.header.get("config", {}).get("max_msgs_per_subject", 0)
    if depth > target.history:
        raise HazardRefused(
            SHORTER_HISTORY,
            f"The dump has up to {depth} entries per key, bucket `{target.binding.bucket}` keeps {target.history}: "
            "the oldest would be lost",
            hint=f"Keep them with `kvctl bucket edit {target.binding.bucket} --history {depth}`, "
            f"or drop them with `--force {SHORTER_HISTORY}`",
        )


async def _check_rows(source: LoadInput, target: Target, options: LoadOptions) -> None:
    """Raise UsageError if a row cannot be written."""
    count = 0
    async for batch in _at_hand(source.batches()):
        found = list(batch.bad)
        for row in batch.rows:
            try:
                target.check(row)
            except UsageError as error:
                found.append(BadRow(row.line, error.message))
        for bad in sorted(found):
            options.rejected(bad)
        count += len(found)
        options.checked(batch.size)
    if count:
        raise UsageError(f"{count} row{'s are' if count > 1 else ' is'} invalid: nothing was written")


async def _progress_file(source: LoadInput, target: Target, options: LoadOptions) -> ProgressFile | None:
    if options.resume and options.progress is None:
        raise UsageError("Only the load of a file can be resumed")
    if options.progress is None or options.dry_run:
        return None
    layout = source.layout
    task = checkpoint.task_of(
        target.info,
        target.binding.bucket,
        input=await asyncio.to_thread(checkpoint.identity, source.file),
        mode=f"{options.mode}, {layout.format}, {layout.key}, {layout.value}",
    )
    return ProgressFile(options.progress, task)


def _start(progress: ProgressFile, target: Target, options: LoadOptions) -> Position | None:
    """Return the position to continue from; None for the beginning. Raises ConflictError."""
    if options.resume:
        return progress.load(int(target.info["state"]["last_seq"]))
    if progress.exists:
        options.anew()
    return None


async def _at_hand(batches: Iterator[Batch]) -> AsyncIterator[Batch]:
    for batch in batches:
        yield batch


async def _arriving(batches: Iterator[Batch]) -> AsyncIterator[Batch]:
    """Yield batches of a slow input: a thread waits for them, and the connection stays alive."""
    loop = asyncio.get_running_loop()
    # Its own thread: closing the loop would wait for one of its pool.
    waiting = ThreadPoolExecutor(1, "input")
    while (batch := await loop.run_in_executor(waiting, next, batches, None)) is not None:
        yield batch
