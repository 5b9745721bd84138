"""A repository: branches with staged changes, commits, diff, merge, on any Store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.kv.names import check_key
from kvctl.versions import committing, reading, refs, staging, tree
from kvctl.versions.chunks import EMPTY
from kvctl.versions.committing import Note
from kvctl.versions.merge import Conflict, Strategy, merge
from kvctl.versions.model import Commit, Head, Staging, VersionedEntry, encode_staged
from kvctl.versions.objects import OBJECTS, Objects
from kvctl.versions.refs import COMMITS, HEADS, MAIN, TAGS, Ref
from kvctl.versions.staging import STAGING
from kvctl.versions.store import ABSENT, Change, Condition, EntryNotFound, Predicate, PredicateFailed, Store
from kvctl.versions.tree import EMPTY_ROOT, Difference
from kvctl.versions.tree_update import Edit


class Conflicting(ConflictError):
    """Both sides changed keys; `conflicts` says which, and nothing was changed."""

    def __init__(self, conflicts: Sequence[Conflict]) -> None:
        keys = ", ".join(f"`{item.key.decode()}`" for item in conflicts[:10])
        more = f" and {len(conflicts) - 10} more" if len(conflicts) > 10 else ""
        super().__init__(f"Both sides changed {keys}{more}", hint="`--strategy source-wins` or `dest-wins` decides")
        self.conflicts = list(conflicts)


class Unrelated(KvctlError):
    """Two histories without a common commit."""


@dataclass(frozen=True, slots=True)
class Status:
    """A branch: where it stands, and what is staged; None deletes a key."""

    branch: str
    commit: str
    changes: Mapping[str, bytes | None]


class Repository:
    """Versioned keys on a Store. Keys are ADR-8's, values any bytes."""

    def __init__(self, store: Store, *, author: str = "") -> None:
        self.store = store
        self.author = author
        self.objects = Objects(store)

    async def init(self) -> Commit:
        """Make the first commit, of nothing, and the branch `main`. Raises ConflictError where one is."""
        first = Commit(
            root=EMPTY_ROOT.hex(), parents=(), message="Repository created", author=self.author,
            created_ns=time.time_ns(),
        )  # fmt: skip
        conditions = [Condition(HEADS, MAIN.encode(), ABSENT)]
        changes = [
            Change(OBJECTS, EMPTY_ROOT, EMPTY.encode()),
            Change(COMMITS, bytes.fromhex(first.id), first.encode()),
            *_branch(MAIN, Head(first.id, first.root)),
        ]
        try:
            await self.store.write(conditions, changes)
        except PredicateFailed:
            raise ConflictError("The repository has its first branch already") from None
        return first

    # -- reading -------------------------------------------------------------------------------------------

    async def get(self, ref: str, *keys: str) -> list[VersionedEntry | None]:
        """The entries of keys at a ref, None for those that are not there. Raises RefNotFound, UsageError."""
        for key in keys:
            check_key(key)
        return await reading.get(self.store, self.objects, await refs.resolve(self.store, ref), keys)

    async def entries(self, ref: str) -> list[VersionedEntry]:
        """All entries at a ref, sorted. Raises RefNotFound, UsageError."""
        return await reading.entries(self.store, self.objects, await refs.resolve(self.store, ref))

    async def status(self, branch: str) -> Status:
        """What is staged. Raises BranchNotFound."""
        head, _ = await refs.head(self.store, branch)
        _, changes = await reading.staged(self.store, branch)
        return Status(branch, head.commit, {key.decode(): value for key, value in sorted(changes.items())})

    async def log(self, ref: str, *, first_parent: bool = False) -> AsyncIterator[tuple[str, Commit]]:
        """A commit and those that it comes from, the newest first. Raises RefNotFound."""
        start = (await refs.resolve(self.store, ref)).commit
        async for item in refs.ancestors(self.store, start, first_parent=first_parent):
            yield item

    # -- writing -------------------------------------------------------------------------------------------

    async def put(self, branch: str, key: str, value: bytes) -> None:
        """Stage a value. Raises BranchNotFound, ConflictError when it is spent, UsageError."""
        await staging.put(self.store, branch, [(check_key(key).encode(), value)])

    async def put_many(self, branch: str, changes: Mapping[str, bytes | None]) -> None:
        """Stage many changes together, None deletes. Raises as `put`."""
        await staging.put(self.store, branch, [(check_key(key).encode(), value) for key, value in changes.items()])

    async def delete(self, branch: str, key: str) -> None:
        """Stage a deletion. Raises as `put`."""
        await staging.put(self.store, branch, [(check_key(key).encode(), None)])

    async def write_if(self, branch: str, key: str, value: bytes | None, identity: str | None) -> None:
        """Stage a value, None for a deletion, if the key has this identity now, None for not being there.

        Holds on epoch, key and committed state together. Raises ConflictError, BranchNotFound, UsageError.
        """
        name, place = branch.encode(), check_key(key).encode()
        for _ in range(staging.TRIES):
            held = await staging.read(self.store, branch)
            head, at = await refs.head(self.store, branch)
            (entry,) = await reading.get(self.store, self.objects, Ref(head.commit, branch), [key])
            own = await staging.find_in(self.store, held.staging.epoch, place)
            if (entry.identity if entry else None) != identity:
                raise ConflictError(f"`{key}` on `{branch}` " + _is(entry))
            conditions = [
                Condition(HEADS, name, at),
                Condition(STAGING, name, held.predicate),
                staging.own_condition(held.staging.epoch, place, own),
            ]
            change = Change(staging.partition_of(held.staging.epoch), place, encode_staged(value))
            try:
                return await self.store.write(conditions, [change])
            except PredicateFailed:
                await staging.pause()
        raise staging.busy(branch)

    async def commit(
        self, branch: str, message: str, *, meta: Mapping[str, str] | None = None, allow_empty: bool = False
    ) -> Commit:
        """Record what is staged. Raises NothingToCommit, BranchNotFound, ConflictError when it is spent."""
        note = Note(message, self.author, meta or {}, allow_empty)
        return await committing.commit(self.store, self.objects, branch, note)

    async def reset(self, branch: str) -> None:
        """Drop what is staged. Raises BranchNotFound, ConflictError when it is spent."""
        for _ in range(staging.TRIES):
            held = await staging.read(self.store, branch)
            after = Staging(staging.new_epoch())
            try:
                await self.store.set_if(STAGING, branch.encode(), after.encode(), held.predicate)
            except PredicateFailed:
                await staging.pause()
            else:
                return await staging.clear(self.store, held.staging.epochs)
        raise staging.busy(branch)

    # -- comparing and bringing together -------------------------------------------------------------------

    async def diff(self, before: str, after: str) -> list[Difference]:
        """What differs between two committed states, sorted, values as they are stored. Raises RefNotFound."""
        roots = [await self._root(before), await self._root(after)]
        return await self.objects.carry(tree.diff(*roots))

    async def merge(
        self, source: str, dest: str, message: str = "", *, strategy: Strategy | None = None, squash: bool = False
    ) -> Commit | None:
        """Bring the source's changes since the common commit into a branch; None when they are there already.

        Raises Conflicting, Unrelated, ConflictError for staged changes, RefNotFound.
        """
        head, at = await self._clean(dest)
        theirs = (await refs.resolve(self.store, source)).commit
        base = await refs.merge_base(self.store, theirs, head.commit)
        if base is None:
            raise Unrelated(f"`{source}` and `{dest}` have no commit in common")
        if base == theirs:
            return None
        sides = [await self._between(base, theirs), await self._between(base, head.commit)]
        found = merge(sides[0], sides[1], strategy)
        if found.conflicts:
            raise Conflicting(found.conflicts)
        note = Note(message or f"Merge {source} into {dest}", self.author, {}, allow_empty=True)
        return await self._move(dest, note, found.edits, head, at, None if squash else theirs)

    async def revert(self, branch: str, ref: str, *, parent: int = 1) -> Commit:
        """Take a commit's changes back. Raises Conflicting, ConflictError for staged changes, NothingToCommit."""
        identity, before = await self._commit_and_parent(ref, parent)
        note = Note(f"Revert {identity[:12]}", self.author, {"reverts": identity})
        return await self._apply(branch, note, base=identity, source=before)

    async def cherry_pick(self, branch: str, ref: str, *, parent: int = 1) -> Commit:
        """Make a commit's changes again. Raises as `revert`."""
        identity, before = await self._commit_and_parent(ref, parent)
        message = (await refs.commit(self.store, identity)).message
        note = Note(message, self.author, {"cherry-picked-from": identity})
        return await self._apply(branch, note, base=before, source=identity)

    # -- refs ----------------------------------------------------------------------------------------------

    async def create_branch(self, name: str, ref: str = MAIN) -> str:
        """A branch at a committed state; returns its commit. Raises ConflictError where one is, RefNotFound."""
        refs.check_name(name)
        identity = (await refs.resolve(self.store, ref)).commit
        found = await refs.commit(self.store, identity)
        await self._add(HEADS, name, "Branch", _branch(name, Head(identity, found.root)))
        return identity

    async def delete_branch(self, name: str) -> None:
        """Delete a branch with what is staged on it. Raises BranchNotFound, ConflictError when it moved meanwhile."""
        _, at = await refs.head(self.store, name)
        held = await staging.read(self.store, name)
        conditions = [Condition(HEADS, name.encode(), at), Condition(STAGING, name.encode(), held.predicate)]
        gone = [Change(partition, name.encode(), None) for partition in (HEADS, STAGING)]
        try:
            await self.store.write(conditions, gone)
        except PredicateFailed:
            raise ConflictError(f"Branch `{name}` was changed meanwhile") from None
        await staging.clear(self.store, held.staging.epochs)

    async def create_tag(self, name: str, ref: str = MAIN) -> str:
        """A tag on a commit, for ever there; returns its id. Raises ConflictError where one is, RefNotFound."""
        refs.check_name(name, "tag")
        identity = (await refs.resolve(self.store, ref)).commit
        await self._add(TAGS, name, "Tag", [Change(TAGS, name.encode(), identity.encode())])
        return identity

    async def branches(self) -> dict[str, str]:
        """The branches, each with its commit."""
        async with self.store.scan(HEADS) as entries:
            return {entry.key.decode(): Head.decode(entry.value).commit async for entry in entries}

    async def tags(self) -> dict[str, str]:
        """The tags, each with its commit."""
        async with self.store.scan(TAGS) as entries:
            return {entry.key.decode(): entry.value.decode() async for entry in entries}

    # -- inside --------------------------------------------------------------------------------------------

    async def _root(self, ref: str) -> bytes:
        identity = (await refs.resolve(self.store, ref)).commit
        return bytes.fromhex((await refs.commit(self.store, identity)).root)

    async def _between(self, before: str, after: str) -> list[Difference]:
        roots = [bytes.fromhex((await refs.commit(self.store, one)).root) for one in (before, after)]
        return await self.objects.carry(tree.diff(*roots))

    async def _clean(self, branch: str) -> tuple[Head, Predicate]:
        """The head of a branch without staged changes. Raises ConflictError."""
        head = await refs.head(self.store, branch)
        if (await self.status(branch)).changes:
            raise ConflictError(
                f"Branch `{branch}` has staged changes; nothing was changed",
                hint="Commit them, or drop them with `kvctl reset`",
            )
        return head

    async def _apply(self, branch: str, note: Note, *, base: str, source: str) -> Commit:
        """Bring what differs between two commits onto a branch."""
        head, at = await self._clean(branch)
        found = merge(await self._between(base, source), await self._between(base, head.commit))
        if found.conflicts:
            raise Conflicting(found.conflicts)
        return await self._move(branch, note, found.edits, head, at, None)

    async def _move(
        self, branch: str, note: Note, edits: Sequence[Edit], head: Head, at: Predicate, second: str | None
    ) -> Commit:
        return await committing.move(
            self.store, self.objects, branch, note, edits, onto=head, at=at, second_parent=second
        )

    async def _commit_and_parent(self, ref: str, parent: int) -> tuple[str, str]:
        identity = (await refs.resolve(self.store, ref)).commit
        parents = (await refs.commit(self.store, identity)).parents
        if not 1 <= parent <= len(parents):
            what = "is the first commit" if not parents else f"has {len(parents)} parents"
            raise UsageError(f"`{ref}` {what}: there is no parent {parent}")
        return identity, parents[parent - 1]

    async def _add(self, partition: bytes, name: str, what: str, changes: Sequence[Change]) -> None:
        try:
            await self.store.get(TAGS if partition == HEADS else HEADS, name.encode())
        except EntryNotFound:
            pass
        else:
            raise ConflictError(f"`{name}` is a {'tag' if partition == HEADS else 'branch'} already")
        try:
            await self.store.write([Condition(partition, name.encode(), ABSENT)], changes)
        except PredicateFailed:
            raise ConflictError(f"{what} `{name}` exists") from None


def _branch(name: str, head: Head) -> list[Change]:
    return [
        Change(HEADS, name.encode(), head.encode()),
        Change(STAGING, name.encode(), Staging(staging.new_epoch()).encode()),
    ]


def _is(entry: VersionedEntry | None) -> str:
    return "is not there" if entry is None else f"has identity {entry.identity}"
