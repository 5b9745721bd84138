"""Remove tombstones: delete and purge markers, limit markers, and the history behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from kvctl.errors import KvctlError, PartlyDone, RefusedError
from kvctl.jetstream import streams
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.resolve import Binding
from kvctl.units import duration_ns

PURGES_IN_FLIGHT = 32


class Tombstones(NamedTuple):
    """Keys of a bucket whose last entry is a deletion of the required age."""

    stream: str
    entries: list[Entry]
    kept: list[Entry]
    """Deleted non-conforming keys such as `star.*`: removing one would remove keys it matches as a wildcard."""


async def find(bucket: Bucket, *, older_than: timedelta = timedelta()) -> Tombstones:
    """Find the tombstones of the bucket. Raises BucketNotFound, RefusedError for a mirror."""
    binding = await bucket.locate(fresh=True)
    if binding.origin is not None:
        raise RefusedError(
            f"`{bucket.name}` is a mirror of `{binding.source.bucket}`",
            hint=f"Compact its origin with `kvctl bucket compact {binding.source.bucket}`, then recreate the mirror",
        )
    assert binding.info is not None
    latest = ServerClock.from_info(binding.info).now_ns() - duration_ns(older_than)
    found: list[Entry] = []
    async for batch in bucket.entry_batches(deleted=True, values=False):
        found += [entry for entry in batch if entry.operation is not Operation.PUT and entry.created_ns <= latest]
    entries: list[Entry] = []
    kept: list[Entry] = []
    for entry in found:
        (entries if await _stands_alone(binding, entry.key) else kept).append(entry)
    return Tombstones(binding.stream, entries, kept)


async def remove(bucket: Bucket, tombstones: Tombstones, advance: Callable[[int], None] = lambda _: None) -> int:
    """Remove tombstones up to their marker, so that recreated keys survive; return the number of messages removed.

    Raises PartlyDone when only some were removed: running it again completes it.
    """
    binding = await bucket.locate()
    done = gone = 0

    async def one(entry: Entry) -> int:
        subject = binding.subject(entry.key)
        return await streams.purge(binding.api, binding.stream, filter=subject, seq=entry.revision + 1)

    for start in range(0, len(tombstones.entries), PURGES_IN_FLIGHT):
        batch = tombstones.entries[start : start + PURGES_IN_FLIGHT]
        outcomes = await asyncio.gather(*map(one, batch), return_exceptions=True)
        removed = [outcome for outcome in outcomes if isinstance(outcome, int)]
        done, gone = done + len(removed), gone + sum(removed)
        advance(len(removed))
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise _partly(done, len(tombstones.entries), outcome) from None
    return gone


def _partly(done: int, total: int, error: BaseException) -> BaseException:
    if not done or not isinstance(error, KvctlError):
        return error
    return PartlyDone(
        f"{done} of {total} tombstones were removed, then: {error.message}", hint="Run it again to remove the rest"
    )


async def _stands_alone(binding: Binding, key: str) -> bool:
    """Return True if a purge of the key affects no other: servers take a key `star.*` for a wildcard."""
    if not any(token in ("*", ">") for token in key.split(".")):
        return True
    subject = binding.subject(key)
    # A later one is stored above the marker, out of the purge's reach.
    return set(await streams.subjects(binding.api, binding.stream, subject)) <= {subject}
