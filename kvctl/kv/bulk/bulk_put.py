"""Put many keys through a window of unacknowledged messages.

Writes left open by a lost connection are found by their identity, or written conditionally on the key's last revision:
another client's later value is never replaced by an older one of ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvctl.errors import Away, ConflictError, ConnectionLost, KvctlError, OutcomeUnknown, PermissionDenied, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.publish import UnmatchedRun
from kvctl.jetstream.request_window import WINDOW
from kvctl.jetstream.stream_info import UNREADABLE, StreamInfo
from kvctl.kv.bulk.bulk_writer import RUN_BYTES
from kvctl.kv.bulk.leader_state import Current
from kvctl.kv.bulk.row_writer import AcknowledgedRows, LoadOutcome, RowWriter, evicts
from kvctl.kv.bulk.rows import UNCHECKED_KEY, UNCHECKED_VALUE, PlainRows, Row
from kvctl.kv.identity import Series, most_bytes
from kvctl.kv.names import check_key
from kvctl.kv.resolve import Binding, with_info

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
    evicted: int = 0
    """Number of keys that were written, and deleted since with the oldest entries of a full bucket."""
    evicted_below: int = 0
    """Revision below which the bucket deleted its oldest entries during the writes, as it is full; 0 if it did not."""


async def put_many(bucket: Bucket, items: Items, window: int) -> PutSummary:
    """Write all items; see `Bucket.put_many`."""
    target, info = await _target(bucket)
    return await _Puts(bucket, target, info, window).run(items)


async def _target(bucket: Bucket) -> tuple[Binding, StreamInfo]:
    """The stream that takes the writes, and its info; `UNREADABLE` when it cannot be read."""
    target = (await bucket.readable()).source
    bucket.check_writes_go_somewhere()
    info = None
    with suppress(PermissionDenied, Away):
        info = await streams.find(target.api, target.stream)
    return (with_info(target, info), info) if info else (target, UNREADABLE)


class _Puts(RowWriter):
    open_after = (ConnectionLost,)

    def __init__(self, bucket: Bucket, target: Binding, info: StreamInfo, window: int) -> None:
        ids = Series(most_bytes(target.api.connection.max_payload, info["config"]))
        current = Current(target, info)
        super().__init__(
            current, ids, AcknowledgedRows(current.last_revision, evicts=evicts(current.config)), window=window
        )
        self._bucket = bucket
        if info is UNREADABLE:
            self._run_rows = 1  # a run of which some rows are refused is read again, which needs the stream
        self._unchecked = UNCHECKED_VALUE if ids.fits(b"", bytes(UNCHECKED_VALUE)) else -1
        self._narrow = not target.takes_all_keys
        self._summary = PutSummary()
        self._number = 0
        self._keys: list[str] = []
        self._values: list[bytes] = []
        self._bytes = 0
        """Bytes of the values that are sent next."""

    async def run(self, items: Items) -> PutSummary:
        """Write all items."""
        async with self._window:
            if isinstance(items, AsyncIterable):
                async for key, value in items:
                    await self._take(key, value)
            else:
                for key, value in items:
                    await self._take(key, value)
            await self._flush()
            await self._settle()
        self._summary.evicted, self._summary.evicted_below = await self._evicted()
        return self._summary

    async def _take(self, key: str, value: bytes) -> None:
        """Add an item to the run that is sent next. Raises UsageError."""
        try:
            check_key(key)
            if self._narrow:
                self._binding.check_heard(key)
            if len(value) > self._unchecked or len(key) > UNCHECKED_KEY:
                self._connection.check_message((self._binding.write_prefix + key).encode(), b"", value)
        except UsageError:
            await self._flush()
            await self._settle()
            raise
        self._keys.append(key)
        self._values.append(value)
        self._bytes += len(value)
        if len(self._keys) >= self._run_rows or self._bytes >= RUN_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        keys, values, self._keys, self._values, self._bytes = self._keys, self._values, [], [], 0
        rows = PlainRows(self._number + 1, keys, values)
        self._number += len(rows)
        await self._send_runs(self._runs(rows))
        self._acknowledged.sent_up_to(self._number)

    def _written(self, keys: Sequence[str], revisions: Sequence[int]) -> None:
        self._summary.written += len(keys)
        self._summary.last_revision = max(self._summary.last_revision, revisions[-1])
        self._bucket.own.note_all(keys, revisions)

    def _refused(self, row: Row, error: KvctlError) -> None:
        self._summary.failed.append((row.key, error))

    # -- outcomes ------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Wait for every outcome, and find those that a lost connection left open."""
        await self._window.finish()
        try:
            if self._lost:
                await self._connection.wait_online(self._connection.timeout)
            await super()._settle()
        except KvctlError:
            lost, self._lost = self._lost, {}
            self._summary.failed += [
                (row.key, _unknown(row, error) if isinstance(error, UnmatchedRun) else error)
                for row, error in lost.values()
            ]

    def _resolved(self, row: Row, outcome: LoadOutcome | KvctlError, revision: int, cause: KvctlError) -> None:
        if outcome in (LoadOutcome.WRITTEN, LoadOutcome.SUPERSEDED):
            self._written((row.key,), (revision,))  # a value that later ones replaced leaves no trace
        elif outcome is LoadOutcome.MISSED:
            text = f"A later write of `{row.key}` was stored before this one, which was not stored"
            self._refused(row, ConflictError(text))
        else:
            self._refused(row, outcome if isinstance(outcome, KvctlError) else _overtaken(row, cause))


def _unknown(row: Row, error: KvctlError) -> OutcomeUnknown:
    return OutcomeUnknown(f"Could not find out if the write to `{row.key}` was stored: {error.message}")


def _overtaken(row: Row, error: KvctlError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"Could not find out if the write to `{row.key}` was stored before another one: {error.message}"
    )
