"""Epochs that no branch knows any more: noted in the very write that lets go of them, and cleared afterwards.

What an interruption leaves is on the list, and a collection of garbage clears it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvctl.errors import KvctlError
from kvctl.versions.staging import partition_of
from kvctl.versions.store import Change, Condition, EntryNotFound, PredicateFailed, Store

DROPPED = b"dropped"
"""The partition that lists them."""

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
    """Clear all epochs on the list but those that a branch comes to know meanwhile; how many."""
    cleared = 0
    async with store.scan(DROPPED, values=False) as entries:
        found = [(entry.key, entry.predicate) async for entry in entries]
    for key, predicate in found:
        try:
            await store.set_if(DROPPED, key, _TAKEN, predicate)
        except PredicateFailed:
            continue
        await clear(store, [key.decode()])
        cleared += 1
    return cleared


async def clear(store: Store, epochs: Sequence[str]) -> None:
    """Remove their changes, and them from the list."""
    for epoch in epochs:
        await store.clear(partition_of(epoch))
        await store.delete(DROPPED, epoch.encode())


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
