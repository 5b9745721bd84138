"""Repository: branches with staged changes, commits, diff and merge, on any Store."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

from kvctl.errors import ConflictError
from kvctl.versions import commits, garbage, history, merges, ref_diff, ref_reader
from kvctl.versions.access import RepositoryAccess
from kvctl.versions.branch import branch_names, epochs, private_epoch, staging
from kvctl.versions.branch.branch_state import COLLECTION, Collection
from kvctl.versions.model import Branch, Commit, check_versioned_key
from kvctl.versions.refs import BRANCHES, COMMITS, MAIN, TAGS
from kvctl.versions.store.protocol import ABSENT, StoreChange, StoreCondition
from kvctl.versions.transfer import record_bucket
from kvctl.versions.tree.chunks import EMPTY, understood
from kvctl.versions.tree.objects import OBJECTS
from kvctl.versions.tree.tree import EMPTY_ROOT

CHANGES_TOGETHER = 4000
"""Number of changes encoded together, while earlier ones are sent."""


class Repository(RepositoryAccess):
    """Versioned keys on a Store. Keys are legal by ADR-8, values are any bytes.

    Operations are atomic, and retried when a concurrent one comes first. When too many retries fail they raise
    ConflictError, and nothing was changed.
    """

    get, entry_batches, entries = ref_reader.get, ref_reader.entry_batches, ref_reader.entries
    show, status, diff, resolved = ref_reader.show, ref_diff.status, ref_diff.diff, ref_diff.resolved
    log, annotate, key_history = history.log, history.annotate, history.key_history
    merge_base, merge_bases = ref_diff.merge_base, ref_diff.merge_bases
    commit, record = commits.commit, record_bucket.record
    merge, revert, cherry_pick = merges.merge, merges.revert, merges.cherry_pick
    reset_hard = merges.reset_hard
    create_branch, delete_branch = branch_names.create_branch, branch_names.delete_branch
    create_tag, delete_tag = branch_names.create_tag, branch_names.delete_tag
    gc = garbage.collect

    async def init(self) -> Commit:
        """Create the first, empty commit and the branch `main`. Raises ConflictError if one exists."""
        first = Commit(
            root=EMPTY_ROOT.hex(),
            parents=(),
            message="Repository created",
            author=self.author,
            created_ns=time.time_ns(),
        )
        conditions = [StoreCondition(BRANCHES, MAIN.encode(), ABSENT)]
        changes = [
            StoreChange(COLLECTION, COLLECTION, Collection().encode()),
            StoreChange(OBJECTS, EMPTY_ROOT, EMPTY.encode()),
            StoreChange(COMMITS, bytes.fromhex(first.id), first.encode()),
            *branch_names.branch_records(MAIN, first.id, first.root, 0),
        ]
        if not await self.store.written(conditions, changes):
            raise ConflictError("The repository already has its first branch")
        return first

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

    async def branches(self) -> dict[str, str]:
        """Return the branches, each with its commit."""
        entries = self.store.scan(BRANCHES)
        return {entry.key.decode(): Branch.decode(entry.value).commit async for entry in entries}

    async def tags(self) -> dict[str, str]:
        """Return the tags, each with its commit."""
        with understood():
            return {entry.key.decode(): entry.value.decode() async for entry in self.store.scan(TAGS)}
