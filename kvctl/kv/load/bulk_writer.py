"""The part of a bulk write that `load` and Spark's sink share: rows in flight, and rows without an acknowledgement.

A message that was sent is never simply sent again: it may have been stored, or may be stored yet. A second attempt
expects the key's last revision as read, so that the server refuses it if the first one arrived after all.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from kvctl.errors import (
    Away,
    JetStreamDisabled,
    KvctlError,
    OutcomeUnknown,
    RequestTimeout,
    ServerError,
    Unanswered,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream.publish import PublishWindow
from kvctl.kv.load.leader_state import LEADER_DEADLINE_S, Current
from kvctl.kv.load.rows import Row
from kvctl.kv.write.outcome import EXPECTED
from kvctl.wire import encode_headers

WINDOW_ROWS = 8_000
"""Maximum number of rows in flight."""
PAUSE_S = 0.1
"""Pause before the state of keys is read again."""
LOST = (Unanswered, JetStreamDisabled)
"""Errors after which a row may be stored."""
_OF_THE_ROW = (10054, 10165, 10166)
"""Server errors about a single message: too large, or an invalid ttl."""

Asked = TypeVar("Asked")


@dataclass(slots=True)
class RowCounts:
    """Numbers of rows by result."""

    written: int = 0
    unchanged: int = 0
    rejected: int = 0
    presumed: int = 0
    """Number of written rows that later rows of their keys replaced before the answer was known."""


class BulkWriter(ABC):
    """Writer of rows, thousands in flight, that stops for troubled ones until they are settled."""

    def __init__(self) -> None:
        self.counts = RowCounts()
        self._window: PublishWindow
        self._sending: Any = None
        """Tag of the message being queued."""

    async def _send(self, messages: Iterator[tuple[object, bytes, bytes, bytes]]) -> None:
        """Queue messages of (tag, subject, value, header block); those that cannot be sent fail."""
        left = True
        while left:
            try:
                await self._window.send_all(messages, self._in_trouble)
                left = False
            except UsageError as error:
                self._failed(self._sending, error)
            if self._in_trouble():
                await self._settle()
                left = True

    async def _send_runs(self, runs: Iterable[tuple[Sequence[object], Callable[[bytes], bytes]]]) -> None:
        """Send runs of rows that need no check; each has a function that encodes them for a reply subject."""
        for tags, encode in runs:
            await self._window.send_run(tags, encode)
            if self._in_trouble():
                await self._settle()

    @abstractmethod
    def _in_trouble(self) -> object:
        """Return a true value if rows have to be settled before others are sent."""

    @abstractmethod
    async def _settle(self) -> None:
        """Wait for every outcome and resolve missing ones. Raises the error that stops the write."""

    @abstractmethod
    def _failed(self, tag: Any, error: KvctlError) -> None:
        """Handle an error instead of an acknowledgement."""


class Retry(NamedTuple):
    """A row that is written again, with its header block."""

    row: Row
    header: bytes


class Reconciler(ABC, Generic[Asked]):
    """Resolver of rows of distinct keys that may be stored: reads their keys and writes the missing ones."""

    def __init__(self, current: Current) -> None:
        self._current = current
        self._target = current.binding
        self._left: dict[str, Asked] = {}
        """Unresolved rows by key."""
        self._cause: KvctlError | None = None
        self._fatal: KvctlError | None = None
        """Error that ends the resolution, once every row of a write has its outcome."""

    async def _reconcile(self, rows: dict[str, Asked]) -> None:
        """Resolve all rows. Raises OutcomeUnknown when the server stays unavailable.

        It is raised earlier when the server answers reads but acknowledges no repeated write.
        """
        self._left = rows
        deadline = time.monotonic() + LEADER_DEADLINE_S
        while self._left:
            before, mute = len(self._left), False
            try:
                mute = await self._write(await self._look())
            except Away as error:
                self._cause = error
            if len(self._left) < before:
                deadline = time.monotonic() + LEADER_DEADLINE_S
            elif mute or time.monotonic() > deadline:
                raise self._unknown(self._cause.message if self._cause else "The key is being written concurrently")
            else:
                await asyncio.sleep(PAUSE_S)

    async def _write(self, retries: Sequence[Retry]) -> bool:
        """Write rows again unless they were stored in the meantime. Return True if no write is answered.

        Ends with the first row without an answer: each further window would take the connection's timeout again.
        """
        self._cause = None
        prefix = self._target.write_prefix.encode()
        async with PublishWindow(self._target.api.connection, self._stored, self._failed) as window:
            for row, header in retries:
                if self._cause is not None:
                    break
                subject = prefix + row.key.encode(errors="surrogateescape")
                await window.send(row, subject, row.value, header)
        if self._fatal is not None:
            raise self._fatal
        return isinstance(self._cause, RequestTimeout)

    def _failed(self, row: Row, error: KvctlError) -> None:
        if isinstance(error, Away):
            self._cause = error
            self._unanswered(row)
        elif not isinstance(error, WrongRevision):  # else the first one arrived, or another client's
            self._refused(row, error)

    @abstractmethod
    async def _look(self) -> list[Retry]:
        """Report rows decided by the stored state and remove them from the unresolved ones; return the others."""

    @abstractmethod
    def _stored(self, row: Row, revision: int) -> None:
        """Report a row that was written again."""

    @abstractmethod
    def _refused(self, row: Row, error: KvctlError) -> None:
        """Report a row that the server refuses."""

    @abstractmethod
    def _unknown(self, cause: str) -> OutcomeUnknown:
        """Return the error for rows that cannot be resolved."""

    def _unanswered(self, row: Row) -> None:
        """Note that a repeated write may be stored, too."""


def of_the_row(error: KvctlError) -> bool:
    """Return True if the error is about a single row, so that others can be written."""
    return isinstance(error, UsageError) or (isinstance(error, ServerError) and error.err_code in _OF_THE_ROW)


def with_expected(header: bytes, revision: int) -> bytes:
    """Add the expected last revision of the key to a header block."""
    expected = encode_headers({EXPECTED: str(revision)})
    return expected[:-2] + header[10:] if header else expected
