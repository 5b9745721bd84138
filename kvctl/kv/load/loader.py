"""Load rows into a bucket: thousands in flight, in order, each with a known outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from kvctl.errors import (
    ConnectionLost,
    JetStreamDisabled,
    KvctlError,
    NoResponders,
    OutcomeUnknown,
    PartlyDone,
    RequestTimeout,
    ServerError,
    UnreachableError,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream.publish import PublishWindow
from kvctl.kv.bucket import Bucket
from kvctl.kv.load.checkpoint import Position, ProgressFile
from kvctl.kv.load.leader_state import AWAY, Current
from kvctl.kv.load.reconcile import Outcome, Settler, with_expected
from kvctl.kv.load.resume import Stored, all_arrived
from kvctl.kv.load.row_reader import Batch
from kvctl.kv.load.rows import BadRow, Row
from kvctl.kv.load.target import Target
from kvctl.kv.write.conditional_write import NO_STORAGE
from kvctl.kv.write.identity import Series, most_bytes

WINDOW = 8_000
SAVE_ROWS = 10_000
SAVE_BYTES = 8 << 20
"""Rows and bytes between saves of the position. No row further ahead of the saved position is sent."""
FLOOR_ROWS = 500
RECENT = 20_000
"""Number of acknowledged rows whose keys are remembered: more than can be in flight with an unacknowledged one."""

_LOST = (RequestTimeout, ConnectionLost, NoResponders, JetStreamDisabled)
_OF_THE_ROW = (10054, 10165, 10166)
"""Server errors about a single message: too large, or an invalid ttl."""
_FULL = (10077,)
"""Server errors of a full bucket."""


class Mode(StrEnum):
    """Selection of the rows to write."""

    PUT = "put"
    CREATE_ONLY = "create-only"
    IF_DIFFERENT = "if-different"


@dataclass(slots=True)
class Loaded:
    """Row counts of a load, resumed runs included."""

    written: int = 0
    unchanged: int = 0
    rejected: int = 0


class Loader:
    """A load. `rejected` is called with every row that is not written."""

    def __init__(
        self, bucket: Bucket, target: Target, mode: Mode = Mode.PUT, *, dry_run: bool = False,
        rejected: Callable[[BadRow], None] = lambda _: None, progress: ProgressFile | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.loaded = Loaded()
        self._bucket = bucket
        self._target = target
        self._binding = target.binding
        self._mode = mode
        self._dry_run = dry_run
        self._rejected = rejected
        self._progress = progress
        self._advance = advance
        self._current = Current(target.binding, target.info)
        self._ids = Series(most_bytes(target.binding.api.connection.max_payload, target.info["config"]))
        self._settler = Settler(self._current, self._told, self._ids)
        self._careful = bool(target.info["config"].get("max_msg_size", -1) > 0)
        self._revision = int(target.info["state"]["last_seq"])
        self._line = 0
        """Last line of which all rows have been sent."""
        self._done_line = 0
        """Highest acknowledged line."""
        self._ceiling = 0
        """Last line that may be sent before the position is saved again."""
        self._unsaved_bytes = 0
        self._bad: deque[int] = deque()
        """Lines of rejected rows above the last saved position."""
        self._lost: dict[int, tuple[Row, KvctlError]] = {}
        """Rows with an unknown outcome and the cause, by line."""
        self._conflicts: list[Row] = []
        self._fatal: tuple[Row, KvctlError] | None = None
        self._sending: Row
        self._stored = Stored()
        self._saved = Position()
        """Position in the checkpoint file: every stored row after its line is above its revision."""
        self._recent: dict[str, tuple[int, int]] = {}
        """Line and revision of the last acknowledged row of each key; `_earlier` has those of an earlier period."""
        self._earlier: dict[str, tuple[int, int]] = {}
        self._floors: deque[tuple[int, int]] = deque([(0, self._revision)], maxlen=64)
        """Samples of line and revision: later rows, if stored, are above this revision."""

    async def run(
        self, batches: AsyncIterator[Batch], *, start: Position | None = None, stored: Stored | None = None
    ) -> Loaded:
        """Load all batches; continue after `start`, where later rows may be stored already.

        Raises PartlyDone or the server's error when it cannot continue, OutcomeUnknown; the position is saved then, and
        on
        cancellation.
        """
        if start is not None:
            self.loaded = Loaded(start.written, start.unchanged, start.rejected)
            self._line, self._ceiling = start.line, start.until
        self._stored = stored or Stored()
        skip = dict(self._stored.counts)
        self._saved = start or Position(revision=self._revision)
        connection = self._binding.api.connection
        window = PublishWindow(connection, self._done, self._failed, window=WINDOW)
        self._window = window
        try:
            async with window:
                self._save()
                async for batch in batches:
                    await self._take(batch, skip)
                await self._settle()
        except BaseException as error:
            self._save()
            if isinstance(error, UnreachableError):
                raise self._cut_off(error) from None
            raise
        self._bucket.own.note_many(self._revision)
        if self._progress is not None:
            self._progress.remove()
        return self.loaded

    # -- sending -------------------------------------------------------------------------------------------

    async def _take(self, batch: Batch, skip: dict[str, int]) -> None:
        if batch.line > self._ceiling:
            self._ceiling = batch.line + SAVE_ROWS
            self._save()
        for bad in batch.bad:
            self._reject(bad.line, bad.reason)
        rows = self._not_skipped(batch.rows, skip) if skip else batch.rows
        if self._stored.doubtful and self._line < self._stored.until:
            rows = [row for row in rows if self._certain(row)]
        if self._careful or any(row.header for row in rows):
            rows = [row for row in rows if self._acceptable(row)]
        if self._mode is Mode.PUT and not self._dry_run:
            await self._put(rows)
            await self._window.flush()
        else:
            for chunk in self._current.chunks(rows):
                await self._conditionally(chunk)
        self._line = batch.line
        if batch.line >= self._floors[-1][0] + FLOOR_ROWS:
            self._floors.append((batch.line, self._revision))
        if len(self._recent) > RECENT:
            self._earlier, self._recent = self._recent, {}
        self._unsaved_bytes += batch.size
        if self._unsaved_bytes >= SAVE_BYTES:
            self._save()
        self._advance(batch.size)

    def _not_skipped(self, rows: list[Row], skip: dict[str, int]) -> list[Row]:
        kept = []
        for row in rows:
            left = skip.get(row.key, 0)
            if not left:
                kept.append(row)
                continue
            self.loaded.written += 1
            skip[row.key] = left - 1
            if left == 1:
                del skip[row.key]
        return kept

    def _certain(self, row: Row) -> bool:
        """Return True if the row cannot be stored and overwritten by somebody else already."""
        if row.key not in self._stored.doubtful or row.line > self._stored.until:
            return True
        text = f"`{row.key}` was written by another client since the interruption; the row may already be stored"
        self._reject(row.line, text)
        return False

    def _acceptable(self, row: Row) -> bool:
        try:
            self._target.check(row)
        except UsageError as error:
            self._reject(row.line, error.message)
            return False
        return True

    async def _put(self, rows: list[Row], *, create: bool = False) -> None:
        messages = self._messages(rows, create)
        left = True
        while left:
            try:
                await self._window.send_all(messages, self._in_trouble)
                left = False
            except UsageError as error:
                self._reject(self._sending.line, error.message)
            if self._in_trouble():
                await self._settle()
                left = True

    def _messages(self, rows: list[Row], create: bool) -> Iterator[tuple[Row, bytes, bytes, bytes]]:
        prefix, block = self._binding.write_prefix.encode(), self._ids.block
        for row in rows:
            self._sending = row
            header = block(row.line, row.header, row.value)
            if create:
                header = with_expected(header, 0)
            yield row, prefix + row.key.encode("utf-8", "surrogateescape"), row.value, header

    def _in_trouble(self) -> object:
        return self._lost or self._fatal

    async def _conditionally(self, rows: list[Row]) -> None:
        """Write rows of distinct keys that differ from the stored state."""
        if self._mode is Mode.IF_DIFFERENT:
            await self._settle()
            same = await self._current.unchanged(rows)
        elif self._dry_run and self._mode is Mode.CREATE_ONLY:
            same = await self._current.living(rows)
        else:
            same = set()
        rows = [row for row in rows if row.line not in same]
        self.loaded.unchanged += len(same)
        if self._dry_run:
            self.loaded.written += len(rows)
        else:
            await self._put(rows, create=self._mode is Mode.CREATE_ONLY)
            await self._settle()

    def _done(self, row: Row, revision: int) -> None:
        self.loaded.written += 1
        self._recent[row.key] = (row.line, revision)
        if row.line > self._done_line:
            self._done_line = row.line
        if revision > self._revision:
            self._revision = revision

    def _failed(self, row: Row, error: KvctlError) -> None:
        if isinstance(error, WrongRevision) and self._mode is Mode.CREATE_ONLY:
            self._conflicts.append(row)
        elif isinstance(error, (*_LOST, WrongRevision)):
            self._lost[row.line] = row, error
        elif _of_the_row(error):
            self._reject(row.line, error.message)
        elif self._fatal is None or row.line < self._fatal[0].line:
            self._fatal = row, error

    def _reject(self, line: int, reason: str) -> None:
        self.loaded.rejected += 1
        self._bad.append(line)
        self._rejected(BadRow(line, reason))

    # -- outcomes ------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Wait for every outcome and resolve lost ones. Raises the error that stops the load."""
        await self._window.finish()
        create = self._mode is Mode.CREATE_ONLY
        if any(isinstance(error, ConnectionLost) for _, error in self._lost.values()):
            with suppress(*AWAY):
                await all_arrived(self._binding)
        if self._conflicts:
            await self._resolve_conflicts()
        while self._lost and self._fatal is None:
            lost = [self._lost[line] for line in sorted(self._lost)]
            chunk = next(self._current.chunks([row for row, _ in lost]))
            found = [(row, after) for row in chunk if (after := self._floor(row)) >= 0]
            try:
                await self._settler.settle(found, create=create)
            except OutcomeUnknown as error:
                raise self._unknown(error, lost[0][1]) from None
            except KvctlError as error:
                self._fatal = lost[0][0], error
        if self._fatal is not None:
            raise self._stopped(*self._fatal)

    def _floor(self, row: Row) -> int:
        """Return the revision that the row is above, if stored; -1 if a later row of its key was stored before it."""
        line, revision = self._recent.get(row.key) or self._earlier.get(row.key) or (0, 0)
        if line > row.line:
            self._told(row, Outcome.SUPERSEDED, revision)
            return -1
        return max(next((at for before, at in reversed(self._floors) if before < row.line), 0), revision)

    def _told(self, row: Row, outcome: Outcome | KvctlError, revision: int) -> None:
        del self._lost[row.line]
        if outcome is Outcome.WRITTEN:
            self._done(row, revision)
        elif outcome is Outcome.EXISTS:
            self.loaded.unchanged += 1
        elif isinstance(outcome, Outcome) and self._target.history != 1:
            self._reject(row.line, f"A later write of `{row.key}` was stored before it")
        elif outcome is Outcome.SUPERSEDED:
            self.loaded.written += 1  # without history, a row overwritten by a later one leaves no trace
        elif outcome is Outcome.OVERTAKEN:
            text = f"`{row.key}` was written by another client after the connection was lost"
            self._reject(row.line, f"{text}; the row may already be stored")
        elif _of_the_row(outcome):
            self._reject(row.line, outcome.message)
        else:
            self._fatal = self._fatal or (row, outcome)

    async def _resolve_conflicts(self) -> None:
        """Handle keys that exist: live ones stay, deleted ones are created."""
        conflicts, self._conflicts = self._conflicts, []
        for chunk in self._current.chunks(conflicts):
            living = await self._current.living(chunk)
            self.loaded.unchanged += len(living)
            deleted = (row for row in chunk if row.line not in living)
            self._lost |= {row.line: (row, ConnectionLost("The key was deleted")) for row in deleted}

    def _unknown(self, error: OutcomeUnknown, cause: KvctlError) -> KvctlError:
        line, count = min(self._lost), len(self._lost)
        return OutcomeUnknown(
            f"Could not find out if {count} row{'s' if count > 1 else ''} from line {line} on "
            f"{'were' if count > 1 else 'was'} stored ({cause.message}); {self.loaded.written} were written",
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
        if not self.loaded.written:
            error.message, error.hint = f"Line {row.line}: {message}", hint
            return error
        return PartlyDone(
            f"{self.loaded.written} rows were written, then line {row.line} failed: {message}",
            hint=hint or self._way_on,
        )

    def _cut_off(self, error: UnreachableError) -> KvctlError:
        """Return the error for a request without an answer that the load needs to continue."""
        if self._dry_run or not self.loaded.written:
            return error
        return PartlyDone(f"{self.loaded.written} rows were written, then: {error.message}", hint=self._way_on)

    @property
    def _way_on(self) -> str:
        if self._progress is not None:
            return "Run it again with `--resume` to find out what was stored and continue"
        return "Run it again with `--if-different` to write the missing rows"

    # -- position ------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Save the position up to which everything is done; if that fails, the load continues without."""
        if self._progress is None or self._dry_run:
            return
        undone = [*self._lost, *(row.line for row in self._conflicts)]
        undone += [self._fatal[0].line] if self._fatal else []
        undone += [self._window.oldest.line] if self._window.oldest else []
        line = min(undone, default=max(self._line, self._done_line) + 1) - 1
        # Rows after a lost or rejected one, or of an earlier run, are stored below the last revision.
        in_order = not (self._lost or self._conflicts or self._fatal)
        if in_order and line >= self._stored.until:
            later = sum(1 for bad in self._bad if bad > line)
            self._bad = deque(bad for bad in self._bad if bad > line)
            self._saved = Position(
                line=line,
                revision=self._revision,
                written=self.loaded.written,
                unchanged=self.loaded.unchanged,
                rejected=self.loaded.rejected - later,
            )
        with suppress(OSError):
            self._progress.save(replace(self._saved, until=self._ceiling))
        self._unsaved_bytes = 0


def _of_the_row(error: KvctlError) -> bool:
    return isinstance(error, UsageError) or (isinstance(error, ServerError) and error.err_code in _OF_THE_ROW)
