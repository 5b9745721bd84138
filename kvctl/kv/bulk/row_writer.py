"""Write numbered rows, thousands in flight, each with an identity.

Unacknowledged ones, of this process or of a killed one, are found by their identities, or written if missing.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto

from kvctl.errors import Away, ConnectionLost, KvctlError, NoResponders, OutcomeUnknown, PermissionDenied, WrongRevision
from kvctl.jetstream import streams
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.jetstream.publish import PublishWindow, UnmatchedRun
from kvctl.jetstream.stream_info import StreamConfig, StreamState
from kvctl.kv.bulk.bulk_writer import (
    LOST,
    RUN_ROWS,
    WINDOW_ROWS,
    BulkWriter,
    Reconciler,
    Retry,
    encoder,
    runs,
    separated,
    with_expected,
)
from kvctl.kv.bulk.leader_state import Current, all_arrived, changes_nothing, needed
from kvctl.kv.bulk.rows import Mode, PlainRows, Row
from kvctl.kv.entry import Operation, operation_of
from kvctl.kv.identity import Series, identity_of

FLOOR_ROWS = 500
"""Number of rows between samples of the stream's revision."""
FLOORS = 64
RECENT_ROWS = 20_000
"""Number of acknowledged rows whose keys are remembered: more than can be in flight with an unacknowledged one."""
KEPT_KEYS = 1_000_000
"""Maximum number of keys of which it is known if a bucket that deletes its oldest entries has deleted them."""


class LoadOutcome(Enum):
    """Outcome of a write."""

    WRITTEN = auto()
    EXISTS = auto()
    """The mode does not select the row: its key lives, or has the row's value."""
    SUPERSEDED = auto()
    """A later row of the same key was stored; if this one was stored before it, later writes replaced it."""
    OVERTAKEN = auto()
    """Another client's write of the key was stored; if this one was stored before it, later writes replaced it."""
    MISSED = auto()
    """A later write of the key was stored, and this one was not stored before it."""
    UNKNOWN = auto()
    """A write of the key has no room for an identity: nothing shows if it is this row, or a later one."""


OnOutcome = Callable[[Row, LoadOutcome | KvctlError, int], object]
"""Called with a row, its outcome or the server's refusal, and its revision if it was written."""


class WriteReconciler(Reconciler[tuple[Row, int]]):
    """Resolver of writes of distinct keys. The acknowledged ones show above which revision another is, if stored."""

    def __init__(
        self, current: Current, ended: OnOutcome, ids: Series, acknowledged: AcknowledgedRows, mode: Mode = Mode.PUT
    ) -> None:
        super().__init__(current)
        self.resumed = False
        """True for rows of a killed process: one that is not stored is written over other clients' later writes."""
        self._ids = ids
        self._history = current.config.get("max_msgs_per_subject", 0)
        self._acknowledged = acknowledged
        self._ended = ended
        self._mode = mode
        self._ambiguous: set[str] = set()
        """Keys whose message without an identity may be a row or a later one that replaced it."""

    async def settle(self, rows: Sequence[Row]) -> None:
        """Find each row, or write it if its mode selects it.

        Each ends in one call of `ended`. Raises OutcomeUnknown when the server stays unavailable, or earlier when
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
                self._report(row, LoadOutcome.WRITTEN, message.sequence)
            elif decided := self._among(row, after, later):
                self._report(row, *decided)
            elif not needed(self._mode, row, message):
                self._report(row, LoadOutcome.EXISTS, message.sequence if message else 0)
            elif key in self._ambiguous and not self._fits(row) and changes_nothing(row, message):
                self._report(row, LoadOutcome.UNKNOWN, after)
            else:
                missing.append(Retry(row, self._header(row, message)))
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

    def _among(self, row: Row, after: int, later: Sequence[StoredMessage]) -> tuple[LoadOutcome, int] | None:
        """Return the outcome of a row by its key's messages above a revision; None if it is not stored."""
        if not later:
            return None
        if len(later) > 1 and self._is(later[-2], row):
            return LoadOutcome.WRITTEN, later[-2].sequence
        replaced = self._replaced(later) or (self.resumed and self._vanishes(row, after))
        newer = any((self._ids.number(message.header) or 0) > row.line for message in later)
        newer = newer or self._acknowledged.followed(row.line, row.key)
        fits = self._fits(row)
        nameless = [message for message in later if self._is_nameless(message)] if self.resumed else []
        if nameless and not (fits and newer):
            if equal := [message for message in nameless if not fits and changes_nothing(row, message)]:
                self._acknowledged.note(row.line, row.key, equal[0].sequence)  # later rows are above it
                if replaced:
                    self._ambiguous.add(row.key)
            return LoadOutcome.UNKNOWN, after
        if newer:
            unchanged = self.resumed and self._mode is not Mode.PUT
            return (
                LoadOutcome.SUPERSEDED if replaced else LoadOutcome.EXISTS if unchanged else LoadOutcome.MISSED,
                after,
            )
        if replaced:
            return LoadOutcome.OVERTAKEN, after
        return None if self.resumed else (LoadOutcome.MISSED, after)

    def _replaced(self, later: Sequence[StoredMessage]) -> bool:
        """Return True if these messages would have replaced an earlier one of their key."""
        purged = any(operation_of(message.header)[0] is Operation.PURGE for message in later)
        return purged or 0 < self._history <= len(later)

    def _vanishes(self, row: Row, after: int) -> bool:
        """Return True if the row may have expired, or been evicted together with all rows of its key before it."""
        config = self._current.config
        fades = config.get("max_age", 0) > 0 or evicts(config)
        return b"\r\nNats-TTL:" in row.header or (fades and after == self._acknowledged.start)

    def _is(self, message: StoredMessage, row: Row) -> bool:
        return self._ids.number(message.header) == row.line

    def _is_nameless(self, message: StoredMessage) -> bool:
        """Return True for a message that had no room for an identity, whoever wrote it."""
        return identity_of(message.header) is None and not self._ids.fits(message.header, message.payload)

    def _header(self, row: Row, last: StoredMessage | None) -> bytes:
        """Return the header block of a write on condition that the key does not change, if there is room for it."""
        header = with_expected(self._ids.block(row.line, row.header, row.value), last.sequence if last else 0)
        return row.header if self.resumed and self._mode is Mode.PUT and not self._fits(row) else header

    def _fits(self, row: Row) -> bool:
        return self._ids.fits(row.header, row.value)

    def _stored(self, row: Row, revision: int) -> None:
        self._report(row, LoadOutcome.WRITTEN, revision)

    def _refused(self, row: Row, error: KvctlError) -> None:
        self._report(row, error, 0)

    def _report(self, row: Row, outcome: LoadOutcome | KvctlError, revision: int) -> None:
        del self._left[row.key]
        self._ended(row, outcome, revision)

    def _unknown(self, cause: str) -> OutcomeUnknown:
        return OutcomeUnknown(cause)


class Floors:
    """Samples of line and revision: later rows, if stored, are above this revision."""

    def __init__(self, revision: int) -> None:
        self._first = revision
        self._samples: deque[tuple[int, int]] = deque([(0, revision)], maxlen=FLOORS)

    def sample(self, line: int, revision: int) -> None:
        """Note that all rows up to this line were sent when the stream was at this revision, or above it."""
        last, floor = self._samples[-1]
        if line >= last + FLOOR_ROWS:
            self._samples.append((line, max(floor, revision)))

    def of(self, line: int) -> int:
        """Return a revision that the row of this line is above, if stored."""
        return next((revision for sampled, revision in reversed(self._samples) if sampled < line), self._first)


class AcknowledgedRows:
    """Highest acknowledged line and revision, and the recent acknowledged rows of each key."""

    def __init__(self, revision: int, *, evicts: bool = False) -> None:
        self.line = 0
        self.kept: dict[str, int] | None = {} if evicts else None
        """Last revision of each key, in a stream that deletes its oldest entries when it is full."""
        self.start = revision
        """Revision that every row is above."""
        self.revision = revision
        self._floors = Floors(revision)
        self._recent: deque[tuple[int, Sequence[str], Sequence[int]]] = deque()
        """First line, keys and revisions of the last runs of consecutive rows."""
        self._rows = 0
        self._found: dict[str, list[tuple[int, int]]] | None = None
        """Lines and revisions of each key's recent rows, ascending, once they were asked for."""

    def start_at(self, revision: int) -> None:
        """Note that no further row has been sent when the stream was at this revision, or above it."""
        self.start = self.revision = max(self.revision, revision)
        self._floors = Floors(self.revision)

    def note(self, line: int, key: str, revision: int) -> None:
        """Note that a row is stored at a revision."""
        self.note_all(line, (key,), (revision,))

    def note_all(self, line: int, keys: Sequence[str], revisions: Sequence[int]) -> None:
        """Note that consecutive rows from this line on are stored, at ascending revisions."""
        self.line = max(self.line, line + len(keys) - 1)
        self.revision = max(self.revision, revisions[-1])
        if self.kept is not None and len(self.kept) < KEPT_KEYS:
            self.kept.update(zip(keys, revisions, strict=True))
        self._recent.append((line, keys, revisions))
        self._rows += len(keys)
        while self._rows > RECENT_ROWS:
            self._rows -= len(self._recent.popleft()[1])
        if self._found is not None:
            self._add(self._found, line, keys, revisions)

    def sent_up_to(self, line: int) -> None:
        """Note that all rows up to this line were sent."""
        self._floors.sample(line, self.revision)
        self._found = None

    def floor(self, line: int, key: str) -> int:
        """Return a revision that the row is above, if stored: at best that of the key's row before it."""
        rows = self._rows_of(key)
        at = bisect_left(rows, (line, 0))
        return max(self._floors.of(line), rows[at - 1][1] if at else 0)

    def followed(self, line: int, key: str) -> bool:
        """Return True if a later row of the key is stored."""
        rows = self._rows_of(key)
        return bool(rows) and rows[-1][0] > line

    def _rows_of(self, key: str) -> Sequence[tuple[int, int]]:
        if self._found is None:
            self._found = defaultdict(list)
            for run in self._recent:
                self._add(self._found, *run)
        return self._found.get(key, ())

    @staticmethod
    def _add(found: dict[str, list[tuple[int, int]]], line: int, keys: Sequence[str], revisions: Sequence[int]) -> None:
        for number, (key, revision) in enumerate(zip(keys, revisions, strict=True), line):
            insort(found[key], (number, revision))  # rows that were looked up are noted after later ones


def evicts(config: StreamConfig) -> bool:
    """Return True if a stream deletes its oldest entries, of any keys, when it is full."""
    limited = config.get("max_bytes", -1) > 0 or config.get("max_msgs", -1) > 0
    return limited and config.get("discard") != "new"


def _is_full(config: StreamConfig, state: StreamState) -> bool:
    """Return True if a message of average size would be one too many for the stream."""
    messages, most = int(state["messages"]), config.get("max_msgs", -1)
    size, most_bytes = int(state["bytes"]), config.get("max_bytes", -1)
    return bool(0 < most <= messages or 0 < most_bytes < size + size / max(messages, 1))


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

    async def _evicted(self) -> tuple[int, int]:
        """Return how many of the written keys a full bucket deleted since, and the revision below which it did so.

        Both are 0 if it deleted none, or if nobody can tell.
        """
        if kept := self._acknowledged.kept:
            with suppress(PermissionDenied, Away):
                state = (await streams.info(self._binding.api, self._binding.stream))["state"]
                first = int(state["first_seq"])
                if first > self._current.first_revision and _is_full(self._current.config, state):
                    return sum(revision < first for revision in kept.values()), first
        return 0, 0

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
