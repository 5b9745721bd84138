"""Differences between committed states, staged changes and a branch's head, and since a merge base."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.versions import ref_reader, refs
from kvctl.versions.commits import edits_of
from kvctl.versions.key_change import Apart, KeyChange, Status, Value
from kvctl.versions.model import apart_id, decode_staged, inline_value, staged_leaf_value
from kvctl.versions.ref_reader import VALUES_IN_FLIGHT
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree import tree
from kvctl.versions.tree.objects import Broken, Objects
from kvctl.versions.tree.three_way import merge
from kvctl.versions.tree.tree import Difference

CHANGES_PER_BATCH = 1000
"""Number of changes yielded together."""

Stored = bytes | None
"""Value as stored in a leaf."""


class Unrelated(KvctlError):
    """Two histories without a common commit."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"`{one}` and `{other}` have no common commit")


@dataclass(frozen=True, slots=True)
class _State:
    """Tree and the changes staged on top of it; None deletes."""

    root: bytes
    staged: Mapping[bytes, Stored] = field(default_factory=dict)
    large: Mapping[bytes, bytes] = field(default_factory=dict)
    """Large staged values, which no object holds yet, if values are held."""
    branch: str | None = None
    """Branch with the staged changes."""

    @classmethod
    async def of(cls, store: Store, branch: str, *, values: bool) -> tuple[str, _State]:
        """Read a branch with its staged changes; return its commit, too."""
        state = await ref_reader.staged(store, branch, decode_staged if values else staged_leaf_value)
        changes = state.staged.items()
        edits, large = edits_of(changes) if values else (list(changes), {})
        return state.commit, cls(state.root, dict(edits), large, branch)

    def shown(self, key: bytes, stored: Stored) -> Value:
        """Return a key's value as stored in a leaf; Apart for a large one."""
        value = shown(stored)
        return replace(value, branch=self.branch) if isinstance(value, Apart) and key in self.staged else value


async def status(store: Store, objects: Objects, branch: str, *, values: bool = True) -> Status:
    """Return the staged changes that differ from the head. Raises BranchNotFound, ConflictError after too many retries.

    Without `values` large ones are not held.
    """
    commit, there = await _State.of(store, branch, values=values)
    found = await _differing(objects, _State(there.root), there, values=values)
    return Status(branch, commit, tuple(found))


async def diff(
    store: Store, objects: Objects, before: str, after: str | None, *, three_dot: bool = False, values: bool = True
) -> list[KeyChange]:
    """Return the keys that differ, sorted by their bytes. Raises RefNotFound, UsageError, Unrelated, Broken.

    A branch stands for its committed state, with `$` for its staged changes, too. Without `after`, the changes staged
    on the branch `before`. With `three_dot`, the changes of `after` since the merge base.
    """
    if after is None:
        ref = await refs.resolve(store, before)
        if ref.branch is None or three_dot:
            raise UsageError(
                f"Nothing to compare `{before}` with",
                hint="Give a second ref: only a branch can be compared with its staged changes",
            )
        return list((await status(store, objects, ref.branch, values=values)).changes)
    if three_dot:
        return await _since_base(store, objects, before, after, values=values)
    found = await refs.resolve_all(store, (before, after))
    sides = zip(found, (before, after), strict=True)
    states = await asyncio.gather(*(_state(store, *side, values=values) for side in sides))
    return await _differing(objects, *states, values=values)


async def resolved(
    store: Store, objects: Objects, changes: Iterable[KeyChange]
) -> AsyncGenerator[list[KeyChange], None]:
    """Yield changes with their values, in batches that hold about VALUES_IN_FLIGHT large ones.

    Raises Broken, and ConflictError for a large value that was replaced on its branch in the meantime.
    """
    some: list[KeyChange] = []
    large = 0
    for change in changes:
        some.append(change)
        large += isinstance(change.before, Apart) + isinstance(change.after, Apart)
        if large >= VALUES_IN_FLIGHT or len(some) >= CHANGES_PER_BATCH:
            yield await _filled(store, objects, some)
            some, large = [], 0
    if some:
        yield await _filled(store, objects, some)


async def between(store: Store, objects: Objects, before: str, after: str) -> list[Difference]:
    """Return the keys that differ between two commits, values as stored. Raises RefNotFound, Broken."""
    commits = await asyncio.gather(refs.commit(store, before), refs.commit(store, after))
    return await objects.run(tree.diff(*(bytes.fromhex(one.root) for one in commits)))


async def merge_base(store: Store, one: str, other: str) -> str:
    """Return the newest common ancestor of two refs. Raises Unrelated, RefNotFound, UsageError."""
    found = [(await refs.resolve(store, ref)).commit for ref in (one, other)]
    base = await refs.merge_base(store, *found)
    if base is None:
        raise Unrelated(one, other)
    return base


async def values_of(
    objects: Objects, stored: Sequence[Stored], large: Mapping[bytes, bytes] | None = None
) -> list[bytes | None]:
    """Read the values that leaves refer to; `large` has some of the large ones. Raises Broken."""
    known = large or {}
    read = [one for one in stored if one is not None and (inline_value(one) is not None or apart_id(one) not in known)]
    values = dict(zip(read, await objects.values(read), strict=True))
    return [None if one is None else values[one] if one in values else known[apart_id(one)] for one in stored]


async def _filled(store: Store, objects: Objects, changes: Sequence[KeyChange]) -> list[KeyChange]:
    apart = [(one, change.key) for change in changes for one in (change.before, change.after) if isinstance(one, Apart)]
    found: dict[str, bytes] = {}
    for branch in {one.branch for one, _ in apart if one.branch}:
        keys = [key for one, key in apart if one.branch == branch]
        entries = await ref_reader.get(store, objects, await refs.resolve(store, branch), keys)
        found |= {entry.identity: entry.value for entry in entries if entry is not None}
    left = [one for one, _ in apart if one.identity not in found]
    try:
        read = await objects.read({bytes.fromhex(one.identity) for one in left}, keep=False)
    except Broken:
        if not any(one.branch for one in left):
            raise
        raise ConflictError("Staged changes were replaced while they were read", hint="Try again") from None
    found |= {identity.hex(): value for identity, value in read.items()}

    def value(one: Value) -> Value:
        return found[one.identity] if isinstance(one, Apart) else one

    return [replace(one, before=value(one.before), after=value(one.after)) for one in changes]


def in_parts(found: Sequence[Difference]) -> Iterator[Sequence[Difference]]:
    """Split differences into parts whose values may be read together."""
    some: list[Difference] = []
    large = 0
    for one in found:
        some.append(one)
        large += isinstance(shown(one.before), Apart) + isinstance(shown(one.after), Apart)
        if large >= VALUES_IN_FLIGHT or len(some) >= CHANGES_PER_BATCH:
            yield some
            some, large = [], 0
    if some:
        yield some


def shown(stored: Stored) -> Value:
    """Return a value as stored in a leaf; Apart for a large one."""
    if stored is None:
        return None
    value = inline_value(stored)
    return Apart(apart_id(stored).hex()) if value is None else value


async def _since_base(store: Store, objects: Objects, before: str, after: str, *, values: bool) -> list[KeyChange]:
    base = await merge_base(store, before, after)
    commits = [await refs.committed(store, ref) for ref in (after, before)]
    ours, theirs = [await between(store, objects, base, commit) for commit in commits]
    conflicting = {conflict.key for conflict in merge(ours, theirs).conflicts}
    return await _resolved(objects, ours, conflicting, values=values)


async def _state(store: Store, ref: refs.Ref, expression: str, *, values: bool) -> _State:
    if ref.branch is not None and expression.endswith("$"):
        return (await _State.of(store, ref.branch, values=values))[1]
    return _State(await refs.root(store, ref))


async def _differing(objects: Objects, before: _State, after: _State, *, values: bool) -> list[KeyChange]:
    """Return the differences between two states."""
    found = {one.key: one for one in await objects.run(tree.diff(before.root, after.root))}
    if keys := sorted(before.staged.keys() | after.staged.keys()):
        was, now = [{**await objects.run(tree.get(state.root, keys)), **state.staged} for state in (before, after)]
        found.update((key, Difference(key, was.get(key), now.get(key))) for key in keys)
    some = [found[key] for key in sorted(found) if found[key].before != found[key].after]
    if not values:
        return [
            KeyChange.of(one.key.decode(), before.shown(one.key, one.before), after.shown(one.key, one.after))
            for one in some
        ]
    return await _resolved(objects, some, large={**before.large, **after.large}, values=True)


async def _resolved(
    objects: Objects, found: Sequence[Difference], conflicting: Set[bytes] = frozenset(),
    large: Mapping[bytes, bytes] | None = None, *, values: bool,
) -> list[KeyChange]:  # fmt: skip
    before, after = [[shown(one.before) for one in found], [shown(one.after) for one in found]]
    if values:
        before = [*await values_of(objects, [one.before for one in found], large)]
        after = [*await values_of(objects, [one.after for one in found], large)]
    return [
        KeyChange.of(one.key.decode(), was, now, conflict=one.key in conflicting)
        for one, was, now in zip(found, before, after, strict=True)
    ]
