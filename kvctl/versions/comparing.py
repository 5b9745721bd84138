"""What differs: between two committed states, between a branch's staged changes and its head, since a common commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from kvctl.errors import KvctlError, UsageError
from kvctl.versions import reading, refs, tree
from kvctl.versions.changes import KeyChange, Status
from kvctl.versions.committing import edits_of
from kvctl.versions.merge import merge
from kvctl.versions.model import Head, apart_id, inline_value
from kvctl.versions.objects import Objects
from kvctl.versions.store import Store
from kvctl.versions.tree import Difference

Stored = bytes | None
"""A value as it stands in a leaf."""


class Unrelated(KvctlError):
    """Two histories without a common commit."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"`{one}` and `{other}` have no commit in common")


@dataclass(frozen=True, slots=True)
class _State:
    """A tree and what is staged above it; None deletes."""

    root: bytes
    staged: Mapping[bytes, Stored] = field(default_factory=dict)
    large: Mapping[bytes, bytes] = field(default_factory=dict)
    """Staged values that are kept apart, which no object holds yet."""

    @classmethod
    def of(cls, head: Head, changes: Mapping[bytes, bytes | None]) -> _State:
        """A branch with its staged changes."""
        edits, large = edits_of(changes)
        return cls(bytes.fromhex(head.root), dict(edits), large)


async def status(store: Store, objects: Objects, branch: str) -> Status:
    """What is staged and differs from the head. Raises BranchNotFound, ConflictError when it is spent."""
    head, changes = await reading.staged(store, branch)
    found = await _differing(objects, _State(bytes.fromhex(head.root)), _State.of(head, changes))
    return Status(branch, head.commit, tuple(found))


async def diff(
    store: Store, objects: Objects, before: str, after: str | None, *, three_dot: bool = False
) -> list[KeyChange]:
    """The keys that differ, sorted by the bytes of their keys. Raises RefNotFound, UsageError, Unrelated, Broken.

    A branch stands for what is committed, with `$` for its staged changes, too. Without `after`, what is staged on the
    branch `before`. With `three_dot`, the changes of `after` since the commit that both come from.
    """
    if after is None:
        ref = await refs.resolve(store, before)
        if ref.branch is None or three_dot:
            raise UsageError(
                f"What is to be compared with `{before}` is missing",
                hint="Only a branch has something staged to compare with; name a second ref",
            )
        return list((await status(store, objects, ref.branch)).changes)
    if three_dot:
        return await _since_base(store, objects, before, after)
    return await _differing(objects, await _state(store, before), await _state(store, after))


async def between(store: Store, objects: Objects, before: str, after: str) -> list[Difference]:
    """The keys that differ between two commits, values as they are stored. Raises RefNotFound, Broken."""
    roots = [bytes.fromhex((await refs.commit(store, one)).root) for one in (before, after)]
    return await objects.carry(tree.diff(*roots))


async def merge_base(store: Store, one: str, other: str) -> str:
    """The newest commit that two refs come from. Raises Unrelated, RefNotFound, UsageError."""
    found = [(await refs.resolve(store, ref)).commit for ref in (one, other)]
    base = await refs.merge_base(store, *found)
    if base is None:
        raise Unrelated(one, other)
    return base


async def values_of(
    objects: Objects, stored: Sequence[Stored], large: Mapping[bytes, bytes] | None = None
) -> list[bytes | None]:
    """The values that stand for these in leaves; `large` are some that are kept apart. Raises Broken."""
    known = large or {}
    read = [one for one in stored if one is not None and (inline_value(one) is not None or apart_id(one) not in known)]
    values = dict(zip(read, await objects.values(read), strict=True))
    return [None if one is None else values[one] if one in values else known[apart_id(one)] for one in stored]


async def _since_base(store: Store, objects: Objects, before: str, after: str) -> list[KeyChange]:
    base = await merge_base(store, before, after)
    commits = [await refs.committed(store, ref) for ref in (after, before)]
    ours, theirs = [await between(store, objects, base, commit) for commit in commits]
    conflicting = {conflict.key for conflict in merge(ours, theirs).conflicts}
    return await _resolved(objects, ours, conflicting)


async def _state(store: Store, expression: str) -> _State:
    ref = await refs.resolve(store, expression)
    if ref.branch is not None and expression.endswith("$"):
        return _State.of(*await reading.staged(store, ref.branch))
    return _State(bytes.fromhex((await refs.commit(store, ref.commit)).root))


async def _differing(objects: Objects, before: _State, after: _State) -> list[KeyChange]:
    """What differs between two states."""
    found = {one.key: one for one in await objects.carry(tree.diff(before.root, after.root))}
    if keys := sorted(before.staged.keys() | after.staged.keys()):
        was, now = [{**await objects.carry(tree.get(state.root, keys)), **state.staged} for state in (before, after)]
        found.update((key, Difference(key, was.get(key), now.get(key))) for key in keys)
    some = [found[key] for key in sorted(found) if found[key].before != found[key].after]
    return await _resolved(objects, some, large={**before.large, **after.large})


async def _resolved(
    objects: Objects, found: Sequence[Difference], conflicting: Set[bytes] = frozenset(),
    large: Mapping[bytes, bytes] | None = None,
) -> list[KeyChange]:  # fmt: skip
    before = await values_of(objects, [one.before for one in found], large)
    after = await values_of(objects, [one.after for one in found], large)
    return [
        KeyChange.of(one.key.decode(), was, now, conflict=one.key in conflicting)
        for one, was, now in zip(found, before, after, strict=True)
    ]
