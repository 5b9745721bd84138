"""Revisions of staged entries: their sequences in the repository's stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvctl.versions import refs
from kvctl.versions.branch import epochs
from kvctl.versions.model import VersionedEntry, decode_staged
from kvctl.versions.repository import Repository

KEYS_PER_REQUEST = 1000
"""Number of keys looked up in one request."""


async def of_entries(repository: Repository, ref: str, entries: Iterable[VersionedEntry | None]) -> dict[str, int]:
    """Return the revisions of entries that were staged when read, and still are with the same value."""
    return await at_ref(repository, ref, {one.key: one.value for one in entries if one is not None and one.staged})


async def at_ref(repository: Repository, ref: str, values: Mapping[str, bytes | None]) -> dict[str, int]:
    """Return as `of_values`, at any ref: unless it is a branch, nothing is staged. Raises RefNotFound."""
    branch = (await refs.resolve(repository.store, ref)).branch if values else None
    return {} if branch is None else await of_values(repository, branch, values)


async def of_values(repository: Repository, branch: str, values: Mapping[str, bytes | None]) -> dict[str, int]:
    """Return the revisions of keys that are staged with these values, None for a deletion.

    Leaves out keys that are not staged with that value. Raises BranchNotFound.
    """
    found: dict[str, int] = {}
    left = list(values)
    for epoch in (await refs.branch(repository.store, branch)).branch.epochs:
        below: list[str] = []
        for start in range(0, len(left), KEYS_PER_REQUEST):
            some = left[start : start + KEYS_PER_REQUEST]
            places = [(epochs.partition_of(epoch), key.encode()) for key in some]
            for key, item in zip(some, await repository.store.get_many(places), strict=True):
                if item is None:
                    below.append(key)
                elif decode_staged(item.value) == values[key]:
                    found[key] = item.revision
        left = below
    return found
