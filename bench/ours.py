"""The same work with kvctl's library: run as `python -m bench.ours WORK URL BUCKET COUNT`; prints the seconds."""

import asyncio
import sys
import time

import kvctl
import kvctl.kv.transaction.execution  # so that the import is not measured


async def put(bucket: kvctl.Bucket, count: int) -> None:
    """Puts awaited one by one."""
    for number in range(count):
        await bucket.put(f"put.{number:016d}", b"v" * 100)


async def put_many(bucket: kvctl.Bucket, count: int) -> None:
    """Puts through a window of acknowledgements."""
    summary = await bucket.put_many((f"many.{number:015d}", b"v" * 100) for number in range(count))
    assert summary.written == count, summary.failed[:3]


async def seed(bucket: kvctl.Bucket, count: int) -> None:
    """Fill the bucket with keys of 20 bytes."""
    summary = await bucket.put_many((f"k.{number:018d}", b"v" * 100) for number in range(count))
    assert summary.written == count, summary.failed[:3]


async def txn(bucket: kvctl.Bucket, count: int) -> None:
    """All keys in one step."""
    transaction = kvctl.Transaction()
    for number in range(count):
        transaction.put(f"txn.{number}", b"v" * 100)
    await bucket.commit(transaction)


async def txn_values(bucket: kvctl.Bucket, count: int) -> None:
    """All keys in one step, if all have the values that `txn` left."""
    transaction = kvctl.Transaction()
    for number in range(count):
        transaction.expect(f"txn.{number}", value=b"v" * 100).put(f"txn.{number}", b"v" * 100)
    await bucket.commit(transaction)


async def gets(bucket: kvctl.Bucket, count: int) -> None:
    """Gets awaited one by one."""
    for number in range(count):
        await bucket.get(f"k.{number:018d}")


async def get_many(bucket: kvctl.Bucket, count: int) -> None:
    """Gets of named keys in as few requests as possible."""
    found = await bucket.get_many([f"k.{number:018d}" for number in range(count)])
    assert all(found)


async def keys(bucket: kvctl.Bucket, count: int) -> None:
    """All names."""
    found = 0
    async for batch in bucket.key_batches():
        found += len(batch)
    assert found >= count, found


async def watch(bucket: kvctl.Bucket, count: int) -> None:
    """All entries, until the end of the initial data."""
    found = 0
    async with await bucket.watch(follow=False) as watcher:
        async for batch in watcher.batches():
            found += len(batch)
    assert found >= count, found


async def _timed(work: str, url: str, bucket: str, count: str) -> None:
    async with kvctl.connect(url) as client:
        handle = client.bucket(bucket)
        begun = time.perf_counter()
        await globals()[work](handle, int(count))
        print(time.perf_counter() - begun)


if __name__ == "__main__":
    asyncio.run(_timed(*sys.argv[1:]))
