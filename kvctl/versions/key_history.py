"""History of keys: their values in each commit that changed them, oldest first, then the staged changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

from kvctl.kv.names import matches
from kvctl.versions import ref_diff, refs
from kvctl.versions.key_change import Apart
from kvctl.versions.model import Commit
from kvctl.versions.repository import Repository
from kvctl.versions.tree import tree
from kvctl.versions.tree.chunks import object_id
from kvctl.versions.tree.tree import EMPTY_ROOT, Difference


@dataclass(frozen=True, slots=True)
class KeyVersion:
    """Key after a commit that changed it; without a commit, as staged."""

    key: str
    value: bytes | None
    """None if it was deleted."""
    commit: Commit | None

    @property
    def identity(self) -> str | None:
        """Hex hash of the value."""
        return None if self.value is None else object_id(self.value).hex()


async def key_history(repository: Repository, ref: str, filters: Sequence[str] = ()) -> AsyncIterator[list[KeyVersion]]:
    """Yield the versions of keys, at most one commit at a time, by key; a branch's staged changes come last.

    A merge counts for keys that differ from all its parents. Holds all commits in memory. Raises RefNotFound,
    UsageError, Broken.
    """
    chosen = tuple(filters)
    meant = await refs.resolve(repository.store, ref)
    # Head and staged changes are read together: separately, changes that a commit moves between them would be missed.
    status = None if meant.branch is None else await repository.status(meant.branch, values=False)
    start = meant.commit if status is None else status.commit
    commits = [commit async for _, commit in repository.log(start)]
    for commit in reversed(commits):
        found = [one for one in await _changed(repository, commit) if matches(one.key.decode(), chosen)]
        for some in ref_diff.in_parts(found):
            values = await ref_diff.values_of(repository.objects, [one.after for one in some])
            yield [KeyVersion(one.key.decode(), value, commit) for one, value in zip(some, values, strict=True)]
    if status is not None:
        staged = [replace(change, before=None) for change in status.changes if matches(change.key, chosen)]
        async for changes in repository.resolved(staged):
            yield [KeyVersion(one.key, one.after, None) for one in changes if not isinstance(one.after, Apart)]


async def _changed(repository: Repository, commit: Commit) -> Iterable[Difference]:
    """Return the keys whose value in a commit differs from all its parents."""
    if not commit.parents:
        return await repository.objects.run(tree.diff(EMPTY_ROOT, bytes.fromhex(commit.root)))
    first, *others = [
        await ref_diff.between(repository.store, repository.objects, parent, commit.id) for parent in commit.parents
    ]
    for other in others:
        keys = {one.key for one in other}
        first = [one for one in first if one.key in keys]
    return first
