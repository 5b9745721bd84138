"""Resolve unacknowledged writes of a bulk write: found by their identities, or written if missing.

A message that was sent is never simply sent again: it may have been stored, or may be stored yet. A second attempt
expects the key's last revision as read, so that the server refuses it if the first one arrived after all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto

from kvctl.errors import KvctlError, OutcomeUnknown, RequestTimeout, WrongRevision
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.direct.direct_get import StoredMessage
from kvctl.jetstream.publish import PublishWindow
from kvctl.kv.entry import Operation, operation_of
from kvctl.kv.load.leader_state import AWAY, PATIENCE, Current
from kvctl.kv.load.rows import Row
from kvctl.kv.names import is_plain
from kvctl.kv.write.identity import Series
from kvctl.kv.write.outcome import EXPECTED
from kvctl.wire import encode_headers

PAUSE = 0.1


class Outcome(Enum):
    """Outcome of a write."""

    WRITTEN = auto()
    EXISTS = auto()
    """The key lives: a create-only write was not applied."""
    SUPERSEDED = auto()
    """A later row of the same key was stored, and no sign was found that this one was stored before it."""
    OVERTAKEN = auto()
    """Another client's write of the key was stored, and no sign was found that this one was stored before it."""


Told = Callable[[Row, Outcome | KvctlError, int], object]
"""Called with a row, its outcome, and its revision if it was written."""


class Settler:
    """Resolver of writes of distinct keys, as many at a time as are given."""

    def __init__(self, current: Current, told: Told, ids: Series) -> None:
        self._current = current
        self._ids = ids
        self._target = current.binding
        self._told = told
        self._left: dict[str, tuple[Row, int]] = {}
        self._cause: KvctlError | None = None

    async def settle(self, rows: Sequence[tuple[Row, int]], *, create: bool) -> None:
        """Find each row above its revision, or write it; with `create` only if the key does not live.

        Each ends in one call of `told`, with the error if the server refuses it. Raises OutcomeUnknown when the server
        stays unavailable, or earlier when it answers reads but acknowledges no repeated write.
        """
        self._left = {row.key: (row, after) for row, after in rows}
        deadline = time.monotonic() + PATIENCE
        while self._left:
            before, mute = len(self._left), False
            try:
                mute = await self._resend(await self._look(create))
            except AWAY as error:
                self._cause = error
            if len(self._left) == before:
                if mute or time.monotonic() > deadline:
                    raise OutcomeUnknown(
                        self._cause.message if self._cause else "The key is being written concurrently"
                    )
                await asyncio.sleep(PAUSE)

    async def _look(self, create: bool) -> list[tuple[Row, int]]:
        """Report rows decided by the stored state; return the others with the last revisions of their keys."""
        last = await self._current.last([row for row, _ in self._left.values()])
        missing = []
        for row, after in list(self._left.values()):
            if row.key not in last:
                continue  # no answer
            message = last[row.key]
            decided = await self._decided(row, after, message, create) if message else None
            if decided:
                self._tell(row, *decided)
            else:
                missing.append((row, message.sequence if message else 0))
        return missing

    async def _decided(self, row: Row, after: int, last: StoredMessage, create: bool) -> tuple[Outcome, int] | None:
        if last.sequence > after:
            if self._is(last, row):
                return Outcome.WRITTEN, last.sequence
            if not create:
                if not self._ids.fits(row.header, row.value):
                    raise OutcomeUnknown(f"Row {row.line} has no room for an identity, and a later write followed it")
                if found := await self._below(row, after):
                    return Outcome.WRITTEN, found
                later = (self._ids.number(last.header) or 0) > row.line
                return Outcome.SUPERSEDED if later else Outcome.OVERTAKEN, after
        lives = operation_of(last.header)[0] is Operation.PUT
        return (Outcome.EXISTS, last.sequence) if create and lives else None

    async def _below(self, row: Row, after: int) -> int:
        """Return the revision of the write if it is stored below the key's last one; 0 if it is not."""
        sequence = after + 1
        while is_plain(row.key):
            subject = self._target.subject(row.key)
            message = await direct_get.from_leader(
                self._target.api, self._target.stream, seq=sequence, next_by_subj=subject
            )
            if message is None:
                break
            if self._is(message, row):
                return message.sequence
            sequence = message.sequence + 1
        return 0

    async def _resend(self, rows: list[tuple[Row, int]]) -> bool:
        """Write the missing rows unless they have been stored in the meantime. Return True if no write is answered.

        Ends with the first row without an answer: each further window would take the connection's timeout again.
        """
        self._cause = None
        prefix = self._target.write_prefix.encode()
        window = PublishWindow(
            self._target.api.connection, lambda row, revision: self._tell(row, Outcome.WRITTEN, revision), self._failed
        )
        async with window:
            for row, last in rows:
                if self._cause is not None:
                    break
                subject = prefix + row.key.encode(errors="surrogateescape")
                header = with_expected(self._ids.block(row.line, row.header, row.value), last)
                await window.send(row, subject, row.value, header)
        return isinstance(self._cause, RequestTimeout)

    def _failed(self, row: Row, error: KvctlError) -> None:
        if isinstance(error, AWAY):
            self._cause = error
        elif not isinstance(error, WrongRevision):  # else the first one arrived, or another client's
            self._tell(row, error, 0)

    def _is(self, message: StoredMessage, row: Row) -> bool:
        return self._ids.number(message.header) == row.line

    def _tell(self, row: Row, outcome: Outcome | KvctlError, revision: int) -> None:
        del self._left[row.key]
        self._told(row, outcome, revision)


def with_expected(header: bytes, revision: int) -> bytes:
    """Add the expected last revision of the key to a header block."""
    expected = encode_headers({EXPECTED: str(revision)})
    return expected[:-2] + header[10:] if header else expected
