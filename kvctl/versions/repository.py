"""Repository: branches with staged changes, commits, diff and merge, on any Store."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing

from kvctl.errors import ConflictError
from kvctl.kv.names import check_filter
from kvctl.versions import commits, garbage, history, merges, ref_diff, ref_reader, refs
from kvctl.versions.branch import branch_names, epochs, private_epoch, staging
from kvctl.versions.branch.branch_state import COLLECTION, Collection
from kvctl.versions.branch.staging import Writer
from kvctl.versions.commits import CommitInfo
from kvctl.versions.garbage import Collected
from kvctl.versions.history import Annotation
from kvctl.versions.key_change import KeyChange, Status
from kvctl.versions.merges import MergeResult
from kvctl.versions.model import Branch, Commit, VersionedEntry, check_versioned_key
from kvctl.versions.ref_reader import Selection
from kvctl.versions.refs import BRANCHES, COMMITS, MAIN, TAGS
from kvctl.versions.store.protocol import ABSENT, Change, Condition, Store
from kvctl.versions.transfer import record_bucket
from kvctl.versions.transfer.record_bucket import Content
from kvctl.versions.tree.chunks import EMPTY
from kvctl.versions.tree.objects import OBJECTS, Objects
from kvctl.versions.tree.three_way import Strategy
from kvctl.versions.tree.tree import EMPTY_ROOT

CHANGES_TOGETHER = 4000
"""Number of changes encoded together, while earlier ones are sent."""


class Repository:
    """Versioned keys on a Store. Keys are legal by ADR-8, values are any bytes.

    Operations are atomic, and retried when a concurrent one comes first. When too many retries fail they raise
    ConflictError, and nothing was changed.
    """

    def __init__(self, store: Store, *, author: str = "") -> None:
        self.store = store
        self.author = author
        self.objects = Objects(store)
        self.writer = Writer(store)

    async def init(self) -> Commit:
        """Create the first, empty commit and the branch `main`. Raises ConflictError if one exists."""
        first = Commit(
            root=EMPTY_ROOT.hex(),
            parents=(),
            message="Repository created",
            author=self.author,
            created_ns=time.time_ns(),
        )
        conditions = [Condition(BRANCHES, MAIN.encode(), ABSENT)]
        changes = [
            Change(COLLECTION, COLLECTION, Collection().encode()),
            Change(OBJECTS, EMPTY_ROOT, EMPTY.encode()),
            Change(COMMITS, bytes.fromhex(first.id), first.encode()),
            *branch_names.branch_records(MAIN, first.id, first.root, 0),
        ]
        if not await self.store.written(conditions, changes):
            raise ConflictError("The repository already has its first branch")
        return first

    # -- reading -------------------------------------------------------------------------------------------

    async def get(self, ref: str, *keys: str) -> list[VersionedEntry | None]:
        """Return the entries of keys at a ref, None for absent ones. Raises RefNotFound, UsageError."""
        for key in keys:
            check_versioned_key(key)
        return await ref_reader.get(self.store, self.objects, await refs.resolve(self.store, ref), keys)

    async def entry_batches(
        self, ref: str, *filters: str, start: str = "", values: bool = True
    ) -> AsyncGenerator[list[VersionedEntry], None]:
        """Yield the entries at a ref, all or those that filters select, sorted by the bytes of their keys, in batches.

        They are consistent, and start at the key `start` if given. Without `values` large ones are left out: `value` is
        empty then. Memory grows with the staged changes, not with the committed ones. Raises RefNotFound, UsageError.
        """
        for one in filters:
            check_filter(one)
        state = await ref_reader.state(self.store, await refs.resolve(self.store, ref))
        selection = Selection(filters, start, values=values)
        async with aclosing(ref_reader.batches(self.objects, state, selection)) as batches:
            async for batch in batches:
                yield batch

    async def entries(self, ref: str, *filters: str) -> list[VersionedEntry]:
        """Return all of them as one list. Raises as `entry_batches`."""
        return [entry async for batch in self.entry_batches(ref, *filters) for entry in batch]

    async def show(self, ref: str) -> Commit:
        """Return the commit of a ref; for a branch its last. Raises RefNotFound, UsageError."""
        return await refs.commit(self.store, (await refs.resolve(self.store, ref)).commit)

    async def status(self, branch: str, *, values: bool = True) -> Status:
        """Return a branch's commit and its staged changes that differ from it. Raises BranchNotFound.

        Without `values` large ones are Apart: memory does not grow with them.
        """
        return await ref_diff.status(self.store, self.objects, branch, values=values)

    async def diff(
        self, before: str, after: str | None = None, *, three_dot: bool = False, values: bool = True
    ) -> list[KeyChange]:
        """Return the keys that differ, sorted; a branch is its committed state, with `$` its staged changes, too.

        Without `after`, the changes staged on the branch `before`. With `three_dot`, the changes of `after` since the
        merge base, where keys that `before` changed differently are conflicts. Without `values` large ones are Apart:
        memory does not grow with them. Raises RefNotFound, UsageError, Unrelated.
        """
        return await ref_diff.diff(self.store, self.objects, before, after, three_dot=three_dot, values=values)

    def resolved(self, changes: Iterable[KeyChange]) -> AsyncGenerator[list[KeyChange], None]:
        """Yield changes with the values that are Apart read, in batches, so that few are held.

        Raises Broken, and ConflictError for a large value that was replaced on its branch in the meantime.
        """
        return ref_diff.resolved(self.store, self.objects, changes)

    async def log(
        self, ref: str, *, first_parent: bool = False, key: str | None = None, limit: int | None = None
    ) -> AsyncIterator[tuple[str, Commit]]:
        """Yield a commit and its ancestors, newest first, each with its id; at most `limit`.

        With a key only the commits that touched it. Raises RefNotFound, UsageError.
        """
        async for found in history.log(self.store, self.objects, ref, first_parent=first_parent, key=key, limit=limit):
            yield found

    async def annotate(self, ref: str, pattern: str = ">") -> list[Annotation]:
        """Find the last commit of each key that the filter selects at a ref, sorted. Raises RefNotFound, UsageError."""
        return await history.annotate(self.store, self.objects, ref, pattern)

    async def merge_base(self, one: str, other: str) -> str:
        """Return the id of the newest common ancestor of both refs. Raises Unrelated, RefNotFound, UsageError."""
        return await ref_diff.merge_base(self.store, one, other)

    # -- staging -------------------------------------------------------------------------------------------

    def check(self, key: str, value: bytes | None) -> None:
        """Check a key and a value. Raises UsageError for one that no branch can hold."""
        check_versioned_key(key)
        self.writer.check(value)

    async def put(self, branch: str, key: str, value: bytes) -> int:
        """Stage a value; return the revision of the change, which it has until the key is staged again.

        Raises BranchNotFound, UsageError, ConflictError after too many retries.
        """
        return await self.writer.put(branch, check_versioned_key(key).encode(), value)

    async def put_many(self, branch: str, changes: Mapping[str, bytes | None]) -> dict[str, int]:
        """Stage many changes atomically, None deletes. Returns and raises as `put`."""
        staged = [(check_versioned_key(key).encode(), value) for key, value in changes.items()]
        return dict(zip(changes, await self.writer.put_many(branch, staged), strict=True))

    async def put_each(self, branch: str, changes: Mapping[str, bytes | None]) -> None:
        """Stage any number of changes, which appear on the branch together; None deletes.

        If they are more than `put_many` takes, they replace what is staged until the end. Raises as `put`, and
        UnreachableError and ServerError (nothing was staged).
        """
        async with private_epoch.load(self.store, self.writer, branch) as loading:
            left = iter(changes.items())
            while some := dict(itertools.islice(left, CHANGES_TOGETHER)):
                await loading.add({check_versioned_key(key).encode(): value for key, value in some.items()})

    async def delete(self, branch: str, key: str) -> int:
        """Stage a deletion. Returns and raises as `put`."""
        return await self.writer.put(branch, check_versioned_key(key).encode(), None)

    async def write_if(self, branch: str, key: str, value: bytes | None, identity: str | None) -> int:
        """Stage a value, None for a deletion, if the key has this identity now, None for an absent key.

        Conditional on epoch, key and committed state together. Returns as `put`. Raises IdentityMismatch, and as `put`.
        """
        self.check(key, value)
        return await staging.write_if(self.store, self.objects, branch, key, value, identity)

    async def write_if_staged(self, branch: str, key: str, value: bytes | None, revision: int) -> int:
        """Stage a value, None for a deletion, if the key's staged value has this revision.

        Unlike an identity, it no longer holds once the same value is staged again. Raises StagedMismatch, and as `put`.
        """
        self.check(key, value)
        return await staging.write_if_staged(self.store, self.objects, branch, key, value, revision)

    async def reset(self, branch: str) -> None:
        """Drop all staged changes. Raises BranchNotFound, ConflictError after too many retries."""
        await epochs.reset(self.store, branch)

    async def reset_key(self, branch: str, key: str) -> bool:
        """Drop the staged change of a key; return whether there was one. Raises as `reset`, and UsageError."""
        name = check_versioned_key(key).encode()
        return await epochs.reset_keys(self.store, branch, name, name.__eq__) > 0

    async def reset_prefix(self, branch: str, prefix: str) -> int:
        """Drop the staged changes of all keys with a prefix, atomically; return their number. Raises as `reset`."""
        start = prefix.encode()
        return await epochs.reset_keys(self.store, branch, start, lambda key: key.startswith(start))

    # -- committing ----------------------------------------------------------------------------------------

    async def commit(
        self, branch: str, message: str, *, meta: Mapping[str, str] | None = None, allow_empty: bool = False
    ) -> Commit:
        """Commit the staged changes. Raises NothingToCommit, BranchNotFound, ConflictError after too many retries."""
        info = CommitInfo(message, self.author, meta or {}, allow_empty)
        return await commits.commit(self.store, self.objects, branch, info, written=self.writer.epoch(branch))

    async def record(
        self, branch: str, content: Content, message: str, *, meta: Mapping[str, str] | None = None,
        allow_empty: bool = False,
    ) -> Commit:  # fmt: skip
        """Replace the branch's content by this one in one commit, onto a branch without staged changes.

        An iterable that is not a mapping must be sorted by the bytes of the keys. Raises NothingToCommit, Staged,
        UsageError, BranchNotFound, ConflictError after too many retries.
        """
        info = CommitInfo(message, self.author, meta or {}, allow_empty)
        return await record_bucket.record(self.store, self.objects, branch, content, info, self.check)

    async def merge(
        self, source: str, dest: str, message: str = "", *, strategy: Strategy | None = None, squash: bool = False,
        dry_run: bool = False,
    ) -> MergeResult:  # fmt: skip
        """Merge the source's changes since the merge base into a branch; no commit if it has them already.

        Raises Conflicting, Unrelated, Staged, RefNotFound, UsageError.
        """
        info = CommitInfo(message or f"Merge {source} into {dest}", self.author, allow_empty=True)
        plan = merges.merging(self.store, dest, source, info, squash=squash)
        return await merges.combine(
            self.store, self.objects, dest, plan, strategy=strategy, is_merge=True, dry_run=dry_run
        )

    async def revert(self, branch: str, ref: str, *, parent: int | None = None, dry_run: bool = False) -> MergeResult:
        """Undo a commit's changes; for a merge, those since this parent. Raises NothingToCommit, and as `merge`."""
        plan = merges.reverting(self.store, ref, parent, self.author)
        return await merges.combine(self.store, self.objects, branch, plan, dry_run=dry_run)

    async def cherry_pick(
        self, branch: str, ref: str, *, parent: int | None = None, dry_run: bool = False
    ) -> MergeResult:
        """Apply a commit's changes to a branch. Raises as `revert`."""
        plan = merges.picking(self.store, ref, parent, self.author)
        return await merges.combine(self.store, self.objects, branch, plan, dry_run=dry_run)

    async def reset_hard(self, branch: str, ref: str, *, dry_run: bool = False) -> Commit:
        """Move a branch without staged changes to a commit; return that commit. Raises Staged, RefNotFound."""
        return await merges.reset_hard(self.store, self.objects, branch, ref, dry_run=dry_run)

    # -- branches and tags ---------------------------------------------------------------------------------

    async def create_branch(self, name: str, ref: str = MAIN) -> str:
        """Create a branch at a committed state; return its commit. Raises RefExists, RefNotFound, UsageError."""
        return await branch_names.create_branch(self.store, name, ref)

    async def delete_branch(self, name: str) -> None:
        """Delete a branch with its staged changes. Raises BranchNotFound."""
        await branch_names.delete_branch(self.store, name)

    async def create_tag(self, name: str, ref: str = MAIN) -> str:
        """Create a tag on a commit; return its id. Raises RefExists, RefNotFound, UsageError."""
        return await branch_names.create_tag(self.store, name, ref)

    async def delete_tag(self, name: str) -> None:
        """Delete a tag; its commit stays. Raises RefNotFound."""
        await branch_names.delete_tag(self.store, name)

    async def branches(self) -> dict[str, str]:
        """Return the branches, each with its commit."""
        entries = self.store.scan(BRANCHES)
        return {entry.key.decode(): Branch.decode(entry.value).commit async for entry in entries}

    async def tags(self) -> dict[str, str]:
        """Return the tags, each with its commit."""
        return {entry.key.decode(): entry.value.decode() async for entry in self.store.scan(TAGS)}

    # -- maintenance ---------------------------------------------------------------------------------------

    async def gc(self, *, dry_run: bool = False) -> Collected:
        """Remove objects and commits that no branch or tag reaches, and consumed epochs. Raises Broken."""
        return await garbage.collect(self.store, self.objects, dry_run=dry_run)
