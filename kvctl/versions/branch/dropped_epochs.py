"""List of epochs that no branch uses any more: added in the very write that drops them, and cleared afterwards.

Garbage collection clears what an interruption leaves on the list. The list alone decides nothing: a server that is
killed may restore entries that were removed from it, and changes that were cleared. So epochs that a branch uses are
kept whatever the list contains, and epochs that no branch uses are cleared even if the list lacks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvctl.versions.branch.staging import STAGING, partition_of
from kvctl.versions.model import Staging
from kvctl.versions.store.protocol import (
    Change,
    Condition,
    EntryNotFound,
    PredicateFailed,
    Store,
)

DROPPED = b"dropped"
"""Partition of the list."""

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
    orphans, on_list = await orphaned(store), await listed(store)
    known = await _known(store)
    return sorted({*orphans, *on_list} - known)


async def has_changes(store: Store, epoch: str) -> bool:
    """Return whether an epoch has staged changes."""
    return not await store.is_empty(partition_of(epoch))


async def _take(store: Store) -> list[str]:
    """Mark all listed epochs as taken, so that no branch gets them any more; return those marked."""
    taken: list[str] = []
    async with store.scan(DROPPED, values=False) as entries:
        found = [(entry.key, entry.predicate) async for entry in entries]
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


async def listed(store: Store) -> list[str]:
    """Return all epochs on the list."""
    async with store.scan(DROPPED, values=False) as entries:
        return [entry.key.decode() async for entry in entries]
