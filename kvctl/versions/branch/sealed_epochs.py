"""Fold sealed epochs into one: reads then look into few, however many commits failed; also drops changes on reset.

A commit in progress starts over when the epochs it takes are folded. So they get some time first, and twice that after
each fold that no commit followed: however long a commit takes, it finishes before one of them. But if CROWD of them
have piled up, left by as many failed commits, they are folded without waiting: a write has room for a thousand
messages, and drops each epoch by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kvctl.versions.branch import branch_state, dropped_epochs, staging
from kvctl.versions.branch.branch_state import BranchState
from kvctl.versions.branch.dropped_epochs import DROPPED
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.model import DROPPED as NOWHERE
from kvctl.versions.model import Staging, encode_staged
from kvctl.versions.store.protocol import Change, PredicateFailed, Store

MAX_SEALED_EPOCHS = 4
"""Maximum number of sealed epochs that a commit leaves beside the one it seals."""
GRACE = 1.0
"""Seconds that sealed epochs have before the first fold."""
DOUBLINGS = 10
"""Maximum number of doublings of that time, to a quarter of an hour."""
CROWD = 200
"""Number of sealed epochs that are folded without waiting."""
EPOCHS_PER_WRITE = 400
"""Number of epochs that one write drops."""


def _all(_: bytes) -> bool:
    return True


def due(held: Staging) -> bool:
    """Return whether sealed epochs are too many, and most likely left by failed commits.

    Those of large loads are not counted until there are CROWD: copying them costs more than reading them one by one.
    """
    if len(held.sealed) >= CROWD:
        return True
    left = sum(not staging.is_private(epoch) for epoch in held.sealed)
    return left >= MAX_SEALED_EPOCHS and time.time() - held.since >= GRACE * 2 ** min(held.folds, DOUBLINGS)


def too_many(state: BranchState) -> bool:
    """Return whether a branch has too many sealed epochs for one write."""
    return len(state.held.staging.sealed) >= EPOCHS_PER_WRITE


async def foldable_state(store: Store, branch: str) -> BranchState:
    """Return the state of a branch with few enough epochs for one write: if there are more, the oldest are folded.

    Raises BranchNotFound, ConflictError after too many retries.
    """
    for _ in range(staging.MAX_ATTEMPTS):
        state = await branch_state.read(store, branch)
        if not too_many(state):
            return state
        await fold(store, state)
    raise staging.busy(branch)


async def fold(store: Store, state: BranchState, keep: Callable[[bytes], bool] = _all) -> bool:
    """Replace the oldest EPOCHS_PER_WRITE sealed epochs by one with the keys to keep; return False if the branch moved.

    The new one is on the list of dropped epochs until the branch uses it: an interruption leaves it there.
    """
    held = state.held.staging
    old = held.sealed[:EPOCHS_PER_WRITE]
    kept = {key: value for key, value in (await staging.listed(store, old)).items() if keep(key)}
    epoch = staging.new_epoch()
    own = await dropped_epochs.reserve(store, epoch)
    if own is None:
        return False
    await store.set_many(staging.partition_of(epoch), {key: encode_staged(value) for key, value in kept.items()})
    now = time.time()
    after = held.folded(old, epoch, now) if kept else held.without(old, NOWHERE, now)
    changes = [Change(STAGING, state.branch.encode(), after.encode()), *dropped_epochs.noted(old)]
    if kept:
        changes.append(Change(DROPPED, epoch.encode(), None, traceless=True))
    try:
        await store.write([state.staging_unchanged, own], changes)
    except PredicateFailed:
        await dropped_epochs.clear_soon(store, [epoch])
        return False
    await dropped_epochs.clear_soon(store, old if kept else (*old, epoch))
    return True
