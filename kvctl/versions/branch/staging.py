"""Staged changes of a branch: written into its epoch, which a commit seals, so that no later write enters it."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvctl.errors import ConflictError
from kvctl.versions.model import Staging, decode_staged, record_key
from kvctl.versions.refs import BranchNotFound
from kvctl.versions.store.protocol import (
    ABSENT,
    Condition,
    EntryNotFound,
    Found,
    Predicate,
    PredicateFailed,
    Store,
)

STAGING = b"staging"
"""The partition that says which epochs a branch has."""
TRIES = 50


@dataclass(frozen=True, slots=True)
class Held:
    """A staging record as it was read."""

    staging: Staging
    predicate: Predicate


def new_epoch() -> str:
    """A name that no epoch ever had."""
    return secrets.token_hex(8)


def partition_of(epoch: str) -> bytes:
    """Where the changes of an epoch are."""
    return b"epoch/" + epoch.encode()


async def read(store: Store, branch: str) -> Held:
    """The staging record of a branch. Raises BranchNotFound."""
    try:
        found = await store.get(STAGING, record_key(branch))
    except EntryNotFound:
        raise BranchNotFound(branch) from None
    return Held(Staging.decode(found.value), found.predicate)


async def listed(
    store: Store, epochs: Sequence[str], take: Callable[[bytes], bytes | None] = decode_staged
) -> dict[bytes, bytes | None]:
    """The changes of some epochs, oldest first: the newest of each key, as `take` makes it of the record."""
    found: dict[bytes, bytes | None] = {}
    for epoch in epochs:
        async with store.scan(partition_of(epoch)) as entries:
            async for entry in entries:
                found[entry.key] = take(entry.value)
    return found


async def seal(store: Store, branch: str) -> Held:
    """Close the epoch that writes go to, and open another. Raises BranchNotFound, ConflictError when it is spent."""
    for _ in range(TRIES):
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
    """That nobody stages the key meanwhile."""
    return Condition(partition_of(epoch), key, ABSENT if found is None else found.predicate)


async def pause() -> None:
    """Before the next try, for a while that differs between those that try."""
    await asyncio.sleep(random.uniform(0, 0.01))


def busy(branch: str) -> ConflictError:
    """The error when all tries are spent."""
    return ConflictError(f"Branch `{branch}` is changed too often by others", hint="Try again")
