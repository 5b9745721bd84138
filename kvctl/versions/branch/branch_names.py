"""Create and delete branches and tags."""

from __future__ import annotations

from kvctl.errors import ConflictError
from kvctl.versions import refs
from kvctl.versions.access import RepositoryAccess
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.branch.branch_state import GUARDS
from kvctl.versions.model import Branch, record_key
from kvctl.versions.refs import BRANCHES, MAIN, TAGS, RefNotFound
from kvctl.versions.store.protocol import ABSENT, Store, StoreChange, StoreCondition


class RefExists(ConflictError, kind="ref-exists"):
    """Branch or tag that already exists; `commit` is its commit, `what` says which of the two it is."""

    def __init__(self, name: str, kind: str, commit: str) -> None:
        super().__init__(f"{kind.capitalize()} `{name}` already exists at `{commit[:12]}`")
        self.what = kind
        self.commit = commit


async def create_branch(repo: RepositoryAccess, name: str, ref: str = MAIN) -> bool:
    """Create a branch at a committed state; return False if it already exists there.

    Raises RefExists for a branch elsewhere or a tag, RefNotFound, UsageError.
    """
    refs.check_new_name(name)
    return await _create(repo.store, BRANCHES, name, ref)


async def create_tag(repo: RepositoryAccess, name: str, ref: str = MAIN) -> bool:
    """Create a tag on a commit; return False if it already exists there. Raises as `create_branch`."""
    refs.check_new_name(name, "tag")
    return await _create(repo.store, TAGS, name, ref)


async def delete_branch(repo: RepositoryAccess, name: str) -> None:
    """Delete a branch with its staged changes. Raises BranchNotFound, ConflictError after too many retries."""
    gone = [StoreChange(partition, record_key(name), None) for partition in (BRANCHES, GUARDS)]
    for _ in range(branch_state.MAX_ATTEMPTS):
        record = await refs.branch(repo.store, name)
        if await epochs.dropped(repo.store, [record.unchanged], gone, record.branch.epochs):
            return
        await branch_state.pause()
    raise branch_state.busy(name)


async def delete_tag(repo: RepositoryAccess, name: str) -> None:
    """Delete a tag; its commit stays. Raises RefNotFound."""
    key = record_key(name)
    found = await repo.store.get(TAGS, key)
    unchanged = [StoreCondition(TAGS, key, found.revision if found else ABSENT)]
    if found is None or not await repo.store.written(unchanged, [StoreChange(TAGS, key, None)]):
        raise RefNotFound(f"Tag `{name}` does not exist", hint="`kvctl tag ls` lists tags")


def branch_records(name: str, commit: str, root: str, generation: int) -> list[StoreChange]:
    """Return the records of a new branch."""
    branch = Branch(commit, root, generation, epochs.new_epoch())
    return [StoreChange(BRANCHES, name.encode(), branch.encode()), branch_state.touch(name)]


async def _create(store: Store, partition: bytes, name: str, ref: str) -> bool:
    for _ in range(branch_state.MAX_ATTEMPTS):
        held = await branch_state.ready_to_link(store)
        identity = await refs.committed(store, ref)
        found = await refs.commit(store, identity)
        own = [StoreChange(TAGS, name.encode(), identity.encode())]
        if partition == BRANCHES:
            own = branch_records(name, identity, found.root, found.generation)
        conditions = [StoreCondition(where, name.encode(), ABSENT) for where in (BRANCHES, TAGS)]
        if await store.written([*conditions, held.unchanged], [*own, held.touched]):
            return True
        if await _exists(store, partition, name, identity):
            return False
        await branch_state.pause()
    raise branch_state.busy(name)


async def _exists(store: Store, partition: bytes, name: str, commit: str) -> bool:
    """Return whether the branch or tag exists at this commit. Raises RefExists for any other one of its name."""
    branch, tag = await store.get_many([(BRANCHES, name.encode()), (TAGS, name.encode())])
    there = {BRANCHES: branch and Branch.decode(branch.value).commit, TAGS: tag and tag.value.decode()}
    for where, what in ((BRANCHES, "branch"), (TAGS, "tag")):
        if (at := there[where]) is not None and (where, at) != (partition, commit):
            raise RefExists(name, what, at)
    return there[partition] is not None
