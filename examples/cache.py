"""A read cache: a bucket's keys in a dict that follows every change.

python examples/cache.py BUCKET
"""

import asyncio
import sys

import kvctl


class Cache(dict[str, bytes]):
    """The living keys of a bucket with their values, as of `revision`."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = asyncio.Event()
        self.revision = 0
        self._moved = asyncio.Condition()

    async def follow(self, bucket: kvctl.Bucket) -> None:
        """Stay up to date until cancelled; `ready` is set when everything that was there has been read."""
        async with await bucket.watch() as watcher:
            async for entry in watcher:
                if entry is kvctl.CURRENT:
                    self.ready.set()
                    continue
                if entry.operation == "PUT":
                    self[entry.key] = entry.value
                else:
                    self.pop(entry.key, None)
                async with self._moved:
                    self.revision = entry.revision
                    self._moved.notify_all()

    async def seen(self, revision: int) -> None:
        """Wait until the cache shows this revision, for instance that of a write of one's own."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.revision >= revision)


async def main(name: str) -> None:
    """Fill a cache, let it see a write, and show what it holds."""
    async with kvctl.connect() as client, asyncio.TaskGroup() as tasks:
        cache, bucket = Cache(), client.bucket(name)
        following = tasks.create_task(cache.follow(bucket))
        await cache.ready.wait()
        await cache.seen(await bucket.put("seen.by", b"the cache"))
        for key, value in sorted(cache.items()):
            print(key, value.decode())
        following.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
