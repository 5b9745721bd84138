"""Preconditions for moving a branch: all that was read of it, and that no garbage collection began.

- Any change to a branch's content rewrites its staging record in the same write: staged writes are fenced on it.
- Conditional writes touch the branch's guard. A move that requires a branch without staged changes is conditional on
  the guard: a key that was created concurrently is not replaced by a merge.
- The collection record counts the collections that began, and says whether one deletes. A move that relies on existing
  objects is conditional on that record as it was before looking at any. A move that links to commits which the branch
  does not descend from rewrites it, too: such commits may have been unreachable, and a collection that has not seen the
  link starts over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from kvctl.errors import ConflictError
from kvctl.versions import refs
from kvctl.versions.branch import staging
from kvctl.versions.branch.staging import STAGING, StagingRecord
from kvctl.versions.model import Head, Staging, record_key
from kvctl.versions.store.protocol import Change, Condition, Found, Predicate, PredicateFailed, Store
from kvctl.versions.tree.chunks import understood

GUARDS = b"guards"
"""Partition of the guards that conditional writes touch, one record per branch."""
COLLECTION = b"collection"
"""Partition of the collection record, and its key in it."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Garbage collections: how many began to look, and whether one deletes."""

    begun: int = 0
    deleting: bool = False

    def encode(self) -> bytes:
        """Return the record's bytes."""
        return json.dumps({"begun": self.begun, "deleting": self.deleting}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Collection:
        """Read the collections of a record."""
        with understood():
            return cls(**json.loads(data))


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """Collection record as it was read."""

    collection: Collection
    predicate: Predicate

    @property
    def unchanged(self) -> Condition:
        """Return the condition that it is as read."""
        return Condition(COLLECTION, COLLECTION, self.predicate)

    @property
    def touched(self) -> Change:
        """Return a change that rewrites it unchanged, so that earlier reads of it are outdated."""
        return Change(COLLECTION, COLLECTION, self.collection.encode())


@dataclass(frozen=True, slots=True)
class BranchState:
    """Branch as it was read, and the collection record as it was before any object was looked at.

    Its records are read together but not consistently: a decision based on several of them is conditional on all of
    these, or checked again.
    """

    branch: str
    head: Head
    head_at: Predicate
    held: StagingRecord
    guard: Predicate
    collections: CollectionRecord

    @property
    def staging_unchanged(self) -> Condition:
        """Return the condition that the staging record is as read: nothing was sealed, folded or dropped since.

        It does not cover the head, which may have been read before another commit, and the staging record after it.
        """
        return Condition(STAGING, self.branch.encode(), self.held.predicate)

    @property
    def as_read(self) -> list[Condition]:
        """Return the conditions that head and staging record are as read, and so consistent."""
        return [Condition(refs.HEADS, self.branch.encode(), self.head_at), self.staging_unchanged]

    @property
    def unmoved(self) -> list[Condition]:
        """Return the conditions for a commit: head and staging record are as read, and no collection began."""
        return [*self.as_read, self.collections.unchanged]

    @property
    def guard_unchanged(self) -> Condition:
        """Return the condition that no conditional write came in between."""
        return Condition(GUARDS, self.branch.encode(), self.guard)


async def read(store: Store, branch: str) -> BranchState:
    """Read the state of a branch. Raises BranchNotFound."""
    name = record_key(branch)
    # The record that changes most often is read last, so that it is most likely still current.
    places = [(COLLECTION, COLLECTION), (GUARDS, name), (refs.HEADS, name), (STAGING, name)]
    collection, guard, head, held = await store.get_many(places)
    if collection is None or guard is None or held is None or head is None:
        raise refs.BranchNotFound(branch)
    return BranchState(
        branch,
        Head.decode(head.value),
        head.predicate,
        StagingRecord(Staging.decode(held.value), held.predicate),
        guard.predicate,
        _decoded(collection),
    )


async def is_unchanged(store: Store, state: BranchState) -> bool:
    """Return whether head and staging record are as read, and so were consistent."""
    places = [(condition.partition, condition.key) for condition in state.as_read]
    found = await store.get_many(places)
    return [one and one.predicate for one in found] == [condition.predicate for condition in state.as_read]


async def read_for_linking(store: Store, branch: str) -> BranchState:
    """Read the state before linking to commits outside the branch's history: ends a collection that deletes."""
    collections_held = await ready_to_link(store)
    return replace(await read(store, branch), collections=collections_held)


async def collections(store: Store) -> CollectionRecord:
    """Read the collection record."""
    return _decoded(await store.get(COLLECTION, COLLECTION))


async def ready_to_link(store: Store) -> CollectionRecord:
    """Read the record when no collection deletes: one that does is made to end by a changed record.

    A commit that can be read afterwards is complete: collections delete the youngest commits first, then the rest.
    Raises ConflictError.
    """
    for _ in range(staging.MAX_ATTEMPTS):
        held = await collections(store)
        if not held.collection.deleting:
            return held
        try:
            await store.set_if(COLLECTION, COLLECTION, Collection(held.collection.begun).encode(), held.predicate)
        except PredicateFailed:
            await staging.pause()
    raise crowded()


def crowded() -> ConflictError:
    """Return the error for too many retries on the collection record."""
    return ConflictError("Too many concurrent changes to branches", hint="Try again")


def touch(branch: str) -> Change:
    """Return a conditional write's change to the branch's guard."""
    return Change(GUARDS, branch.encode(), b"")


def _decoded(found: Found) -> CollectionRecord:
    return CollectionRecord(Collection.decode(found.value), found.predicate)
