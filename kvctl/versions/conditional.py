"""Staged writes on condition of what is read at the branch: on epoch, own key and committed state together."""

from __future__ import annotations

from kvctl.errors import ConflictError
from kvctl.versions import fences, reading, staging
from kvctl.versions.model import encode_staged
from kvctl.versions.objects import Objects
from kvctl.versions.refs import Ref
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
        held = await staging.read(store, branch)
        own = await staging.find_in(store, held.staging.epoch, name)
        (entry,) = await reading.get(store, objects, Ref("", branch), [key])
        found = entry.identity if entry else None
        if found != identity:
            raise IdentityMismatch(branch, key, found)
        conditions = [
            Condition(STAGING, branch.encode(), held.predicate),
            staging.own_condition(held.staging.epoch, name, own),
        ]
        change = Change(staging.partition_of(held.staging.epoch), name, encode_staged(value))
        try:
            return await store.write(conditions, [change, fences.touch(branch)])
        except PredicateFailed:
            await staging.pause()
    raise staging.busy(branch)
