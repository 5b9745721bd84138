"""Resolve unacknowledged writes of a bulk write: found by their identities, or written if missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

from kvctl.errors import KvctlError, OutcomeUnknown
from kvctl.jetstream.direct.direct_get import StoredMessage
from kvctl.kv.entry import Operation, operation_of
from kvctl.kv.load.acknowledged import Acknowledged
from kvctl.kv.load.bulk_writer import Reconciler, Retry, with_expected
from kvctl.kv.load.leader_state import Current
from kvctl.kv.load.rows import Row
from kvctl.kv.write.identity import Series


class Outcome(Enum):
    """Outcome of a write."""

    WRITTEN = auto()
    EXISTS = auto()
    """The key lives: a create-only write was not applied."""
    SUPERSEDED = auto()
    """A later row of the same key was stored; if this one was stored before it, later writes replaced it."""
    OVERTAKEN = auto()
    """Another client's write of the key was stored; if this one was stored before it, later writes replaced it."""
    MISSED = auto()
    """A later write of the key was stored, and this one was not stored before it."""
    UNKNOWN = auto()
    """The row has no room for an identity, and entries equal to it do not show if one of them is this row."""


OnOutcome = Callable[[Row, Outcome | KvctlError, int], object]
"""Called with a row, its outcome or the server's refusal, and its revision if it was written."""


class WriteReconciler(Reconciler[tuple[Row, int]]):
    """Resolver of writes of distinct keys.

    The stream keeps `history` messages of a key; 0 or less for all. The acknowledged writes show above which revision
    another one is, if stored.
    """

    def __init__(
        self, current: Current, on_outcome: OnOutcome, ids: Series, history: int, acknowledged: Acknowledged
    ) -> None:
        super().__init__(current)
        self._ids = ids
        self._history = history
        self._acknowledged = acknowledged
        self._on_outcome = on_outcome
        self._create = False

    async def settle(self, rows: Sequence[Row], *, create: bool) -> None:
        """Find each row, or write it; with `create` only if the key does not live.

        Each ends in one call of `on_outcome`. Raises OutcomeUnknown when the server stays unavailable, or earlier when
        it answers reads but acknowledges no repeated write.
        """
        self._create = create
        await self._reconcile({row.key: (row, self._acknowledged.floor(row.line, row.key)) for row in rows})

    async def _look(self) -> list[Retry]:
        last = await self._current.last([row for row, _ in self._left.values()])
        followed = self._followed(last)
        below = await self._current.earlier(
            followed, {key: self._left[key][1] for key in followed}, lambda key, m: self._is(m, self._left[key][0])
        )
        missing = []
        for key, (row, after) in list(self._left.items()):
            if key not in last:
                continue  # no answer
            message = last[key]
            decided = self._decided(row, after, message, below.get(key, ())) if message else None
            if decided:
                self._report(row, *decided)
            else:
                block = self._ids.block(row.line, row.header, row.value)
                header = with_expected(block, message.sequence if message else 0)
                if len(header) + len(row.value) > self._ids.most:
                    raise OutcomeUnknown(f"Row {row.line} has no room for a condition")
                missing.append(Retry(row, header))
        return missing

    def _followed(self, last: Mapping[str, StoredMessage | None]) -> dict[str, StoredMessage]:
        """Return the last messages of keys whose rows, if stored, were followed by other writes."""
        found = {}
        for key, (row, after) in self._left.items():
            message = last.get(key)
            if message is not None and message.sequence > after and not (self._create or self._is(message, row)):
                found[key] = message
        return found

    def _decided(
        self, row: Row, after: int, last: StoredMessage, below: Sequence[StoredMessage]
    ) -> tuple[Outcome, int] | None:
        if last.sequence > after:
            if self._is(last, row):
                return Outcome.WRITTEN, last.sequence
            if not self._create:
                if not self._ids.fits(row.header, row.value):
                    raise OutcomeUnknown(f"Row {row.line} has no room for an identity, and a later write followed it")
                if below and self._is(below[-1], row):
                    return Outcome.WRITTEN, below[-1].sequence
                if not self._replaced([*below, last]):
                    return Outcome.MISSED, after
                later = any((self._ids.number(message.header) or 0) > row.line for message in (*below, last))
                superseded = later or self._acknowledged.followed(row.line, row.key)
                return Outcome.SUPERSEDED if superseded else Outcome.OVERTAKEN, after
        lives = operation_of(last.header)[0] is Operation.PUT
        return (Outcome.EXISTS, last.sequence) if self._create and lives else None

    def _replaced(self, later: Sequence[StoredMessage]) -> bool:
        """Return True if these messages would have replaced an earlier one of their key."""
        purged = any(operation_of(message.header)[0] is Operation.PURGE for message in later)
        return purged or 0 < self._history <= len(later)

    def _is(self, message: StoredMessage, row: Row) -> bool:
        return self._ids.number(message.header) == row.line

    def _stored(self, row: Row, revision: int) -> None:
        self._report(row, Outcome.WRITTEN, revision)

    def _refused(self, row: Row, error: KvctlError) -> None:
        self._report(row, error, 0)

    def _report(self, row: Row, outcome: Outcome | KvctlError, revision: int) -> None:
        del self._left[row.key]
        self._on_outcome(row, outcome, revision)

    def _unknown(self, cause: str) -> OutcomeUnknown:
        return OutcomeUnknown(cause)
