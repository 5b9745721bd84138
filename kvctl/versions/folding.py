"""Sealed epochs made one: reads look into few, however many commits failed; and what a reset drops is left out.

A commit that is being made starts anew when the epochs it takes are made one. So they have some time first, and twice
that after each fold that no commit came after: however long a commit takes, it is done before one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kvctl.versions import dropping, staging
from kvctl.versions.dropping import DROPPED
from kvctl.versions.fences import Stand
from kvctl.versions.model import DROPPED as NOWHERE
from kvctl.versions.model import Staging, encode_staged
from kvctl.versions.staging import STAGING
from kvctl.versions.store import Change, PredicateFailed, Store

MOST = 4
"""Sealed epochs that a commit lets stand beside the one it seals."""
GRACE = 1.0
"""Seconds that sealed epochs have before they are made one for the first time."""


def _all(_: bytes) -> bool:
    return True


def due(held: Staging) -> bool:
    """Whether sealed epochs are too many, and most likely left by commits that failed."""
    return len(held.sealed) >= MOST and time.time() - held.since >= GRACE * 2**held.folds


async def fold(store: Store, stand: Stand, keep: Callable[[bytes], bool] = _all) -> bool:
    """Replace the sealed epochs by one with the keys to keep; False when the branch moved meanwhile.

    The new one is on the list of those dropped until the branch knows it: an interruption leaves it there.
    """
    held = stand.held.staging
    kept = {key: value for key, value in (await staging.listed(store, held.sealed)).items() if keep(key)}
    epoch = staging.new_epoch()
    own = await dropping.reserve(store, epoch)
    if own is None:
        return False
    await store.set_many(staging.partition_of(epoch), {key: encode_staged(value) for key, value in kept.items()})
    now = time.time()
    after = held.folded(epoch, now) if kept else held.without(held.sealed, NOWHERE, now)
    changes = [Change(STAGING, stand.branch.encode(), after.encode()), *dropping.noted(held.sealed)]
    if kept:
        changes.append(Change(DROPPED, epoch.encode(), None))
    try:
        await store.write([stand.as_staged, own], changes)
    except PredicateFailed:
        await dropping.clear_later(store, [epoch])
        return False
    await dropping.clear_later(store, held.sealed if kept else (*held.sealed, epoch))
    return True
