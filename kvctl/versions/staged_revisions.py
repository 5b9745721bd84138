"""Revisions of staged entries: the sequences under which the repository's stream holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvctl.versions import refs, staging
from kvctl.versions.bucket_places import revision_of
from kvctl.versions.model import VersionedEntry, decode_staged
from kvctl.versions.repository import Repository

AT_ONCE = 1000
"""Keys that are looked up in one request."""


async def of_entries(repository: Repository, ref: str, entries: Iterable[VersionedEntry | None]) -> dict[str, int]:
    """The revisions of those that were staged when they were read, and that still are with the same value."""
    staged = {entry.key: entry.value for entry in entries if entry is not None and entry.staged}
    branch = (await refs.resolve(repository.store, ref)).branch if staged else None
    return {} if branch is None else await of_values(repository, branch, staged)


async def of_values(repository: Repository, branch: str, values: Mapping[str, bytes | None]) -> dict[str, int]:
    """The revisions of keys that are staged with these values, None for a deletion.

    Without those that are not staged so, or not any more. Raises BranchNotFound.
    """
    found: dict[str, int] = {}
    left = list(values)
    for epoch in (await staging.read(repository.store, branch)).staging.epochs:
        below: list[str] = []
        for start in range(0, len(left), AT_ONCE):
            some = left[start : start + AT_ONCE]
            places = [(staging.partition_of(epoch), key.encode()) for key in some]
            for key, item in zip(some, await repository.store.get_many(places), strict=True):
                if item is None:
                    below.append(key)
                elif decode_staged(item.value) == values[key] and (revision := revision_of(item.predicate)):
                    found[key] = revision
        left = below
    return found
