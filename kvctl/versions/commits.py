"""Commit: a branch's epoch is sealed, the staged changes become a tree, and the branch moves in one write.

Lock-free: writers continue in the epoch that the seal opened. Of several committers at least one makes progress: one
keeps its tree if the epoch was only sealed, rebuilds it on the new head if another commit came first, or finds that its
changes are already committed.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from kvctl.errors import ConflictError, KvctlError, OutcomeUnknown, UsageError
from kvctl.versions import refs
from kvctl.versions.access import RepositoryAccess
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.branch.branch_state import BranchState
from kvctl.versions.branch.staging import WrittenEpoch
from kvctl.versions.model import (
    DROPPED,
    Branch,
    Commit,
    StagedChange,
    check_text,
    decode_staged,
    leaf_value,
    staged_leaf_value,
)
from kvctl.versions.refs import BranchRecord
from kvctl.versions.store.protocol import Store, StoreChange
from kvctl.versions.tree.objects import OBJECTS, MissingObject, Objects
from kvctl.versions.tree.tree import ChunkBytes, Edit, NewTree, get

OBJECTS_PER_WRITE = 400
"""Number of objects written together with the commit; more are written before it."""
OBJECTS_BYTES_PER_WRITE = 4 << 20
PART_BYTES = 32 << 20
"""Bytes of changes that go into a tree together."""
LARGE_OBJECT_BYTES = 64 << 10
"""Bytes of an object that is always written before the commit: alone it may be larger than in a batch."""


class NothingToCommit(KvctlError, kind="nothing-to-commit"):
    """Nothing to commit; `taken_by` is the id of the commit that has the changes, if another came first."""

    def __init__(self, message: str, *, hint: str | None = None, taken_by: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.taken_by = taken_by


class HasStagedChanges(ConflictError, kind="staged-changes"):
    """A branch has staged changes, where it must not have any."""

    def __init__(self, branch: str) -> None:
        super().__init__(
            f"Branch `{branch}` has staged changes; nothing was changed",
            hint="`kvctl repo commit` records them, `kvctl repo reset` drops them",
        )


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Message, author and metadata of a commit. Raises UsageError for invalid text."""

    message: str
    author: str
    meta: Mapping[str, str] = field(default_factory=dict)
    allow_empty: bool = False

    def __post_init__(self) -> None:
        check_text(self.message, "message")
        check_text(self.author, "author")
        for text in itertools.chain(*self.meta.items()):
            check_text(text, "metadata")


class _PreparedCommit(NamedTuple):
    """Commit whose tree is built from these epochs; its objects are safe while no collection begins."""

    commit: Commit
    epochs: tuple[str, ...]
    objects: ChunkBytes
    """Objects to write together with the commit."""
    stored: ChunkBytes | None
    """New objects that were written before; None if they are too many to keep."""
    begun: int


async def commit(
    repo: RepositoryAccess,
    branch: str,
    message: str,
    *,
    meta: Mapping[str, str] | None = None,
    allow_empty: bool = False,
) -> Commit:
    """Commit the staged changes.

    Raises NothingToCommit, BranchNotFound, MissingObject, ConflictError after too many retries.
    """
    store, objects, written = repo.store, repo.objects, repo.writer.epoch(branch)
    info = CommitInfo(message, repo.author, meta or {}, allow_empty)
    own, state = await _seal(store, branch, info, written)
    prepared: _PreparedCommit | None = None
    for attempt in range(branch_state.MAX_ATTEMPTS):
        if attempt:
            state = await branch_state.read(store, branch)
        if not info.allow_empty:
            _check_left(own, state)
        prepared = prepared and await _kept(objects, prepared, state)
        if prepared is None:
            try:
                prepared = await _prepare(store, objects, state, info, sorted({*written.keys}) if written else [])
            except MissingObject:
                if await branch_state.is_unchanged(store, state.record):
                    raise
                continue  # the branch was deleted or reset, and its old head collected
        if prepared.commit.root == state.branch.root and not info.allow_empty:
            if await forget(store, state.record, prepared.epochs):
                raise NothingToCommit(f"The changes staged on `{branch}` do not change its content")
        elif await _move(store, objects, state, prepared):
            return prepared.commit
        await branch_state.pause()
    raise branch_state.busy(branch)


async def move(
    repo: RepositoryAccess,
    state: BranchState,
    info: CommitInfo,
    edits: Sequence[Edit],
    *,
    second_parent: str | None = None,
    linking: bool = False,
) -> Commit | None:
    """Commit changes onto a branch without staged ones; None if another process moved it. Raises NothingToCommit.

    `linking` means that the changes come from commits which the branch does not descend from.
    """
    tree = await repo.objects.updated(bytes.fromhex(state.branch.root), edits)
    return await move_to(repo, state, info, tree, second_parent=second_parent, linking=linking)


async def move_to(
    repo: RepositoryAccess,
    state: BranchState,
    info: CommitInfo,
    tree: NewTree,
    *,
    second_parent: str | None = None,
    linking: bool = False,
) -> Commit | None:
    """Commit a tree as `move`, with its objects that the branch does not have yet."""
    if tree.root.hex() == state.branch.root and second_parent is None and not info.allow_empty:
        raise NothingToCommit("Nothing to commit")
    made = await _commit_of(repo.store, state.branch, tree.root, info, second_parent)
    together = await _go_first(repo.objects, tree.objects)
    changes = [*_objects(together), *_heading(made, state.record, state.branch)]
    if linking:
        changes.append(state.collections.touched)
    if not await repo.store.written(state.clean, changes):
        return None
    repo.objects.keep(tree.objects)
    return made


async def read_clean(
    repo: RepositoryAccess, branch: str, *, linking: bool = False, dry_run: bool = False
) -> BranchState:
    """Return the state of a branch without staged changes.

    Staged values equal to the branch's content are removed: they would hide later changes. Raises HasStagedChanges,
    BranchNotFound, ConflictError after too many retries.
    """
    store = repo.store
    for _ in range(branch_state.MAX_ATTEMPTS):
        state = await (branch_state.read_for_linking if linking and not dry_run else branch_state.read)(store, branch)
        held = state.branch
        if await epochs.are_empty(store, held.epochs):
            return state
        staged = await epochs.listed(store, held.epochs[::-1], staged_leaf_value)
        if await differing(repo.objects, bytes.fromhex(held.root), staged):
            if await branch_state.is_unchanged(store, state.record):
                raise HasStagedChanges(branch)
            continue
        if dry_run:
            return state
        if not await epochs.are_empty(store, [held.epoch]):
            await epochs.sealed(store, state.record)
        else:
            await forget(store, state.record, held.sealed)
    raise branch_state.busy(branch)


async def differing(objects: Objects, root: bytes, changes: Mapping[bytes, StagedChange]) -> set[bytes]:
    """Return the keys whose staged value, as a leaf stores it, differs from the one in a tree."""
    found = await objects.run(get(root, list(changes)))
    return {key for key, change in changes.items() if change.value != found.get(key)}


async def forget(store: Store, record: BranchRecord, sealed: Sequence[str]) -> bool:
    """Remove sealed epochs whose changes equal the committed content; return False if the branch moved."""
    change = record.replaced(record.branch.without(sealed, record.branch.commit))
    return await epochs.dropped(store, [record.unchanged], [change], sealed)


async def _seal(
    store: Store, branch: str, info: CommitInfo, written: WrittenEpoch | None = None
) -> tuple[str | None, BranchState]:
    """Close the current epoch, unless nothing is staged there or another commit does it.

    An epoch that was written to needs no look: if its changes were dropped since, it is forgotten like changes without
    effect, and sealed while the state is read. Returns the last one sealed, and the branch's state after that. Raises
    NothingToCommit.
    """
    early = None if written is None or len(written.record.branch.sealed) >= epochs.MAX_SEALED else written.record
    first: str | None = None
    for _ in range(branch_state.MAX_ATTEMPTS):
        state, record = await asyncio.gather(branch_state.read(store, branch), _sealed_early(store, early))
        if early is not None and record is not None:
            return early.branch.epoch, state._replace(record=record)
        early = None
        held = state.branch
        first = first or held.epoch
        if held.epoch != first:
            return first, state
        known = written is not None and held.epoch == written.record.branch.epoch
        if not known and await epochs.are_empty(store, [held.epoch]):
            if info.allow_empty or not await epochs.are_empty(store, held.sealed):
                return held.sealed[-1] if held.sealed else None, state
            if not await branch_state.is_unchanged(store, state.record):
                continue  # a reset or fold has moved the changes into another epoch
            raise NothingToCommit(f"Nothing is staged on `{branch}`", hint="Pass `--allow-empty` to commit anyway")
        if len(held.sealed) >= epochs.MAX_SEALED:
            await epochs.fold(store, state.record)
        elif (record := await epochs.sealed(store, state.record)) is not None:
            return held.epoch, state._replace(record=record)
        else:
            await branch_state.pause()
    raise branch_state.busy(branch)


async def _sealed_early(store: Store, record: BranchRecord | None) -> BranchRecord | None:
    """Close an epoch, if any; None also if the outcome is unknown, which the next look at the branch shows."""
    try:
        return None if record is None else await epochs.sealed(store, record)
    except OutcomeUnknown:
        return None


def _check_left(own: str | None, state: BranchState) -> None:
    """Raise NothingToCommit if the epoch that this commit sealed was removed, naming the commit with its changes.

    If that is no longer known, they may be in any of the sealed epochs: all of them are committed.
    """
    sealed, branch = state.branch.sealed, state.record.name
    where = None if own is None else state.branch.whereabouts(own)
    if own is None or where in sealed or (where is None and sealed):
        return
    if where == DROPPED:
        raise NothingToCommit(f"The staged changes of `{branch}` were dropped by a concurrent reset")
    if where is None:
        raise NothingToCommit(
            f"The staged changes of `{branch}` were committed or reset concurrently",
            hint="`kvctl repo log` shows the commits",
        )
    raise NothingToCommit(f"The staged changes of `{branch}` are already committed in `{where[:12]}`", taken_by=where)


async def _kept(objects: Objects, prepared: _PreparedCommit, state: BranchState) -> _PreparedCommit | None:
    """Return the commit if others have only sealed epochs since, None if it has to be prepared again.

    A collection that began since may delete what was written before. It lists objects before it begins, and spares
    those written afterwards: they are written once more. All others belong to the head, too.
    """
    moved = prepared.commit.parents[0] != state.branch.commit
    if moved or prepared.epochs != state.branch.sealed[: len(prepared.epochs)]:
        return None
    if prepared.begun == (begun := state.collections.collection.begun):
        return prepared
    if prepared.stored is None:
        return None
    await objects.write(prepared.stored, keep=False)
    return prepared._replace(begun=begun)


async def _prepare(
    store: Store, objects: Objects, state: BranchState, info: CommitInfo, likely: Sequence[bytes]
) -> _PreparedCommit:
    held = state.branch
    with objects.storing() as stored:
        tree = await _with_changes(store, objects, bytes.fromhex(held.root), held.sealed, likely)
        made = await _commit_of(store, held, tree.root, info, None)
        together = {} if tree.root.hex() == held.root else await _go_first(objects, tree.objects)
    return _PreparedCommit(made, held.sealed, together, stored.found, state.collections.collection.begun)


async def _with_changes(
    store: Store, objects: Objects, root: bytes, sealed: Sequence[str], likely: Sequence[bytes]
) -> NewTree:
    """Return the tree with the changes of epochs, and its objects that are not stored yet.

    Values are read when they are stored. The changes go into the tree part by part, as many as fit into PART_BYTES.
    What is needed for `likely` keys is read while the changes are listed.
    """
    edits: list[Edit] = []
    large: ChunkBytes = {}
    size = 0
    async with objects.ahead(root, likely) as prepared, aclosing(epochs.batches(store, sealed)) as changes:
        async for some in changes:
            await prepared
            more, apart = edits_of((entry.key, decode_staged(entry.value)) for entry in some)
            edits += more
            large |= apart
            size += sum(len(key) + len(value or b"") for key, value in more)
            if sum(map(len, large.values())) > OBJECTS_BYTES_PER_WRITE:
                await objects.write(large, keep=False)
                large = {}
            if size > PART_BYTES:
                tree = await objects.updated(root, edits)
                await objects.write(tree.objects)
                root, edits, size = tree.root, [], 0
    tree = await objects.updated(root, edits)
    return NewTree(tree.root, {**tree.objects, **large})


async def _move(store: Store, objects: Objects, state: BranchState, prepared: _PreparedCommit) -> bool:
    """Write the remaining objects, the commit and the branch's move in one atomic write."""
    made = prepared.commit
    left = state.branch.without(prepared.epochs, made.id)
    changes = [*_objects(prepared.objects), *_heading(made, state.record, left)]
    if not await epochs.dropped(store, state.unmoved, changes, prepared.epochs):
        return False
    objects.keep(prepared.objects)
    return True


async def _commit_of(store: Store, head: Branch, root: bytes, info: CommitInfo, second_parent: str | None) -> Commit:
    generation = 1 + head.generation
    if second_parent:
        generation = max(generation, 1 + (await refs.commit(store, second_parent)).generation)
    parents = (head.commit, second_parent) if second_parent else (head.commit,)
    made = Commit(
        root=root.hex(),
        parents=parents,
        message=info.message,
        author=info.author,
        created_ns=time.time_ns(),
        meta=dict(info.meta),
        generation=generation,
    )
    if (size := len(made.encode())) > store.largest:
        what = f"The commit with its message, author and metadata has {size:,} bytes; the maximum is {store.largest:,}"
        raise UsageError(what, hint="Shorten the message or the metadata")
    return made


async def _go_first(objects: Objects, found: ChunkBytes) -> ChunkBytes:
    """Write the objects that are too many or too large now; return those to write together with the commit."""
    if len(found) > OBJECTS_PER_WRITE or sum(map(len, found.values())) > OBJECTS_BYTES_PER_WRITE:
        await objects.write(found)
        return {}
    large = {identity: data for identity, data in found.items() if len(data) > LARGE_OBJECT_BYTES}
    await objects.write(large)
    return {identity: data for identity, data in found.items() if identity not in large}


def _objects(found: ChunkBytes) -> list[StoreChange]:
    return [StoreChange(OBJECTS, identity, data) for identity, data in found.items()]


def _heading(made: Commit, record: BranchRecord, branch: Branch) -> list[StoreChange]:
    """Return the commit, and the branch moved to it."""
    return [StoreChange(refs.COMMITS, bytes.fromhex(made.id), made.encode()), record.replaced(branch.at(made.id, made))]


def edits_of(changes: Iterable[tuple[bytes, bytes | None]]) -> tuple[list[Edit], ChunkBytes]:
    """Return changes as leaves store them, and the objects of large values."""
    large: ChunkBytes = {}
    edits: list[Edit] = []
    for key, value in changes:
        if value is None:
            edits.append((key, None))
            continue
        stored, apart = leaf_value(value)
        large.update(apart)
        edits.append((key, stored))
    return edits, large
