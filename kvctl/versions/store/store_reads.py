"""Reads of a store on JetStream: the last messages of keys and of partitions, never older than a finished write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress

from kvctl.errors import NoResponders, PermissionDenied, Unanswered
from kvctl.jetstream import streams
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.direct.direct_get import CannotAnswerMany, DirectRequest, StoredMessage
from kvctl.jetstream.direct.multi_get import pages
from kvctl.jetstream.direct.page import NotReached, Page
from kvctl.jetstream.direct.per_subject import last_of_each
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import is_tombstone
from kvctl.kv.resolve import Binding

Stored = tuple[int, bytes]
"""Revision and value."""

SINGLE_READ_KEYS = 16
"""Maximum number of keys read one by one; more are read a thousand at a time."""
KEYS_PER_REQUEST = 1000
OBJECTS_PER_REQUEST = 64
"""Number of objects read in one request: some 500 KB, which keep a server busy for few milliseconds."""
_ELSEWISE = (CannotAnswerMany, NotReached, NoResponders, PermissionDenied, Unanswered)


async def latest(bucket: Bucket, keys: Sequence[str]) -> dict[str, Stored]:
    """Return the existing ones of these keys, as the leader has them."""
    found: dict[str, Stored] = {}
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


async def lasting(bucket: Bucket, keys: Sequence[str]) -> dict[str, Stored]:
    """Return the existing ones of keys that are only written with one value: from any replica, else from the leader."""
    found: dict[str, Stored] = {}
    if bucket.binding.direct:
        try:
            for at in range(0, len(keys), OBJECTS_PER_REQUEST):
                found |= await _from_any(bucket, keys[at : at + OBJECTS_PER_REQUEST])
        except (NoResponders, PermissionDenied):
            found = {}
    missing = [key for key in keys if key not in found]
    return {**found, **await _one_by_one(bucket, missing, leader=True)} if missing else found


async def _from_any(bucket: Bucket, keys: Sequence[str]) -> dict[str, Stored]:
    """Return those of some keys that the answering replicas have."""
    binding = bucket.binding
    if len(keys) > SINGLE_READ_KEYS:
        request = DirectRequest(last_of=tuple(map(binding.subject, keys)))
        with suppress(*_ELSEWISE):
            async with aclosing(pages(binding.api, binding.stream, request)) as answers:
                return {key: one async for page in answers for key, one in _living(binding, page.messages).items()}
    return await _one_by_one(bucket, keys, leader=False)


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


async def _first_page(binding: Binding, subjects: Sequence[str]) -> Page[StoredMessage] | None:
    if not binding.direct:
        return None
    try:
        async with aclosing(pages(binding.api, binding.stream, DirectRequest(last_of=tuple(subjects)))) as answers:
            async for page in answers:
                return page
    except _ELSEWISE:
        pass
    return None


async def _one_by_one(bucket: Bucket, keys: Sequence[str], *, leader: bool) -> dict[str, Stored]:
    """Read one key per request, all in flight."""
    binding = bucket.binding
    if not keys:
        return {}
    subjects = [binding.subject(key) for key in keys]
    answers = await last_of_each(binding.api, binding.stream, subjects, leader=leader)
    found = _living(binding, [message for message in answers.values() if message is not None])
    for key in [key for key, subject in zip(keys, subjects, strict=True) if subject not in answers] if leader else ():
        entry = await bucket.last_entry(key, leader=True)  # no answer: read with retries
        if entry is not None and not is_tombstone(entry.header):
            found[key] = (entry.revision, entry.value)
    return found


def _living(binding: Binding, messages: Sequence[StoredMessage]) -> dict[str, Stored]:
    cut = len(binding.prefix)
    return {
        message.subject[cut:]: (message.sequence, message.payload)
        for message in messages
        if not is_tombstone(message.header)
    }
