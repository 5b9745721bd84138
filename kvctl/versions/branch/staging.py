"""Staged changes of a branch: written into its epoch, which a commit seals so that no later write enters it."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from operator import itemgetter

from kvctl.errors import ConflictError
from kvctl.versions.model import Staging, decode_staged, record_key
from kvctl.versions.refs import BranchNotFound
from kvctl.versions.store.protocol import ABSENT, Condition, EntryNotFound, Found, Predicate, PredicateFailed, Store

STAGING = b"staging"
"""Partition of the staging records, one per branch."""
MAX_ATTEMPTS = 50

_PRIVATE = "p"
"""First letter of private epochs; those of other epochs are hex digits."""


@dataclass(frozen=True, slots=True)
class StagingRecord:
    """Staging record as it was read."""

    staging: Staging
    predicate: Predicate


def new_epoch() -> str:
    """Return a new unique epoch name."""
    return secrets.token_hex(8)


def new_private_epoch() -> str:
    """Return a new unique name for an epoch that is filled before a branch gets it."""
    return _PRIVATE + new_epoch()[1:]


def is_private(epoch: str) -> bool:
    """Return whether an epoch was filled before a branch got it."""
    return epoch.startswith(_PRIVATE)


def partition_of(epoch: str) -> bytes:
    """Return the partition of an epoch's changes."""
    return b"epoch/" + epoch.encode()


async def read(store: Store, branch: str) -> StagingRecord:
    """Read the staging record of a branch. Raises BranchNotFound."""
    try:
        found = await store.get(STAGING, record_key(branch))
    except EntryNotFound:
        raise BranchNotFound(branch) from None
    return StagingRecord(Staging.decode(found.value), found.predicate)


async def batches(store: Store, epochs: Sequence[str]) -> AsyncGenerator[list[tuple[bytes, bytes]], None]:
    """Yield the newest change of each key in some epochs (oldest first), as stored, sorted by key.

    Holds some changes of each epoch, however large all of them are.
    """
    async with AsyncExitStack() as stack:
        opened = [store.scan(partition_of(epoch), beside=len(epochs) - 1) for epoch in epochs]
        scans = [await stack.enter_async_context(scan) for scan in opened]
        pages = [await scan.page() for scan in scans]
        while ends := [page[-1][0] for page in pages if page]:
            end, found = min(ends), dict[bytes, bytes]()
            for number, page in enumerate(pages):
                if page and page[0][0] <= end:
                    cut = bisect_right(page, end, key=itemgetter(0))
                    found.update(page[:cut])
                    pages[number] = page[cut:] or await scans[number].page()
            yield sorted(found.items())


async def listed(
    store: Store, epochs: Sequence[str], take: Callable[[bytes], bytes | None] = decode_staged
) -> dict[bytes, bytes | None]:
    """Return the newest change of each key in some epochs (oldest first), as `take` returns it."""
    found: dict[bytes, bytes | None] = {}
    async with aclosing(batches(store, epochs)) as changes:
        async for some in changes:
            found.update((key, take(value)) for key, value in some)
    return found


async def seal(store: Store, branch: str) -> StagingRecord:
    """Close the current epoch, and open another. Raises BranchNotFound, ConflictError after too many retries."""
    for _ in range(MAX_ATTEMPTS):
        held = await read(store, branch)
        after = held.staging.sealing(new_epoch(), time.time())
        try:
            await store.set_if(STAGING, branch.encode(), after.encode(), held.predicate)
        except PredicateFailed:
            await pause()
        else:
            return await read(store, branch)
    raise busy(branch)


def own_condition(epoch: str, key: bytes, found: Found | None) -> Condition:
    """Return the condition that the key is not staged in between."""
    return Condition(partition_of(epoch), key, ABSENT if found is None else found.predicate)


async def pause() -> None:
    """Wait a random time before the next try."""
    await asyncio.sleep(random.uniform(0, 0.01))


def busy(branch: str) -> ConflictError:
    """Return the error for too many retries."""
    return ConflictError(f"Branch `{branch}` has too many concurrent changes", hint="Try again")
