"""Differences between committed states, staged changes and a branch's head, and since a merge base."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.versions import ancestry, ref_reader, refs
from kvctl.versions.access import RepositoryAccess
from kvctl.versions.model import StagedChange, apart_id, inline_value, staged_leaf_value
from kvctl.versions.recursive_merge import DISPUTED, since_base
from kvctl.versions.tree import tree
from kvctl.versions.tree.objects import MissingObject
from kvctl.versions.tree.tree import TreeDifference, merge

Stored = bytes | None
"""Value as stored in a leaf."""


class UnrelatedHistories(KvctlError):
    """Two histories without a common commit."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"`{one}` and `{other}` have no common commit")


class ChangeKind(StrEnum):
    """Kind of change to a key."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    CONFLICT = "conflict"
    """Both sides changed it to different values since their merge base."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Large value that was not read; `Repository.resolved` reads it."""

    identity: str
    """Hex hash of the value."""
    branch: str | None = field(default=None, compare=False)
    """Branch on which it is staged; None if it is committed."""


Value = bytes | Apart | None
"""Value, a large value that was not read, or None for an absent key."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Key whose value differs before and after; None: absent."""

    key: str
    before: Value
    after: Value
    kind: ChangeKind
    revision: int | None = field(default=None, compare=False)
    """Revision of a staged change."""

    @property
    def values(self) -> tuple[Value, Value]:
        """Values before and after."""
        return self.before, self.after

    @property
    def is_conflict(self) -> bool:
        """True if both sides changed the key."""
        return self.kind is ChangeKind.CONFLICT

    @classmethod
    def of(
        cls, key: bytes, before: Value, after: Value, *, conflict: bool = False, revision: int | None = None
    ) -> KeyChange:
        """Create the change, with the kind that follows from the values."""
        kind = ChangeKind.ADDED if before is None else ChangeKind.REMOVED if after is None else ChangeKind.CHANGED
        return cls(key.decode(), before, after, ChangeKind.CONFLICT if conflict else kind, revision)


class Status(NamedTuple):
    """Branch with its commit and the staged changes that differ from it, sorted by key."""

    branch: str
    commit: str
    changes: tuple[KeyChange, ...]


class KeyConflict(NamedTuple):
    """Key that both sides changed to different values since their merge base; None: absent."""

    key: str
    base: Value
    source: Value
    dest: Value


class _DiffSide(NamedTuple):
    """Tree and the changes staged on top of it, values as leaves store them."""

    root: bytes
    staged: Mapping[bytes, StagedChange] = {}
    branch: str | None = None
    """Branch with the staged changes."""

    def shown(self, key: bytes, stored: Stored) -> Value:
        """Return a key's value as stored in a leaf; Apart for a large one."""
        value = shown(stored)
        return replace(value, branch=self.branch) if isinstance(value, Apart) and key in self.staged else value


async def status(repo: RepositoryAccess, branch: str) -> Status:
    """Return a branch's commit and its staged changes that differ from it; large values are Apart.

    Raises BranchNotFound, ConflictError after too many retries.
    """
    state = await ref_reader.staged(repo.store, branch, staged_leaf_value)
    found = await _differing(repo, _DiffSide(state.root), _DiffSide(state.root, state.staged, branch))
    return Status(branch, state.commit, tuple(found))


async def diff(
    repo: RepositoryAccess, before: str, after: str | None = None, *, three_dot: bool = False
) -> list[KeyChange]:
    """Return the keys that differ, sorted; large values are Apart, so that memory does not grow with them.

    A branch stands for its committed state, with `$` for its staged changes, too. Without `after`, the changes staged
    on the branch `before`. With `three_dot`, the changes of `after` since the merge base, where keys that `before`
    changed differently are conflicts. Raises RefNotFound, UsageError, UnrelatedHistories, MissingObject.
    """
    if after is None:
        ref = await refs.resolve(repo.store, before)
        if ref.branch is None or three_dot:
            raise UsageError(
                f"Nothing to compare `{before}` with",
                hint="Give a second ref: only a branch can be compared with its staged changes",
            )
        return list((await status(repo, ref.branch)).changes)
    if three_dot:
        return await _since_base(repo, before, after)
    found = await refs.resolve_all(repo.store, (before, after))
    states = await asyncio.gather(*(_state(repo, *side) for side in zip(found, (before, after), strict=True)))
    return await _differing(repo, *states)


async def resolved(repo: RepositoryAccess, changes: Iterable[KeyChange]) -> AsyncGenerator[list[KeyChange], None]:
    """Yield changes with the values that are Apart read, in batches, so that few are held.

    Raises MissingObject, and ConflictError for a large value that was replaced on its branch in the meantime.
    """
    for some in ref_reader.in_parts(changes, lambda one: sum(isinstance(value, Apart) for value in one.values)):
        yield await _filled(repo, some)


async def merge_base(repo: RepositoryAccess, one: str, other: str) -> str:
    """Return the id of the newest common ancestor of both refs. Raises UnrelatedHistories, RefNotFound, UsageError."""
    return (await merge_bases(repo, one, other))[0]


async def merge_bases(repo: RepositoryAccess, one: str, other: str) -> list[str]:
    """Return the ids of the best common ancestors, newest first: several after crossing merges.

    Raises UnrelatedHistories, RefNotFound, UsageError.
    """
    found = [(await refs.resolve(repo.store, ref)).commit for ref in (one, other)]
    bases = await ancestry.merge_bases(refs.CommitReader(repo.store), found[:1], found[1:])
    if not bases:
        raise UnrelatedHistories(one, other)
    return bases


async def _filled(repo: RepositoryAccess, changes: Sequence[KeyChange]) -> list[KeyChange]:
    apart = [(one, change.key) for change in changes for one in change.values if isinstance(one, Apart)]
    found: dict[str, bytes] = {}
    for branch in {one.branch for one, _ in apart if one.branch}:
        entries = await ref_reader.get(repo, branch, *(key for one, key in apart if one.branch == branch))
        found |= {entry.identity: entry.value for entry in entries if entry is not None}
    left = [one for one, _ in apart if one.identity not in found]
    try:
        read = await repo.objects.read({bytes.fromhex(one.identity) for one in left}, keep=False)
    except MissingObject:
        if not any(one.branch for one in left):
            raise
        raise ConflictError("Staged changes were replaced while they were read", hint="Try again") from None
    found |= {identity.hex(): value for identity, value in read.items()}

    def value(one: Value) -> Value:
        return found[one.identity] if isinstance(one, Apart) else one

    return [replace(one, before=value(one.before), after=value(one.after)) for one in changes]


def shown(stored: Stored) -> Value:
    """Return a value as stored in a leaf; Apart for a large one, None for one on which merge bases conflict."""
    if stored is None or stored.startswith(DISPUTED):
        return None
    value = inline_value(stored)
    return Apart(apart_id(stored).hex()) if value is None else value


async def _since_base(repo: RepositoryAccess, before: str, after: str) -> list[KeyChange]:
    bases = await merge_bases(repo, before, after)
    source, dest = [await refs.committed(repo.store, ref) for ref in (after, before)]
    ours, theirs = await since_base(repo, bases, source, dest)
    conflicting = {conflict.key for conflict in merge(ours, theirs).conflicts}
    return [_since(one, conflict=one.key in conflicting) for one in ours]


def _since(one: TreeDifference, *, conflict: bool) -> KeyChange:
    """Return a change since the merge base; where merge bases conflict, the value before is not known, but is one."""
    change = KeyChange.of(one.key, shown(one.before), shown(one.after), conflict=conflict)
    if conflict or one.before is None or not one.before.startswith(DISPUTED):
        return change
    return replace(change, kind=ChangeKind.REMOVED if one.after is None else ChangeKind.CHANGED)


async def _state(repo: RepositoryAccess, ref: refs.Ref, expression: str) -> _DiffSide:
    if ref.branch is None or not expression.endswith("$"):
        return _DiffSide(await refs.root(repo.store, ref))
    state = await ref_reader.staged(repo.store, ref.branch, staged_leaf_value)
    return _DiffSide(state.root, state.staged, ref.branch)


async def _differing(repo: RepositoryAccess, before: _DiffSide, after: _DiffSide) -> list[KeyChange]:
    """Return the differences between two states."""
    found = {one.key: one for one in await repo.objects.run(tree.diff(before.root, after.root))}
    if keys := sorted(before.staged.keys() | after.staged.keys()):
        was, now = [await _with_staged(repo, state, keys) for state in (before, after)]
        found.update((key, TreeDifference(key, was.get(key), now.get(key))) for key in keys)
    changes: list[KeyChange] = []
    for key in sorted(found):
        one = found[key]
        if one.before != one.after:
            revision = after.staged[key].revision if key in after.staged else None
            values = before.shown(key, one.before), after.shown(key, one.after)
            changes.append(KeyChange.of(key, *values, revision=revision))
    return changes


async def _with_staged(repo: RepositoryAccess, state: _DiffSide, keys: Sequence[bytes]) -> dict[bytes, Stored]:
    committed = await repo.objects.run(tree.get(state.root, keys))
    return {**committed, **{key: change.value for key, change in state.staged.items()}}
