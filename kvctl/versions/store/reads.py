"""Reads of a store on JetStream: the last messages of keys and of partitions, never older than a finished write.

Servers do not sort: a scan lists the keys at its first step, and sorts them here.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

from kvctl.errors import NoResponders, PermissionDenied, Unanswered
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.consumers.delivery import sequence_token
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.direct_get import CannotAnswerMany, DirectRequest, StoredMessage
from kvctl.jetstream.multi_get import MessagePage, NotReached, last_of_each
from kvctl.jetstream.multi_get import pages as answer_pages
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import is_tombstone
from kvctl.kv.ordered_token import token, untoken
from kvctl.kv.resolve import Binding
from kvctl.versions.store.protocol import StoredValue, StoreEntry

SINGLE_READ_KEYS = 16
"""Maximum number of keys read one by one; more are read a thousand at a time."""
KEYS_PER_REQUEST = 1000
PAGE_ENTRIES = 1000
"""Number of entries of a scan returned together."""
HELD_BYTES = 32 << 20
"""Maximum bytes of values that a scan holds; beyond that, values are fetched as the entries are read."""
FULL = 4
"""Number of scans open together that may hold so much each; more of them share it."""
FETCHED_BYTES = 8 << 20
"""Bytes of values fetched together."""
FIRST = 16
"""Number of values fetched first, before their size is known."""
OBJECTS_PER_REQUEST = 64
"""Number of objects read in one request: some 500 KB, which keep a server busy for few milliseconds."""

Listed = dict[bytes, StoredValue]
"""By the tokens of keys, which sort as the keys; values are empty if they were not read."""

_ELSEWISE = (CannotAnswerMany, NotReached, NoResponders, PermissionDenied, Unanswered)


async def latest(bucket: Bucket, keys: Sequence[str]) -> dict[str, StoredValue]:
    """Return the existing ones of these keys, as the leader has them."""
    found: dict[str, StoredValue] = {}
    left = list(dict.fromkeys(keys))
    if len(left) > SINGLE_READ_KEYS:
        binding = bucket.binding
        reached = int((await streams.info(binding.api, binding.stream))["state"]["last_seq"])
        for at in range(0, len(left), KEYS_PER_REQUEST):
            some = left[at : at + KEYS_PER_REQUEST]
            messages = await _at_once(binding, [binding.subject(key) for key in some], reached)
            if messages is None:
                found |= await _one_by_one(bucket, some, leader=True)
            else:
                found |= _living(binding, messages)
        return found
    return await _one_by_one(bucket, left, leader=True)


async def lasting(bucket: Bucket, keys: Sequence[str]) -> dict[str, StoredValue]:
    """Return the existing ones of keys that are only written with one value: from any replica, else from the leader."""
    found: dict[str, StoredValue] = {}
    if bucket.binding.direct:
        try:
            for at in range(0, len(keys), OBJECTS_PER_REQUEST):
                found |= await _from_any(bucket, keys[at : at + OBJECTS_PER_REQUEST])
        except (NoResponders, PermissionDenied):
            found = {}
    missing = [key for key in keys if key not in found]
    return {**found, **await _one_by_one(bucket, missing, leader=True)} if missing else found


async def _from_any(bucket: Bucket, keys: Sequence[str]) -> dict[str, StoredValue]:
    """Return those of some keys that the answering replicas have."""
    binding = bucket.binding
    if len(keys) > SINGLE_READ_KEYS:
        request = DirectRequest(last_of=tuple(map(binding.subject, keys)))
        with suppress(*_ELSEWISE):
            async with aclosing(answer_pages(binding.api, binding.stream, request)) as answers:
                return {key: one async for page in answers for key, one in _living(binding, page.messages).items()}
    return await _one_by_one(bucket, keys, leader=False)


async def pages(
    bucket: Bucket, head: str, start: bytes, *, values: bool, beside: int
) -> AsyncGenerator[list[StoreEntry], None]:
    """Yield the entries whose keys have a prefix; see `Store.pages`.

    Holds about 200 bytes per key, and the values if they are few.
    """
    share = max(1 + beside, FULL) / FULL
    listed = await _list(bucket, head, int(HELD_BYTES / share) if values else None)
    held = listed is not None
    if listed is None:
        listed = await _list(bucket, head, None) or {}
    keys = sorted(listed)
    at, size = bisect_left(keys, token(start)), PAGE_ENTRIES if held else max(int(FIRST / share), 1)
    while some := keys[at : at + size]:
        at += len(some)
        await asyncio.sleep(0)  # yield, even if nothing has to be fetched
        if held:
            found = [(key, listed[key]) for key in some]
        else:
            places = [head + key.decode() for key in some]
            known = await latest(bucket, places)
            found = [(key, known[place]) for key, place in zip(some, places, strict=True) if place in known]
            total = sum(len(one.value) for _, one in found)
            size = min(len(some) * 8, int(len(some) * FETCHED_BYTES / max(total * share, 1)), PAGE_ENTRIES) or 1
        if found:
            yield [StoreEntry(untoken(key), *one) for key, one in found]


async def _list(bucket: Bucket, head: str, most: int | None) -> Listed | None:
    """List the keys with a prefix. With `most`, list their values, too, and return None if these have more bytes."""
    messages = await partition(bucket, head)
    cut = len(bucket.binding.prefix) + len(head)
    if messages is not None:
        return {
            message.subject[cut:].encode(): StoredValue(b"" if most is None else message.payload, message.sequence)
            for message in messages
            if not is_tombstone(message.header)
        }
    listed: Listed = {}
    size = 0
    selection = Selection(subjects=(bucket.binding.subject(f"{head}*"),), headers_only=most is None)
    async with OrderedConsumer(bucket.binding.api, bucket.binding.stream, selection) as consumer:
        async for batch in consumer.batches():
            place = sequence_token(batch[0][1]) if batch else 0
            for name, reply, header, payload in batch:
                if header and is_tombstone(header):
                    listed.pop(name[cut:], None)
                else:
                    listed[name[cut:]] = StoredValue(payload, int(reply.split(b".", place + 1)[place]))
                    size += len(payload)
            if most is not None and size > most:
                return None
    return listed


async def partition(bucket: Bucket, head: str) -> list[StoredMessage] | None:
    """Return the last messages of all keys with a prefix, consistently; None if they are too many.

    The leader reports the last of them, which the answering replica must have.
    """
    binding = bucket.binding
    last, page = await asyncio.gather(newest(bucket, head), _first_page(binding, [binding.subject(f"{head}*")]))
    if last is None:
        return []
    if page is None or page.pending or (page.up_to_sequence or 0) < last.sequence:
        return None
    return page.messages


async def newest(bucket: Bucket, head: str) -> StoredMessage | None:
    """Return the newest message, deletions included, of all keys with a prefix, from the leader."""
    binding = bucket.binding
    subject = binding.subject(f"{head}*")
    answers = await last_of_each(binding.api, binding.stream, [subject], leader=True)
    if subject in answers:
        return answers[subject]
    return await direct_get.from_leader(binding.api, binding.stream, last_by_subj=subject)  # no answer: with retries


async def _at_once(binding: Binding, subjects: Sequence[str], reached: int) -> list[StoredMessage] | None:
    """Return the last messages of subjects in one answer; None if that is impossible, or older than required."""
    page = await _first_page(binding, subjects)
    if page is None or page.pending or (page.up_to_sequence or 0) < reached:
        return None
    return page.messages


async def _first_page(binding: Binding, subjects: Sequence[str]) -> MessagePage[StoredMessage] | None:
    if not binding.direct:
        return None
    try:
        request = DirectRequest(last_of=tuple(subjects))
        async with aclosing(answer_pages(binding.api, binding.stream, request)) as answers:
            async for page in answers:
                return page
    except _ELSEWISE:
        pass
    return None


async def _one_by_one(bucket: Bucket, keys: Sequence[str], *, leader: bool) -> dict[str, StoredValue]:
    """Read one key per request, all in flight."""
    binding = bucket.binding
    if not keys:
        return {}
    subjects = [binding.subject(key) for key in keys]
    alone = leader and len(keys) == 1
    answers = {} if alone else await last_of_each(binding.api, binding.stream, subjects, leader=leader)
    found = _living(binding, [message for message in answers.values() if message is not None])
    for key in [key for key, subject in zip(keys, subjects, strict=True) if subject not in answers] if leader else ():
        entry = await bucket.last_entry(key, leader=True)  # alone, or no answer: with retries
        if entry is not None and not is_tombstone(entry.header):
            found[key] = StoredValue(entry.value, entry.revision)
    return found


def _living(binding: Binding, messages: Sequence[StoredMessage]) -> dict[str, StoredValue]:
    cut = len(binding.prefix)
    return {
        message.subject[cut:]: StoredValue(message.payload, message.sequence)
        for message in messages
        if not is_tombstone(message.header)
    }
