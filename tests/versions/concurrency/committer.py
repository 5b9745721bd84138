"""Process that commits in an endless loop and reports each write in advance: for tests that kill it.

python -m tests.versions.concurrency.committer URL BUCKET
"""

import asyncio
import sys
from contextlib import suppress

import kvctl
from kvctl.errors import ConflictError
from kvctl.kv.bucket import Bucket
from kvctl.versions.commits import NothingToCommit
from kvctl.versions.repository import Repository
from kvctl.versions.store.jetstream_store import BucketStore
from tests.versions.concurrency.steps import SteppedStore


class Telling:
    """Writes a line before each write of a store."""

    async def step(self, *, writes: bool) -> None:
        if writes:
            print("writes", flush=True)


async def commit_for_ever(url: str, bucket: str) -> None:
    async with kvctl.connect(url) as client:
        repo = Repository(SteppedStore(BucketStore(Bucket(client.api, bucket)), Telling()), author="to be killed")
        while True:
            with suppress(NothingToCommit, ConflictError):
                await repo.commit("main", "by a process")
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(commit_for_ever(*sys.argv[1:]))
