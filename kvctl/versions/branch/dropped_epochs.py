"""Epochs that no branch knows any more: noted in the very write that lets go of them, and cleared afterwards.

What an interruption leaves is on the list, and a collection of garbage clears it. The list alone decides nothing: a
server that is killed may bring back what was taken off it, and changes that were cleared. So what a branch knows stays
whatever the list says, and what no branch knows is cleared though the list does not have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvctl.errors import KvctlError
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
"""The partition that lists them."""

_EPOCHS = partition_of("")
_TAKEN = b"taken"
"""What is written of one before it is cleared, so that it is not given to a branch any more."""


def noted(epochs: Iterable[str]) -> list[Change]:
    """What to write together with the record that knows them no longer."""
    return [Change(DROPPED, epoch.encode(), b"") for epoch in epochs]


async def reserve(store: Store, epoch: str) -> Condition | None:
    """Put an epoch on the list that is written before a branch knows it; the condition that nobody clears it.

    None when somebody does already.
    """
    await store.set(DROPPED, epoch.encode(), b"")
    try:
        found = await store.get(DROPPED, epoch.encode())
    except EntryNotFound:
        return None
    return None if found.value == _TAKEN else Condition(DROPPED, epoch.encode(), found.predicate)


async def clear_all(store: Store) -> int:
    """Clear all epochs that no branch knows, nor comes to know meanwhile; how many."""
    orphans = await orphaned(store)
    taken = await _take(store)
    known = await _known(store)  # a branch comes to know none that is taken
    gone = [epoch for epoch in dict.fromkeys([*taken, *orphans]) if epoch not in known]
    await clear(store, gone)
    await off_list(store, [epoch for epoch in taken if epoch in known])
    return len(gone)


async def clear(store: Store, epochs: Sequence[str]) -> None:
    """Remove their changes, and them from the list."""
    for epoch in epochs:
        await store.clear(partition_of(epoch))
    await off_list(store, epochs)


async def off_list(store: Store, epochs: Sequence[str]) -> None:
    """Take epochs off the list."""
    for epoch in epochs:
        await store.delete(DROPPED, epoch.encode(), traceless=True)


async def orphaned(store: Store) -> list[str]:
    """Epochs that have changes, and that neither a branch nor the list knows.

    The order of reading matters: what has changes was on the list or known to a branch before it had any.
    """
    epochs = [name.removeprefix(_EPOCHS).decode() for name in await store.partitions() if name.startswith(_EPOCHS)]
    listed_now = {*await listed(store)}
    known = await _known(store)
    left = [epoch for epoch in epochs if epoch not in listed_now and epoch not in known]
    return [epoch for epoch in left if await has_changes(store, epoch)]


async def uncollected(store: Store) -> list[str]:
    """All that a collection would clear."""
    orphans, on_list = await orphaned(store), await listed(store)
    known = await _known(store)
    return sorted({*orphans, *on_list} - known)


async def has_changes(store: Store, epoch: str) -> bool:
    """Whether anything is staged in an epoch."""
    async with store.scan(partition_of(epoch), batch=1, values=False) as entries:
        return await anext(entries, None) is not None


async def _take(store: Store) -> list[str]:
    """Mark all epochs on the list, so that none is given to a branch any more; those that could be marked."""
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
    """All epochs of all branches."""
    async with store.scan(STAGING) as entries:
        return {epoch async for entry in entries for epoch in Staging.decode(entry.value).epochs}


async def clear_later(store: Store, epochs: Sequence[str]) -> None:
    """The same, where what matters is done: a failure leaves them to a collection of garbage."""
    try:
        await clear(store, epochs)
    except KvctlError:
        return


async def listed(store: Store) -> list[str]:
    """All that are on the list."""
    async with store.scan(DROPPED, values=False) as entries:
        return [entry.key.decode() async for entry in entries]
