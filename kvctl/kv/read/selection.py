"""Read keys selected by filters or literal names, by one request to the nearest replica where possible."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from kvctl.errors import ConnectionLost, NoResponders, PermissionDenied
from kvctl.jetstream import multi_get
from kvctl.jetstream.direct_get import CannotAnswerMany, DirectRequest
from kvctl.kv.entry import Entry, Operation, from_message
from kvctl.kv.handle import ATTEMPTS
from kvctl.kv.names import check_filter, check_literal, is_plain
from kvctl.kv.read import listing

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket


class _Behind(Exception):
    """The replica that answered may lag behind this session's writes."""


async def matching_batches(
    bucket: Bucket, filters: Sequence[str], *, leader: bool
) -> AsyncGenerator[list[Entry], None]:
    """Yield entries of live matching keys, no key twice, in the server's order.

    Up to 1,024 keys come from the nearest replica, consistent at one revision. A consumer reads more keys, and those of
    servers or buckets that do not answer such requests, and with `leader` everything up to the leader's last message.
    """
    seen: set[str] = set()
    denied: PermissionDenied | None = None
    for text in filters:
        check_filter(text)
    for _ in range(ATTEMPTS):
        if leader or not bucket.binding.direct:
            break
        try:
            async with aclosing(_at_once(bucket, filters)) as pages:
                async for batch in pages:
                    seen.update(entry.key for entry in batch)
                    yield batch
            if seen or not await bucket.moved():
                return
        except _Behind:
            continue
        except PermissionDenied as error:
            denied = error
            break
        except (CannotAnswerMany, NoResponders, ConnectionLost):
            break
    try:
        async with aclosing(_matching_listed(bucket, filters, leader=leader)) as batches:
            async for batch in batches:
                yield [entry for entry in batch if entry.key not in seen]
    except PermissionDenied as error:
        raise denied or error from None


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


async def _at_once(bucket: Bucket, filters: Sequence[str]) -> AsyncGenerator[list[Entry], None]:
    """Yield the answers of the nearest replica, consistent at one revision.

    Raises _Behind, TooManySubjects, NotUnderstood, NoResponders; MomentLost after some of them.
    """
    binding = bucket.binding
    request = DirectRequest(last_of=tuple(binding.subject(text) for text in filters))
    async with aclosing(multi_get.pages(binding.api, binding.stream, request)) as pages:
        async for page in pages:
            if (page.up_to_sequence or 0) < bucket.own.highest:
                raise _Behind
            entries = (from_message(bucket.name, len(binding.prefix), message) for message in page.messages)
            if living := [entry for entry in entries if entry.operation is Operation.PUT]:
                yield living


async def _matching_listed(bucket: Bucket, filters: Sequence[str], *, leader: bool) -> AsyncGenerator[list[Entry], None]:
    """Yield the same by a consumer; with `leader`, from the stream that takes the writes up to its last message."""
    binding = await bucket.readable()
    if leader:
        binding = bucket.source_as_own(binding)
    async with aclosing(listing.entry_batches(binding, filters)) as batches:
        async for batch in batches:
            yield batch
