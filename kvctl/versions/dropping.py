"""Epochs that no branch knows any more: noted in the very write that lets go of them, and cleared afterwards.

What an interruption leaves is on the list, and a collection of garbage clears it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvctl.errors import KvctlError
from kvctl.versions.staging import partition_of
from kvctl.versions.store import Change, Store

DROPPED = b"dropped"
"""The partition that lists them."""


def noted(epochs: Iterable[str]) -> list[Change]:
    """What to write together with the record that knows them no longer."""
    return [Change(DROPPED, epoch.encode(), b"") for epoch in epochs]


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
