"""Put many keys through a window of unacknowledged messages.

Writes left open by a lost connection are found by their identity, or written conditionally on the key's last revision:
another client's later value is never replaced by an older one of ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvctl.errors import Away, ConnectionLost, KvctlError, OutcomeUnknown, PermissionDenied, UsageError
from kvctl.jetstream.publish import PublishWindow, Unmatched
from kvctl.jetstream.request_window import WINDOW
from kvctl.jetstream.stream_info import UNREADABLE, StreamInfo
from kvctl.kv.load.acknowledged import Acknowledged
from kvctl.kv.load.leader_state import Current
from kvctl.kv.load.reconcile import Outcome, WriteReconciler
from kvctl.kv.load.resume import all_arrived
from kvctl.kv.load.row_frames import RUN_BYTES, RUN_ROWS, encoder
from kvctl.kv.load.rows import UNCHECKED_KEY, UNCHECKED_VALUE, PlainRows, Row
from kvctl.kv.names import check_key
from kvctl.kv.resolve import Binding
from kvctl.kv.write.identity import Series, most_bytes

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

__all__ = ["WINDOW", "PutSummary", "put_many"]

Items = Iterable[tuple[str, bytes]] | AsyncIterable[tuple[str, bytes]]


@dataclass(slots=True)
class PutSummary:
    """Result of many writes."""

    written: int = 0
    failed: list[tuple[str, KvctlError]] = field(default_factory=list)
    """Unwritten keys with their errors; RequestTimeout, ConnectionLost and OutcomeUnknown mean unknown."""
    last_revision: int = 0


async def put_many(bucket: Bucket, items: Items, window: int) -> PutSummary:
    """Write all items; see `Bucket.put_many`."""
    target, info = await _target(bucket)
    return await _Puts(bucket, target, info, window).run(items)


async def _target(bucket: Bucket) -> tuple[Binding, StreamInfo]:
    """The stream that takes the writes, and its info; `UNREADABLE` when it cannot be read."""
    from kvctl.jetstream import streams

    target = (await bucket.readable()).source
    bucket.check_writes_go_somewhere()
    info = None
    with suppress(PermissionDenied, Away):
        info = await streams.find(target.api, target.stream)
    return target, info or UNREADABLE


class _Puts:
    def __init__(self, bucket: Bucket, target: Binding, info: StreamInfo, window: int) -> None:
        self._bucket = bucket
        self._target = target
        self._connection = target.api.connection
        self._ids = Series(most_bytes(self._connection.max_payload, info["config"]))
        self._current = Current(target, info)
        history = info["config"].get("max_msgs_per_subject", 0)
        self._acknowledged = Acknowledged(info["state"]["last_seq"])
        self._reconciler = WriteReconciler(self._current, self._settled, self._ids, history, self._acknowledged)
        self._window = PublishWindow(self._connection, self._done, self._failed, all_done=self._all_done, window=window)
        # A run of which some rows are refused is read again, which needs the stream.
        self._run_rows = 1 if info is UNREADABLE else max(1, min(RUN_ROWS, window // 4))
        self._unchecked = UNCHECKED_VALUE if self._ids.repeatable(b"", bytes(UNCHECKED_VALUE)) else -1
        self._summary = PutSummary()
        self._number = 0
        self._keys: list[str] = []
        self._values: list[bytes] = []
        self._bytes = 0
        """Bytes of the values that are sent next."""
        self._lost: dict[int, tuple[Row, KvctlError]] = {}
        """Items that a lost connection left open, by their numbers."""

    async def run(self, items: Items) -> PutSummary:
        """Write all items."""
        async with self._window:
            if isinstance(items, AsyncIterable):
                async for key, value in items:
                    await self._take(key, value)
            else:
                for key, value in items:
                    await self._take(key, value)
            await self._send()
            await self._settle()
        return self._summary

    async def _take(self, key: str, value: bytes) -> None:
        """Add an item to the run that is sent next. Raises UsageError."""
        alone = False
        try:
            check_key(key)
            if len(value) > self._unchecked or len(key) > UNCHECKED_KEY:
                self._connection.check_message((self._target.write_prefix + key).encode(), b"", value)
                alone = not self._ids.repeatable(b"", value)
        except UsageError:
            await self._send()
            await self._settle()
            raise
        if alone:  # it could not be found or repeated
            await self._send()
        self._keys.append(key)
        self._values.append(value)
        self._bytes += len(value)
        if alone or len(self._keys) >= self._run_rows or self._bytes >= RUN_BYTES:
            await self._send()

    async def _send(self) -> None:
        keys, values, self._keys, self._values, self._bytes = self._keys, self._values, [], [], 0
        if not keys:
            return
        rows = PlainRows(self._number + 1, keys, values)
        self._number += len(rows)
        await self._window.send_run(rows, encoder(self._target.write_prefix, self._ids, rows))
        if self._lost:
            await self._settle()
        self._acknowledged.sent_up_to(self._number)

    def _done(self, row: Row, revision: int) -> None:
        self._all_done(PlainRows(row.line, [row.key], [row.value]), [revision])

    def _all_done(self, rows: Sequence[Row], revisions: Sequence[int]) -> None:
        if not isinstance(rows, PlainRows):  # the account may not publish some of a run
            for row, revision in zip(rows, revisions, strict=True):
                self._done(row, revision)
            return
        self._summary.written += len(rows)
        self._summary.last_revision = max(self._summary.last_revision, revisions[-1])
        self._acknowledged.note_all(rows.first, rows.keys, revisions)
        note = self._bucket.own.note
        for key, revision in zip(rows.keys, revisions, strict=True):
            note(key, revision)

    def _failed(self, row: Row, error: KvctlError) -> None:
        if isinstance(error, Unmatched):
            self._run_rows = 1  # from now on each item has its own answer
        if isinstance(error, ConnectionLost):
            self._lost[row.line] = row, error
        else:
            self._summary.failed.append((row.key, error))

    # -- outcomes ------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Wait for every outcome, and find those that a lost connection left open."""
        await self._window.finish()
        try:
            if self._lost:
                await self._connection.wait_online(self._connection.timeout)
                await all_arrived(self._target)
            while self._lost:
                rows = [self._lost[number][0] for number in sorted(self._lost)]
                await self._reconciler.settle(next(self._current.chunks(rows)), create=False)
        except KvctlError:
            lost, self._lost = self._lost, {}
            self._summary.failed += [
                (row.key, _unknown(row, error) if isinstance(error, Unmatched) else error)
                for row, error in lost.values()
            ]

    def _settled(self, row: Row, outcome: Outcome | KvctlError, revision: int) -> None:
        _, error = self._lost.pop(row.line)
        if outcome in (Outcome.WRITTEN, Outcome.SUPERSEDED):
            self._done(row, revision)  # a value that later ones replaced leaves no trace
        elif isinstance(outcome, KvctlError):
            self._summary.failed.append((row.key, outcome))
        else:
            self._summary.failed.append((row.key, _overtaken(row, error)))


def _unknown(row: Row, error: KvctlError) -> OutcomeUnknown:
    return OutcomeUnknown(f"Could not find out if the write to `{row.key}` was stored: {error.message}")


def _overtaken(row: Row, error: KvctlError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"Could not find out if the write to `{row.key}` was stored before another one: {error.message}"
    )
