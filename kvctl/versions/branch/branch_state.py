"""Preconditions for moving a branch: all that was read of it, and that no garbage collection began.

- Any change to a branch's content rewrites its record in the same write: staged writes are fenced on it.
- Conditional writes touch the branch's guard. A move that requires a branch without staged changes is conditional on
  the guard: a key that was created concurrently is not replaced by a merge.
- The collection record counts the collections that began, and says whether one deletes. A move that relies on existing
  objects is conditional on that record as it was before looking at any. A move that links to commits which the branch
  does not descend from rewrites it, too: such commits may have been unreachable, and a collection that has not seen the
  link starts over.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import NamedTuple

from kvctl.errors import ConflictError
from kvctl.versions.model import Branch, record_key
from kvctl.versions.refs import BRANCHES, BranchNotFound, BranchRecord
from kvctl.versions.store.protocol import Store, StoreChange, StoreCondition, StoredValue
from kvctl.versions.tree.chunks import BadRecord, understood

GUARDS = b"guards"
"""Partition of the guards that conditional writes touch, one record per branch."""
COLLECTION = b"collection"
"""Partition of the collection record, and its key in it."""
MAX_ATTEMPTS = 50
"""Number of times that an operation is tried, if others come first."""


class Collection(NamedTuple):
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


class CollectionRecord(NamedTuple):
    """Collection record as it was read."""

    collection: Collection
    revision: int

    @property
    def unchanged(self) -> StoreCondition:
        """Return the condition that it is as read."""
        return StoreCondition(COLLECTION, COLLECTION, self.revision)

    @property
    def touched(self) -> StoreChange:
        """Return a change that rewrites it unchanged, so that earlier reads of it are outdated."""
        return self.replaced(self.collection)

    def replaced(self, collection: Collection) -> StoreChange:
        """Return the change that replaces it."""
        return StoreChange(COLLECTION, COLLECTION, collection.encode())

    @classmethod
    def of(cls, found: StoredValue | None) -> CollectionRecord:
        """Return the record of a stored value. Raises BadRecord for none."""
        if found is None:
            raise BadRecord("the record of garbage collections is missing")
        return cls(Collection.decode(found.value), found.revision)


class BranchState(NamedTuple):
    """Branch as it was read, and the collection record as it was before any object was looked at.

    Its records are read together but not consistently: a decision is conditional on all that it is based on.
    """

    record: BranchRecord
    guard: int
    """Revision of the branch's guard."""
    collections: CollectionRecord

    @property
    def branch(self) -> Branch:
        """Return the branch's content."""
        return self.record.branch

    @property
    def unmoved(self) -> list[StoreCondition]:
        """Return the conditions for a commit: the branch is as read, and no collection began."""
        return [self.record.unchanged, self.collections.unchanged]

    @property
    def clean(self) -> list[StoreCondition]:
        """Return the conditions for moving a branch without staged changes: no conditional write came in between."""
        return [*self.unmoved, StoreCondition(GUARDS, self.record.name.encode(), self.guard)]


async def read(store: Store, name: str) -> BranchState:
    """Read the state of a branch. Raises BranchNotFound."""
    key = record_key(name)
    # The record that changes most often is read last, so that it is most likely still current.
    collection, guard, branch = await store.get_many([(COLLECTION, COLLECTION), (GUARDS, key), (BRANCHES, key)])
    if guard is None:
        raise BranchNotFound(name)
    return BranchState(BranchRecord.of(name, branch), guard.revision, CollectionRecord.of(collection))


async def is_unchanged(store: Store, record: BranchRecord) -> bool:
    """Return whether a branch is still as read."""
    found = await store.get(BRANCHES, record.name.encode())
    return found is not None and found.revision == record.revision


async def read_for_linking(store: Store, name: str) -> BranchState:
    """Read the state before linking to commits outside the branch's history: ends a collection that deletes."""
    collections_held = await ready_to_link(store)
    return (await read(store, name))._replace(collections=collections_held)


async def collections(store: Store) -> CollectionRecord:
    """Read the collection record."""
    return CollectionRecord.of(await store.get(COLLECTION, COLLECTION))


async def ready_to_link(store: Store) -> CollectionRecord:
    """Read the record when no collection deletes: one that does is made to end by a changed record.

    A commit that can be read afterwards is complete: collections delete the youngest commits first, then the rest.
    Raises ConflictError.
    """
    for _ in range(MAX_ATTEMPTS):
        held = await collections(store)
        if not held.collection.deleting:
            return held
        if not await store.written([held.unchanged], [held.replaced(Collection(held.collection.begun))]):
            await pause()
    raise crowded()


async def pause() -> None:
    """Wait a random time before the next try."""
    await asyncio.sleep(random.uniform(0, 0.01))


def busy(branch: str) -> ConflictError:
    """Return the error for too many retries on a branch."""
    return ConflictError(f"Branch `{branch}` has too many concurrent changes", hint="Try again")


def crowded() -> ConflictError:
    """Return the error for too many retries on the collection record."""
    return ConflictError("Too many concurrent changes to branches", hint="Try again")


def touch(branch: str) -> StoreChange:
    """Return a conditional write's change to the branch's guard."""
    return StoreChange(GUARDS, branch.encode(), b"")
