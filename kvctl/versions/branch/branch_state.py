"""What a branch's move is conditional on: all that was read of the branch, and that no collection of garbage began.

- Whatever changes what a branch holds rewrites its staging record in the same write: staged writes are fenced on it.
- Conditional writes touch the branch's guard. Who found the branch without staged changes moves it only if the guard is
  as it was before looking: a key that was created meanwhile is not replaced by what a merge brings.
- The collection record says how many collections began, and whether one deletes. Who counts on objects that are there
  moves only if the record is as it was before looking at any. Who links to a commit that its branch does not come from
  rewrites it, too: such a commit may have been unreachable, and a collection that has not seen the link begins anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from kvctl.errors import ConflictError
from kvctl.versions import refs
from kvctl.versions.branch import staging
from kvctl.versions.branch.staging import STAGING, Held
from kvctl.versions.model import Head, Staging, record_key
from kvctl.versions.store.protocol import (
    Change,
    Condition,
    Found,
    Predicate,
    PredicateFailed,
    Store,
)
from kvctl.versions.tree.chunks import understood

GUARDS = b"guards"
"""The partition of what conditional writes touch, a record a branch."""
COLLECTION = b"collection"
"""The partition, and the key in it, of the record of collections."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Collections of garbage: how many began to look, and whether one deletes."""

    begun: int = 0
    deleting: bool = False

    def encode(self) -> bytes:
        """The record's bytes."""
        return json.dumps({"begun": self.begun, "deleting": self.deleting}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Collection:
        """The collections of a record."""
        with understood():
            return cls(**json.loads(data))


@dataclass(frozen=True, slots=True)
class CollectionHeld:
    """The record of collections as it was read."""

    collection: Collection
    predicate: Predicate

    @property
    def unchanged(self) -> Condition:
        """That it is as it was read."""
        return Condition(COLLECTION, COLLECTION, self.predicate)

    @property
    def touched(self) -> Change:
        """The same again, so that it is no longer as others read it."""
        return Change(COLLECTION, COLLECTION, self.collection.encode())


@dataclass(frozen=True, slots=True)
class Stand:
    """A branch as it was read, and the collections as they were before any object was looked at.

    Its records are read together and not of one moment: whatever is decided from several of them is conditional on all
    of these, or looked at again.
    """

    branch: str
    head: Head
    head_at: Predicate
    held: Held
    guard: Predicate
    collections: CollectionHeld

    @property
    def as_staged(self) -> Condition:
        """That the staging record is as it was read: nothing was sealed, folded or dropped since.

        It says nothing of the head, which may have been read before another commit, and the staging record after it.
        """
        return Condition(STAGING, self.branch.encode(), self.held.predicate)

    @property
    def standing(self) -> list[Condition]:
        """That head and staging record are as they were read, which makes them of one moment."""
        return [Condition(refs.HEADS, self.branch.encode(), self.head_at), self.as_staged]

    @property
    def unmoved(self) -> list[Condition]:
        """That a commit may build on what was read: the branch stands there, and no collection began."""
        return [*self.standing, self.collections.unchanged]

    @property
    def unguarded(self) -> Condition:
        """That no conditional write came meanwhile."""
        return Condition(GUARDS, self.branch.encode(), self.guard)


async def stand(store: Store, branch: str) -> Stand:
    """Where a branch stands. Raises BranchNotFound."""
    name = record_key(branch)
    # The record that others change most comes last, so that least often it is another one by then.
    places = [(COLLECTION, COLLECTION), (GUARDS, name), (refs.HEADS, name), (STAGING, name)]
    collection, guard, head, held = await store.get_many(places)
    if collection is None or guard is None or held is None or head is None:
        raise refs.BranchNotFound(branch)
    return Stand(
        branch,
        Head.decode(head.value),
        head.predicate,
        Held(Staging.decode(held.value), held.predicate),
        guard.predicate,
        _decoded(collection),
    )


async def still(store: Store, stand: Stand) -> bool:
    """Whether head and staging record are as they were read, and so were of one moment."""
    places = [(condition.partition, condition.key) for condition in stand.standing]
    found = await store.get_many(places)
    return [one and one.predicate for one in found] == [condition.predicate for condition in stand.standing]


async def linking_stand(store: Store, branch: str) -> Stand:
    """The same, before linking to commits that the branch does not come from: a collection that deletes is ended."""
    collections_held = await ready_to_link(store)
    return replace(await stand(store, branch), collections=collections_held)


async def collections(store: Store) -> CollectionHeld:
    """The record of collections."""
    return _decoded(await store.get(COLLECTION, COLLECTION))


async def ready_to_link(store: Store) -> CollectionHeld:
    """The record when none deletes: one that does finds the record changed, and ends. Raises ConflictError.

    A commit that can be read afterwards is whole: collections delete the youngest commits first, then all else.
    """
    for _ in range(staging.TRIES):
        held = await collections(store)
        if not held.collection.deleting:
            return held
        try:
            await store.set_if(COLLECTION, COLLECTION, Collection(held.collection.begun).encode(), held.predicate)
        except PredicateFailed:
            await staging.pause()
    raise crowded()


def crowded() -> ConflictError:
    """The error when all tries are spent on the record of collections."""
    return ConflictError("Branches are made, merged and collected too often by others", hint="Try again")


def touch(branch: str) -> Change:
    """What a conditional write changes besides its key."""
    return Change(GUARDS, branch.encode(), b"")


def _decoded(found: Found) -> CollectionHeld:
    return CollectionHeld(Collection.decode(found.value), found.predicate)
