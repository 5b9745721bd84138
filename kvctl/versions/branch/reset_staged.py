"""Drop staged changes: all of a branch, or those of some keys."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvctl.versions.branch import dropped_epochs, staging
from kvctl.versions.branch.branch_state import BranchState
from kvctl.versions.branch.sealed_epochs import fold, foldable_state
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.model import DROPPED
from kvctl.versions.store.protocol import Change, PredicateFailed, Store

MAX_UNSEALED_CHANGES = 500
"""Maximum number of changes dropped in one write, without sealing them first."""


async def reset(store: Store, branch: str) -> None:
    """Drop all staged changes. Raises BranchNotFound, ConflictError after too many retries."""
    for _ in range(staging.MAX_ATTEMPTS):
        state = await foldable_state(store, branch)
        sealed = state.held.staging.sealing(staging.new_epoch(), time.time())
        epochs = sealed.sealed
        change = Change(STAGING, branch.encode(), sealed.without(epochs, DROPPED, time.time()).encode())
        try:
            await store.write([state.staging_unchanged], [change, *dropped_epochs.noted(epochs)])
        except PredicateFailed:
            await staging.pause()
        else:
            return await dropped_epochs.clear_soon(store, epochs)
    raise staging.busy(branch)


async def reset_keys(store: Store, branch: str, start: bytes, selected: Callable[[bytes], bool]) -> int:
    """Drop the staged changes of keys, from `start` to the first key that is not selected.

    Returns the number of keys. All are dropped atomically. Raises as `reset`.
    """
    for _ in range(staging.MAX_ATTEMPTS):
        state = await foldable_state(store, branch)
        held = state.held.staging
        found = {epoch: await _selected(store, epoch, start, selected) for epoch in held.epochs}
        if not (keys := set().union(*found.values())):
            return 0
        if len(found[held.epoch]) == len(keys) <= MAX_UNSEALED_CHANGES and not any(
            found[epoch] for epoch in held.sealed
        ):
            done = await _delete(store, state, keys)
        elif found[held.epoch]:
            await staging.seal(store, branch)
            continue
        else:
            done = await fold(store, state, lambda key: not selected(key))
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


async def _delete(store: Store, state: BranchState, keys: set[bytes]) -> bool:
    """Delete keys of the current epoch; the staging record is rewritten, as the branch's content changes."""
    held = state.held.staging
    changes = [Change(staging.partition_of(held.epoch), key, None) for key in sorted(keys)]
    try:
        await store.write([state.staging_unchanged], [*changes, Change(STAGING, state.branch.encode(), held.encode())])
    except PredicateFailed:
        return False
    return True
