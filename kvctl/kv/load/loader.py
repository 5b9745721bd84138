"""Load rows into a bucket: thousands in flight, in order, each with a known outcome."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum

from kvctl.errors import (
    Away,
    ConnectionLost,
    KvctlError,
    NoResponders,
    OutcomeUnknown,
    PartlyDone,
    PermissionDenied,
    ServerError,
    UnreachableError,
    WrongRevision,
)
from kvctl.jetstream.publish import PublishWindow, Unmatched
from kvctl.kv.bucket import Bucket
from kvctl.kv.load import row_frames
from kvctl.kv.load.acknowledged import Acknowledged
from kvctl.kv.load.bulk_writer import LOST, WINDOW_ROWS, BulkWriter, RowCounts, of_the_row, with_expected
from kvctl.kv.load.checkpoint import Position, ProgressFile
from kvctl.kv.load.leader_state import Current
from kvctl.kv.load.reconcile import Outcome, WriteReconciler
from kvctl.kv.load.resume import Stored, all_arrived
from kvctl.kv.load.row_reader import Batch
from kvctl.kv.load.rows import BadRow, PlainRows, Row
from kvctl.kv.load.save_points import SavePoints
from kvctl.kv.load.target import Target
from kvctl.kv.write.conditional_write import NO_STORAGE
from kvctl.kv.write.identity import Series

_FULL = (10077,)
"""Server errors of a full bucket."""


class Mode(StrEnum):
    """Selection of the rows to write."""

    PUT = "put"
    CREATE_ONLY = "create-only"
    IF_DIFFERENT = "if-different"


class Loader(BulkWriter):
    """A load. `rejected` is called with every row that is not written."""

    def __init__(
        self, bucket: Bucket, target: Target, ids: Series, mode: Mode = Mode.PUT, *, dry_run: bool = False,
        rejected: Callable[[BadRow], None] = lambda _: None, progress: ProgressFile | None = None,
        advance: Callable[[int], None] = lambda _: None, advance_rows: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._bucket = bucket
        self._target = target
        self._binding = target.binding
        self._mode = mode
        self._dry_run = dry_run
        self._rejected = rejected
        self._progress = None if dry_run else progress
        self._save_points: SavePoints
        self._advance = advance
        self._advance_rows = advance_rows
        self._current = Current(target.binding, target.info)
        self._ids = ids
        self._acknowledged = Acknowledged(int(target.info["state"]["last_seq"]))
        self._reconciler = WriteReconciler(self._current, self._settled, self._ids, target.history, self._acknowledged)
        self._run_rows = row_frames.RUN_ROWS
        self._line = 0
        """Last line of which all rows have been sent."""
        self._lost: dict[int, tuple[Row, KvctlError]] = {}
        """Rows with an unknown outcome and the cause, by line."""
        self._conflicts: list[Row] = []
        self._in_chunk = False
        """Whether rows of a chunk are being compared with the stored state or written."""
        self._fatal: tuple[Row, KvctlError] | None = None
        self._stored = Stored()

    async def run(
        self, batches: AsyncIterator[Batch], *, start: Position | None = None, stored: Stored | None = None
    ) -> RowCounts:
        """Load all batches; continue after `start`, where later rows may be stored already.

        Raises PartlyDone or the server's error when it cannot continue, OutcomeUnknown; the position is saved then, and
        on cancellation.
        """
        start = start or Position(revision=self._acknowledged.revision)
        start = replace(start, series=self._ids.prefix.decode(), most=self._ids.most)
        self.counts = RowCounts(start.written, start.unchanged, start.rejected, start.presumed)
        self._line = start.line
        self._save_points = SavePoints(self._progress, start)
        self._stored = stored or Stored()
        self._acknowledged.start_at(self._stored.revision)
        connection = self._binding.api.connection
        self._window = PublishWindow(connection, self._done, self._failed, all_done=self._all_done, window=WINDOW_ROWS)
        try:
            async with self._window:
                self._save()
                async for batch in batches:
                    await self._take(batch)
                await self._settle()
        except BaseException as error:
            self._save()
            if isinstance(error, UnreachableError):
                raise self._cut_off(error) from None
            raise
        self._bucket.own.note_many(self._acknowledged.revision)
        self._save_points.remove()
        return self.counts

    # -- sending -------------------------------------------------------------------------------------------

    async def _take(self, batch: Batch) -> None:
        if self._save_points.must_precede(batch.line):
            self._save()
        for bad in batch.bad:
            self._reject(bad.line, bad.reason)
        rows = self._target.acceptable(batch.rows, self._reject)
        if self._line < self._stored.until:
            rows = [row for row in rows if self._is_due(row)]
        if self._mode is Mode.PUT and not self._dry_run:
            await self._send_runs(self._runs(rows))
        else:
            for chunk in self._current.chunks(rows):
                await self._conditionally(chunk)
        self._line = batch.line
        self._acknowledged.sent_up_to(batch.line)
        if self._save_points.due_after(batch.size):
            self._save()
        self._advance_rows(len(batch.rows))
        self._advance(batch.size)

    def _runs(self, rows: Sequence[Row]) -> Iterator[tuple[Sequence[Row], Callable[[bytes], bytes]]]:
        values = rows.values if isinstance(rows, PlainRows) else [row.value for row in rows]
        for run in row_frames.runs(rows, max(map(len, values), default=0), self._run_rows):
            for part in row_frames.separated(run, self._ids):
                yield part, row_frames.encoder(self._binding.write_prefix, self._ids, part)

    def _is_due(self, row: Row) -> bool:
        """Return True if the row has to be written; count it if the interrupted load sent it."""
        outcome = self._stored.outcomes.get(row.line)
        if outcome is None:
            return True
        if outcome is Outcome.MISSED and self._mode is not Mode.PUT:
            outcome = Outcome.EXISTS  # it changed nothing when the load came to it
        self._count(row, outcome)
        return False

    def _creations(self, rows: list[Row]) -> Iterator[tuple[Row, bytes, bytes, bytes]]:
        """Yield messages that are refused one by one where their keys exist."""
        prefix, block = self._binding.write_prefix.encode(), self._ids.block
        for row in rows:
            self._sending = row.line
            header = with_expected(block(row.line, row.header, row.value), 0)
            yield row, prefix + row.key.encode("utf-8", "surrogateescape"), row.value, header

    def _in_trouble(self) -> object:
        return self._lost or self._fatal

    async def _conditionally(self, rows: list[Row]) -> None:
        """Write rows of distinct keys that differ from the stored state."""
        self._in_chunk = True
        if self._mode is Mode.IF_DIFFERENT:
            await self._settle()
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

    def _done(self, row: Row, revision: int) -> None:
        self.counts.written += 1
        self._acknowledged.note(row.line, row.key, revision)

    def _all_done(self, rows: Sequence[Row], revisions: Sequence[int]) -> None:
        if isinstance(rows, PlainRows):
            self.counts.written += len(rows)
            self._acknowledged.note_all(rows.first, rows.keys, revisions)
        else:
            for row, revision in zip(rows, revisions, strict=True):
                self._done(row, revision)

    def _failed(self, row: Row, error: KvctlError) -> None:
        if isinstance(error, Unmatched):
            self._run_rows = 1  # from now on each row has its own answer
        if isinstance(error, WrongRevision) and self._mode is Mode.CREATE_ONLY:
            self._conflicts.append(row)
        elif isinstance(error, (*LOST, NoResponders, WrongRevision)):
            self._lost[row.line] = row, error
        elif of_the_row(error):
            self._reject(row.line, error.message)
        else:
            self._stop_at(row, error)

    def _stop_at(self, row: Row, error: KvctlError) -> None:
        if self._fatal is None or row.line < self._fatal[0].line:
            self._fatal = row, error

    def _reject(self, line: int, reason: str) -> None:
        self.counts.rejected += 1
        self._save_points.reject(line)
        self._rejected(BadRow(line, reason))

    # -- outcomes ------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Wait for every outcome and resolve lost ones. Raises the error that stops the load."""
        await self._window.finish()
        create = self._mode is Mode.CREATE_ONLY
        if any(isinstance(error, ConnectionLost) for _, error in self._lost.values()):
            with suppress(Away):
                await all_arrived(self._binding)
        if self._conflicts:
            await self._resolve_conflicts()
        # Only a resumed load recognizes these, and they hide what they replaced.
        nameless = {row.key for row, _ in self._lost.values() if not self._ids.fits(row.header, row.value)}
        while self._lost:
            lost = [self._lost[line] for line in sorted(self._lost)]
            rows = [row for row, _ in lost if row.key not in nameless]
            try:
                if not rows:
                    raise OutcomeUnknown("The rows have no room for an identity")
                await self._reconciler.settle(next(self._current.chunks(rows)), create=create)
            except KvctlError as error:
                cause = self._fatal[1] if self._fatal else lost[0][1]
                if isinstance(error, OutcomeUnknown) or (isinstance(error, PermissionDenied) and not self._fatal):
                    raise self._unknown(cause) from None
                self._stop_at(lost[0][0], error)
                break
        if self._fatal is not None:
            raise self._stopped(*self._fatal)

    def _settled(self, row: Row, outcome: Outcome | KvctlError, revision: int) -> None:
        del self._lost[row.line]
        if outcome is Outcome.WRITTEN:
            self._acknowledged.note(row.line, row.key, revision)
        self._count(row, outcome)

    def _count(self, row: Row, outcome: Outcome | KvctlError) -> None:
        if outcome is Outcome.WRITTEN:
            self.counts.written += 1
        elif outcome is Outcome.EXISTS:
            self.counts.unchanged += 1
        elif outcome is Outcome.MISSED:
            self._reject(row.line, f"A later write of `{row.key}` was stored before it")
        elif outcome is Outcome.SUPERSEDED:
            self.counts.written += 1  # a row that later ones replaced leaves no trace
            self.counts.presumed += 1
        elif outcome is Outcome.OVERTAKEN:
            text = f"`{row.key}` was written by another client after the interruption"
            self._reject(row.line, f"{text}; the row may already be stored")
        elif outcome is Outcome.UNKNOWN:
            self._reject(row.line, f"Equal rows of `{row.key}` cannot be told apart; the row may already be stored")
        elif of_the_row(outcome):
            self._reject(row.line, outcome.message)
        else:
            self._stop_at(row, outcome)

    async def _resolve_conflicts(self) -> None:
        """Handle keys that exist: live ones stay, deleted ones are created."""
        conflicts, self._conflicts = self._conflicts, []
        for chunk in self._current.chunks(conflicts):
            living = await self._current.living(chunk)
            self.counts.unchanged += len(living)
            deleted = (row for row in chunk if row.line not in living)
            self._lost |= {row.line: (row, ConnectionLost("The key was deleted")) for row in deleted}

    def _unknown(self, cause: KvctlError) -> KvctlError:
        line, count = min(self._lost), len(self._lost)
        return OutcomeUnknown(
            f"Could not find out if {count} row{'s' if count > 1 else ''} from line {line} on "
            f"{'were' if count > 1 else 'was'} stored ({cause.message}); {self.counts.written} were written",
            hint=self._way_on,
        )

    def _stopped(self, row: Row, error: KvctlError) -> KvctlError:
        message, hint = error.message, error.hint
        if isinstance(error, ServerError) and error.err_code in _FULL:
            message = f"The bucket is full: {message}"
            hint = f"Make room with `kvctl bucket edit {self._binding.bucket} --max-bytes SIZE`. {self._way_on}"
        elif isinstance(error, ServerError) and error.err_code in NO_STORAGE:
            message = f"The server's storage is full: {message}"
            hint = f"Raise the limit of the server or account, or delete data. {self._way_on}"
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
        if in_order and line >= max(self._stored.until, self._acknowledged.line):
            self._save_points.advance(line, self._acknowledged.revision, self.counts)
        self._save_points.save()
