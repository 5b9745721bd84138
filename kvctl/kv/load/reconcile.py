"""Resolve unacknowledged rows, of this process or a killed one: found by their identities, or written if missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

from kvctl.errors import KvctlError, OutcomeUnknown
from kvctl.jetstream.direct.direct_get import StoredMessage
from kvctl.kv.entry import Operation, operation_of
from kvctl.kv.load.acknowledged import Acknowledged
from kvctl.kv.load.bulk_writer import Reconciler, Retry, with_expected
from kvctl.kv.load.leader_state import Current, changes_nothing, needed
from kvctl.kv.load.rows import Mode, Row
from kvctl.kv.write.identity import Series, identity_of


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
    """A write of the key has no room for an identity: nothing shows if it is this row, or a later one."""


OnOutcome = Callable[[Row, Outcome | KvctlError, int], object]
"""Called with a row, its outcome or the server's refusal, and its revision if it was written."""


class WriteReconciler(Reconciler[tuple[Row, int]]):
    """Resolver of writes of distinct keys.

    The acknowledged writes show above which revision another one is, if stored.
    """

    def __init__(
        self, current: Current, on_outcome: OnOutcome, ids: Series, acknowledged: Acknowledged, mode: Mode = Mode.PUT
    ) -> None:
        super().__init__(current)
        self.resumed = False
        """True for rows of a killed process: one that is not stored is written over other clients' later writes."""
        self._ids = ids
        self._history = current.config.get("max_msgs_per_subject", 0)
        self._acknowledged = acknowledged
        self._on_outcome = on_outcome
        self._mode = mode

    async def settle(self, rows: Sequence[Row]) -> None:
        """Find each row, or write it if its mode selects it.

        Each ends in one call of `on_outcome`. Raises OutcomeUnknown when the server stays unavailable, or earlier when
        it answers reads but acknowledges no repeated write.
        """
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
            later = [*below[key], followed[key]] if key in followed else []
            if message is not None and message.sequence > after and self._is(message, row):
                self._report(row, Outcome.WRITTEN, message.sequence)
            elif decided := self._among(row, after, later):
                self._report(row, *decided)
            elif needed(self._mode, row, message):
                missing.append(Retry(row, self._header(row, message)))
            else:
                self._report(row, Outcome.EXISTS, message.sequence if message else 0)
        return missing

    def _followed(self, last: Mapping[str, StoredMessage | None]) -> dict[str, StoredMessage]:
        """Return the last messages of keys whose rows, if stored, were followed by other writes."""
        if self._mode is Mode.CREATE_ONLY and not self.resumed:
            return {}  # the key's state decides
        return {
            key: message
            for key, (row, after) in self._left.items()
            if (message := last.get(key)) is not None and message.sequence > after and not self._is(message, row)
        }

    def _among(self, row: Row, after: int, later: Sequence[StoredMessage]) -> tuple[Outcome, int] | None:
        """Return the outcome of a row by its key's messages above a revision; None if it is not stored."""
        if not later:
            return None
        if len(later) > 1 and self._is(later[-2], row):
            return Outcome.WRITTEN, later[-2].sequence
        replaced = self._replaced(later) or (self.resumed and self._vanishes(row, after))
        newer = any((self._ids.number(message.header) or 0) > row.line for message in later)
        newer = newer or self._acknowledged.followed(row.line, row.key)
        nameless = not self._ids.fits(row.header, row.value)
        if self.resumed and any(map(self._is_nameless, later)) and (nameless or not newer):
            if nameless and self._is_nameless(later[0]) and changes_nothing(row, later[0]):
                self._acknowledged.note(row.line, row.key, later[0].sequence)  # later rows are above it
            return Outcome.UNKNOWN, after
        if newer:
            unchanged = self.resumed and self._mode is not Mode.PUT
            return Outcome.SUPERSEDED if replaced else Outcome.EXISTS if unchanged else Outcome.MISSED, after
        if replaced:
            return Outcome.OVERTAKEN, after
        return None if self.resumed else (Outcome.MISSED, after)

    def _replaced(self, later: Sequence[StoredMessage]) -> bool:
        """Return True if these messages would have replaced an earlier one of their key."""
        purged = any(operation_of(message.header)[0] is Operation.PURGE for message in later)
        return purged or 0 < self._history <= len(later)

    def _vanishes(self, row: Row, after: int) -> bool:
        """Return True if the row may have expired, or been evicted together with all rows of its key before it."""
        config = self._current.config
        limited = config.get("max_bytes", -1) > 0 or config.get("max_msgs", -1) > 0
        fades = config.get("max_age", 0) > 0 or (limited and config.get("discard") != "new")
        return b"\r\nNats-TTL:" in row.header or (fades and after == self._acknowledged.start)

    def _is(self, message: StoredMessage, row: Row) -> bool:
        return self._ids.number(message.header) == row.line

    def _is_nameless(self, message: StoredMessage) -> bool:
        """Return True for a message that had no room for an identity, whoever wrote it."""
        return identity_of(message.header) is None and not self._ids.fits(message.header, message.payload)

    def _header(self, row: Row, last: StoredMessage | None) -> bytes:
        """Return the header block of a write on condition that the key does not change, if there is room for it."""
        header = with_expected(self._ids.block(row.line, row.header, row.value), last.sequence if last else 0)
        without = self.resumed and self._mode is Mode.PUT and not self._ids.fits(row.header, row.value)
        return row.header if without else header

    def _stored(self, row: Row, revision: int) -> None:
        self._report(row, Outcome.WRITTEN, revision)

    def _refused(self, row: Row, error: KvctlError) -> None:
        self._report(row, error, 0)

    def _report(self, row: Row, outcome: Outcome | KvctlError, revision: int) -> None:
        del self._left[row.key]
        self._on_outcome(row, outcome, revision)

    def _unknown(self, cause: str) -> OutcomeUnknown:
        return OutcomeUnknown(cause)
