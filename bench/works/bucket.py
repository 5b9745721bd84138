"""Works on buckets with kvctl's library."""

import asyncio
import sys
from pathlib import Path

import worker

import kvctl
import kvctl.kv.transaction.execution  # so that the import is not measured

VALUE = b"v" * 100
TASKS = 16


async def seed(client: kvctl.Client, name: str, count: int) -> None:
    """Fill the bucket with keys of 20 bytes."""
    summary = await client.bucket(name).put_many((f"k.{number:018d}", VALUE) for number in range(count))
    assert summary.written == count, summary.failed[:3]


async def put(client: kvctl.Client, name: str, count: int) -> None:
    """Puts awaited one by one."""
    bucket = client.bucket(name)
    for number in range(count):
        await bucket.put(f"put.{number:016d}", VALUE)


async def put_many(client: kvctl.Client, name: str, count: int) -> None:
    """Puts through a window of acknowledgements."""
    summary = await client.bucket(name).put_many((f"many.{number:017d}", VALUE) for number in range(count))
    assert summary.written == count, summary.failed[:3]


async def put_by_tasks(client: kvctl.Client, name: str, count: int) -> None:
    """Puts of 16 tasks."""
    bucket = client.bucket(name)

    async def one(task: int) -> None:
        for number in range(task, count, TASKS):
            await bucket.put(f"key.{number:018d}", VALUE)

    await asyncio.gather(*(one(task) for task in range(TASKS)))


async def update(client: kvctl.Client, name: str, count: int) -> None:
    """Updates of one key, each on condition of its revision."""
    bucket = client.bucket(name)
    revision = await bucket.put("one", VALUE)
    for _ in range(count):
        revision = await bucket.update("one", VALUE, revision)


async def get(client: kvctl.Client, name: str, count: int) -> None:
    """Gets awaited one by one."""
    bucket = client.bucket(name)
    for number in range(count):
        await bucket.get(f"k.{number:018d}")


async def get_many(client: kvctl.Client, name: str, count: int) -> None:
    """Gets of named keys in as few requests as possible."""
    assert all(await client.bucket(name).get_many([f"k.{number:018d}" for number in range(count)]))


async def keys(client: kvctl.Client, name: str, count: int) -> None:
    """All names."""
    found = 0
    async for batch in client.bucket(name).key_batches():
        found += len(batch)
    assert found >= count, found


async def watch(client: kvctl.Client, name: str, count: int) -> None:
    """All entries, until the end of the initial data."""
    found = 0
    async with await client.bucket(name).watch(follow=False) as watcher:
        async for batch in watcher.batches():
            found += len(batch)
    assert found >= count, found


async def txn(client: kvctl.Client, name: str, count: int) -> dict[str, float]:
    """All keys in one step."""
    clock = worker.Clock()
    for _ in range(10):
        transaction = kvctl.Transaction()
        for number in range(count):
            transaction.put(f"txn.{number}", VALUE)
        with clock.block():
            await client.bucket(name).commit(transaction)
    return clock.medians()


async def txn_values(client: kvctl.Client, name: str, count: int) -> dict[str, float]:
    """All keys in one step, if all have the values that `txn` left."""
    clock = worker.Clock()
    for _ in range(10):
        transaction = kvctl.Transaction()
        for number in range(count):
            transaction.expect(f"txn.{number}", value=VALUE).put(f"txn.{number}", VALUE)
        with clock.block():
            await client.bucket(name).commit(transaction)
    return clock.medians()


async def waits(client: kvctl.Client, name: str, base: int, file: str) -> dict[str, dict[str, float]]:
    """99th percentiles of a writer and a reader, idle and while `kvctl load` loads a file into the bucket."""
    bucket = client.bucket(name)
    command = (str(Path(sys.executable).with_name("kvctl")), "load", name, file)
    return await worker.waits(
        lambda number: bucket.put("one", VALUE),
        lambda number: bucket.get(f"k.{number % base:018d}"),
        "a load",
        *command,
    )


async def consume(client: kvctl.Client, name: str, count: int, acks: str) -> dict[str, float]:
    """Messages one after the other."""
    more = {"max_ack_pending": 10_000} if acks == "explicit" else {}
    consumer = await client.jetstream.stream(f"KV_{name}").create_consumer(ack_policy=acks, **more)
    clock = worker.Clock()
    with clock.block():
        async with consumer.consume(count=count) as messages:
            async for message in messages:
                if acks == "explicit":
                    await message.ack()
        await consumer.api.connection.flush()
    await consumer.delete()
    return clock.medians()


async def many_buckets(client: kvctl.Client, prefix: str, count: int) -> None:
    """Create small buckets."""
    for number in range(count):
        await client.create_bucket(f"{prefix}{number}", history=3)


if __name__ == "__main__":
    worker.serve(
        seed, put, put_many, put_by_tasks, update, get, get_many, keys, watch, txn, txn_values, waits, consume,
        many_buckets,
    )  # fmt: skip
