"""Commits: a branch's epoch is sealed, what was staged becomes a tree, and head and staging move in one write.

Nobody waits for a commit: writers go on in the epoch that the seal opened. Of several committers at least one makes
progress: whom others only sealed under moves with the tree it has, whom another commit came before builds on that one,
or finds that its changes are in there already.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.versions import refs
from kvctl.versions.branch import (
    branch_state,
    dropped_epochs,
    sealed_epochs,
    staging,
)
from kvctl.versions.branch.branch_state import Stand
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.model import DROPPED, Commit, Head, check_text, leaf_value
from kvctl.versions.store.protocol import Change, PredicateFailed, Store
from kvctl.versions.tree.objects import OBJECTS, Objects
from kvctl.versions.tree.tree import Objects as Made
from kvctl.versions.tree.tree import get
from kvctl.versions.tree.tree_update import Edit

TOGETHER = 400
"""Objects that are written together with the commit; more go first."""
TOGETHER_BYTES = 4 << 20
LARGE = 64 << 10
"""Bytes of an object that goes first, whatever else there is: alone it may be larger than in a batch."""


class NothingToCommit(KvctlError):
    """There is no change to record; `taken_by` is the id of the commit that has recorded them, if one came before."""

    def __init__(self, message: str, *, hint: str | None = None, taken_by: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.taken_by = taken_by


class Staged(ConflictError):
    """A branch has staged changes, where it must not."""

    def __init__(self, branch: str) -> None:
        super().__init__(
            f"Branch `{branch}` has staged changes; nothing was changed",
            hint="`kvctl repo commit` records them, `kvctl repo reset` drops them",
        )


@dataclass(frozen=True, slots=True)
class Note:
    """What a commit says of itself. Raises UsageError for what is not text."""

    message: str
    author: str
    meta: Mapping[str, str] = field(default_factory=dict)
    allow_empty: bool = False

    def __post_init__(self) -> None:
        check_text(self.message, "message")
        check_text(self.author, "author")
        for text in itertools.chain(*self.meta.items()):
            check_text(text, "metadata")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A commit whose tree is made, of these epochs; its objects count as there while no collection begins."""

    commit: Commit
    epochs: tuple[str, ...]
    objects: Made
    begun: int


async def commit(store: Store, objects: Objects, branch: str, note: Note) -> Commit:
    """Record what is staged. Raises NothingToCommit, BranchNotFound, ConflictError when it is spent, Broken."""
    own = await _seal(store, branch, note)
    prepared: _Prepared | None = None
    for _ in range(staging.TRIES):
        stand = await sealed_epochs.few(store, branch)
        if not note.allow_empty:
            _check_left(own, stand)
        if prepared is None or not _still_good(prepared, stand):
            prepared = await _prepare(store, objects, stand, note)
        if prepared.commit.root == stand.head.root and not note.allow_empty:
            if await forget(store, stand, prepared.epochs):
                raise NothingToCommit(f"What was staged on `{branch}` is what it holds already")
        elif await _move(store, objects, stand, prepared):
            await dropped_epochs.clear_later(store, prepared.epochs)
            return prepared.commit
        await staging.pause()
    raise staging.busy(branch)


async def move(
    store: Store, objects: Objects, stand: Stand, note: Note, edits: Sequence[Edit], *,
    second_parent: str | None = None, linking: bool = False,
) -> Commit | None:  # fmt: skip
    """Commit changes onto a branch without staged ones; None when somebody else moved it. Raises NothingToCommit.

    `linking` says that the changes come from commits which the branch does not come from.
    """
    tree = await objects.updated(bytes.fromhex(stand.head.root), edits)
    return await move_to(
        store, objects, stand, note, tree.root, tree.objects, second_parent=second_parent, linking=linking
    )


async def move_to(
    store: Store, objects: Objects, stand: Stand, note: Note, root: bytes, found: Made, *,
    second_parent: str | None = None, linking: bool = False,
) -> Commit | None:  # fmt: skip
    """The same for a tree that is made; `found` are its objects that the branch does not have yet."""
    if root.hex() == stand.head.root and second_parent is None and not note.allow_empty:
        raise NothingToCommit("There is nothing to record")
    made = await _commit_of(store, stand.head, root, note, second_parent)
    together = await _go_first(objects, found)
    name = stand.branch.encode()
    changes = [*_objects(together), *_heading(made, name), Change(STAGING, name, stand.held.staging.encode())]
    if linking:
        changes.append(stand.collections.touched)
    try:
        await store.write([*stand.unmoved, stand.unguarded], changes)
    except PredicateFailed:
        return None
    objects.keep(found)
    return made


async def clean(
    store: Store, objects: Objects, branch: str, *, linking: bool = False, dry_run: bool = False
) -> Stand:  # fmt: skip
    """The stand of a branch without staged changes. Raises Staged, BranchNotFound, ConflictError when it is spent.

    Staged values that are what the branch holds already are let go of: they would hide what comes.
    """
    for _ in range(staging.TRIES):
        stand = await (branch_state.linking_stand if linking and not dry_run else branch_state.stand)(store, branch)
        held = stand.held.staging
        if await nothing(store, held.epochs):
            return stand
        changes = await staging.listed(store, held.epochs[::-1])
        if await differing(objects, stand.head, changes):
            if await branch_state.still(store, stand):
                raise Staged(branch)
            continue
        if dry_run:
            return stand
        if not await nothing(store, [held.epoch]):
            await staging.seal(store, branch)
        else:
            await forget(store, stand, held.sealed)
    raise staging.busy(branch)


async def nothing(store: Store, epochs: Sequence[str]) -> bool:
    """Whether nothing is staged in any of these epochs."""
    for epoch in epochs:
        async with store.scan(staging.partition_of(epoch), batch=1, values=False) as entries:
            async for _ in entries:
                return False
    return True


async def differing(objects: Objects, head: Head, changes: Mapping[bytes, bytes | None]) -> set[bytes]:
    """The keys whose staged change is one: the value is not what is committed."""
    found = await objects.carry(get(bytes.fromhex(head.root), list(changes)))
    stored = {key: None if value is None else leaf_value(value)[0] for key, value in changes.items()}
    return {key for key, value in stored.items() if value != found.get(key)}


async def forget(store: Store, stand: Stand, epochs: Sequence[str]) -> bool:
    """Let go of sealed epochs whose changes are what is committed already; False when the branch moved meanwhile.

    Of very many, of the oldest: what the others hold is what is committed, too.
    """
    epochs = epochs[: sealed_epochs.TOGETHER]
    after = stand.held.staging.without(epochs, stand.head.commit, time.time())
    change = Change(STAGING, stand.branch.encode(), after.encode())
    try:
        await store.write(stand.standing, [change, *dropped_epochs.noted(epochs)])
    except PredicateFailed:
        return False
    await dropped_epochs.clear_later(store, epochs)
    return True


async def _seal(store: Store, branch: str, note: Note) -> str | None:
    """Close the epoch that writes go to, unless nothing is staged there, or another commit does; the last one sealed.

    Raises NothingToCommit.
    """
    first: str | None = None
    for _ in range(staging.TRIES):
        stand = await branch_state.stand(store, branch)
        held = stand.held.staging
        first = first or held.epoch
        if held.epoch != first:
            return first
        if await nothing(store, [held.epoch]):
            if note.allow_empty or not await nothing(store, held.sealed):
                return held.sealed[-1] if held.sealed else None
            raise NothingToCommit(f"Nothing is staged on `{branch}`", hint="`--allow-empty` commits all the same")
        if sealed_epochs.due(held):
            await sealed_epochs.fold(store, stand)
            continue
        after = held.sealing(staging.new_epoch(), time.time())
        try:
            await store.set_if(STAGING, branch.encode(), after.encode(), stand.held.predicate)
        except PredicateFailed:
            await staging.pause()
        else:
            return held.epoch
    raise staging.busy(branch)


def _check_left(own: str | None, stand: Stand) -> None:
    """Raises NothingToCommit when what this commit sealed is no longer there, and says which commit has it.

    Where that is forgotten, it may be in any of the sealed epochs: all of them are taken.
    """
    sealed = stand.held.staging.sealed
    where = None if own is None else stand.held.staging.whereabouts(own)
    if own is None or where in sealed or (where is None and sealed):
        return
    if where == DROPPED:
        raise NothingToCommit(f"The staged changes of `{stand.branch}` were dropped by a reset")
    if where is None:
        raise NothingToCommit(
            f"Others have committed or reset the staged changes of `{stand.branch}` since this commit began",
            hint="`kvctl repo log` shows their commits",
        )
    raise NothingToCommit(
        f"The staged changes of `{stand.branch}` are committed already: `{where[:12]}` holds them", taken_by=where
    )


def _still_good(prepared: _Prepared, stand: Stand) -> bool:
    """Whether others have but sealed, since."""
    sealed = stand.held.staging.sealed
    return (
        prepared.commit.parents[0] == stand.head.commit
        and prepared.epochs == sealed[: len(prepared.epochs)]
        and prepared.begun == stand.collections.collection.begun
    )


async def _prepare(store: Store, objects: Objects, stand: Stand, note: Note) -> _Prepared:
    epochs = stand.held.staging.sealed
    edits, large = edits_of(await staging.listed(store, epochs))
    tree = await objects.updated(bytes.fromhex(stand.head.root), edits)
    made = await _commit_of(store, stand.head, tree.root, note, None)
    together = {} if tree.root.hex() == stand.head.root else await _go_first(objects, {**tree.objects, **large})
    return _Prepared(made, epochs, together, stand.collections.collection.begun)


async def _move(store: Store, objects: Objects, stand: Stand, prepared: _Prepared) -> bool:
    """The objects that are left, the commit and the branch's move, at once."""
    made, name = prepared.commit, stand.branch.encode()
    after = stand.held.staging.without(prepared.epochs, made.id, time.time())
    changes = [
        *_objects(prepared.objects),
        *_heading(made, name),
        *dropped_epochs.noted(prepared.epochs),
        Change(STAGING, name, after.encode()),
    ]
    try:
        await store.write(stand.unmoved, changes)
    except PredicateFailed:
        return False
    objects.keep(prepared.objects)
    return True


async def _commit_of(store: Store, head: Head, root: bytes, note: Note, second_parent: str | None) -> Commit:
    generation = 1 + head.generation
    if second_parent:
        generation = max(generation, 1 + (await refs.commit(store, second_parent)).generation)
    parents = (head.commit, second_parent) if second_parent else (head.commit,)
    made = Commit(
        root=root.hex(), parents=parents, message=note.message, author=note.author, created_ns=time.time_ns(),
        meta=dict(note.meta), generation=generation,
    )  # fmt: skip
    if (size := len(made.encode())) > store.largest:
        what = f"Message, author and metadata make a commit of {size:,} bytes, {store.largest:,} are the most"
        raise UsageError(what, hint="Shorten them")
    return made


async def _go_first(objects: Objects, found: Made) -> Made:
    """Those that are written together with the commit; the others, which are too many or too large, are written now."""
    if len(found) > TOGETHER or sum(map(len, found.values())) > TOGETHER_BYTES:
        await objects.write(found)
        return {}
    large = {identity: data for identity, data in found.items() if len(data) > LARGE}
    await objects.write(large)
    return {identity: data for identity, data in found.items() if identity not in large}


def _objects(found: Made) -> list[Change]:
    return [Change(OBJECTS, identity, data) for identity, data in found.items()]


def _heading(made: Commit, branch: bytes) -> list[Change]:
    head = Head(made.id, made.root, made.generation)
    return [Change(refs.COMMITS, bytes.fromhex(made.id), made.encode()), Change(refs.HEADS, branch, head.encode())]


def edits_of(changes: Mapping[bytes, bytes | None]) -> tuple[list[Edit], Made]:
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
