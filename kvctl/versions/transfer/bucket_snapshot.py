"""Consistent snapshot of a live bucket at one revision, despite concurrent writers, and recorded as a commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kvctl.errors import ConflictError, UsageError
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.names import check_key
from kvctl.kv.read.watch import Watcher
from kvctl.versions.commits import CommitInfo
from kvctl.versions.model import INLINE, Commit, leaf_value
from kvctl.versions.repository import Repository
from kvctl.versions.transfer.record_bucket import PART_BYTES, PART_ENTRIES, LargeValues, check_entry, record_stored
from kvctl.versions.tree.chunks import Pair

CATCH_UP_DEADLINE_S = 60.0
"""Seconds to catch up with concurrent writes, after the keys present at the start were read."""

T = TypeVar("T")


@dataclass(slots=True)
class Live(Generic[T]):
    """Keys of a bucket at one revision."""

    revision: int = 0
    """Revision of the snapshot; 0 if nothing was ever written."""
    keys: dict[str, tuple[int, T]] = field(default_factory=dict)
    """Existing keys: the revision, and the part of the value that is kept."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Revisions of markers."""
    foreign: set[str] = field(default_factory=set)
    """Existing keys that ADR-8 does not allow: no repository has room for them."""
    adorned: set[str] = field(default_factory=set)
    """Existing keys with a ttl or headers of their own, for which a repository has no room either."""

    def take(self, entry: Entry, keep: Callable[[bytes], T]) -> None:
        """Add the next entry."""
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


async def read(
    bucket: Bucket, keep: Callable[[bytes], T], *, before: Callable[[Entry], Awaitable[None]] | None = None
) -> Live[T]:
    """Read the bucket's leader up to the current end, with what `keep` returns for each value.

    `before` is called with each large entry, before it is taken.

    A key overwritten before its turn comes later in the same reading: when the server has no more to send, which its
    count of pending entries does not tell, every key is as of the last revision read. Holds all keys. Raises
    BucketNotFound, ConflictError if writers are faster.
    """
    live: Live[T] = Live()
    info = (await bucket.locate(fresh=True)).info
    known = int(info["state"]["last_seq"]) if info else 0
    async with (
        await bucket.watch(follow=False) as watcher,
        aclosing(_to_the_end(bucket.name, watcher, known)) as entries,
    ):
        async for entry in entries:
            if before is not None and len(entry.value) > INLINE:
                await before(entry)
            live.take(entry, keep)
    return live


async def record(
    repository: Repository, branch: str, bucket: Bucket, message: str, *, meta: Mapping[str, str] | None = None,
    allow_empty: bool = False,
) -> tuple[Commit, Live[bytes]]:  # fmt: skip
    """Commit the bucket's content, and nothing else; bucket and revision are recorded with the commit.

    Returns also the bucket's keys with their values as leaves store them: large ones are written as they are read.
    Raises BucketNotFound, and as `read` and `Repository.record`.
    """
    live: Live[bytes] = Live()

    def info() -> CommitInfo:
        origin = {"bucket": bucket.name, "revision": str(live.revision)}
        return CommitInfo(message, repository.author, origin | dict(meta or {}), allow_empty)

    async def stored(root: bytes) -> AsyncGenerator[Sequence[Pair], None]:
        nonlocal live
        large = LargeValues(repository.objects, root)
        refused: dict[bytes, UsageError] = {}

        async def before(entry: Entry) -> None:
            if entry.operation is not Operation.PUT or not is_legal(entry.key):
                return
            try:
                check_entry(entry.key, entry.value, repository.check)
            except UsageError as error:  # unless it is overwritten until the end
                refused[leaf_value(entry.value)[0]] = error
                return
            large.add(entry.key.encode(), entry.value)
            if large.size >= PART_BYTES:
                await large.write()

        live = await read(bucket, lambda value: leaf_value(value)[0], before=before)
        await large.write()
        keys = sorted(live.keys)
        for at in range(0, len(keys), PART_ENTRIES):
            some = [(key, live.keys[key][1]) for key in keys[at : at + PART_ENTRIES]]
            for key, value in some:
                if value in refused:
                    raise refused[value]
                check_entry(key, b"", repository.check)
            yield [(key.encode(), value) for key, value in some]

    return await record_stored(repository.store, repository.objects, branch, stored, info), live


async def _to_the_end(bucket: str, watcher: Watcher, known: int) -> AsyncGenerator[Entry]:
    """Yield entries until the server has no more; `known` is the last revision at the start."""
    deadline = None
    async with aclosing(watcher.batches()) as batches:
        while True:
            try:
                async with asyncio.timeout(deadline and max(deadline - time.monotonic(), 0)):
                    batch = await anext(batches, None)
            except TimeoutError:
                raise ConflictError(
                    f"Bucket `{bucket}` has no consistent snapshot: it is written faster than it can be read",
                    hint="Run it closer to the server or when fewer writes happen",
                ) from None
            if batch is None:
                return
            for entry in batch:
                yield entry
            if deadline is None and batch and batch[-1].revision > known:
                deadline = time.monotonic() + CATCH_UP_DEADLINE_S


def is_legal(key: str) -> bool:
    """Return whether ADR-8 allows the key, so that a commit has room for it."""
    try:
        check_key(key)
    except UsageError:
        return False
    return True
