"""Consistent reads at a ref: staged changes over the committed state, checked for concurrent commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import takewhile
from typing import NamedTuple, TypeVar

from kvctl.kv.names import check_filter, matches
from kvctl.versions import refs
from kvctl.versions.access import RepositoryAccess
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.model import (
    Commit,
    StagedChange,
    VersionedEntry,
    apart_id,
    check_versioned_key,
    decode_staged,
    inline_value,
)
from kvctl.versions.refs import Ref
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree.chunks import Pair
from kvctl.versions.tree.objects import Objects

T = TypeVar("T")

ENTRIES_PER_BATCH = 1000
"""Number of entries yielded together."""
BYTES_PER_BATCH = 8 << 20
VALUES_IN_FLIGHT = 16
"""Maximum number of large values read together: each may be as large as a message."""


class EntrySelection:
    """Selection of the entries to read; without `values`, large values are left out."""

    def __init__(self, filters: tuple[str, ...] = (), start: str = "", *, values: bool = True) -> None:
        heads = [_head(one) for one in filters]
        self.filters = filters
        self.values = values
        self.first = max(start, min(heads, default="")).encode()
        """Lowest key selected."""
        self.last = max(f"{head}\x7f" for head in heads).encode() if heads else None
        """Highest key selected."""

    def takes(self, key: bytes) -> bool:
        """Return whether a key is selected."""
        return key >= self.first and (not self.filters or matches(key.decode(), self.filters))


class RefState(NamedTuple):
    """State of a ref at one time: a commit, its tree, and the changes staged on top of it."""

    commit: str
    root: bytes
    staged: Mapping[bytes, StagedChange]


async def get(repo: RepositoryAccess, ref: str, *keys: str) -> list[VersionedEntry | None]:
    """Return the entries of keys at a ref, None for absent ones.

    Raises RefNotFound, UsageError, ConflictError after too many retries.
    """
    wanted = [check_versioned_key(key).encode() for key in keys]
    at = await refs.resolve(repo.store, ref)
    record = at.record
    if record is None:
        return _entries(keys, await repo.objects.values_at(await refs.root(repo.store, at), wanted), {})
    for _ in range(branch_state.MAX_ATTEMPTS):
        found = await epochs.changes_of(repo.store, record, wanted)
        changes = {key: StagedChange(decode_staged(one.value), one.revision) for key, one in reversed(found) if one}
        committed, same = await asyncio.gather(
            repo.objects.values_at(bytes.fromhex(record.branch.root), [key for key in wanted if key not in changes]),
            branch_state.is_unchanged(repo.store, record),
            return_exceptions=True,
        )
        if isinstance(same, BaseException):
            raise same
        if same and isinstance(committed, BaseException):
            raise committed
        if same and not isinstance(committed, BaseException):
            return _entries(keys, committed, changes)
        record = await refs.branch(repo.store, record.name)
    raise branch_state.busy(record.name)


async def entry_batches(
    repo: RepositoryAccess, ref: str, *filters: str, start: str = "", values: bool = True
) -> AsyncGenerator[list[VersionedEntry], None]:
    """Yield the entries at a ref, all or those that filters select, sorted by the bytes of their keys, in batches.

    They are consistent, and start at the key `start` if given. Without `values` large ones are left out: `value` is
    empty then. Memory grows with the staged changes, not with the committed ones. Raises RefNotFound, UsageError.
    """
    for one in filters:
        check_filter(one)
    at = await state(repo.store, await refs.resolve(repo.store, ref))
    async with aclosing(batches(repo.objects, at, EntrySelection(filters, start, values=values))) as some:
        async for batch in some:
            yield batch


async def entries(repo: RepositoryAccess, ref: str, *filters: str) -> list[VersionedEntry]:
    """Return all of them as one list. Raises as `entry_batches`."""
    return [entry async for batch in entry_batches(repo, ref, *filters) for entry in batch]


async def show(repo: RepositoryAccess, ref: str) -> Commit:
    """Return the commit of a ref; for a branch its last. Raises RefNotFound, UsageError."""
    return await refs.commit(repo.store, (await refs.resolve(repo.store, ref)).commit)


async def state(store: Store, ref: Ref) -> RefState:
    """Return the current state of a ref. Raises as `get`."""
    if ref.branch is not None:
        return await staged(store, ref.branch)
    return RefState(ref.commit, await refs.root(store, ref), {})


async def batches(
    objects: Objects, state: RefState, selection: EntrySelection
) -> AsyncGenerator[list[VersionedEntry], None]:
    """Yield the selected entries, sorted by the bytes of their keys. Raises MissingObject."""
    changes = state.staged
    left = sorted((key for key in changes if selection.takes(key)), reverse=True)
    found: list[VersionedEntry] = []
    async with aclosing(objects.leaves(state.root, selection.first)) as leaves:
        async for leaf in leaves:
            for part in in_parts(leaf.pairs, lambda pair: inline_value(pair[1]) is None):
                pairs = [(key, stored) for key, stored in part if selection.takes(key)]
                found += await _merged(objects, pairs, left, changes, part[-1][0], selection)
                if len(found) >= ENTRIES_PER_BATCH or sum(len(one.value) for one in found) >= BYTES_PER_BATCH:
                    yield found
                    found = []
            if selection.last is not None and leaf.keys and leaf.keys[-1] > selection.last:
                break
    found += await _merged(objects, [], left, changes, None, selection)
    if found:
        yield found


async def staged(store: Store, branch: str, take: Callable[[bytes], bytes | None] = decode_staged) -> RefState:
    """Return the state of a branch, each staged change as `take` returns it.

    Raises BranchNotFound, ConflictError after too many retries.
    """
    for _ in range(branch_state.MAX_ATTEMPTS):
        record = await refs.branch(store, branch)
        changes = await epochs.listed(store, record.branch.epochs[::-1], take)
        if await branch_state.is_unchanged(store, record):
            return RefState(record.branch.commit, bytes.fromhex(record.branch.root), changes)
    raise branch_state.busy(branch)


def in_parts(items: Iterable[T], large: Callable[[T], int]) -> Iterator[list[T]]:
    """Split items into parts whose values may be read together; `large` returns the number of large ones of an item."""
    part: list[T] = []
    values = 0
    for item in items:
        part.append(item)
        values += large(item)
        if values >= VALUES_IN_FLIGHT or len(part) >= ENTRIES_PER_BATCH:
            yield part
            part, values = [], 0
    if part:
        yield part


async def _merged(
    objects: Objects,
    pairs: Sequence[Pair],
    waiting: list[bytes],
    changes: Mapping[bytes, StagedChange],
    end: bytes | None,
    selection: EntrySelection,
) -> list[VersionedEntry]:
    """Merge committed pairs with the staged keys up to the end, if any, which are removed from those left."""
    own: list[bytes] = []
    while waiting and (end is None or waiting[-1] <= end):
        own.append(waiting.pop())
    left = [pair for pair in pairs if pair[0] not in changes]
    stored = [value for _, value in left]
    values = await objects.values(stored) if selection.values else [inline_value(value) for value in stored]
    entries = list(_as_entries(left, values))
    if not own:
        return entries
    entries += (entry for key in own if (entry := _staged_entry(key.decode(), changes[key])) is not None)
    return sorted(entries, key=lambda entry: entry.key.encode())


def _staged_entry(key: str, change: StagedChange) -> VersionedEntry | None:
    return None if change.value is None else VersionedEntry(key, change.value, change.revision)


def _as_entries(pairs: Sequence[Pair], values: Sequence[bytes | None]) -> Iterator[VersionedEntry]:
    for (key, stored), value in zip(pairs, values, strict=True):
        if value is None:
            yield VersionedEntry(key.decode(), b"", apart=apart_id(stored).hex())
        else:
            yield VersionedEntry(key.decode(), value)


def _entries(
    keys: Sequence[str], committed: Mapping[bytes, bytes], changes: Mapping[bytes, StagedChange]
) -> list[VersionedEntry | None]:
    result: list[VersionedEntry | None] = []
    for key, name in zip(keys, map(str.encode, keys), strict=True):
        if name in changes:
            result.append(_staged_entry(key, changes[name]))
        else:
            result.append(VersionedEntry(key, committed[name]) if name in committed else None)
    return result


def _head(pattern: str) -> str:
    """Return the common prefix of all keys that a filter selects."""
    return ".".join(takewhile(lambda token: token not in ("*", ">"), pattern.split(".")))
