"""Create and delete branches and tags."""

from __future__ import annotations

from kvctl.errors import ConflictError
from kvctl.versions import refs
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.branch.branch_state import GUARDS
from kvctl.versions.model import Branch, record_key
from kvctl.versions.refs import BRANCHES, TAGS, RefNotFound
from kvctl.versions.store.protocol import ABSENT, Change, Condition, Store


class RefExists(ConflictError, kind="ref-exists"):
    """Branch or tag that already exists; `commit` is its commit, `what` says which of the two it is."""

    def __init__(self, name: str, kind: str, commit: str) -> None:
        super().__init__(f"{kind.capitalize()} `{name}` already exists at `{commit[:12]}`")
        self.what = kind
        self.commit = commit


async def create_branch(store: Store, name: str, ref: str) -> str:
    """Create a branch at a committed state; return its commit. Raises RefExists, RefNotFound, UsageError."""
    refs.check_new_name(name)
    return await _create(store, BRANCHES, name, ref)


async def create_tag(store: Store, name: str, ref: str) -> str:
    """Create a tag on a commit; return its id. Raises as `create_branch`."""
    refs.check_new_name(name, "tag")
    return await _create(store, TAGS, name, ref)


async def delete_branch(store: Store, name: str) -> None:
    """Delete a branch with its staged changes. Raises BranchNotFound, ConflictError after too many retries."""
    gone = [Change(partition, record_key(name), None) for partition in (BRANCHES, GUARDS)]
    for _ in range(branch_state.MAX_ATTEMPTS):
        record = await refs.branch(store, name)
        if await epochs.dropped(store, [record.unchanged], gone, record.branch.epochs):
            return
        await branch_state.pause()
    raise branch_state.busy(name)


async def delete_tag(store: Store, name: str) -> None:
    """Delete a tag; its commit stays. Raises RefNotFound."""
    key = record_key(name)
    found = await store.get(TAGS, key)
    if found is None or not await store.written([Condition(TAGS, key, found.revision)], [Change(TAGS, key, None)]):
        raise RefNotFound(f"Tag `{name}` does not exist", hint="`kvctl tag ls` lists tags")


def branch_records(name: str, commit: str, root: str, generation: int) -> list[Change]:
    """Return the records of a new branch."""
    branch = Branch(commit, root, generation, epochs.new_epoch())
    return [Change(BRANCHES, name.encode(), branch.encode()), branch_state.touch(name)]


async def _create(store: Store, partition: bytes, name: str, ref: str) -> str:
    for _ in range(branch_state.MAX_ATTEMPTS):
        held = await branch_state.ready_to_link(store)
        identity = await refs.committed(store, ref)
        found = await refs.commit(store, identity)
        own = [Change(TAGS, name.encode(), identity.encode())]
        if partition == BRANCHES:
            own = branch_records(name, identity, found.root, found.generation)
        conditions = [Condition(where, name.encode(), ABSENT) for where in (BRANCHES, TAGS)]
        if await store.written([*conditions, held.unchanged], [*own, held.touched]):
            return identity
        await _check_free(store, name)
        await branch_state.pause()
    raise branch_state.busy(name)


async def _check_free(store: Store, name: str) -> None:
    """Check that no branch or tag has the name. Raises RefExists."""
    branch, tag = await store.get_many([(BRANCHES, name.encode()), (TAGS, name.encode())])
    if branch is not None:
        raise RefExists(name, "branch", Branch.decode(branch.value).commit)
    if tag is not None:
        raise RefExists(name, "tag", tag.value.decode())
