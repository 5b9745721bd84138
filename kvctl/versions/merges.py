"""Merge, revert, cherry-pick, and a branch moved to another commit: all on a branch without staged changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kvctl.errors import ConflictError, UsageError
from kvctl.versions import commits, refs
from kvctl.versions.branch import branch_state, staging
from kvctl.versions.branch.branch_state import Stand
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.commits import Note
from kvctl.versions.key_change import KeyChange, KeyConflict
from kvctl.versions.model import Commit, Head
from kvctl.versions.ref_diff import Unrelated, between, shown
from kvctl.versions.store.protocol import Change, PredicateFailed, Store
from kvctl.versions.tree.objects import Broken, Objects
from kvctl.versions.tree.three_way import Conflict, Strategy, merge
from kvctl.versions.tree.tree import Difference
from kvctl.versions.tree.tree_update import Edit

SHOWN = 10
"""Conflicting keys that a message names."""


class Conflicting(ConflictError):
    """Both sides changed keys; `conflicts` says which, and nothing was changed."""

    def __init__(self, conflicts: Sequence[KeyConflict], *, strategies: bool) -> None:
        keys = ", ".join(f"`{item.key}`" for item in conflicts[:SHOWN])
        more = f" and {len(conflicts) - SHOWN} more" if len(conflicts) > SHOWN else ""
        hint = "`--strategy source-wins` or `dest-wins` decides" if strategies else None
        super().__init__(f"Both sides changed {keys}{more}; nothing was changed", hint=hint)
        self.conflicts = list(conflicts)


@dataclass(frozen=True, slots=True)
class Combined:
    """What a branch takes, or would take; sorted by key. Without a commit, it has it all, or nothing was to be done.

    Large values are not read (`Repository.resolved`).
    """

    commit: Commit | None
    changes: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class Sides:
    """What is brought onto a branch: that which differs between two commits; and what the commit says of itself."""

    base: str
    source: str
    note: Note
    second_parent: str | None = None


class There(Exception):
    """What was to be brought is there already."""


Plan = Callable[[Head], Awaitable[Sides]]
"""Says what is to be brought onto a head, which may be another one at the next try. Raises There."""


def merging(store: Store, dest: str, source: str, note: Note, *, squash: bool) -> Plan:
    """The source's changes since the common commit. Raises There, Unrelated, RefNotFound."""

    async def plan(head: Head) -> Sides:
        theirs = await refs.committed(store, source)
        base = await refs.merge_base(store, theirs, head.commit)
        if base is None:
            raise Unrelated(source, dest)
        if base == theirs:
            raise There
        return Sides(base, theirs, note, None if squash else theirs)

    return plan


def reverting(store: Store, ref: str, parent: int | None, author: str) -> Plan:
    """A commit's changes taken back. Raises RefNotFound, UsageError."""

    async def plan(_: Head) -> Sides:
        identity, before = await _commit_and_parent(store, ref, parent)
        title = (await refs.commit(store, identity)).message.partition("\n")[0]
        message = f"Revert `{title}`" if title else f"Revert {identity[:12]}"
        return Sides(identity, before, Note(message, author, {"reverts": identity}))

    return plan


def picking(store: Store, ref: str, parent: int | None, author: str) -> Plan:
    """A commit's changes made again. Raises RefNotFound, UsageError."""

    async def plan(_: Head) -> Sides:
        identity, before = await _commit_and_parent(store, ref, parent)
        message = (await refs.commit(store, identity)).message
        return Sides(before, identity, Note(message, author, {"cherry-picked-from": identity}))

    return plan


async def combine(
    store: Store, objects: Objects, branch: str, plan: Plan, *, strategy: Strategy | None = None,
    is_merge: bool = False, dry_run: bool = False,
) -> Combined:  # fmt: skip
    """Bring what a plan says onto a branch; a merge that brings nothing and has one parent is none.

    Raises Conflicting, Staged, NothingToCommit, ConflictError when it is spent, and what the plan does.
    """
    for _ in range(staging.TRIES):
        stand = await commits.clean(store, objects, branch, linking=True, dry_run=dry_run)
        try:
            sides = await plan(stand.head)
        except There:
            return Combined(None, ())
        try:
            edits, changes = await _edits(store, objects, sides, stand.head, strategy, is_merge)
        except Broken:
            if (await branch_state.collections(store)).predicate == stand.collections.predicate:
                raise
            continue  # what no branch leads to was collected meanwhile
        if dry_run or (is_merge and not edits and sides.second_parent is None):
            return Combined(None, changes)
        made = await commits.move(
            store, objects, stand, sides.note, edits, second_parent=sides.second_parent, linking=True
        )
        if made is not None:
            return Combined(made, changes)
        await staging.pause()
    raise staging.busy(branch)


async def reset_hard(store: Store, objects: Objects, branch: str, ref: str, *, dry_run: bool = False) -> Commit:
    """Move a branch to a commit. Raises Staged, RefNotFound, UsageError, ConflictError when it is spent."""
    for _ in range(staging.TRIES):
        stand = await commits.clean(store, objects, branch, linking=True, dry_run=dry_run)
        identity = await refs.committed(store, ref)
        found = await refs.commit(store, identity)
        if dry_run or identity == stand.head.commit:
            return found
        if await _moved(store, stand, Head(identity, found.root, found.generation)):
            return found
        await staging.pause()
    raise staging.busy(branch)


async def _moved(store: Store, stand: Stand, to: Head) -> bool:
    name = stand.branch.encode()
    changes = [
        Change(refs.HEADS, name, to.encode()),
        Change(STAGING, name, stand.held.staging.encode()),
        stand.collections.touched,
    ]
    try:
        await store.write([*stand.unmoved, stand.unguarded], changes)
    except PredicateFailed:
        return False
    return True


async def _edits(
    store: Store, objects: Objects, sides: Sides, head: Head, strategy: Strategy | None, is_merge: bool
) -> tuple[list[Edit], tuple[KeyChange, ...]]:
    """What the head takes. Raises Conflicting."""
    ours = await between(store, objects, sides.base, sides.source)
    theirs = await between(store, objects, sides.base, head.commit)
    found = merge(ours, theirs, strategy)
    if found.conflicts:
        raise Conflicting(_conflicts(found.conflicts), strategies=is_merge)
    return found.edits, _changes(found.edits, ours, theirs)


def _changes(
    edits: Sequence[Edit], ours: Sequence[Difference], theirs: Sequence[Difference]
) -> tuple[KeyChange, ...]:  # fmt: skip
    held = {one.key: one.before for one in ours} | {one.key: one.after for one in theirs}
    return tuple(KeyChange.of(key.decode(), shown(held[key]), shown(value)) for key, value in edits)


def _conflicts(conflicts: Sequence[Conflict]) -> list[KeyConflict]:
    return [
        KeyConflict(one.key.decode(), shown(one.base), shown(one.source), shown(one.dest)) for one in conflicts
    ]  # fmt: skip


async def _commit_and_parent(store: Store, ref: str, parent: int | None) -> tuple[str, str]:
    identity = await refs.committed(store, ref)
    parents = (await refs.commit(store, identity)).parents
    if not parents:
        raise UsageError(f"`{ref}` is the first commit: it has no parent to compare it with")
    if len(parents) > 1 and parent is None:
        raise UsageError(f"`{ref}` is a merge", hint="`--parent 1` compares it with the branch that it was merged into")
    number = 1 if parent is None else parent
    if not 1 <= number <= len(parents):
        has = "one parent" if len(parents) == 1 else f"{len(parents)} parents"
        raise UsageError(f"`{ref}` has {has}: there is no parent {number}")
    return identity, parents[number - 1]
