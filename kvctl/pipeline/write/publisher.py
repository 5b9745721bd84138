"""Write one task's rows into a bucket: thousands in flight, rows of a key in order, each with a known outcome.

A first attempt sends rows without reading, and resolves those that are not acknowledged. If an earlier attempt, which
was killed, may have stored rows, each key is read first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from kvctl.errors import (
    BucketNotFound,
    KvctlError,
    NoResponders,
    OutcomeUnknown,
    ServerError,
    StreamNotFound,
    WrongRevision,
)
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.jetstream.publish import PublishWindow, UnmatchedRun
from kvctl.kv.bulk.bulk_writer import (
    LOST,
    RUN_ROWS,
    WINDOW_ROWS,
    BulkWriter,
    Reconciler,
    Retry,
    RowCounts,
    WriteTarget,
    encoder,
    of_the_row,
    runs,
    with_expected,
)
from kvctl.kv.bulk.leader_state import Current, all_arrived
from kvctl.kv.bulk.rows import Row
from kvctl.kv.conditional_write import explained
from kvctl.kv.resolve import Binding
from kvctl.phrases import counted
from kvctl.pipeline.write.arrow_rows import RowChunk
from kvctl.pipeline.write.decision import ANOTHER, Decider, Decision, Resolution, RowToWrite, WriteMode, WritePlan
from kvctl.pipeline.write.row_ids import RowIds

OnDecision = Callable[[Row, Decision], object]
"""Receives a row and its result: stored, unchanged or refused."""


class Resolver(Reconciler[RowToWrite]):
    """Reads, decides and writes, a thousand keys at a time; rows of one key in order."""

    def __init__(self, target: WriteTarget, plan: WritePlan, on_decision: OnDecision) -> None:
        super().__init__(Current(target.binding, target.info))
        self.decider = Decider(plan, target.history)
        self._ids = plan.ids
        self._history = target.history
        self._on_decision = on_decision
        self._since: int | None = None
        self._absent: set[str] = set()
        """Keys whose rows are known not to be stored."""
        self.began = plan.floor
        """Revision before all that any attempt stored, as far as found."""

    async def resolve(self, rows: Sequence[RowToWrite], since: int | None, *, absent: bool = False) -> None:
        """Settle the rows, in order. Rows stored by any attempt are above `since`; None if that has to be found out.

        Rows that were refused or never sent are known to be `absent`. Each ends in one call of `on_decision`. Raises
        OutcomeUnknown when the server stays unreachable, and errors that prevent writing at all.
        """
        self._since = since
        by_line = {asked.row.line: asked for asked in rows}
        for chunk in self._current.chunks([asked.row for asked in rows]):
            left = {row.key: by_line[row.line] for row in chunk}
            self._absent = set(left) if absent else set()
            await self._reconcile(left)

    async def _look(self) -> list[Retry]:
        since = self._since
        last = await self._current.last([asked.row for asked in self._left.values()])
        kept = await self._kept(last, since)
        if since is None:
            self._find_beginning(kept)
        missing = []
        for key, asked in list(self._left.items()):
            if key not in last:
                continue  # no answer
            after = since if since is not None else self.began
            came = [m for m in kept.get(key, ()) if after is not None and m.sequence > after]
            decision = self.decider.decide(asked, last[key], came, absent=key in self._absent)
            if decision.outcome is Resolution.WRITE:
                missing.append(Retry(asked.row, self._header(asked, decision.revision)))
            else:
                self._report(asked.row, decision)
        return missing

    async def _kept(self, last: dict[str, StoredMessage | None], since: int | None) -> dict[str, list[StoredMessage]]:
        """Return all messages of the keys above the revision, oldest first; usually the last one, or none."""
        kept = {key: [m] for key, m in last.items() if m is not None and m.sequence > (since or 0)}
        if self._history == 1:
            return kept
        longer = {key: m for key, (m,) in kept.items() if not self.decider.certain(self._left[key].row, m)}
        found = await self._current.earlier(longer, dict.fromkeys(longer, since or 0))
        return {key: [*found.get(key, ()), *messages] for key, messages in kept.items()}

    def _find_beginning(self, kept: dict[str, list[StoredMessage]]) -> None:
        mine = [m.sequence for messages in kept.values() for m in messages if self.decider.mine(m)]
        if mine:
            self.began = min([*mine, *([] if self.began is None else [self.began + 1])]) - 1

    def _header(self, asked: RowToWrite, revision: int) -> bytes:
        """Return the header block of a write on condition of the revision that was read."""
        block = _block(self._ids, asked.row)
        checked = with_expected(block, revision)
        if asked.expected is None and self._ids.most < len(checked) + len(asked.row.value):
            return block  # no room for the condition, which was added to the row
        return checked

    def _stored(self, row: Row, revision: int) -> None:
        self._report(row, Decision(Resolution.STORED, revision))

    def _unanswered(self, row: Row) -> None:
        self._absent.discard(row.key)

    def _refused(self, row: Row, error: KvctlError) -> None:
        if of_the_row(error):
            self._report(row, Decision(Resolution.REFUSED, cause=error.message))
        else:
            self._fatal = self._fatal or named(error, row.key, self._target)

    def _report(self, row: Row, decision: Decision) -> None:
        del self._left[row.key]
        self._on_decision(row, decision)

    def _unknown(self, cause: str) -> OutcomeUnknown:
        row = next(iter(self._left.values())).row
        return OutcomeUnknown(
            f"Could not confirm whether {len(self._left)} rows from `{row.key}` on were stored: {cause}",
            hint="Run the same write again (with the same `writeId`, if any) to continue it",
        )


def named(error: KvctlError, key: str, binding: Binding) -> KvctlError:
    """Return the error that prevents writing, with the key that caused it and the remedy."""
    if isinstance(error, ServerError):
        error = explained(error, binding)
    error.message = f"`{key}`: {error.message}"
    error.args = (error.message,)
    return error


def _block(ids: RowIds, row: Row) -> bytes:
    return ids.block(row.line, row.header, row.value)


ARRIVAL_LOOKS = 50
"""Tenths of a second to wait for rows of a killed attempt while others write concurrently."""
REFUSED = 1_000
"""Number of rows refused by a server that are resolved together."""
_REFUSED = (WrongRevision, NoResponders)
"""Errors after which a row is known not to be stored."""

Rejected = Callable[[RowChunk, dict[int, str]], object]
"""Receives a batch, and its rows that are not written with their causes."""


class Publisher(BulkWriter):
    """Writes one task's chunks; `rejected` receives each chunk with rows that are not written."""

    def __init__(self, target: WriteTarget, plan: WritePlan, rejected: Rejected = lambda chunk, causes: None) -> None:
        super().__init__()
        self._target = target
        self._plan = plan
        self._rejected = rejected
        self._resolver = Resolver(target, plan, self._decided)
        self._looking = plan.begun or plan.if_different
        self._revision = plan.since or 0
        self._run_rows = RUN_ROWS
        self._chunks: deque[RowChunk] = deque()
        """Chunks with rows without an outcome."""
        self._lost: set[int] = set()
        self._refused: set[int] = set()
        self._fatal: KvctlError | None = None

    async def run(self, chunks: AsyncIterator[RowChunk]) -> RowCounts:
        """Write all rows. Raises errors that prevent writing, OutcomeUnknown; rows before the error are written."""
        connection, bucket = self._target.binding.api.connection, self._target.binding.bucket
        try:
            if self._plan.begun:
                await self._wait_for_others()
            self._window = PublishWindow(
                connection, self._done, self._failed, all_done=self._all_done, window=WINDOW_ROWS
            )
            async with self._window:
                async for chunk in chunks:
                    await self._take(chunk)
                await self._settle()
                self._retire()
            if owed := self._resolver.decider.owed:
                keys = counted(len(owed), "key")
                raise KvctlError(f"A retry produced different rows for {keys}. {ANOTHER}")
        except StreamNotFound:
            raise BucketNotFound(f"Bucket `{bucket}` was deleted while rows were written to it") from None
        return self.counts

    async def _wait_for_others(self) -> None:
        """Wait for rows that a killed attempt has sent, longer if there is known to be one."""
        if self._plan.since is None and self._plan.floor is None:
            await all_arrived(self._target.binding)
        else:
            await all_arrived(self._target.binding, ARRIVAL_LOOKS, quiet=2)

    async def _take(self, chunk: RowChunk) -> None:
        self._chunks.append(chunk)
        self.counts.rejected += len(chunk.bad)
        rows = self._target.acceptable(chunk.rows(), self._reject)
        chunk.floor = self._revision
        if self._looking:
            await self._resolve(chunk)
        elif self._plan.mode is WriteMode.PUT:
            await self._send_runs(self._runs(rows, chunk.largest))
        else:
            await self._send(self._conditional(chunk))
        self._retire()

    # -- rows that may already be stored ------------------------------------------------------------------

    async def _resolve(self, chunk: RowChunk) -> None:
        asked = [chunk.asked(at) for at in range(len(chunk.keys))]
        if self._plan.begun:
            self._resolver.decider.note([row for row, _ in asked])
        since = self._plan.since if self._plan.begun else chunk.floor
        rows = [asked[at] for at in chunk.places()]
        await self._resolver.resolve(rows, since, absent=not self._plan.begun)

    def _decided(self, row: Row, decision: Decision) -> None:
        self._lost.discard(row.line)
        self._refused.discard(row.line)
        if decision.outcome is Resolution.STORED:
            self._done(row, decision.revision)
        elif decision.outcome is Resolution.UNCHANGED:
            self.counts.unchanged += 1
        else:
            self._reject(row.line, decision.cause)

    # -- new rows ------------------------------------------------------------------------------------------

    def _runs(self, rows: Sequence[Row], largest: int) -> Iterator[tuple[Sequence[Row], Callable[[bytes], bytes]]]:
        """Yield runs of rows, with the functions that encode them."""
        for run in runs(rows, largest, self._run_rows):
            yield run, encoder(self._target.binding.write_prefix, self._plan.ids, run)

    def _conditional(self, chunk: RowChunk) -> Iterator[tuple[Row, bytes, bytes, bytes]]:
        """Yield rows, subjects, values and header blocks of writes that are refused one by one."""
        prefix, ids = self._target.binding.write_prefix, self._plan.ids
        for at in chunk.places():
            row, expected = chunk.asked(at)
            self._sending = row
            block = with_expected(_block(ids, row), expected or 0)
            yield row, (prefix + row.key).encode(), row.value, block

    def _in_trouble(self) -> object:
        return self._lost or self._fatal or len(self._refused) > REFUSED

    def _done(self, row: Row, revision: int) -> None:
        self._all_done((row,), (revision,))

    def _all_done(self, rows: Sequence[Row], revisions: Sequence[int]) -> None:
        self.counts.written += len(rows)
        self._revision = max(self._revision, revisions[-1])

    def _failed(self, row: Row, error: KvctlError) -> None:
        if isinstance(error, UnmatchedRun):
            self._run_rows = 1  # from the next chunk on each row has its own answer
        if isinstance(error, LOST):
            self._lost.add(row.line)
        elif isinstance(error, _REFUSED):
            self._refused.add(row.line)
        elif of_the_row(error):
            self._reject(row.line, error.message)
        else:
            self._fatal = self._fatal or named(error, row.key, self._target.binding)

    async def _settle(self) -> None:
        """Wait for every outcome; resolve missing ones, and the reasons why rows were refused."""
        await self._window.finish()
        while (self._lost or self._refused) and not self._fatal:
            number = min(self._lost | self._refused)
            chunk = self._chunk_of(number)
            of = self._lost if number in self._lost else self._refused
            rows = [chunk.asked(at) for at in chunk.places() if chunk.first + at in of]
            await self._resolver.resolve(rows, chunk.floor, absent=of is self._refused)
        if self._fatal:
            raise self._fatal

    # -- both ------------------------------------------------------------------------------------------------

    def _reject(self, line: int, reason: str) -> None:
        chunk = self._chunk_of(line)
        if line - chunk.first not in chunk.bad:
            self.counts.rejected += 1
            chunk.bad[line - chunk.first] = reason

    def _chunk_of(self, number: int) -> RowChunk:
        return next(chunk for chunk in self._chunks if chunk.first <= number < chunk.end)

    def _retire(self) -> None:
        """Release the chunks whose rows all have an outcome."""
        oldest = self._window.oldest
        undone = min([*self._lost, *self._refused, *([] if oldest is None else [oldest.line])], default=None)
        while self._chunks and (undone is None or self._chunks[0].end <= undone):
            chunk = self._chunks.popleft()
            if chunk.bad:
                self._rejected(chunk, chunk.bad)
