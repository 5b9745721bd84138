"""List of epochs that no branch uses any more, or not yet: added in the very write that drops them, cleared afterwards.

Garbage collection clears what an interruption leaves on the list. The list alone decides nothing: a server that is
killed may restore entries that were removed from it, and changes that were cleared. So epochs that a branch uses are
kept whatever the list contains, and epochs that no branch uses are cleared even if the list lacks them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from kvctl.errors import ConflictError
from kvctl.versions.branch.staging import STAGING, partition_of
from kvctl.versions.model import Staging
from kvctl.versions.store.protocol import Change, Condition, EntryNotFound, PredicateFailed, Store

DROPPED = b"dropped"
"""Partition of the list."""

LEASE_S, RENEWAL_S = 30.0, 5.0
"""Seconds for which a process keeps an epoch that no branch has yet, and after which it renews that.

The clocks of two machines may differ by less. If they differ by more, or the process stands still, garbage collection
may take the epoch, which the process notices before a branch gets it.
"""

_EPOCHS = partition_of("")
_TAKEN = b"taken"
"""Value that marks an epoch before it is cleared, so that no branch gets it any more."""


def noted(epochs: Iterable[str]) -> list[Change]:
    """Return the changes to write together with the record that drops the epochs."""
    return [Change(DROPPED, epoch.encode(), b"") for epoch in epochs]


async def reserve(store: Store, epoch: str) -> Condition | None:
    """Add an epoch to the list before a branch uses it; return the condition that nobody clears it.

    None if it is already being cleared.
    """
    await store.set(DROPPED, epoch.encode(), b"")
    try:
        found = await store.get(DROPPED, epoch.encode())
    except EntryNotFound:
        return None
    return None if found.value == _TAKEN else Condition(DROPPED, epoch.encode(), found.predicate)


async def lease(store: Store, epoch: str) -> None:
    """Add an epoch to the list that garbage collection does not take for LEASE_S."""
    await store.set(DROPPED, epoch.encode(), _now())


async def renew(store: Store, epoch: str) -> None:
    """Renew a lease. Raises ConflictError if garbage collection has taken the epoch."""
    held = await leased(store, epoch)
    with suppress(PredicateFailed):
        await store.set_if(DROPPED, epoch.encode(), _now(), held.predicate)


async def leased(store: Store, epoch: str) -> Condition:
    """Return the condition that garbage collection does not take an epoch. Raises ConflictError if it has taken it."""
    (found,) = await store.get_many([(DROPPED, epoch.encode())])
    if found is None or found.value == _TAKEN:
        raise ConflictError("A garbage collection removed the changes before they were complete", hint="Try again")
    return Condition(DROPPED, epoch.encode(), found.predicate)


def _now() -> bytes:
    return b"%d" % time.time()


def _is_leased(value: bytes) -> bool:
    return value.isdigit() and abs(time.time() - int(value)) < LEASE_S


async def clear_all(store: Store) -> int:
    """Clear all epochs that no branch uses or comes to use concurrently; return their number."""
    orphans = await orphaned(store)
    taken = await _take(store)
    known = await _known(store)  # no branch gets an epoch marked as taken
    gone = [epoch for epoch in dict.fromkeys([*taken, *orphans]) if epoch not in known]
    await clear(store, gone)
    await off_list(store, [epoch for epoch in taken if epoch in known])
    return len(gone)


async def clear(store: Store, epochs: Sequence[str]) -> None:
    """Remove the changes of epochs, and the epochs from the list."""
    for epoch in epochs:
        await store.clear(partition_of(epoch))
    await off_list(store, epochs)


async def off_list(store: Store, epochs: Sequence[str]) -> None:
    """Remove epochs from the list."""
    for epoch in epochs:
        await store.delete(DROPPED, epoch.encode(), traceless=True)


async def orphaned(store: Store) -> list[str]:
    """Return the epochs that have changes, but are neither used by a branch nor listed.

    The order of reading matters: an epoch is listed or used by a branch before it has changes.
    """
    epochs = [name.removeprefix(_EPOCHS).decode() for name in await store.partitions() if name.startswith(_EPOCHS)]
    listed_now = {*await listed(store)}
    known = await _known(store)
    left = [epoch for epoch in epochs if epoch not in listed_now and epoch not in known]
    return [epoch for epoch in left if await has_changes(store, epoch)]


async def uncollected(store: Store) -> list[str]:
    """Return all epochs that garbage collection would clear."""
    orphans, on_list = await orphaned(store), await listed(store, leased=False)
    known = await _known(store)
    return sorted({*orphans, *on_list} - known)


async def has_changes(store: Store, epoch: str) -> bool:
    """Return whether an epoch has staged changes."""
    return not await store.is_empty(partition_of(epoch))


async def _take(store: Store) -> list[str]:
    """Mark the listed epochs without a lease as taken, so that no branch gets them any more; return those marked."""
    taken: list[str] = []
    async with store.scan(DROPPED) as entries:
        found = [(entry.key, entry.predicate) async for entry in entries if not _is_leased(entry.value)]
    for key, predicate in found:
        try:
            await store.set_if(DROPPED, key, _TAKEN, predicate)
        except PredicateFailed:
            continue
        taken.append(key.decode())
    return taken


async def _known(store: Store) -> set[str]:
    """Return all epochs of all branches."""
    async with store.scan(STAGING) as entries:
        return {epoch async for entry in entries for epoch in Staging.decode(entry.value).epochs}


async def clear_soon(store: Store, epochs: Sequence[str]) -> None:
    """Begin to clear epochs as `clear`, without waiting; a failure leaves them to garbage collection."""
    for epoch in epochs:
        await store.clear_soon(partition_of(epoch), (DROPPED, epoch.encode()))


async def listed(store: Store, *, leased: bool = True) -> list[str]:
    """Return all epochs on the list, or those without a lease."""
    async with store.scan(DROPPED) as entries:
        return [entry.key.decode() async for entry in entries if leased or not _is_leased(entry.value)]
