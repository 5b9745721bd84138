"""Decide what to do with a row that may or may not be stored, from the entries of its key.

This applies to rows of a task that Spark retries, of a batch that it replays, and to writes without an acknowledgement.
A row that is not found is written on condition of the revision that was read, so a late arrival makes the write fail.

Rows of a key are stored in order. If others wrote the key and its history is too short to show a row, the row counts as
written before theirs: nobody can tell that it was not. In a conditional mode it counts as refused.

An earlier run of a job may have split its rows into other partitions (`moved`). Then a row is identified by its
content, in whatever partition it was stored, as long as the rows of its key keep their present order. Equal rows of one
key in several partitions count as one. If a batch may have several rows of a key (`lenient`), stored rows that are not
among this task's are taken for another task's, not for the result of a plan that changes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from kvctl.errors import WrongRevision
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.kv.bulk.leader_state import changes_nothing
from kvctl.kv.bulk.rows import Row
from kvctl.kv.conditional_write import mismatch
from kvctl.kv.entry import Operation, operation_of
from kvctl.pipeline.write.row_ids import RowIds, digest_of


class WriteMode(StrEnum):
    """Condition on which rows are written."""

    PUT = "put"
    CREATE = "create"
    UPDATE = "update"


class Resolution(Enum):
    """Result for a row."""

    WRITE = auto()
    STORED = auto()
    """Already stored: by an earlier attempt, or without an acknowledgement."""
    UNCHANGED = auto()
    """The key already has this value."""
    REFUSED = auto()


class Decision(NamedTuple):
    """Outcome, with the revision that a write expects the key at (0: none), or the cause of a refusal."""

    outcome: Resolution
    revision: int = 0
    cause: str = ""


class RowToWrite(NamedTuple):
    """Row, and the revision of its key that it depends on, if any."""

    row: Row
    expected: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Settings of a task's writes."""

    ids: RowIds
    mode: WriteMode = WriteMode.PUT
    if_different: bool = False
    begun: bool = False
    """True if an attempt may have stored some of the rows already."""
    since: int | None = None
    """Revision before all that any attempt stored; None if not known."""
    floor: int | None = None
    """Without `since`: a revision before all that attempts of this run stored."""
    moved: bool = False
    """True if rows may have been in other partitions in the other attempt."""
    lenient: bool = False
    """True if other rows of a key that this attempt lacks may be those of its other tasks."""


_LATER = "A later row of the key was stored before it"
ANOTHER = (
    "An earlier attempt stored a different row of the key: the query is not deterministic "
    "(`persist`, `checkpoint` or sort it), or another write uses the same `writeId`"
)

_Numbered = Sequence[tuple[int, StoredMessage]]
"""Messages with the numbers of the task's rows."""


class Decider:
    """Decides about the rows of one task; `history` is the number of entries that the bucket keeps per key."""

    def __init__(self, plan: WritePlan, history: int) -> None:
        self._plan = plan
        self._ids = plan.ids
        self._history = history if history > 0 else 1 << 62
        self._given: array[int] | None = None
        self._matched: set[int] = set()
        """Revisions matched to rows at another place."""
        self._owed: dict[int, int] = {}
        """Revisions of rows of this attempt that are still to come, with their digests."""

    @property
    def owed(self) -> set[int]:
        """Return revisions of rows of this attempt that did not come yet."""
        return set(self._owed)

    def note(self, rows: Sequence[Row]) -> None:
        """Record the digests of this attempt's rows, from the first one on: four bytes each."""
        self._given = self._given or array("I")
        self._given.extend(digest_of(row.key, row.header, row.value) for row in rows)

    def mine(self, message: StoredMessage) -> bool:
        """Return whether some attempt of the job stored it."""
        return self._ids.place(message.header) is not None

    def certain(self, row: Row, last: StoredMessage) -> bool:
        """Return whether the key's last message is this row."""
        return self._ids.number(last.header) == row.line and _digest(row, last) == _digest(row)

    def decide(
        self, asked: RowToWrite, last: StoredMessage | None, since: Sequence[StoredMessage], *, absent: bool = False
    ) -> Decision:
        """Decide from the key's last message, and all its messages since the first attempt may have begun.

        An `absent` row is known not to be stored: the server refused it, or it was never sent.
        """
        row = asked.row
        if self._owed:  # it has come, even if it was overwritten since
            came = _digest(row)
            self._owed = {revision: digest for revision, digest in self._owed.items() if digest != came}
        if not since and not self._plan.if_different:
            return self._on_condition(asked, last)
        mine = [(number, m) for m in since if (number := self._ids.number(m.header)) is not None]
        if found := self._found(row, mine, since) or self._found_by_value(row, since):
            return Decision(Resolution.STORED, found)
        if self._plan.if_different and changes_nothing(row, last):
            return Decision(Resolution.UNCHANGED)
        whole = len(since) < self._history and all(operation_of(m.header)[0] is not Operation.PURGE for m in since)
        if self._plan.lenient:
            return self._beside_others(asked, last, mine, since, whole)
        later = [(number, m) for number, m in mine if number > row.line and m.sequence not in self._matched]
        other = any(number <= row.line and not self._accounted(row, number, m) for number, m in mine)
        # A row that was not written because it changed nothing leaves no trace, and one that expired may leave none.
        expired = not absent and b"\r\nNats-TTL:" in row.header
        missing = later and not (self._plan.if_different or expired)
        if other or (missing and (whole or _surrounded(row, mine) or (absent and self._history > 1))):
            return Decision(Resolution.REFUSED, cause=_LATER if absent or self._given is None else ANOTHER)
        follows = mine or any(m.sequence in self._matched for m in since[-1:])
        if later or not (whole or follows or absent):
            self._owed |= {m.sequence: _digest(row, m) for number, m in later if not self._accounted(row, number, m)}
            return self._overtaken(since[-1].sequence)
        return self._on_condition(asked, last)

    def _beside_others(
        self,
        asked: RowToWrite,
        last: StoredMessage | None,
        mine: _Numbered,
        since: Sequence[StoredMessage],
        whole: bool,
    ) -> Decision:
        """Decide about a row that was not found, when other tasks' rows of the key count as other writers'."""
        line = asked.row.line
        given = [(number, m) for number, m in mine if self._is_given(number, m, asked.row)]
        later = any(number > line and m.sequence not in self._matched for number, m in given)
        before = {m.sequence for number, m in given if number < line} | self._matched
        if since and (later or not (whole or since[-1].sequence in before)):
            return self._overtaken(since[-1].sequence)
        return self._on_condition(asked, last)

    def _found(self, row: Row, mine: _Numbered, since: Sequence[StoredMessage]) -> int:
        """Return the revision of the row, at its place or, if partitions may have moved, at any; 0 for none."""
        floor = self._preceding(row, mine, since) if self._plan.moved else 0
        same = [(number, m) for number, m in mine if m.sequence > floor and _digest(row, m) == _digest(row)]
        for number, message in same:
            if number == row.line:
                return message.sequence
        unaccounted = (m for number, m in same if not self._accounted(row, number, m))
        if found := next(unaccounted, None) or self._elsewhere(row, since, floor):
            self._matched.add(found.sequence)
            return found.sequence
        return 0

    def _elsewhere(self, row: Row, since: Sequence[StoredMessage], floor: int) -> StoredMessage | None:
        """Return the row as stored by another partition, if it may have been."""
        for message in since if self._plan.moved else ():
            place = self._ids.place(message.header)
            if place is None or place[0] == self._ids.partition or message.sequence in self._matched:
                continue
            if message.sequence > floor and _digest(row, message) == _digest(row):
                return message
        return None

    def _preceding(self, row: Row, mine: _Numbered, since: Sequence[StoredMessage]) -> int:
        """Return the revision of this attempt's last row of the key before this one, if stored."""
        given = (m.sequence for number, m in mine if number < row.line and self._is_given(number, m, row))
        matched = (m.sequence for m in since if m.sequence in self._matched)
        return max([*given, *matched], default=0)

    def _found_by_value(self, row: Row, since: Sequence[StoredMessage]) -> int:
        """Return the revision of a row that had no room for an id, matched by value."""
        if self._ids.fits(row.header, row.value):
            return 0
        return next((m.sequence for m in since if _digest(row, m) == _digest(row)), 0)

    def _accounted(self, row: Row, number: int, message: StoredMessage) -> bool:
        """Return whether the message is this attempt's row at its place, or was matched to a row of it."""
        return self._given is None or message.sequence in self._matched or self._is_given(number, message, row)

    def _is_given(self, number: int, message: StoredMessage, row: Row) -> bool:
        """Return whether this attempt's row of this number is the message's, as far as it has come."""
        return self._given is not None and number < len(self._given) and self._given[number] == _digest(row, message)

    def _overtaken(self, revision: int) -> Decision:
        if self._plan.mode is WriteMode.PUT:
            return Decision(Resolution.STORED, revision)
        return Decision(Resolution.REFUSED, cause=f"Unknown outcome: the key was at revision {revision} since")

    def _on_condition(self, asked: RowToWrite, last: StoredMessage | None) -> Decision:
        revision = last.sequence if last else 0
        if self._plan.mode is WriteMode.CREATE and last and operation_of(last.header)[0] is Operation.PUT:
            return Decision(Resolution.REFUSED, cause=f"The key exists at revision {revision}")
        if asked.expected is not None and asked.expected != revision:
            error = mismatch(asked.row.key, asked.expected, WrongRevision("", found=revision))
            return Decision(Resolution.REFUSED, cause=error.message)
        return Decision(Resolution.WRITE, revision)


def _surrounded(row: Row, mine: _Numbered) -> bool:
    """Return whether an earlier row and then a later one are stored, between which this row would still be kept."""
    before = min((m.sequence for number, m in mine if number < row.line), default=None)
    return before is not None and any(number > row.line and m.sequence > before for number, m in mine)


def _digest(row: Row, message: StoredMessage | None = None) -> int:
    """Return the digest of the row, or of a message of its key."""
    if message is None:
        return digest_of(row.key, row.header, row.value)
    return digest_of(row.key, message.header, message.payload)
