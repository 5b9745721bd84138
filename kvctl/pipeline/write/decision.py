"""What to do about a row when it is not known whether it is stored: decided by what its key holds.

So it is for rows of a task that Spark runs again, of a batch that it replays, and for writes without an answer. What is
not decided to be there is written on condition of the revision that was seen: what comes after all makes that fail.

Rows of a key are stored in their order. A row that cannot be found, where others wrote the key and its history is too
short to show it, counts as written before theirs: nobody can tell that it was not. On condition it counts as refused.

An earlier run of a job may have cut its rows into other partitions (`moved`). Then a row is known by its content, in
whatever partition it was stored, as long as that leaves the rows of its key in the order that they have now. Equal rows
of one key in several partitions count as one. Where a batch may well have several rows of a key (`lenient`), stored
ones that are not among this task's are taken for another task's, not for the work of a plan that changes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from kvctl.errors import WrongRevision
from kvctl.jetstream.direct.direct_get import StoredMessage
from kvctl.kv.entry import Operation, operation_of
from kvctl.kv.load.leader_state import changes_nothing
from kvctl.kv.load.rows import Row
from kvctl.kv.write.conditional_write import mismatch
from kvctl.pipeline.write.row_ids import RowIds, digest_of


class WriteMode(StrEnum):
    """On what condition rows are written."""

    PUT = "put"
    CREATE = "create"
    UPDATE = "update"


class Outcome(Enum):
    """What becomes of a row."""

    WRITE = auto()
    STORED = auto()
    """It is there: by a former attempt, or without an answer."""
    UNCHANGED = auto()
    """The key has this value."""
    REFUSED = auto()


class Decision(NamedTuple):
    """The outcome; with the revision that a write expects the key at (0: none), or the cause of a refusal."""

    outcome: Outcome
    revision: int = 0
    cause: str = ""


class Asked(NamedTuple):
    """A row, and the revision of its key on which it depends, if it does."""

    row: Row
    expected: int | None = None


_LATER = "A later row of the key was stored before it"
ANOTHER = (
    "A former attempt stored another row of the key: the plan gives other rows each time it is run "
    "(write what `persist`, `checkpoint` or a sort holds fast), or another write has the same `writeId`"
)


_Numbered = Sequence[tuple[int, StoredMessage]]
"""Messages, and which rows of the task they are."""


class Decider:
    """Decides about the rows of one task; `history` is how many entries of a key the bucket keeps."""

    def __init__(
        self, ids: RowIds, mode: WriteMode, history: int, *,
        if_different: bool = False, moved: bool = False, lenient: bool = False,
    ) -> None:  # fmt: skip
        self._ids = ids
        self._mode = mode
        self._history = history if history > 0 else 1 << 62
        self._if_different = if_different
        self._moved = moved
        self._lenient = lenient
        self._given: array[int] | None = None
        self._matched: set[int] = set()
        """Revisions that were taken for rows at another place."""
        self._owed: dict[int, int] = {}
        """Revisions that stand for rows of this attempt that are still to come, and the digests of these."""

    @property
    def owed(self) -> set[int]:
        """Revisions that stand for rows of this attempt that did not come yet."""
        return set(self._owed)

    def note(self, rows: Sequence[Row]) -> None:
        """Remember what the rows of this attempt are, from the first one on: four bytes each."""
        self._given = self._given or array("I")
        self._given.extend(digest_of(row.key, row.header, row.value) for row in rows)

    def mine(self, message: StoredMessage) -> bool:
        """Whether some attempt at the job stored it."""
        return self._ids.place(message.header) is not None

    def certain(self, row: Row, last: StoredMessage) -> bool:
        """Whether the key's last message is this very row."""
        return self._ids.number(last.header) == row.line and _digest(row, last) == _digest(row)

    def decide(
        self, asked: Asked, last: StoredMessage | None, since: Sequence[StoredMessage], *, absent: bool = False
    ) -> Decision:
        """By the key's last message, and all it keeps that came since the first attempt may have begun.

        Of an `absent` row it is known that it is not stored: the server refused it, or it was never sent.
        """
        row = asked.row
        if self._owed:  # it has come, even where somebody has overwritten it since
            came = _digest(row)
            self._owed = {revision: digest for revision, digest in self._owed.items() if digest != came}
        if not since and not self._if_different:
            return self._on_condition(asked, last)
        mine = [(number, m) for m in since if (number := self._ids.number(m.header)) is not None]
        if found := self._found(row, mine, since) or self._found_by_value(row, since):
            return Decision(Outcome.STORED, found)
        if self._if_different and changes_nothing(row, last):
            return Decision(Outcome.UNCHANGED)
        whole = len(since) < self._history and all(operation_of(m.header)[0] is not Operation.PURGE for m in since)
        if self._lenient:
            return self._beside_others(asked, last, mine, since, whole)
        later = [(number, m) for number, m in mine if number > row.line and m.sequence not in self._matched]
        other = any(number <= row.line and not self._accounted(row, number, m) for number, m in mine)
        if other or (later and (whole or (absent and self._history > 1))):
            return Decision(Outcome.REFUSED, cause=_LATER if absent else ANOTHER)
        follows = mine or any(m.sequence in self._matched for m in since[-1:])
        if not whole and (later or not (follows or absent)):
            self._owed |= {m.sequence: _digest(row, m) for number, m in later if not self._accounted(row, number, m)}
            return self._overtaken(since[-1].sequence)
        return self._on_condition(asked, last)

    def _beside_others(
        self, asked: Asked, last: StoredMessage | None, mine: _Numbered, since: Sequence[StoredMessage], whole: bool
    ) -> Decision:
        """The same for a row that was not found, where other tasks' rows of the key are as good as other writers'."""
        line = asked.row.line
        given = [(number, m) for number, m in mine if self._is_given(number, m, asked.row)]
        later = any(number > line and m.sequence not in self._matched for number, m in given)
        before = {m.sequence for number, m in given if number < line} | self._matched
        if since and (later or not (whole or since[-1].sequence in before)):
            return self._overtaken(since[-1].sequence)
        return self._on_condition(asked, last)

    def _found(self, row: Row, mine: _Numbered, since: Sequence[StoredMessage]) -> int:
        """The revision of the row, at its place or, where the order is another than before, at any; 0 for none."""
        floor = self._preceding(row, mine, since) if self._moved else 0
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
        """The row as another partition's, where it may have been one."""
        for message in since if self._moved else ():
            place = self._ids.place(message.header)
            if place is None or place[0] == self._ids.partition or message.sequence in self._matched:
                continue
            if message.sequence > floor and _digest(row, message) == _digest(row):
                return message
        return None

    def _preceding(self, row: Row, mine: _Numbered, since: Sequence[StoredMessage]) -> int:
        """The revision of the last row of the key that this attempt has before this one, as far as it is there."""
        given = (m.sequence for number, m in mine if number < row.line and self._is_given(number, m, row))
        matched = (m.sequence for m in since if m.sequence in self._matched)
        return max([*given, *matched], default=0)

    def _found_by_value(self, row: Row, since: Sequence[StoredMessage]) -> int:
        """The same for a row that had no room for an id."""
        if self._ids.fit(row):
            return 0
        return next((m.sequence for m in since if _digest(row, m) == _digest(row)), 0)

    def _accounted(self, row: Row, number: int, message: StoredMessage) -> bool:
        """Whether the message is what this attempt, too, has in its place, or has been taken for a row of it."""
        return self._given is None or message.sequence in self._matched or self._is_given(number, message, row)

    def _is_given(self, number: int, message: StoredMessage, row: Row) -> bool:
        """Whether this attempt has what the message holds as its row of this number, as far as it has come."""
        return self._given is not None and number < len(self._given) and self._given[number] == _digest(row, message)

    def _overtaken(self, revision: int) -> Decision:
        if self._mode is WriteMode.PUT:
            return Decision(Outcome.STORED, revision)
        return Decision(
            Outcome.REFUSED, cause=f"It is not known whether it was written: the key was at revision {revision} since"
        )

    def _on_condition(self, asked: Asked, last: StoredMessage | None) -> Decision:
        revision = last.sequence if last else 0
        if self._mode is WriteMode.CREATE and last and operation_of(last.header)[0] is Operation.PUT:
            return Decision(Outcome.REFUSED, cause=f"The key exists, at revision {revision}")
        if asked.expected is not None and asked.expected != revision:
            error = mismatch(asked.row.key, asked.expected, WrongRevision("", found=revision))
            return Decision(Outcome.REFUSED, cause=error.message)
        return Decision(Outcome.WRITE, revision)


def _digest(row: Row, message: StoredMessage | None = None) -> int:
    """The digest of the row, or of a message of its key."""
    if message is None:
        return digest_of(row.key, row.header, row.value)
    return digest_of(row.key, message.header, message.payload)
