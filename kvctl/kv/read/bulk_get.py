"""Get many keys at once: by names or filters, from a list of the bucket's, in few requests, or one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING

from kvctl.errors import ConnectionLost, KvctlError, NoResponders, PermissionDenied
from kvctl.jetstream import multi_get, streams
from kvctl.jetstream.consumers import ordered_consumer, server_consumer
from kvctl.jetstream.direct_get import CannotAnswerMany, DirectRequest, StoredMessage
from kvctl.jetstream.multi_get import REQUEST_BYTES, last_of_each, pages_of
from kvctl.kv.entry import Entry, Operation, from_answers, from_frames, from_message, from_messages, newer
from kvctl.kv.handle import ATTEMPTS, RESOLVE_TIMEOUT
from kvctl.kv.names import check_filter, check_literal, is_plain
from kvctl.kv.read import listing
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
    bucket: Bucket,
    keys: Sequence[str],
    *,
    leader: bool,
    at_least: Mapping[str, int] | None = None,
    confirm: bool = True,
) -> dict[str, Entry | None]:
    """Return the last entry of each key, deletions included; the keys are distinct.

    One consumer reads many keys that are most of a bucket's. Else one request reads a thousand keys where server and
    permissions allow it; otherwise a window of requests reads one each. Answers of a replica older than a key's
    revision in `at_least` are requested again from the leader, and so are missing keys, unless the caller does not
    rely on their absence.
    """
    await bucket.locate_elsewhere()
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
    if confirm and not leader:
        missing = {key: entry for key, entry in found.items() if entry is None or entry.operation is not Operation.PUT}
        found |= await bucket.confirm(missing) if missing else {}
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
        selection = server_consumer.Selection(subjects=(binding.prefix + ">",))
        async with ordered_consumer.OrderedConsumer(binding.api, binding.stream, selection) as consumer:
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


class _Behind(Exception):
    """The replica that answered may lag behind this session's writes."""


async def matching_batches(
    bucket: Bucket, filters: Sequence[str], *, leader: bool, confirm: bool = False
) -> AsyncGenerator[list[Entry], None]:
    """Yield entries of live matching keys, no key twice, in the server's order.

    Up to 1,024 keys come from the nearest replica, consistent at one revision. A consumer reads more keys, and those of
    servers or buckets that do not answer such requests, and with `leader` everything up to the leader's last message.
    If nothing matches at the replica, the leader confirms it. With `confirm`, a replica has to have all that the leader
    had at the start; `unconfirmed` has the filters if no leader answers.
    """
    seen: set[str] = set()
    denied: PermissionDenied | None = None
    for text in filters:
        check_filter(text)
    await bucket.locate_elsewhere()
    least, doubted = 0, False
    if confirm and not leader:
        await bucket.moved()
        least = await bucket.newest(filters) or 0
    for _ in range(ATTEMPTS):
        if leader or not bucket.binding.direct:
            break
        try:
            async with aclosing(_at_once(bucket, filters, least)) as pages:
                async for batch in pages:
                    seen.update(entry.key for entry in batch)
                    yield batch
            if seen:
                return
            if not await bucket.moved():
                if not await bucket.newest(filters):
                    return
                doubted = True
                break
        except _Behind:
            doubted = bool(least)
        except PermissionDenied as error:
            denied = error
            break
        except (CannotAnswerMany, NoResponders, ConnectionLost):
            break
    asks = leader or (doubted and not bucket.binding.filtered)
    try:
        async with aclosing(_matching_lists(bucket, filters, leader=asks, alone=not seen)) as batches:
            async for batch in batches:
                yield [entry for entry in batch if entry.key not in seen]
    except PermissionDenied as error:
        raise denied or error from None


async def _matching_lists(
    bucket: Bucket, filters: Sequence[str], *, leader: bool, alone: bool
) -> AsyncGenerator[list[Entry], None]:
    """Yield a list of the matching keys; an empty one of a mirror is confirmed by its origin, if it is `alone`."""
    found = False
    async with aclosing(_matching_list(bucket, filters, leader=leader)) as batches:
        async for batch in batches:
            found = found or bool(batch)
            yield batch
    if alone and not (found or leader) and bucket.judge != bucket.binding and await bucket.newest(filters):
        async with aclosing(_matching_list(bucket, filters, leader=True)) as batches:
            async for batch in batches:
                yield batch


async def literal_entry(bucket: Bucket, key: str, *, leader: bool = False) -> Entry | None:
    """Return the last entry of a non-conforming key, deletions included, by its literal subject; None for none."""
    if is_plain(check_literal(key)):
        return await bucket.last_entry(key, leader=leader)
    found = None
    binding = await bucket.readable()
    async with aclosing(listing.entry_batches(binding, [key], deleted=True, literal=True)) as batches:
        async for batch in batches:
            found = batch[-1]
    return found


async def _at_once(bucket: Bucket, filters: Sequence[str], least: int) -> AsyncGenerator[list[Entry], None]:
    """Yield the answers of the nearest replica, consistent at one revision, which is at least `least`.

    Raises _Behind, TooManySubjects, NotUnderstood, NoResponders; MomentLost after some of them.
    """
    binding = bucket.binding
    request = DirectRequest(last_of=tuple(binding.subject(text) for text in filters))
    async with aclosing(multi_get.pages(binding.api, binding.stream, request)) as pages:
        async for page in pages:
            if (page.up_to_sequence or 0) < max(bucket.own.highest, least):
                raise _Behind
            entries = (from_message(bucket.name, len(binding.prefix), message) for message in page.messages)
            if living := [entry for entry in entries if entry.operation is Operation.PUT]:
                yield living


async def _matching_list(bucket: Bucket, filters: Sequence[str], *, leader: bool) -> AsyncGenerator[list[Entry], None]:
    """Yield the same by a consumer; with `leader`, from the stream that takes the writes up to its last message."""
    binding = await bucket.readable()
    if leader:
        binding = bucket.source_as_own(binding)
    async with aclosing(listing.entry_batches(binding, filters)) as batches:
        async for batch in batches:
            yield batch
