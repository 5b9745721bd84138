"""Live buckets: read as they are at one revision, however busy their writers, and recorded as a commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kvctl.errors import ConflictError, UsageError
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.names import check_key
from kvctl.kv.read.watch import Watcher
from kvctl.versions import commits
from kvctl.versions.model import Commit
from kvctl.versions.repository import Repository

PATIENCE = 60.0
"""Seconds after what was there at the start, for which the end of what is written meanwhile is looked for."""

T = TypeVar("T")


@dataclass(slots=True)
class Live(Generic[T]):
    """The keys of a bucket at one revision."""

    revision: int = 0
    """At which the bucket was so; 0 when nothing was ever written."""
    keys: dict[str, tuple[int, T]] = field(default_factory=dict)
    """Of those that live: the revision, and what is kept of the value."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Revisions of markers."""
    foreign: set[str] = field(default_factory=set)
    """Keys that live and that ADR-8 does not allow: no repository has room for them."""
    adorned: set[str] = field(default_factory=set)
    """Keys that live and have a ttl or headers of their own, for which a repository has no room either."""

    def take(self, entry: Entry, keep: Callable[[bytes], T]) -> None:
        """Go on to the next entry."""
        self.revision = entry.revision
        for known in (self.foreign, self.adorned):
            known.discard(entry.key)
        if entry.operation is not Operation.PUT:
            self.keys.pop(entry.key, None)
            self.deleted[entry.key] = entry.revision
        elif not is_legal(entry.key):
            self.foreign.add(entry.key)
        else:
            self.deleted.pop(entry.key, None)
            self.keys[entry.key] = entry.revision, keep(entry.value)
            if not entry.bare and (entry.ttl is not None or entry.headers):
                self.adorned.add(entry.key)


async def read(bucket: Bucket, keep: Callable[[bytes], T]) -> Live[T]:
    """The bucket that takes the writes, with what `keep` makes of each value, as of the end of what is written.

    What overwrites a key before its turn comes later in the same reading: when nothing is left to come, every key is
    as it was at the last revision read. Holds all keys. Raises BucketNotFound, ConflictError when writers are quicker.
    """
    live: Live[T] = Live()
    await bucket.locate()
    async with await bucket.watch(patient=False) as watcher, aclosing(_to_the_end(bucket.name, watcher)) as entries:
        async for entry in entries:
            live.take(entry, keep)
    return live


async def record(
    repository: Repository, branch: str, bucket: Bucket, message: str, *, meta: Mapping[str, str] | None = None,
    allow_empty: bool = False,
) -> tuple[Commit, Live[bytes]]:  # fmt: skip
    """Commit what the bucket holds, and nothing else; bucket and revision are noted with the commit.

    Raises BucketNotFound, and as `read` and `Repository.record`.
    """
    await commits.clean(repository.store, repository.objects, branch)  # said before a large bucket is read
    live = await read(bucket, bytes)
    origin = {"bucket": bucket.name, "revision": str(live.revision)}
    content = {key: value for key, (_, value) in live.keys.items()}
    commit = await repository.record(branch, content, message, meta=origin | dict(meta or {}), allow_empty=allow_empty)
    return commit, live


async def _to_the_end(bucket: str, watcher: Watcher) -> AsyncGenerator[Entry]:
    """Entries up to one after which, when it was sent, there was none."""
    deadline, left = None, 0
    async with aclosing(watcher.batches()) as batches:
        while True:
            try:
                async with asyncio.timeout(deadline and max(deadline - time.monotonic(), 0)):
                    batch = await anext(batches)  # of a watcher that never ends by itself
            except TimeoutError:
                raise ConflictError(
                    f"Bucket `{bucket}` is written faster than it can be read: there is no moment to record",
                    hint="Run it nearer to the server, or when less is written",
                ) from None
            for entry in batch:
                yield entry
                left = entry.delta or 0
                if not left and deadline:
                    return
            if not batch and not left:
                return
            if not batch:
                deadline = time.monotonic() + PATIENCE


def is_legal(key: str) -> bool:
    """Whether ADR-8 allows the key, so that a commit has room for it."""
    try:
        check_key(key)
    except UsageError:
        return False
    return True
