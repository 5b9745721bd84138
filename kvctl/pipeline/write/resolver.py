"""Resolve rows that may or may not be stored: their keys are read, and missing rows are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvctl.errors import KvctlError, OutcomeUnknown, ServerError
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.kv.bulk.bulk_writer import Reconciler, Retry, of_the_row, with_expected
from kvctl.kv.bulk.leader_state import Current
from kvctl.kv.bulk.rows import Row
from kvctl.kv.conditional_write import explained
from kvctl.kv.resolve import Binding
from kvctl.pipeline.write.decision import Asked, Decider, Decision, Outcome
from kvctl.pipeline.write.row_ids import RowIds

OnDecision = Callable[[Row, Decision], object]
"""Receives a row and its result: stored, unchanged or refused."""


class Resolver(Reconciler[Asked]):
    """Reads, decides and writes, a thousand keys at a time; rows of one key in order."""

    def __init__(self, current: Current, decider: Decider, ids: RowIds, history: int, on_decision: OnDecision) -> None:
        super().__init__(current)
        self._decider = decider
        self._ids = ids
        self._history = history
        self._on_decision = on_decision
        self._since: int | None = None
        self._absent: set[str] = set()
        """Keys whose rows are known not to be stored."""
        self.began: int | None = None
        """Revision before all that any attempt stored, as far as found."""

    async def resolve(self, rows: Sequence[Asked], since: int | None, *, absent: bool = False) -> None:
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
            decision = self._decider.decide(asked, last[key], came, absent=key in self._absent)
            if decision.outcome is Outcome.WRITE:
                missing.append(Retry(asked.row, self._header(asked, decision.revision)))
            else:
                self._report(asked.row, decision)
        return missing

    async def _kept(self, last: dict[str, StoredMessage | None], since: int | None) -> dict[str, list[StoredMessage]]:
        """Return all messages of the keys above the revision, oldest first; usually the last one, or none."""
        kept = {key: [m] for key, m in last.items() if m is not None and m.sequence > (since or 0)}
        if self._history == 1:
            return kept
        longer = {key: m for key, (m,) in kept.items() if not self._decider.certain(self._left[key].row, m)}
        found = await self._current.earlier(longer, dict.fromkeys(longer, since or 0))
        return {key: [*found.get(key, ()), *messages] for key, messages in kept.items()}

    def _find_beginning(self, kept: dict[str, list[StoredMessage]]) -> None:
        mine = [m.sequence for messages in kept.values() for m in messages if self._decider.mine(m)]
        if mine:
            self.began = min([*mine, *([] if self.began is None else [self.began + 1])]) - 1

    def _header(self, asked: Asked, revision: int) -> bytes:
        """Return the header block of a write on condition of the revision that was read."""
        block = self._ids.block(asked.row)
        checked = with_expected(block, revision)
        if asked.expected is None and 0 < self._ids.most < len(checked) + len(asked.row.value):
            return block  # no room for the condition, which was added to the row
        return checked

    def _stored(self, row: Row, revision: int) -> None:
        self._report(row, Decision(Outcome.STORED, revision))

    def _unanswered(self, row: Row) -> None:
        self._absent.discard(row.key)

    def _refused(self, row: Row, error: KvctlError) -> None:
        if of_the_row(error):
            self._report(row, Decision(Outcome.REFUSED, cause=error.message))
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
