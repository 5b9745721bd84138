"""Reading what filters or foreign names pick out: in one request to the nearest replica where that is enough."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from kvctl.errors import NoResponders, PermissionDenied
from kvctl.jetstream import direct
from kvctl.kv import listing
from kvctl.kv.entry import Entry, Operation, from_message
from kvctl.kv.names import check_filter, check_literal, is_plain

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket


async def matching_batches(
    bucket: Bucket, filters: Sequence[str], *, leader: bool
) -> AsyncGenerator[list[Entry], None]:
    """The entries of the living keys that match, no key twice, in the server's order.

    Up to 1,024 keys come from the nearest replica, all of one moment; more, and where the server or the bucket do not
    answer such requests or `leader` asks for what is no older than now, come by a consumer.
    """
    seen: set[str] = set()
    denied: PermissionDenied | None = None
    for text in filters:
        check_filter(text)
    if not leader and bucket.binding.direct and not bucket.own.any():
        try:
            async for batch in _at_once(bucket, filters):
                seen.update(entry.key for entry in batch)
                yield batch
            if seen or not await bucket.moved():
                return
        except PermissionDenied as error:
            denied = error
        except (direct.TooManySubjects, direct.NotUnderstood, NoResponders):
            pass
    try:
        async with aclosing(bucket.entry_batches(*filters)) as batches:
            async for batch in batches:
                yield [entry for entry in batch if entry.key not in seen]
    except PermissionDenied as error:
        raise denied or error from None


async def literal_entry(bucket: Bucket, key: str, *, leader: bool = False) -> Entry | None:
    """The last entry of a foreign key, deletions included, taken as its literal subject; None for none."""
    if is_plain(check_literal(key)):
        return await bucket.last_entry(key, leader=leader)
    found = None
    binding = await bucket.readable()
    async with aclosing(listing.entry_batches(binding, [key], deleted=True, literal=True)) as batches:
        async for batch in batches:
            found = batch[-1]
    return found


async def _at_once(bucket: Bucket, filters: Sequence[str]) -> AsyncGenerator[list[Entry], None]:
    """The answers to one request. Raises TooManySubjects where one is not enough, after some of them."""
    binding = bucket.binding
    subjects = [binding.subject(text) for text in filters]
    async with aclosing(direct.last_of_many(binding.api, binding.stream, subjects)) as batches:
        async for messages in batches:
            entries = (from_message(bucket.name, len(binding.prefix), message) for message in messages)
            if living := [entry for entry in entries if entry.operation is Operation.PUT]:
                yield living
