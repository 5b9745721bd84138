"""Many keys at once, read and written through a window of requests that wait for their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvctl.errors import ConnectionLost, KvctlError, NoResponders, PermissionDenied
from kvctl.jetstream.direct import DirectRequest, NotUnderstood, StoredMessage, TooManySubjects
from kvctl.jetstream.direct_batch import REQUEST_BYTES, MomentLost, last_of_each, pages
from kvctl.jetstream.publish import PublishWindow
from kvctl.jetstream.window import WINDOW
from kvctl.kv.binding import Binding
from kvctl.kv.entry import Entry
from kvctl.kv.names import check_key

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

__all__ = ["WINDOW", "PutSummary", "get_many", "put_many"]

AT_ONCE = 4
MANY_KEYS = 1000


@dataclass(slots=True)
class PutSummary:
    """What became of many writes."""

    written: int = 0
    failed: list[tuple[str, KvctlError]] = field(default_factory=list)
    """Keys that were not written, and why; RequestTimeout and ConnectionLost mean that it is not known."""
    last_revision: int = 0


async def get_many(bucket: Bucket, keys: Sequence[str], *, leader: bool) -> dict[str, Entry | None]:
    """The last entry of each key, deletions included; the keys are distinct.

    A thousand keys a request where the server and the permissions allow it, else a request a key, all in flight.
    """
    if not keys:
        return {}
    found = {
        keys[0]: await bucket.last_entry(keys[0], leader=leader)
    }  # finds out what the name means and how to read it
    rest = list(keys[1:])

    def take(binding: Binding, messages: dict[str, StoredMessage | None], replica: bool) -> list[str]:
        for subject, message in messages.items():
            key = subject[len(binding.prefix) :]
            if not (replica and bucket.behind(key, message)):
                found[key] = bucket.entry(key, message)
        return [key for key in rest if key not in found]

    near, source = bucket.binding, bucket.binding.source
    if not leader and near.direct:
        rest = take(near, await _in_few_requests(near, rest), True)
        rest = take(near, await last_of_each(near.api, near.stream, [near.subject(key) for key in rest]), True)
    subjects = [source.subject(key) for key in rest]
    rest = take(source, await last_of_each(source.api, source.stream, subjects, leader=True), False)
    for key in rest:  # nobody answered: the long way, that waits
        found[key] = await bucket.last_entry(key, leader=leader)
    return found


async def _in_few_requests(binding: Binding, keys: Sequence[str]) -> dict[str, StoredMessage | None]:
    """The messages of as many keys as can be read so."""
    found: dict[str, StoredMessage | None] = {}
    chunks = _chunks([binding.subject(key) for key in keys])

    async def work() -> None:
        for subjects in chunks:
            answer: dict[str, StoredMessage | None] = dict.fromkeys(subjects)
            request = DirectRequest(last_of=tuple(subjects))
            async with aclosing(pages(binding.api, binding.stream, request)) as answers:
                async for page in answers:
                    answer.update((message.subject, message) for message in page.messages)
            found.update(answer)

    tasks = [asyncio.create_task(work()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*tasks)
    except (NotUnderstood, TooManySubjects, MomentLost, NoResponders, PermissionDenied, ConnectionLost):
        pass  # an older server, writers, no direct get, permissions key by key, or to be asked again
    finally:
        for task in tasks:
            task.cancel()
    return found


def _chunks(subjects: Iterable[str]) -> Iterator[list[str]]:
    """What one request may ask for, in number and in bytes."""
    chunk: list[str] = []
    size = 0
    for subject in subjects:
        if chunk and (len(chunk) == MANY_KEYS or size + len(subject) + 4 > REQUEST_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(subject)
        size += len(subject) + 4
    if chunk:
        yield chunk


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
