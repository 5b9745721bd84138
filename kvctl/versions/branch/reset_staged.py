"""Staged changes dropped: all of a branch, or those of some keys."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvctl.versions.branch import dropped_epochs, staging
from kvctl.versions.branch.branch_state import Stand
from kvctl.versions.branch.sealed_epochs import few, fold
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.model import DROPPED
from kvctl.versions.store.protocol import Change, PredicateFailed, Store

TOGETHER = 500
"""Changes that are dropped in one write, where they need not be sealed first."""


async def reset(store: Store, branch: str) -> None:
    """Drop all that is staged. Raises BranchNotFound, ConflictError when it is spent."""
    for _ in range(staging.TRIES):
        stand = await few(store, branch)
        sealed = stand.held.staging.sealing(staging.new_epoch(), time.time())
        epochs = sealed.sealed
        change = Change(STAGING, branch.encode(), sealed.without(epochs, DROPPED, time.time()).encode())
        try:
            await store.write([stand.as_staged], [change, *dropped_epochs.noted(epochs)])
        except PredicateFailed:
            await staging.pause()
        else:
            return await dropped_epochs.clear_later(store, epochs)
    raise staging.busy(branch)


async def reset_keys(store: Store, branch: str, start: bytes, selected: Callable[[bytes], bool]) -> int:
    """Drop the staged changes of keys, which begin at `start` and end with the first that is not selected.

    Returns how many keys. All go at once. Raises as `reset`.
    """
    for _ in range(staging.TRIES):
        stand = await few(store, branch)
        held = stand.held.staging
        found = {epoch: await _selected(store, epoch, start, selected) for epoch in held.epochs}
        if not (keys := set().union(*found.values())):
            return 0
        if len(found[held.epoch]) == len(keys) <= TOGETHER and not any(found[epoch] for epoch in held.sealed):
            done = await _delete(store, stand, keys)
        elif found[held.epoch]:
            await staging.seal(store, branch)
            continue
        else:
            done = await fold(store, stand, lambda key: not selected(key))
        if done:
            return len(keys)
        await staging.pause()
    raise staging.busy(branch)


async def _selected(store: Store, epoch: str, start: bytes, selected: Callable[[bytes], bool]) -> set[bytes]:
    found: set[bytes] = set()
    async with store.scan(staging.partition_of(epoch), start, values=False) as entries:
        async for entry in entries:
            if not selected(entry.key):
                break
            found.add(entry.key)
    return found


async def _delete(store: Store, stand: Stand, keys: set[bytes]) -> bool:
    """Delete keys of the epoch that writes go to; the staging record is rewritten, as what the branch holds changes."""
    held = stand.held.staging
    changes = [Change(staging.partition_of(held.epoch), key, None) for key in sorted(keys)]
    try:
        await store.write(
            [stand.as_staged], [*changes, Change(STAGING, stand.branch.encode(), held.encode())]
        )  # fmt: skip
    except PredicateFailed:
        return False
    return True
