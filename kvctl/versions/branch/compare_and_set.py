"""Staged writes on condition of what is read at the branch: on epoch, own key and committed state together."""

from __future__ import annotations

from collections.abc import Callable

from kvctl.errors import ConflictError
from kvctl.versions import ref_reader
from kvctl.versions.branch import branch_state, staging
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.model import encode_staged
from kvctl.versions.ref_reader import Looked
from kvctl.versions.store.protocol import (
    Change,
    Condition,
    Predicate,
    PredicateFailed,
    Store,
)
from kvctl.versions.tree.chunks import object_id
from kvctl.versions.tree.objects import Objects


class IdentityMismatch(ConflictError):
    """A key is not what a write was conditioned on; `found` is its identity, None when it is not there."""

    def __init__(self, branch: str, key: str, found: str | None) -> None:
        state = "is not there" if found is None else f"has identity {found}"
        super().__init__(f"`{key}` on `{branch}` {state}; nothing was written")
        self.found = found


class StagedMismatch(ConflictError):
    """A key is not staged as a write was conditioned on.

    `staged` is the predicate of its staged value, None where it has none; `identity` that of its value, None where it
    is not there.
    """

    def __init__(self, branch: str, key: str, staged: Predicate | None, identity: str | None) -> None:
        super().__init__(f"`{key}` on `{branch}` was staged again, or is not staged; nothing was written")
        self.staged = staged
        self.identity = identity


async def write_if(
    store: Store, objects: Objects, branch: str, key: str, value: bytes | None, identity: str | None
) -> Predicate:
    """Stage a value, None for a deletion, if the key has this identity, None for not being there.

    Returns what holds until it is staged again. Raises IdentityMismatch, BranchNotFound, ConflictError when it is
    spent.
    """

    def check(looked: Looked) -> ConflictError | None:
        found = _identity(looked)
        return None if found == identity else IdentityMismatch(branch, key, found)

    return await _write(store, objects, branch, key, value, check)


async def write_if_staged(
    store: Store, objects: Objects, branch: str, key: str, value: bytes | None, wanted: Callable[[Predicate], bool]
) -> Predicate:
    """The same if the key's value is staged, and its predicate is the one wanted: as it was, not as one equal to it.

    Raises StagedMismatch, and as `write_if`.
    """

    def check(looked: Looked) -> ConflictError | None:
        staged = looked.newest.predicate if looked.newest and looked.value is not None else None
        if staged is not None and wanted(staged):
            return None
        return StagedMismatch(branch, key, staged, _identity(looked))

    return await _write(store, objects, branch, key, value, check)


async def _write(
    store: Store, objects: Objects, branch: str, key: str, value: bytes | None,
    check: Callable[[Looked], ConflictError | None],
) -> Predicate:  # fmt: skip
    """Stage a value while the key is as it was when `check` had no objection, else raise that.

    Whatever changes committed content rewrites the staging record, so that this write is refused; and it touches the
    branch's guard, so that what counts on no staged changes is.
    """
    name = key.encode()
    for _ in range(staging.TRIES):
        looked = await ref_reader.look(store, objects, branch, key)
        if (objection := check(looked)) is not None:
            if await ref_reader.unmoved(store, branch, looked.held):
                raise objection
            continue  # what was read is not of one moment
        epoch = looked.held.staging.epoch
        conditions = [
            Condition(STAGING, branch.encode(), looked.held.predicate),
            staging.own_condition(epoch, name, looked.own),
        ]
        change = Change(staging.partition_of(epoch), name, encode_staged(value))
        try:
            return (await store.write(conditions, [change, branch_state.touch(branch)]))[0]
        except PredicateFailed:
            await staging.pause()
    raise staging.busy(branch)


def _identity(looked: Looked) -> str | None:
    return None if looked.value is None else object_id(looked.value).hex()
