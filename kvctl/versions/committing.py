"""Commits: a branch's epoch is sealed, what was staged becomes a tree, and head and staging move in one write.

Nobody waits for a commit: writers go on in the epoch that the seal opened. Of several committers at least one makes
progress; another builds on what the winner made, or finds that its changes are in there already.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvctl.errors import ConflictError, KvctlError
from kvctl.versions import refs, staging
from kvctl.versions.model import Commit, Head, Staging, leaf_value
from kvctl.versions.objects import OBJECTS, Objects
from kvctl.versions.staging import STAGING, Held
from kvctl.versions.store import Change, Condition, Predicate, PredicateFailed, Store
from kvctl.versions.tree import Objects as Made
from kvctl.versions.tree_update import Edit, update

TOGETHER = 400
"""Objects that are written together with the commit; more go first."""
TOGETHER_BYTES = 4 << 20


class NothingToCommit(KvctlError):
    """There is no change to record."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a commit says of itself."""

    message: str
    author: str
    meta: Mapping[str, str]
    allow_empty: bool = False


async def commit(store: Store, objects: Objects, branch: str, note: Note) -> Commit:
    """Record what is staged. Raises NothingToCommit, BranchNotFound, ConflictError when it is spent, Broken."""
    held = await staging.read(store, branch)
    if await _nothing(store, held.staging) and not note.allow_empty:
        raise NothingToCommit(f"Nothing is staged on `{branch}`", hint="`--allow-empty` commits all the same")
    held = await staging.seal(store, branch)
    own = held.staging.sealed
    for _ in range(staging.TRIES):
        made = await _attempt(store, objects, branch, held, own, note)
        if made is not None:
            await staging.clear(store, own)
            return made
        await staging.pause()
        held = await staging.read(store, branch)
    raise staging.busy(branch)


async def move(
    store: Store, objects: Objects, branch: str, note: Note, edits: Sequence[Edit], *, onto: Head, at: Predicate,
    second_parent: str | None = None,
) -> Commit:  # fmt: skip
    """Commit changes that were not staged, if the head has not moved. Raises ConflictError, NothingToCommit."""
    made, found = await _made(store, objects, onto, edits, note, second_parent)
    if made.root == onto.root and not note.allow_empty and second_parent is None:
        raise NothingToCommit("There is nothing to record")
    try:
        await _write(store, objects, branch, made, found, at, None)
    except PredicateFailed:
        raise ConflictError(f"Branch `{branch}` was changed meanwhile; nothing was changed", hint="Try again") from None
    return made


async def _attempt(
    store: Store, objects: Objects, branch: str, held: Held, own: Sequence[str], note: Note
) -> Commit | None:
    """The commit; None for a lost race. Raises NothingToCommit, also when another has taken what this one sealed."""
    head, at = await refs.head(store, branch)
    left = [epoch for epoch in own if epoch in held.staging.sealed]
    if not left and own and not note.allow_empty:
        raise NothingToCommit(f"What was staged on `{branch}` is committed already: `{head.commit[:12]}` holds it")
    changes = await staging.listed(store, left)
    edits, large = _edits(changes)
    made, found = await _made(store, objects, head, edits, note, None)
    if made.root == head.root and not note.allow_empty:
        await _forget(store, branch, held, left)
        raise NothingToCommit(f"What was staged on `{branch}` is what it holds already")
    after = Staging(held.staging.epoch, tuple(epoch for epoch in held.staging.sealed if epoch not in left))
    try:
        await _write(store, objects, branch, made, {**found, **large}, at, (held, after))
    except PredicateFailed:
        return None
    return made


async def _made(
    store: Store, objects: Objects, head: Head, edits: Sequence[Edit], note: Note, second_parent: str | None
) -> tuple[Commit, Made]:
    tree = await objects.carry(update(bytes.fromhex(head.root), edits))
    parents = (head.commit, *([second_parent] if second_parent else []))
    generation = 1 + max([(await refs.commit(store, parent)).generation for parent in parents])
    made = Commit(
        root=tree.root.hex(), parents=parents, message=note.message, author=note.author, created_ns=time.time_ns(),
        meta=dict(note.meta), generation=generation,
    )  # fmt: skip
    return made, tree.objects


async def _write(
    store: Store, objects: Objects, branch: str, made: Commit, found: Made, at: Predicate,
    moved: tuple[Held, Staging] | None,
) -> None:  # fmt: skip
    """Objects, the commit, and the branch's move, the last two at once. Raises PredicateFailed."""
    name = branch.encode()
    conditions = [Condition(refs.HEADS, name, at)]
    changes = [
        Change(refs.COMMITS, bytes.fromhex(made.id), made.encode()),
        Change(refs.HEADS, name, Head(made.id, made.root).encode()),
    ]
    if moved is not None:
        held, after = moved
        conditions.append(Condition(STAGING, name, held.predicate))
        changes.append(Change(STAGING, name, after.encode()))
    if len(found) > TOGETHER or sum(map(len, found.values())) > TOGETHER_BYTES:
        await objects.write(found)
    else:
        changes = [*(Change(OBJECTS, identity, data) for identity, data in found.items()), *changes]
    await store.write(conditions, changes)
    objects.keep(found)


async def _nothing(store: Store, held: Staging) -> bool:
    for epoch in held.epochs:
        async with store.scan(staging.partition_of(epoch), batch=1) as entries:
            async for _ in entries:
                return False
    return True


async def _forget(store: Store, branch: str, held: Held, epochs: Sequence[str]) -> None:
    """Let go of epochs whose changes are what is committed already."""
    after = Staging(held.staging.epoch, tuple(epoch for epoch in held.staging.sealed if epoch not in epochs))
    try:
        await store.set_if(STAGING, branch.encode(), after.encode(), held.predicate)
    except PredicateFailed:
        return  # the next commit takes them
    await staging.clear(store, epochs)


def _edits(changes: Mapping[bytes, bytes | None]) -> tuple[list[Edit], Made]:
    """Changes as they stand in leaves, sorted, and the objects of large values."""
    large: Made = {}
    edits: list[Edit] = []
    for key in sorted(changes):
        value = changes[key]
        if value is None:
            edits.append((key, None))
            continue
        stored, apart = leaf_value(value)
        large.update(apart)
        edits.append((key, stored))
    return edits, large
