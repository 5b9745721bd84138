"""Staged writes conditional on a key's state at the branch: on epoch, staged key and committed state together."""

from __future__ import annotations

from collections.abc import Callable

from kvctl.errors import ConflictError
from kvctl.versions import ref_reader
from kvctl.versions.branch import branch_state, staging
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.model import encode_staged
from kvctl.versions.ref_reader import KeyState
from kvctl.versions.store.protocol import Change, Condition, Predicate, PredicateFailed, Store
from kvctl.versions.tree.chunks import object_id
from kvctl.versions.tree.objects import Objects


class IdentityMismatch(ConflictError):
    """Key that is not in the expected state; `found` is its identity, None if absent."""

    def __init__(self, branch: str, key: str, found: str | None) -> None:
        state = "does not exist" if found is None else f"has identity {found}"
        super().__init__(f"`{key}` on `{branch}` {state}; nothing was written")
        self.found = found


class StagedMismatch(ConflictError):
    """Key whose staged value is not the expected one.

    `staged` is the predicate of its staged value, None if it has none; `identity` that of its value, None if absent.
    """

    def __init__(self, branch: str, key: str, staged: Predicate | None, identity: str | None) -> None:
        super().__init__(f"`{key}` on `{branch}` was staged again or is not staged; nothing was written")
        self.staged = staged
        self.identity = identity


async def write_if(
    store: Store, objects: Objects, branch: str, key: str, value: bytes | None, identity: str | None
) -> Predicate:
    """Stage a value, None for a deletion, if the key has this identity, None for an absent key.

    Returns the predicate that holds until it is staged again. Raises IdentityMismatch, BranchNotFound, ConflictError
    after too many retries.
    """

    def check(state: KeyState) -> ConflictError | None:
        found = _identity(state)
        return None if found == identity else IdentityMismatch(branch, key, found)

    return await _write(store, objects, branch, key, value, check)


async def write_if_staged(
    store: Store, objects: Objects, branch: str, key: str, value: bytes | None, wanted: Callable[[Predicate], bool]
) -> Predicate:
    """Stage a value, None for a deletion, if the key's staged value has this predicate, not merely an equal value.

    Raises StagedMismatch, and as `write_if`.
    """

    def check(state: KeyState) -> ConflictError | None:
        staged = state.newest.predicate if state.newest and state.value is not None else None
        if staged is not None and wanted(staged):
            return None
        return StagedMismatch(branch, key, staged, _identity(state))

    return await _write(store, objects, branch, key, value, check)


async def _write(
    store: Store, objects: Objects, branch: str, key: str, value: bytes | None,
    check: Callable[[KeyState], ConflictError | None],
) -> Predicate:  # fmt: skip
    """Stage a value if `check` does not object to the key's state, else raise its error.

    Any change to the committed content rewrites the staging record, so that this write is refused; and this write
    touches the branch's guard, so that operations that require no staged changes are refused.
    """
    name = key.encode()
    for _ in range(staging.MAX_ATTEMPTS):
        state = await ref_reader.read_key_state(store, objects, branch, key)
        if (objection := check(state)) is not None:
            if await ref_reader.unmoved(store, branch, state.held):
                raise objection
            continue  # the reads are not consistent
        epoch = state.held.staging.epoch
        conditions = [
            Condition(STAGING, branch.encode(), state.held.predicate),
            staging.own_condition(epoch, name, state.own),
        ]
        change = Change(staging.partition_of(epoch), name, encode_staged(value))
        try:
            return (await store.write(conditions, [change, branch_state.touch(branch)]))[0]
        except PredicateFailed:
            await staging.pause()
    raise staging.busy(branch)


def _identity(state: KeyState) -> str | None:
    return None if state.value is None else object_id(state.value).hex()
