"""Sealed epochs made one: reads look into few, however many commits failed; and what a reset drops is left out.

A commit that is being made starts anew when the epochs it takes are made one. So they have some time first, and twice
that after each fold that no commit came after: however long a commit takes, it is done before one of them. But where
CROWD of them stand, left by as many commits that failed, they are made one without waiting: a write has room for a
thousand messages, and lets go of each epoch by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kvctl.versions.branch import branch_state, dropped_epochs, staging
from kvctl.versions.branch.branch_state import Stand
from kvctl.versions.branch.dropped_epochs import DROPPED
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.model import DROPPED as NOWHERE
from kvctl.versions.model import Staging, encode_staged
from kvctl.versions.store.protocol import Change, PredicateFailed, Store

MOST = 4
"""Sealed epochs that a commit lets stand beside the one it seals."""
GRACE = 1.0
"""Seconds that sealed epochs have before they are made one for the first time."""
DOUBLINGS = 10
"""How often that time doubles at the most, to a quarter of an hour."""
CROWD = 200
"""Sealed epochs that are too many to wait."""
TOGETHER = 400
"""Epochs that one write lets go of."""


def _all(_: bytes) -> bool:
    return True


def due(held: Staging) -> bool:
    """Whether sealed epochs are too many, and most likely left by commits that failed."""
    if len(held.sealed) >= CROWD:
        return True
    return len(held.sealed) >= MOST and time.time() - held.since >= GRACE * 2 ** min(held.folds, DOUBLINGS)


async def few(store: Store, branch: str) -> Stand:
    """The stand of a branch whose epochs one write can let go of: where they are more, the oldest are made one.

    Raises BranchNotFound, ConflictError when it is spent.
    """
    for _ in range(staging.TRIES):
        stand = await branch_state.stand(store, branch)
        if len(stand.held.staging.sealed) < TOGETHER:
            return stand
        await fold(store, stand)
    raise staging.busy(branch)


async def fold(store: Store, stand: Stand, keep: Callable[[bytes], bool] = _all) -> bool:
    """Replace the sealed epochs, the oldest TOGETHER, by one with the keys to keep; False when the branch moved.

    The new one is on the list of those dropped until the branch knows it: an interruption leaves it there.
    """
    held = stand.held.staging
    old = held.sealed[:TOGETHER]
    kept = {key: value for key, value in (await staging.listed(store, old)).items() if keep(key)}
    epoch = staging.new_epoch()
    own = await dropped_epochs.reserve(store, epoch)
    if own is None:
        return False
    await store.set_many(staging.partition_of(epoch), {key: encode_staged(value) for key, value in kept.items()})
    now = time.time()
    after = held.folded(old, epoch, now) if kept else held.without(old, NOWHERE, now)
    changes = [Change(STAGING, stand.branch.encode(), after.encode()), *dropped_epochs.noted(old)]
    if kept:
        changes.append(Change(DROPPED, epoch.encode(), None, traceless=True))
    try:
        await store.write([stand.as_staged, own], changes)
    except PredicateFailed:
        await dropped_epochs.clear_later(store, [epoch])
        return False
    await dropped_epochs.clear_later(store, old if kept else (*old, epoch))
    return True
