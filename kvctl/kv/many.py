"""Many keys at once, read and written through a window of requests that wait for their answers."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvctl.errors import KvctlError
from kvctl.jetstream import direct
from kvctl.jetstream.publish import PublishWindow
from kvctl.jetstream.window import WINDOW
from kvctl.kv.binding import Binding
from kvctl.kv.entry import Entry
from kvctl.kv.names import check_key

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

__all__ = ["WINDOW", "PutSummary", "get_many", "put_many"]


@dataclass(slots=True)
class PutSummary:
    """What became of many writes."""

    written: int = 0
    failed: list[tuple[str, KvctlError]] = field(default_factory=list)
    """Keys that were not written, and why; RequestTimeout and ConnectionLost mean that it is not known."""
    last_revision: int = 0


async def get_many(bucket: Bucket, keys: Sequence[str], *, leader: bool) -> dict[str, Entry | None]:
    """The last entry of each key, deletions included; the keys are distinct.

    A request a key, thousands in flight: nearly as fast as a thousand keys in one request, and the form that
    permissions can allow key by key and that every server knows.
    """
    if not keys:
        return {}
    found = {keys[0]: await bucket.last_entry(keys[0], leader=leader)}  # finds out what the name means and how to read it
    rest = list(keys[1:])
    if not leader and bucket.binding.direct:
        for key, message in await _messages(bucket.binding, rest):
            if not bucket.behind(key, message):
                found[key] = bucket.entry(key, message)
        rest = [key for key in rest if key not in found]
    for key, message in await _messages(bucket.binding.source, rest, leader=True):
        found[key] = bucket.entry(key, message)
    for key in rest:
        if key not in found:  # nobody answered: the long way, that waits
            found[key] = await bucket.last_entry(key, leader=leader)
    return found


async def _messages(
    binding: Binding, keys: Sequence[str], *, leader: bool = False
) -> Iterable[tuple[str, direct.StoredMessage | None]]:
    cut = len(binding.prefix)
    subjects = [binding.subject(key) for key in keys]
    messages = await direct.last_of_each(binding.api, binding.stream, subjects, leader=leader)
    return ((subject[cut:], message) for subject, message in messages.items())


async def put_many(
    bucket: Bucket, items: Iterable[tuple[str, bytes]] | AsyncIterable[tuple[str, bytes]], window: int
) -> PutSummary:
    """Write all items; see `Bucket.put_many`."""
    target = (await bucket.readable()).source
    bucket.check_writes_go_somewhere()
    summary = PutSummary()

    def done(key: str, revision: int) -> None:
        summary.written += 1
        summary.last_revision = max(summary.last_revision, revision)
        bucket.own.note(key, revision)

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
    return summary
