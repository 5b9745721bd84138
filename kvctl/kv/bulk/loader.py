"""A complete load: check the input, compare it with the target, resume an interrupted load, write the rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvctl.errors import (
    Away,
    HazardRefused,
    KvctlError,
    OutcomeUnknown,
    PartlyDone,
    PermissionDenied,
    ServerError,
    StreamReplaced,
    UnreachableError,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream import streams
from kvctl.kv.bucket import Bucket
from kvctl.kv.bulk import checkpoint
from kvctl.kv.bulk.bulk_writer import RowCounts, WriteTarget, of_the_row, target_of, with_expected
from kvctl.kv.bulk.checkpoint import Position, ProgressFile, SavePoints
from kvctl.kv.bulk.input_file import LoadInput, RowBatch
from kvctl.kv.bulk.leader_state import Current, all_arrived
from kvctl.kv.bulk.row_writer import AcknowledgedRows, LoadOutcome, RowWriter, evicts
from kvctl.kv.bulk.rows import BadRow, Mode, Row
from kvctl.kv.conditional_write import FULL, NO_STORAGE, explained
from kvctl.kv.identity import Series, most_bytes

SHORTER_HISTORY = "shorter-history"
_STORES = ("The server's storage", "The bucket")


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
    target = replace(target, creates=options.mode is Mode.CREATE_ONLY)
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
        loader = Loader(bucket, target, ids, options, progress=progress, start=start)
        return await loader.run(read(source, start.line if start else 0))


def read(source: LoadInput, after: int = 0) -> AsyncIterator[RowBatch]:
    """Return the rows of an input after a line; waiting for a pipe does not block the connection."""
    batches = source.batches(after)
    return _at_hand(batches) if source.repeatable else _arriving(batches)


def _check_history(source: LoadInput, mode: Mode) -> None:
    if source.dump is not None and source.dump.history and mode is not Mode.PUT:
        raise UsageError(f"`--{mode}` needs rows or a dump of live keys; this dump contains history")


def _check_depth(source: LoadInput, target: WriteTarget, options: LoadOptions) -> None:
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


async def _check_rows(source: LoadInput, target: WriteTarget, options: LoadOptions) -> None:
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


async def _progress_file(source: LoadInput, target: WriteTarget, options: LoadOptions) -> ProgressFile | None:
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


def _start(progress: ProgressFile, target: WriteTarget, options: LoadOptions) -> Position | None:
    """Return the position to continue from; None for the beginning. Raises ConflictError."""
    if options.resume:
        return progress.load(int(target.info["state"]["last_seq"]))
    if progress.exists:
        options.anew()
    return None


async def _at_hand(batches: Iterator[RowBatch]) -> AsyncIterator[RowBatch]:
    for batch in batches:
        yield batch


async def _arriving(batches: Iterator[RowBatch]) -> AsyncIterator[RowBatch]:
    """Yield batches of a slow input: a thread waits for them, and the connection stays alive."""
    loop = asyncio.get_running_loop()
    # Its own thread: closing the loop would wait for one of its pool.
    waiting = ThreadPoolExecutor(1, "input")
    while (batch := await loop.run_in_executor(waiting, next, batches, None)) is not None:
        yield batch


class Loader(RowWriter):
    """A load. After `start`, rows of an interrupted load may be stored already, up to the line that it names."""

    def __init__(
        self,
        bucket: Bucket,
        target: WriteTarget,
        ids: Series,
        options: LoadOptions,
        *,
        progress: ProgressFile | None = None,
        start: Position | None = None,
    ) -> None:
        current = Current(target.binding, target.info)
        start = start or Position()
        resumed = start.until > start.line
        revision = start.revision if resumed else current.last_revision
        super().__init__(current, ids, AcknowledgedRows(revision, evicts=evicts(current.config)), options.mode)
        self._bucket = bucket
        self._target = target
        self._options = options
        self._mode = options.mode
        self._dry_run = options.dry_run
        self._progress = progress
        self._until = start.until
        """Last line that the interrupted load may have sent."""
        self._reconciler.resumed = resumed
        self.counts = RowCounts(start.written, start.unchanged, start.rejected, start.presumed)
        start = replace(start, series=ids.prefix.decode(), most=ids.most)
        self._save_points = SavePoints(self._progress, start)
        self._line = start.line
        """Last line of which all rows have been sent."""
        self._conflicts: list[Row] = []
        self._in_chunk = False
        """Whether rows of a chunk are being compared with the stored state or written."""
        self._fatal: tuple[Row, KvctlError] | None = None

    async def run(self, batches: AsyncIterator[RowBatch]) -> RowCounts:
        """Load all batches.

        Raises PartlyDone or the server's error when it cannot continue, OutcomeUnknown; the position is saved then, and
        on cancellation.
        """
        try:
            async with self._window:
                self._save()
                async for batch in batches:
                    await self._take(batch)
                await self._settle()
        except BaseException as error:
            self._save_points.until = max(self._until, self._sending.line if self._sending else 0)
            self._save()
            if isinstance(error, UnreachableError):
                raise self._cut_off(error) from None
            raise
        if not self._dry_run:
            await self._check_instance()
        self.counts.evicted, self.counts.evicted_below = await self._evicted()
        self._bucket.own.note_many(self._acknowledged.revision)
        self._save_points.remove()
        return self.counts

    async def _check_instance(self) -> None:
        """Raise StreamReplaced if the stream was deleted and recreated since the start, as far as readable."""
        with suppress(PermissionDenied, Away):
            info = await streams.find(self._binding.api, self._binding.stream)
            if info is None or info["created"] != self._target.info["created"]:
                self._save_points.remove()
                gone = "deleted" if info is None else "deleted and recreated"
                raise StreamReplaced(
                    f"Bucket `{self._binding.bucket}` was {gone} during the load: rows written before are lost",
                    hint="Load the file again" if info else None,
                )

    # -- sending -------------------------------------------------------------------------------------------

    async def _take(self, batch: RowBatch) -> None:
        if self._save_points.must_precede(batch.line):
            self._save()
        for bad in batch.bad:
            self._reject(bad.line, bad.reason)
        rows = self._target.acceptable(batch.rows, self._reject)
        if self._reconciler.resumed:
            rows = await self._resume(rows, batch.line)
        if self._mode is Mode.PUT and not self._dry_run:
            await self._send_runs(self._runs(rows))
        else:
            for chunk in self._current.chunks(rows):
                await self._conditionally(chunk)
        self._line = batch.line
        if not self._reconciler.resumed:
            self._acknowledged.sent_up_to(batch.line)
        if self._save_points.due_after(batch.size):
            self._save()
        self._options.advance_rows(len(batch.rows))
        self._options.advance(batch.size)

    async def _resume(self, rows: Sequence[Row], line: int) -> Sequence[Row]:
        """Look up the rows up to this line that the interrupted load may have sent, and return the others."""
        cause = OutcomeUnknown("the load was interrupted")
        sent = [row for row in rows if row.line <= self._until]
        self._lost = {row.line: (row, cause) for row in sent}
        await self._settle()
        if line >= self._until:
            self._reconciler.resumed = False
            self._acknowledged.start_at(self._current.last_revision)
        return rows[len(sent) :]

    def _creations(self, rows: list[Row]) -> Iterator[tuple[Row, bytes, bytes, bytes]]:
        """Yield messages that are refused one by one where their keys exist."""
        prefix, block = self._binding.write_prefix.encode(), self._ids.block
        for row in rows:
            self._sending = row
            header = with_expected(block(row.line, row.header, row.value), 0)
            yield row, prefix + row.key.encode("utf-8", "surrogateescape"), row.value, header

    def _in_trouble(self) -> object:
        return self._lost or self._fatal

    async def _conditionally(self, rows: list[Row]) -> None:
        """Write rows of distinct keys that differ from the stored state."""
        self._in_chunk = True
        if self._mode is Mode.IF_DIFFERENT:
            same = await self._current.unchanged(rows)
        elif self._dry_run and self._mode is Mode.CREATE_ONLY:
            same = await self._current.living(rows)
        else:
            same = set()
        rows = [row for row in rows if row.line not in same]
        self.counts.unchanged += len(same)
        if self._dry_run:
            self.counts.written += len(rows)
        else:
            if self._mode is Mode.CREATE_ONLY:
                await self._send(self._creations(rows))
            else:
                await self._send_runs(self._runs(rows))
            await self._settle()
        self._in_chunk = False

    def _written(self, keys: Sequence[str], revisions: Sequence[int]) -> None:
        self.counts.written += len(keys)

    def _failed(self, row: Row, error: KvctlError) -> None:
        if isinstance(error, WrongRevision) and self._mode is Mode.CREATE_ONLY:
            self._conflicts.append(row)
        else:
            super()._failed(row, error)

    def _refused(self, row: Row, error: KvctlError) -> None:
        if of_the_row(error):
            self._reject(row.line, error.message)
        else:
            self._stop_at(row, error)

    def _stop_at(self, row: Row, error: KvctlError) -> None:
        if self._fatal is None or row.line < self._fatal[0].line:
            self._fatal = row, error

    def _reject(self, line: int, reason: str) -> None:
        self.counts.rejected += 1
        self._save_points.reject(line)
        self._options.rejected(BadRow(line, reason))

    # -- outcomes ------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Wait for every outcome and resolve lost ones. Raises the error that stops the load."""
        await self._window.finish()
        if self._conflicts:
            await self._resolve_conflicts()
        try:
            await super()._settle()
        except KvctlError as error:
            first, cause = self._lost[min(self._lost)]
            if isinstance(error, OutcomeUnknown) or (isinstance(error, PermissionDenied) and not self._fatal):
                raise self._unknown(self._fatal[1] if self._fatal else cause) from None
            self._stop_at(first, error)
        if self._fatal is not None:
            raise self._stopped(*self._fatal)

    def _resolved(self, row: Row, outcome: LoadOutcome | KvctlError, revision: int, cause: KvctlError) -> None:
        if outcome is LoadOutcome.WRITTEN:
            self.counts.written += 1
        elif outcome is LoadOutcome.EXISTS:
            self.counts.unchanged += 1
        elif outcome is LoadOutcome.MISSED:
            self._reject(row.line, f"A later write of `{row.key}` was stored before it")
        elif outcome is LoadOutcome.SUPERSEDED:
            self.counts.written += 1  # a row that later ones replaced leaves no trace
            self.counts.presumed += 1
        elif outcome is LoadOutcome.OVERTAKEN:
            text = f"`{row.key}` was written by another client after the interruption"
            self._reject(row.line, f"{text}; the row may already be stored")
        elif outcome is LoadOutcome.UNKNOWN:
            text = f"A write of `{row.key}` has no room for an identity"
            self._reject(row.line, f"{text}; the row may already be stored")
        else:
            self._refused(row, outcome)

    async def _resolve_conflicts(self) -> None:
        """Handle keys that exist: live ones stay, deleted ones are created."""
        conflicts, self._conflicts = self._conflicts, []
        for chunk in self._current.chunks(conflicts):
            living = await self._current.living(chunk)
            self.counts.unchanged += len(living)
            deleted = (row for row in chunk if row.line not in living)
            self._lost |= {row.line: (row, WrongRevision("The key was deleted")) for row in deleted}

    def _unknown(self, cause: KvctlError) -> KvctlError:
        line, count = min(self._lost), len(self._lost)
        return OutcomeUnknown(
            f"Could not find out if {count} row{'s' if count > 1 else ''} from line {line} on "
            f"{'were' if count > 1 else 'was'} stored ({cause.message}); {self.counts.written} were written",
            hint=self._way_on,
        )

    def _stopped(self, row: Row, error: KvctlError) -> KvctlError:
        message, hint = error.message, error.hint
        if isinstance(error, ServerError):
            message, hint = error.message, explained(error, self._binding).hint
            hint = f"{hint}. {self._way_on}" if hint else self._way_on
            if error.err_code in (FULL, *NO_STORAGE) and "per subject" not in message:
                message = f"{_STORES[error.err_code == FULL]} is full: {message}"
        if not self.counts.written:
            error.message, error.hint = f"Line {row.line}: {message}", hint
            return error
        return PartlyDone(
            f"{self.counts.written} rows were written, then line {row.line} failed: {message}",
            hint=hint or self._way_on,
        )

    def _cut_off(self, error: UnreachableError) -> KvctlError:
        """Return the error for a request without an answer that the load needs to continue."""
        if self._dry_run or not self.counts.written:
            return error
        return PartlyDone(f"{self.counts.written} rows were written, then: {error.message}", hint=self._way_on)

    @property
    def _way_on(self) -> str:
        if self._progress is not None:
            return "Run it again with `--resume` to find out what was stored and continue"
        return "Run it again with `--if-different` to write the missing rows"

    # -- position ------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Save the position up to which everything is done."""
        undone = list(self._lost)
        undone += [self._fatal[0].line] if self._fatal else []
        undone += [self._window.oldest.line] if self._window.oldest else []
        line = min(undone, default=max(self._line, self._acknowledged.line) + 1) - 1
        # Rows after a lost, rejected or unanswered one, or of an earlier run, are stored below the last revision.
        # Within a chunk, rows without an outcome may stand before written ones, and counted ones after them.
        in_order = not (self._lost or self._fatal or self._in_chunk)
        if in_order and line >= max(self._until, self._acknowledged.line):
            self._save_points.advance(line, self._acknowledged.revision, self.counts)
        self._save_points.save()
