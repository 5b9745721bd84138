"""Staged writes on condition of what is read at the branch: on epoch, own key and committed state together."""

from __future__ import annotations

from kvctl.errors import ConflictError
from kvctl.versions import fences, reading, staging
from kvctl.versions.chunks import object_id
from kvctl.versions.model import encode_staged
from kvctl.versions.objects import Objects
from kvctl.versions.staging import STAGING
from kvctl.versions.store import Change, Condition, PredicateFailed, Store


class IdentityMismatch(ConflictError):
    """A key is not what a write was conditioned on; `found` is its identity, None when it is not there."""

    def __init__(self, branch: str, key: str, found: str | None) -> None:
        state = "is not there" if found is None else f"has identity {found}"
        super().__init__(f"`{key}` on `{branch}` {state}; nothing was written")
        self.found = found


async def write_if(
    store: Store, objects: Objects, branch: str, key: str, value: bytes | None, identity: str | None
) -> None:
    """Stage a value, None for a deletion, if the key has this identity, None for not being there.

    Whatever changes committed content rewrites the staging record, so that this write is refused; and it touches the
    branch's guard, so that what counts on no staged changes is. Raises IdentityMismatch, BranchNotFound, ConflictError
    when it is spent.
    """
    name = key.encode()
    for _ in range(staging.TRIES):
        looked = await reading.look(store, objects, branch, key)
        found = None if looked.value is None else object_id(looked.value).hex()
        if found != identity:
            raise IdentityMismatch(branch, key, found)
        epoch = looked.held.staging.epoch
        conditions = [
            Condition(STAGING, branch.encode(), looked.held.predicate),
            staging.own_condition(epoch, name, looked.own),
        ]
        change = Change(staging.partition_of(epoch), name, encode_staged(value))
        try:
            return await store.write(conditions, [change, fences.touch(branch)])
        except PredicateFailed:
            await staging.pause()
    raise staging.busy(branch)
