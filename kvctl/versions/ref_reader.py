"""Consistent reads at a ref: staged changes over the committed state, checked for concurrent commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import takewhile

from kvctl.kv.names import matches
from kvctl.versions import refs
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.model import VersionedEntry, apart_id, decode_staged, inline_value
from kvctl.versions.refs import BranchRecord, Ref
from kvctl.versions.store.protocol import Place, Store, StoredValue
from kvctl.versions.tree import tree
from kvctl.versions.tree.chunks import Chunk, Pair
from kvctl.versions.tree.objects import Objects

Changes = dict[bytes, bytes | None]
"""Staged values by key; None deletes."""

ENTRIES_PER_BATCH = 1000
"""Number of entries yielded together."""
BYTES_PER_BATCH = 8 << 20
VALUES_IN_FLIGHT = 16
"""Maximum number of large values read together: each may be as large as a message."""


class Selection:
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


@dataclass(frozen=True, slots=True)
class State:
    """State of a ref at one time: a commit, its tree, and the changes staged on top of it."""

    commit: str
    root: bytes
    staged: Changes


@dataclass(frozen=True, slots=True)
class KeyState:
    """Key at a branch, with value None if absent; valid while the branch's record stays as read."""

    record: BranchRecord
    own: StoredValue | None
    """Its change in the epoch that writes go to."""
    newest: StoredValue | None
    """Its newest change in any epoch."""
    value: bytes | None


async def read_key_state(store: Store, objects: Objects, branch: str, key: str) -> KeyState:
    """Read the state of a key that a conditional write needs. Raises BranchNotFound, Broken."""
    record = await refs.branch(store, branch)
    name = key.encode()
    found = await _staged_of(store, record, [name])
    own, newest = found[0][1], next((one for _, one in found if one is not None), None)
    if newest is not None:
        return KeyState(record, own, newest, decode_staged(newest.value))
    committed = await _committed(objects, bytes.fromhex(record.branch.root), [name])
    return KeyState(record, own, None, committed.get(name))


async def get(store: Store, objects: Objects, ref: Ref, keys: Sequence[str]) -> list[VersionedEntry | None]:
    """Return the entries of keys, None for absent ones. Raises RefNotFound, ConflictError after too many retries."""
    wanted = [key.encode() for key in keys]
    if ref.branch is None:
        return _entries(keys, await _committed(objects, await refs.root(store, ref), wanted), {})
    for _ in range(branch_state.MAX_ATTEMPTS):
        record = await refs.branch(store, ref.branch)
        found = await _staged_of(store, record, wanted)
        changes = {key: decode_staged(one.value) for key, one in reversed(found) if one is not None}
        left = [key for key in wanted if key not in changes]
        committed, same = await asyncio.gather(
            _committed(objects, bytes.fromhex(record.branch.root), left),
            branch_state.is_unchanged(store, record),
            return_exceptions=True,
        )
        if isinstance(same, BaseException):
            raise same
        if same and isinstance(committed, BaseException):
            raise committed
        if same and not isinstance(committed, BaseException):
            return _entries(keys, committed, changes)
    raise branch_state.busy(ref.branch)


async def state(store: Store, ref: Ref) -> State:
    """Return the current state of a ref. Raises as `get`."""
    return State(ref.commit, await refs.root(store, ref), {}) if ref.branch is None else await staged(store, ref.branch)


async def batches(objects: Objects, state: State, selection: Selection) -> AsyncGenerator[list[VersionedEntry], None]:
    """Yield the selected entries, sorted by the bytes of their keys. Raises Broken."""
    changes = state.staged
    left = sorted((key for key in changes if selection.takes(key)), reverse=True)
    found: list[VersionedEntry] = []
    async with aclosing(objects.leaves(state.root, selection.first)) as leaves:
        async for leaf in leaves:
            for part in _parts(leaf):
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


async def staged(store: Store, branch: str, take: Callable[[bytes], bytes | None] = decode_staged) -> State:
    """Return the state of a branch, each staged change as `take` returns it.

    Raises BranchNotFound, ConflictError after too many retries.
    """
    for _ in range(branch_state.MAX_ATTEMPTS):
        record = await refs.branch(store, branch)
        changes = await epochs.listed(store, record.branch.epochs[::-1], take)
        if await branch_state.is_unchanged(store, record):
            return State(record.branch.commit, bytes.fromhex(record.branch.root), changes)
    raise branch_state.busy(branch)


async def _staged_of(
    store: Store, record: BranchRecord, keys: Sequence[bytes]
) -> list[tuple[bytes, StoredValue | None]]:
    """Return each epoch's changes of some keys, newest first."""
    places: list[Place] = [(epochs.partition_of(epoch), key) for epoch in record.branch.epochs for key in keys]
    found = await store.get_many(places)
    return [(key, one) for (_, key), one in zip(places, found, strict=True)]


async def _committed(objects: Objects, root: bytes, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    stored = await objects.run(tree.get(root, keys))
    return dict(zip(stored, await objects.values(list(stored.values())), strict=True))


async def _merged(
    objects: Objects,
    pairs: Sequence[Pair],
    waiting: list[bytes],
    changes: Changes,
    end: bytes | None,
    selection: Selection,
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
    entries += (VersionedEntry(key.decode(), value, True) for key in own if (value := changes[key]) is not None)
    return sorted(entries, key=lambda entry: entry.key.encode())


def _parts(leaf: Chunk) -> Iterator[list[Pair]]:
    """Split the entries of a leaf into parts whose values may be read together."""
    part: list[Pair] = []
    large = 0
    for pair in leaf.pairs:
        part.append(pair)
        large += inline_value(pair[1]) is None
        if large >= VALUES_IN_FLIGHT:
            yield part
            part, large = [], 0
    if part:
        yield part


def _as_entries(pairs: Sequence[Pair], values: Sequence[bytes | None]) -> Iterator[VersionedEntry]:
    for (key, stored), value in zip(pairs, values, strict=True):
        if value is None:
            yield VersionedEntry(key.decode(), b"", apart=apart_id(stored).hex())
        else:
            yield VersionedEntry(key.decode(), value)


def _entries(keys: Sequence[str], found: dict[bytes, bytes], changes: Changes) -> list[VersionedEntry | None]:
    result: list[VersionedEntry | None] = []
    for key in keys:
        value = changes.get(key.encode(), found.get(key.encode()))
        result.append(None if value is None else VersionedEntry(key, value, key.encode() in changes))
    return result


def _head(pattern: str) -> str:
    """Return the common prefix of all keys that a filter selects."""
    return ".".join(takewhile(lambda token: token not in ("*", ">"), pattern.split(".")))
