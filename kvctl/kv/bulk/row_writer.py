"""Write numbered rows, thousands in flight, each with an identity by which it is found without an acknowledgement."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from kvctl.errors import Away, ConnectionLost, KvctlError, NoResponders, OutcomeUnknown, WrongRevision
from kvctl.jetstream.publish import PublishWindow, UnmatchedRun
from kvctl.kv.bulk.bulk_writer import LOST, RUN_ROWS, WINDOW_ROWS, BulkWriter, encoder, runs, separated
from kvctl.kv.bulk.leader_state import Current, all_arrived
from kvctl.kv.bulk.reconcile import AcknowledgedRows, LoadOutcome, WriteReconciler
from kvctl.kv.bulk.rows import Mode, PlainRows, Row
from kvctl.kv.identity import Series


class RowWriter(BulkWriter):
    """Writer of rows with ascending lines, in order; the first lost one stops it until all have an outcome."""

    open_after: tuple[type[KvctlError], ...] = (*LOST, NoResponders, WrongRevision)
    """Errors after which a row is looked up."""

    def __init__(
        self,
        current: Current,
        ids: Series,
        acknowledged: AcknowledgedRows,
        mode: Mode = Mode.PUT,
        *,
        window: int = WINDOW_ROWS,
    ) -> None:
        super().__init__()
        self._current = current
        self._binding = current.binding
        self._connection = current.binding.api.connection
        self._ids = ids
        self._acknowledged = acknowledged
        self._reconciler = WriteReconciler(current, self._settled, ids, acknowledged, mode)
        self._window = PublishWindow(self._connection, self._done, self._failed, all_done=self._all_done, window=window)
        self._run_rows = max(1, min(RUN_ROWS, window // 4))
        self._lost: dict[int, tuple[Row, KvctlError]] = {}
        """Rows with an unknown outcome and the cause, by line."""

    @abstractmethod
    def _written(self, keys: Sequence[str], revisions: Sequence[int]) -> None:
        """Count acknowledged rows, in order."""

    @abstractmethod
    def _resolved(self, row: Row, outcome: LoadOutcome | KvctlError, revision: int, cause: KvctlError) -> None:
        """Count a row that was looked up, for this cause."""

    @abstractmethod
    def _refused(self, row: Row, error: KvctlError) -> None:
        """Count a row that the server refuses."""

    def _runs(self, rows: Sequence[Row]) -> Iterator[tuple[Sequence[Row], Callable[[bytes], bytes]]]:
        values = rows.values if isinstance(rows, PlainRows) else [row.value for row in rows]
        for run in runs(rows, max(map(len, values), default=0), self._run_rows):
            for part in separated(run, self._ids):
                self._sending = part[-1]
                yield part, encoder(self._binding.write_prefix, self._ids, part)

    def _done(self, row: Row, revision: int) -> None:
        self._acknowledged.note(row.line, row.key, revision)
        self._written((row.key,), (revision,))

    def _all_done(self, rows: Sequence[Row], revisions: Sequence[int]) -> None:
        if isinstance(rows, PlainRows):
            self._acknowledged.note_all(rows.first, rows.keys, revisions)
            self._written(rows.keys, revisions)
        else:
            for row, revision in zip(rows, revisions, strict=True):
                self._done(row, revision)

    def _failed(self, row: Row, error: KvctlError) -> None:
        if isinstance(error, UnmatchedRun):
            self._run_rows = 1  # from now on each row has its own answer
        if isinstance(error, self.open_after):
            self._lost[row.line] = row, error
        else:
            self._refused(row, error)

    def _in_trouble(self) -> object:
        return self._lost

    async def _settle(self) -> None:
        """Wait for every outcome, and look up lost rows. Raises OutcomeUnknown, and errors of the server."""
        await self._window.finish()
        if any(isinstance(error, ConnectionLost) for _, error in self._lost.values()):
            with suppress(Away):
                await all_arrived(self._binding)
        lost = [self._lost[line] for line in sorted(self._lost)]
        # A row that may be stored and would not be recognized hides what it replaced, too.
        open_rows = [row for row, error in lost if isinstance(error, LOST)]
        nameless = {row.key for row in open_rows if not self._ids.fits(row.header, row.value)}
        for chunk in self._current.chunks([row for row, _ in lost if row.key not in nameless]):
            await self._reconciler.settle(chunk)
        if self._lost:
            raise OutcomeUnknown("The rows have no room for an identity")

    def _settled(self, row: Row, outcome: LoadOutcome | KvctlError, revision: int) -> None:
        _, cause = self._lost.pop(row.line)
        if outcome is LoadOutcome.WRITTEN:
            self._acknowledged.note(row.line, row.key, revision)
        self._resolved(row, outcome, revision, cause)
