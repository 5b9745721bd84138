"""Many keys at once: read in few requests, written through a window of acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvctl.errors import KvctlError, NoResponders, PermissionDenied
from kvctl.jetstream import direct
from kvctl.jetstream.publish import PublishWindow
from kvctl.jetstream.window import WINDOW
from kvctl.kv.entry import Entry, from_message
from kvctl.kv.names import check_key

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

__all__ = ["WINDOW", "PutSummary", "get_many", "put_many"]

AT_ONCE = 64
MANY_KEYS = 1000


@dataclass(slots=True)
class PutSummary:
    """What became of many writes."""

    written: int = 0
    failed: list[tuple[str, KvctlError]] = field(default_factory=list)
    """Keys that were not written, and why; RequestTimeout and ConnectionLost mean that it is not known."""
    last_revision: int = 0


async def get_many(bucket: Bucket, keys: Sequence[str], *, leader: bool) -> dict[str, Entry | None]:
    """The last entry of each key, deletions included."""
    if len(keys) > 1 and not leader and bucket.binding.direct:
        try:
            return await _in_few_requests(bucket, keys)
        except (direct.NotUnderstood, NoResponders, PermissionDenied):
            pass  # an older server, no direct get, or permissions key by key
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(key: str) -> Entry | None:
        async with slots:
            return await bucket.last_entry(key, leader=leader)

    return dict(zip(keys, await asyncio.gather(*map(one, keys)), strict=True))


async def _in_few_requests(bucket: Bucket, keys: Sequence[str]) -> dict[str, Entry | None]:
    found: dict[str, Entry | None] = {}
    binding = bucket.binding
    cut = len(binding.prefix)
    for chunk in _chunks(keys, len(binding.prefix)):
        subjects = [binding.subject(key) for key in chunk]
        async for message in direct.last_of_many(binding.api, binding.stream, subjects):
            found[message.subject[cut:]] = from_message(bucket.name, cut, message)
    for key in keys:
        entry = found.get(key)
        if entry is None or bucket.own.stale(key, entry.revision):
            found[key] = await bucket.last_entry(key)
    return found


def _chunks(keys: Sequence[str], prefix: int) -> Iterable[list[str]]:
    """Chunks that one request may hold, in number and in bytes."""
    chunk: list[str] = []
    size = 0
    for key in keys:
        cost = len(key) + prefix + 4
        if chunk and (len(chunk) == MANY_KEYS or size + cost > direct.REQUEST_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(key)
        size += cost
    if chunk:
        yield chunk


async def put_many(
    bucket: Bucket, items: Iterable[tuple[str, bytes]] | AsyncIterable[tuple[str, bytes]], window: int
) -> PutSummary:
    """Write all items; see `Bucket.put_many`."""
    target = (await bucket.locate()).source
    bucket.check_writes_go_somewhere()
    summary = PutSummary()

    def done(_: str, revision: int) -> None:
        summary.written += 1
        summary.last_revision = max(summary.last_revision, revision)

    def failed(key: str, error: KvctlError) -> None:
        summary.failed.append((key, error))

    prefix = target.write_prefix.encode()
    async with PublishWindow(target.api.connection, done, failed, window=window, resend=True) as publishing:
        if isinstance(items, AsyncIterable):
            async for key, value in items:
                await publishing.send(key, prefix + check_key(key).encode(), value)
        else:
            for key, value in items:
                await publishing.send(key, prefix + check_key(key).encode(), value)
    bucket.own.note_many(summary.last_revision)
    return summary
