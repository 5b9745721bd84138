"""Get many keys at once: from a list of the bucket's, in few requests, or through a window of single ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING

from kvctl.errors import ConnectionLost, KvctlError, NoResponders, PermissionDenied
from kvctl.jetstream.direct_get import CannotAnswerMany, DirectRequest, StoredMessage
from kvctl.jetstream.multi_get import REQUEST_BYTES, pages_of
from kvctl.jetstream.per_subject import last_of_each
from kvctl.kv.entry import Entry, from_answers, from_frames, from_messages, newer
from kvctl.kv.handle import RESOLVE_TIMEOUT
from kvctl.kv.resolve import Binding

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

REQUESTS_IN_FLIGHT = 4
MANY_KEYS = 1000
LISTED_KEYS = 5000
"""Minimum number of keys to read from a list of the bucket's; they must be at least half of it."""
LISTED_BYTES = 2 << 10
"""Maximum bytes of the bucket for each key to read."""

Answers = dict[str, StoredMessage | None]
"""By subject."""


async def get_many(
    bucket: Bucket, keys: Sequence[str], *, leader: bool, at_least: Mapping[str, int] | None = None
) -> dict[str, Entry | None]:
    """Return the last entry of each key, deletions included; the keys are distinct.

    One consumer reads many keys that are most of a bucket's. Else one request reads a thousand keys where server and
    permissions allow it; otherwise a window of requests reads one each. Answers of a replica older than a key's
    revision in `at_least` are requested again from the leader.
    """
    known = at_least or {}
    found: dict[str, Entry | None] = {}

    def left() -> list[str]:
        return [key for key in keys if key not in found]

    async def ask_for_many() -> None:
        if not leader and bucket.binding.direct:
            await _in_few_requests(bucket, bucket.binding, left(), found, known)

    if len(keys) >= LISTED_KEYS and not leader:
        found.update(await _listed(bucket, keys, known))
    assumed = bucket.binding
    if len(keys) > 1:
        await ask_for_many()
    if keys and not any(found.values()) and (len(found) < len(keys) or await bucket.moved()):
        # Nothing confirms the name's meaning: the first key resolves it and finds out how to read it.
        first = await bucket.last_entry(keys[0], leader=leader)
        found = {} if (first.revision if first else 0) < known.get(keys[0], 0) else {keys[0]: first}
        if bucket.binding != assumed:
            await ask_for_many()
    near, source = bucket.binding, bucket.binding.source
    if not leader and near.direct:
        answers = await last_of_each(near.api, near.stream, [near.subject(key) for key in left()])
        _take(bucket, _entries(bucket, near, answers), found, known)
    subjects = [source.subject(key) for key in left()]
    answers = await last_of_each(source.api, source.stream, subjects, leader=True)
    found |= _entries(bucket, source, answers)
    for key in left():  # unanswered: the slow way, which waits
        found[key] = await bucket.last_entry(key, leader=leader or key in known)
    return found


async def _listed(bucket: Bucket, keys: Sequence[str], known: Mapping[str, int]) -> dict[str, Entry]:
    """Return the last entries of as many of the keys as possible, from a list of the bucket's, several times as fast.

    Nothing if most of the list is of other keys, or if it cannot be read. It has at least what the leader had when it
    began; a key that is not in the list may exist all the same.
    """
    from kvctl.jetstream import streams
    from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
    from kvctl.jetstream.consumers.server_consumer import Selection

    found: dict[str, Entry] = {}
    own = bucket.own
    with suppress(KvctlError, TimeoutError):
        async with asyncio.timeout(RESOLVE_TIMEOUT):  # the leader may be away where replicas answer
            binding = await bucket.readable()
            state = (await streams.info(binding.api, binding.stream))["state"]
        count = state.get("num_subjects", state["messages"])
        if count > 2 * len(keys) or state["bytes"] > LISTED_BYTES * len(keys):
            return {}
        wanted, last, cut, name = set(keys), 0, len(binding.prefix.encode()), binding.stream
        selection = Selection(subjects=(binding.prefix + ">",))
        async with OrderedConsumer(binding.api, binding.stream, selection) as consumer:
            if consumer.info is None or int(consumer.info["state"]["last_seq"]) < own.highest:
                return {}
            async for batch in consumer.batches():
                entries = newer(from_frames(bucket.name, cut, batch), last)
                last = entries[-1].revision if entries else last
                found.update({entry.key: _answered_by(name, entry) for entry in entries if entry.key in wanted})
        if known or own.any():
            return {key: one for key, one in found.items() if one.revision >= max(known.get(key, 0), own.last(key))}
        return found
    return {}


def _answered_by(stream: str, entry: Entry) -> Entry:
    """Return the entry as an answer to a get has it: with the stream that answered, without a place in a list."""
    return tuple.__new__(Entry, (*entry[:6], None, stream, *entry[8:]))


def _take(
    bucket: Bucket, entries: Mapping[str, Entry | None], found: dict[str, Entry | None], known: Mapping[str, int]
) -> None:
    """Add a replica's answers to the results, if they are no older than the `known` revisions."""
    if known or bucket.own.any():
        for key, entry in entries.items():
            revision, stream = (entry.revision, entry.stream) if entry else (0, None)
            if revision >= known.get(key, 0) and not bucket.behind(key, revision, stream):
                found[key] = entry
    else:
        found.update(entries)


def _entries(bucket: Bucket, binding: Binding, answers: Answers) -> dict[str, Entry | None]:
    """Return single answers as entries by key."""
    cut = len(binding.prefix)
    found: dict[str, Entry | None] = {subject[cut:]: None for subject in answers}
    messages = [message for message in answers.values() if message is not None]
    found.update({entry.key: entry for entry in from_messages(bucket.name, cut, messages)})
    return found


async def _in_few_requests(
    bucket: Bucket, binding: Binding, keys: Sequence[str], found: dict[str, Entry | None], known: Mapping[str, int]
) -> None:
    """Find as many of the keys as possible by multi-key requests."""
    chunks = _chunks(keys, len(binding.prefix))
    build = partial(from_answers, bucket.name, binding.prefix)

    async def work() -> None:
        for some in chunks:
            entries: dict[str, Entry | None] = dict.fromkeys(some)
            request = DirectRequest(last_of=tuple([binding.prefix + key for key in some]))
            async with aclosing(pages_of(build, binding.api, binding.stream, request)) as reading:
                async for page in reading:
                    entries.update({entry.key: entry for entry in page.messages})
            _take(bucket, entries, found, known)

    tasks = [asyncio.create_task(work()) for _ in range(REQUESTS_IN_FLIGHT)]
    try:
        await asyncio.gather(*tasks)
    except (CannotAnswerMany, NoResponders, PermissionDenied, ConnectionLost):
        pass  # an older server, writers, no direct get, per-key permissions, or a retry is needed
    finally:
        for task in tasks:
            task.cancel()


def _chunks(keys: Sequence[str], prefix: int) -> Iterator[Sequence[str]]:
    """Split keys into requests, by number and by bytes of their subjects."""
    start, count = 0, MANY_KEYS
    while start < len(keys):
        chunk = keys[start : start + count]
        if len(chunk) > 1 and sum(map(len, chunk)) + (prefix + 4) * len(chunk) > REQUEST_BYTES:
            count = max(len(chunk) // 2, 1)
            continue
        yield chunk
        start, count = start + len(chunk), MANY_KEYS
