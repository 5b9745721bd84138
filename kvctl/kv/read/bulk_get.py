"""Get many keys at once, in few requests or through a window of single ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from kvctl.errors import ConnectionLost, NoResponders, PermissionDenied
from kvctl.jetstream.direct.direct_get import (
    DirectRequest,
    NotUnderstood,
    StoredMessage,
    TooManySubjects,
)
from kvctl.jetstream.direct.multi_get import REQUEST_BYTES, pages
from kvctl.jetstream.direct.page import MomentLost
from kvctl.jetstream.direct.per_subject import last_of_each
from kvctl.kv.entry import Entry, from_messages
from kvctl.kv.resolve import Binding

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

REQUESTS_IN_FLIGHT = 4
MANY_KEYS = 1000

Answers = dict[str, StoredMessage | None]
"""By subject."""


async def get_many(
    bucket: Bucket, keys: Sequence[str], *, leader: bool, at_least: Mapping[str, int] | None = None
) -> dict[str, Entry | None]:
    """Return the last entry of each key, deletions included; the keys are distinct.

    One request reads a thousand keys where server and permissions allow it; otherwise a window of requests reads one
    each. Answers of a replica older than a key's revision in `at_least` are requested again from the leader.
    """
    if not keys:
        return {}
    known = at_least or {}
    # The first one resolves the name and finds out how to read it.
    first = await bucket.last_entry(keys[0], leader=leader)
    found = {} if (first.revision if first else 0) < known.get(keys[0], 0) else {keys[0]: first}

    def left() -> list[str]:
        return [key for key in keys if key not in found]

    near, source = bucket.binding, bucket.binding.source
    if not leader and near.direct:
        await _in_few_requests(bucket, near, keys[1:], found, known)
        answers = await last_of_each(near.api, near.stream, [near.subject(key) for key in left()])
        _take(bucket, near, answers, found, known)
    subjects = [source.subject(key) for key in left()]
    answers = await last_of_each(source.api, source.stream, subjects, leader=True)
    _take(bucket, source, answers, found)
    for key in left():  # unanswered: the slow way, which waits
        found[key] = await bucket.last_entry(key, leader=leader or key in known)
    return found


def _take(
    bucket: Bucket,
    binding: Binding,
    answers: Answers,
    found: dict[str, Entry | None],
    known: Mapping[str, int] | None = None,
) -> None:
    """Add the answers to the results; a replica's only if they are no older than the `known` revisions."""
    cut, doubted = len(binding.prefix), known is not None and bucket.own.any()
    messages = []
    for subject, message in answers.items():
        if known or doubted or message is None:
            key = subject[cut:]
            if known and (message.sequence if message else 0) < known.get(key, 0):
                continue
            if doubted and bucket.behind(key, message):
                continue
            found[key] = None
        if message is not None:
            messages.append(message)
    found.update({entry.key: entry for entry in from_messages(bucket.name, cut, messages)})


async def _in_few_requests(
    bucket: Bucket, binding: Binding, keys: Sequence[str], found: dict[str, Entry | None], known: Mapping[str, int]
) -> None:
    """Find as many of the keys as possible by multi-key requests."""
    chunks = _chunks([binding.prefix + key for key in keys])

    async def work() -> None:
        for subjects in chunks:
            answers: Answers = dict.fromkeys(subjects)
            request = DirectRequest(last_of=tuple(subjects))
            async with aclosing(pages(binding.api, binding.stream, request)) as reading:
                async for page in reading:
                    answers.update({message.subject: message for message in page.messages})
            _take(bucket, binding, answers, found, known)

    tasks = [asyncio.create_task(work()) for _ in range(REQUESTS_IN_FLIGHT)]
    try:
        await asyncio.gather(*tasks)
    except (NotUnderstood, TooManySubjects, MomentLost, NoResponders, PermissionDenied, ConnectionLost):
        pass  # an older server, writers, no direct get, per-key permissions, or a retry is needed
    finally:
        for task in tasks:
            task.cancel()


def _chunks(subjects: list[str]) -> Iterator[list[str]]:
    """Split subjects into requests, by number and by bytes."""
    start, count = 0, MANY_KEYS
    while start < len(subjects):
        chunk = subjects[start : start + count]
        if len(chunk) > 1 and sum(map(len, chunk)) + 4 * len(chunk) > REQUEST_BYTES:
            count = max(len(chunk) // 2, 1)
            continue
        yield chunk
        start, count = start + len(chunk), MANY_KEYS
