"""Put many keys through a window of unacknowledged messages.

Writes left open by a lost connection are found by their identity, or written conditionally on the key's last revision:
another client's later value is never replaced by an older one of ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvctl.errors import ConnectionLost, KvctlError, OutcomeUnknown, PermissionDenied
from kvctl.jetstream.publish import PublishWindow
from kvctl.jetstream.request_window import WINDOW
from kvctl.jetstream.stream_info import UNREADABLE, StreamInfo
from kvctl.kv.load.acknowledged import Floors
from kvctl.kv.load.leader_state import AWAY, Current
from kvctl.kv.load.reconcile import Outcome, WriteReconciler
from kvctl.kv.load.resume import all_arrived
from kvctl.kv.load.rows import Row
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
    with suppress(PermissionDenied, *AWAY):
        info = await streams.find(target.api, target.stream)
    return target, info or UNREADABLE


class _Puts:
    def __init__(self, bucket: Bucket, target: Binding, info: StreamInfo, window: int) -> None:
        self._bucket = bucket
        self._target = target
        self._connection = target.api.connection
        self._history = info["config"].get("max_msgs_per_subject", 0)
        self._ids = Series(most_bytes(self._connection.max_payload, info["config"]))
        self._current = Current(target, info)
        self._reconciler = WriteReconciler(self._current, self._settled, self._ids)
        self._window = PublishWindow(self._connection, self._done, self._failed, window=window)
        self._summary = PutSummary()
        self._number = 0
        self._lost: dict[int, tuple[Row, KvctlError]] = {}
        """Items that a lost connection left open, by their numbers."""
        self._floors = Floors(info["state"]["last_seq"])

    async def run(self, items: Items) -> PutSummary:
        """Write all items."""
        async with self._window:
            if isinstance(items, AsyncIterable):
                async for key, value in items:
                    await self._send(key, value)
            else:
                for key, value in items:
                    await self._send(key, value)
            await self._settle()
        return self._summary

    async def _send(self, key: str, value: bytes) -> None:
        subject = (self._target.write_prefix + check_key(key)).encode()
        self._number = number = self._number + 1
        await self._window.send(Row(number, key, value), subject, value, self._ids.block(number, b"", value))
        if self._lost:
            await self._settle()
        self._floors.sample(number, self._summary.last_revision)

    def _done(self, row: Row, revision: int) -> None:
        self._summary.written += 1
        if revision > self._summary.last_revision:
            self._summary.last_revision = revision
        self._bucket.own.note(row.key, revision)

    def _failed(self, row: Row, error: KvctlError) -> None:
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
                chunk = next(self._current.chunks(rows))
                await self._reconciler.settle([(row, self._floor(row)) for row in chunk], create=False)
        except KvctlError:
            lost, self._lost = self._lost, {}
            self._summary.failed += [(row.key, error) for row, error in lost.values()]

    def _floor(self, row: Row) -> int:
        """Return the revision that the item is above, if stored."""
        return max(self._floors.of(row.line), self._bucket.own.last(row.key))

    def _settled(self, row: Row, outcome: Outcome | KvctlError, revision: int) -> None:
        _, error = self._lost.pop(row.line)
        if outcome is Outcome.WRITTEN or (outcome is Outcome.SUPERSEDED and self._history == 1):
            self._done(row, revision)  # without history, an overwritten value leaves no trace
        elif isinstance(outcome, KvctlError):
            self._summary.failed.append((row.key, outcome))
        else:
            self._summary.failed.append((row.key, _overtaken(row, error)))


def _overtaken(row: Row, error: KvctlError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"Could not find out if the write to `{row.key}` was stored before another one: {error.message}"
    )
