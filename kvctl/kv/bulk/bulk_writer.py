"""The target of a bulk write, its frames, and the writer and reconciler that `load` and Spark's sink share.

A message that was sent is never simply sent again: it may have been stored, or may be stored yet. A second attempt
expects the key's last revision as read, so that the server refuses it if the first one arrived after all.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kvctl.errors import (
    Away,
    BucketNotFound,
    BucketSealed,
    JetStreamDisabled,
    KvctlError,
    OutcomeUnknown,
    RequestTimeout,
    ServerError,
    StreamNotFound,
    Unanswered,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream import streams
from kvctl.jetstream.publish import PublishWindow
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.bulk.leader_state import LEADER_DEADLINE_S, Current
from kvctl.kv.bulk.rows import UNCHECKED_KEY, UNCHECKED_VALUE, PlainRows, Row
from kvctl.kv.conditional_write import EXPECTED, TTL_SINCE
from kvctl.kv.identity import Series
from kvctl.kv.resolve import Binding, with_info
from kvctl.tokens import encoded, unsafe
from kvctl.wire import encode_headers, publish_frame

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

RUN_ROWS, RUN_BYTES = 250, 1 << 20
"""Maximum number of rows in a run, and of bytes if it has more than one row."""
Rows = TypeVar("Rows", bound=Sequence[Any])
WINDOW_ROWS = 8_000
"""Maximum number of rows in flight."""
PAUSE_S = 0.1
"""Pause before the state of keys is read again."""
LOST = (Unanswered, JetStreamDisabled)
"""Errors after which a row may be stored."""
_OF_THE_ROW = (10054, 10165, 10166)
"""Server errors about a single message: too large, or an invalid ttl."""
Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Stream that takes the writes."""

    binding: Binding
    info: StreamInfo
    creates: bool = False
    """Whether each row is sent on condition that its key does not exist, which takes bytes of the message."""
    narrow: bool = False
    """Whether the stream has subjects for some keys only."""

    @property
    def history(self) -> int:
        """Number of entries kept per key."""
        return int(self.info["config"].get("max_msgs_per_subject", 0))

    def check(self, row: Row) -> None:
        """Raise UsageError for a row that this bucket cannot store."""
        config = self.info["config"]
        header = with_expected(row.header, 0) if self.creates else row.header
        size, most = len(header) + len(row.value), config.get("max_msg_size", -1)
        if 0 < most < size:
            condition = " with the condition that its key does not exist" if self.creates else ""
            raise UsageError(f"The row takes {size} bytes{condition}, the bucket's limit is {most}")
        if row.header and b"\r\nNats-TTL:" in row.header:
            if not config.get("allow_msg_ttl"):
                remedy = f"allow them with `kvctl bucket edit {self.binding.bucket} --marker-ttl 1s`"
                raise UsageError(f"The bucket does not allow per-key TTLs; {remedy}")
            if streams.version_of(self.info) < TTL_SINCE:
                raise UsageError("The server would ignore the ttl")
        if self.narrow:
            self.binding.check_heard(row.key)
        subject = encoded(self.binding.write_prefix + row.key)
        if size > self.unchecked or len(subject) > UNCHECKED_KEY or unsafe(subject):
            self.binding.api.connection.check_message(subject, header, row.value)

    @property
    def unchecked(self) -> int:
        """Bytes of a value that need no check; -1 where each key needs one."""
        if self.narrow:
            return -1
        condition = len(with_expected(b"", 0)) if self.creates else 0
        return min(UNCHECKED_VALUE, self.binding.api.connection.max_payload - condition)

    def acceptable(self, rows: Sequence[Row], rejected: Callable[[int, str], object]) -> Sequence[Row]:
        """Return the rows that this bucket can store; `rejected` is called with the lines of others and the reasons."""
        if isinstance(rows, PlainRows) and self._takes_all(rows):
            return rows
        kept = []
        for row in rows:
            try:
                self.check(row)
            except UsageError as error:
                rejected(row.line, error.message)
            else:
                kept.append(row)
        return kept

    def _takes_all(self, rows: PlainRows) -> bool:
        """Return True if no row has to be checked."""
        longest = max(map(len, rows.keys))
        limit = self.info["config"].get("max_msg_size", -1)
        return limit <= 0 and longest <= UNCHECKED_KEY and max(map(len, rows.values)) <= self.unchecked


async def target_of(bucket: Bucket, *, dry_run: bool = False) -> WriteTarget:
    """Find the stream that takes the bucket's writes. Raises BucketNotFound, ReadOnly for an aggregate, RefusedError.

    A dry run also accepts a read-only handle.
    """
    if not dry_run:
        bucket.check_writable(None)
    await bucket.readable()
    bucket.check_writes_go_somewhere()
    source = bucket.binding.source
    try:
        info = await streams.info(source.api, source.stream)
    except StreamNotFound:
        raise BucketNotFound(f"Bucket `{source.bucket}` does not exist") from None
    if info["config"].get("sealed"):
        raise BucketSealed(f"Bucket `{source.bucket}` is sealed: it is permanently read-only")
    source = with_info(source, info)
    return WriteTarget(source, info, narrow=not source.takes_all_keys)


def runs(rows: Rows, largest: int, most: int = RUN_ROWS) -> Iterator[Rows]:
    """Split rows into runs of at most this number, by the bytes of the largest value."""
    size = max(1, min(most, RUN_BYTES // (largest + 1)))
    for at in range(0, len(rows), size):
        yield rows[at : at + size]  # type: ignore[misc]


def separated(rows: Sequence[Row], ids: Series) -> Iterator[Sequence[Row]]:
    """Split a run so that rows without room for an identity are alone: they are known by their own answers."""
    if isinstance(rows, PlainRows) and ids.fits(b"", max(rows.values, key=len)):
        yield rows
        return
    for recognizable, group in groupby(rows, lambda row: ids.fits(row.header, row.value)):
        found = list(group)
        yield from [found] if recognizable else ([row] for row in found)


def encoder(prefix: str, ids: Series, rows: Sequence[Row]) -> Callable[[bytes], bytes]:
    """Return a function that encodes the rows as messages, each with its identity, for a reply subject."""
    if isinstance(rows, PlainRows) and ids.fits(b"", max(rows.values, key=len)):
        digits = len(f"{rows.first + len(rows):x}")
        return partial(encode_plain, prefix, ids.opening, digits, rows.first, rows.keys, rows.values)

    return partial(encode_rows, prefix, lambda row: ids.block(row.line, row.header, row.value), rows)


def encode_rows(prefix: str, block: Callable[[Row], bytes], rows: Sequence[Row], reply: bytes) -> bytes:
    """Encode rows as messages; `block` returns a row's header block."""
    named = (((prefix + row.key).encode(errors="surrogateescape"), row) for row in rows)
    return b"".join([publish_frame(subject, reply, block(row), row.value) for subject, row in named])


def encode_plain(
    prefix: str, opening: bytes, digits: int, first: int, keys: Sequence[str], values: Sequence[bytes], reply: bytes
) -> bytes:
    """Encode messages with header blocks that have only an opening and the row's number, in hexadecimal digits."""
    size = len(opening) + digits + 4
    start, answer, begin = (part.replace(b"%", b"%%") for part in (prefix.encode(), reply, opening))
    form = b"HPUB %b%%b %b %d %%d\r\n%b%%0%dx\r\n\r\n%%b\r\n" % (start, answer, size, begin, digits)
    names = "\n".join(keys).encode().split(b"\n")
    rows = enumerate(zip(names, values, strict=True), first)
    return b"".join([form % (key, size + len(value), number, value) for number, (key, value) in rows])


@dataclass(slots=True)
class RowCounts:
    """Numbers of rows by result."""

    written: int = 0
    unchanged: int = 0
    rejected: int = 0
    presumed: int = 0
    """Number of written rows that later rows of their keys replaced before the answer was known."""
    evicted: int = 0
    """Number of keys that were written, and deleted since with the oldest entries of a full bucket."""
    evicted_below: int = 0
    """Revision below which the full bucket deleted its oldest entries during the writes; 0 if it did not."""


class BulkWriter(ABC):
    """Writer of rows, thousands in flight, that stops for troubled ones until they are settled."""

    def __init__(self) -> None:
        self.counts = RowCounts()
        self._window: PublishWindow
        self._sending: Any = None
        """Tag of the message being queued, or of the last one of the run."""

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
