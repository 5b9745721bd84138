"""Create and delete branches and tags."""

from __future__ import annotations

from collections.abc import Sequence

from kvctl.errors import ConflictError
from kvctl.versions import refs
from kvctl.versions.branch import branch_state, dropped_epochs, sealed_epochs, staging
from kvctl.versions.branch.branch_state import GUARDS
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.model import Head, Staging, record_key
from kvctl.versions.refs import HEADS, TAGS, RefNotFound
from kvctl.versions.store.protocol import ABSENT, Change, Condition, EntryNotFound, PredicateFailed, Store


class RefExists(ConflictError, kind="ref-exists"):
    """Branch or tag that already exists; `commit` is its commit, `what` says which of the two it is."""

    def __init__(self, name: str, kind: str, commit: str) -> None:
        super().__init__(f"{kind.capitalize()} `{name}` already exists at `{commit[:12]}`")
        self.what = kind
        self.commit = commit


async def create_branch(store: Store, name: str, ref: str) -> str:
    """Create a branch at a committed state; return its commit. Raises RefExists, RefNotFound, UsageError."""
    refs.check_new_name(name)
    return await _create(store, HEADS, name, ref)


async def create_tag(store: Store, name: str, ref: str) -> str:
    """Create a tag on a commit; return its id. Raises as `create_branch`."""
    refs.check_new_name(name, "tag")
    return await _create(store, TAGS, name, ref)


async def delete_branch(store: Store, name: str) -> None:
    """Delete a branch with its staged changes. Raises BranchNotFound, ConflictError after too many retries."""
    for _ in range(staging.MAX_ATTEMPTS):
        state = await sealed_epochs.foldable_state(store, name)
        epochs = state.held.staging.epochs
        gone = [Change(partition, name.encode(), None) for partition in (HEADS, STAGING, GUARDS)]
        try:
            await store.write([state.staging_unchanged], [*gone, *dropped_epochs.noted(epochs)])
        except PredicateFailed:
            await staging.pause()
        else:
            return await dropped_epochs.clear_soon(store, epochs)
    raise staging.busy(name)


async def delete_tag(store: Store, name: str) -> None:
    """Delete a tag; its commit stays. Raises RefNotFound."""
    try:
        found = await store.get(TAGS, record_key(name))
        await store.write([Condition(TAGS, name.encode(), found.predicate)], [Change(TAGS, name.encode(), None)])
    except (EntryNotFound, PredicateFailed):
        raise RefNotFound(f"Tag `{name}` does not exist", hint="`kvctl tag ls` lists tags") from None


def branch_records(name: str, head: Head) -> list[Change]:
    """Return the records of a new branch."""
    return [
        Change(HEADS, name.encode(), head.encode()),
        Change(STAGING, name.encode(), Staging(staging.new_epoch()).encode()),
        branch_state.touch(name),
    ]


async def _create(store: Store, partition: bytes, name: str, ref: str) -> str:
    for _ in range(staging.MAX_ATTEMPTS):
        held = await branch_state.ready_to_link(store)
        identity = await refs.committed(store, ref)
        found = await refs.commit(store, identity)
        head = Head(identity, found.root, found.generation)
        own = branch_records(name, head) if partition == HEADS else [Change(TAGS, name.encode(), identity.encode())]
        conditions = [Condition(where, name.encode(), ABSENT) for where in (HEADS, TAGS)]
        if await _written(store, [*conditions, held.unchanged], [*own, held.touched]):
            return identity
        await _check_free(store, name)
        await staging.pause()
    raise staging.busy(name)


async def _written(store: Store, conditions: Sequence[Condition], changes: Sequence[Change]) -> bool:
    try:
        await store.write(conditions, changes)
    except PredicateFailed:
        return False
    return True


async def _check_free(store: Store, name: str) -> None:
    """Check that no branch or tag has the name. Raises RefExists."""
    head, tag = await store.get_many([(HEADS, name.encode()), (TAGS, name.encode())])
    if head is not None:
        raise RefExists(name, "branch", Head.decode(head.value).commit)
    if tag is not None:
        raise RefExists(name, "tag", tag.value.decode())
