"""Resolve rows that may or may not be stored: their keys are read, and missing rows are written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from kvctl.errors import KvctlError, NoResponders, OutcomeUnknown, ServerError, WrongRevision
from kvctl.jetstream.direct.direct_get import StoredMessage
from kvctl.jetstream.direct.per_subject import next_of_each
from kvctl.jetstream.publish import PublishWindow
from kvctl.kv.load.leader_state import AWAY, PATIENCE, Current
from kvctl.kv.load.reconcile import with_expected
from kvctl.kv.load.rows import Row
from kvctl.pipeline.write.decision import (
    Asked,
    Decider,
    Decision,
    Outcome,
)
from kvctl.pipeline.write.row_ids import RowIds

PAUSE = 0.1
OF_THE_ROW = (10054, 10165, 10166)
"""Server errors about one message: too large, or an unsupported ttl."""

Told = Callable[[Row, Decision], object]
"""Receives a row and its result: stored, unchanged or refused."""


class Resolver:
    """Reads, decides and writes, a thousand keys at a time; rows of one key in order."""

    def __init__(self, current: Current, decider: Decider, ids: RowIds, history: int, told: Told) -> None:
        self._current = current
        self._target = current.binding
        self._decider = decider
        self._ids = ids
        self._history = history
        self._told = told
        self._left: dict[str, Asked] = {}
        self._absent: set[str] = set()
        """Keys whose rows are known not to be stored."""
        self._cause: KvctlError | None = None
        self.began: int | None = None
        """Revision before all that any attempt stored, as far as found."""

    async def resolve(self, rows: Sequence[Asked], since: int | None, *, absent: bool = False) -> None:
        """Settle the rows, in order. Rows stored by any attempt are above `since`; None if that has to be found out.

        Rows that were refused or never sent are known to be `absent`. Each ends in one call of `told`. Raises
        OutcomeUnknown when the server stays unreachable, and errors that prevent writing at all.
        """
        by_line = {asked.row.line: asked for asked in rows}
        for chunk in self._current.chunks([asked.row for asked in rows]):
            self._left = {row.key: by_line[row.line] for row in chunk}
            self._absent = set(self._left) if absent else set()
            await self._settle(since)

    async def _settle(self, since: int | None) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._left:
            before = len(self._left)
            try:
                await self._write(await self._look(since))
            except AWAY as error:
                self._cause = error
            if len(self._left) < before:
                deadline = time.monotonic() + PATIENCE
            elif time.monotonic() > deadline:
                raise self._unknown()
            else:
                await asyncio.sleep(PAUSE)

    async def _look(self, since: int | None) -> list[tuple[Asked, int]]:
        """Report decided rows; return the others, with the revisions that they expect."""
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
                missing.append((asked, decision.revision))
            else:
                self._tell(asked.row, decision)
        return missing

    async def _kept(self, last: dict[str, StoredMessage | None], since: int | None) -> dict[str, list[StoredMessage]]:
        """Return all messages of the keys above the revision, oldest first; usually the last one, or none."""
        kept = {key: [m] for key, m in last.items() if m is not None and m.sequence > (since or 0)}
        if self._history == 1:
            return kept
        longer = [key for key, (m,) in kept.items() if not self._decider.certain(self._left[key].row, m)]
        found: dict[str, list[StoredMessage]] = {key: [] for key in longer}
        starts = dict.fromkeys(longer, (since or 0) + 1)
        while starts:
            subjects = {self._target.subject(key): at for key, at in starts.items()}
            answers = await next_of_each(self._target.api, self._target.stream, subjects)
            if len(answers) < len(subjects):
                raise NoResponders("The stream has no leader")
            cut, starts = len(self._target.prefix), {}
            for subject, message in answers.items():
                key = subject[cut:]
                if message is not None and message.sequence < kept[key][-1].sequence:
                    found[key].append(message)
                    starts[key] = message.sequence + 1
        return {key: [*found.get(key, ()), *messages] for key, messages in kept.items()}

    def _find_beginning(self, kept: dict[str, list[StoredMessage]]) -> None:
        mine = [m.sequence for messages in kept.values() for m in messages if self._decider.mine(m)]
        if mine:
            self.began = min([*mine, *([] if self.began is None else [self.began + 1])]) - 1

    async def _write(self, rows: Sequence[tuple[Asked, int]]) -> None:
        if not rows:
            return
        fatal: list[KvctlError] = []

        def failed(row: Row, error: KvctlError) -> None:
            if isinstance(error, AWAY):
                self._cause = error
                self._absent.discard(row.key)
            elif isinstance(error, ServerError) and error.err_code in OF_THE_ROW:
                self._tell(row, Decision(Outcome.REFUSED, cause=error.message))
            elif not isinstance(error, WrongRevision):  # else it was written concurrently and is read again
                fatal.append(error)

        def done(row: Row, revision: int) -> None:
            self._tell(row, Decision(Outcome.STORED, revision))

        prefix = self._target.write_prefix.encode()
        async with PublishWindow(self._target.api.connection, done, failed) as window:
            for (row, expected), revision in rows:
                block = self._ids.block(row)
                checked = with_expected(block, revision)
                if expected is None and 0 < self._ids.most < len(checked) + len(row.value):
                    checked = block  # no room for the condition, which was added to the row
                await window.send(row, prefix + row.key.encode(), row.value, checked)
        if fatal:
            raise fatal[0]

    def _tell(self, row: Row, decision: Decision) -> None:
        del self._left[row.key]
        self._told(row, decision)

    def _unknown(self) -> OutcomeUnknown:
        row = next(iter(self._left.values())).row
        cause = self._cause.message if self._cause else "the key is being written concurrently"
        return OutcomeUnknown(
            f"Could not confirm whether {len(self._left)} rows from `{row.key}` on were stored: {cause}",
            hint="Run the same write again (with the same `writeId`, if any) to continue it",
        )
