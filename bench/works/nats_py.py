"""The same works with nats-py's own API."""

import asyncio
import json
import os
from typing import Any

import nats
import worker
from nats.js.api import AckPolicy, ConsumerConfig

VALUE = b"v" * 100
FETCHED = 500
"""Messages per fetch; kvctl's buffer holds as many."""


async def put(url: str, bucket: str, count: int) -> dict[str, float]:
    """Puts awaited one by one."""
    kv, _ = await _open(url, bucket)
    clock = worker.Clock()
    with clock.block():
        for number in range(count):
            await kv.put(f"put.{number:016d}", VALUE)
    return clock.medians()


async def put_many(url: str, bucket: str, count: int) -> dict[str, float]:
    """Puts by publish_async, 4,000 pending."""
    _, js = await _open(url, bucket)
    clock = worker.Clock()
    with clock.block():
        subjects = (f"$KV.{bucket}.many.{number:017d}" for number in range(count))
        await asyncio.gather(*[await js.publish_async(subject, VALUE) for subject in subjects])
    return clock.medians()


async def get(url: str, bucket: str, count: int) -> dict[str, float]:
    """Gets awaited one by one."""
    kv, _ = await _open(url, bucket)
    clock = worker.Clock()
    with clock.block():
        for number in range(count):
            await kv.get(f"k.{number:018d}")
    return clock.medians()


async def get_many(url: str, bucket: str, count: int) -> dict[str, float]:
    """Gets of named keys, 100 in flight: there is no bulk get."""
    kv, _ = await _open(url, bucket)
    clock = worker.Clock()
    with clock.block():
        for first in range(0, count, 100):
            await asyncio.gather(*(kv.get(f"k.{number:018d}") for number in range(first, first + 100)))
    return clock.medians()


async def keys(url: str, bucket: str, count: int) -> dict[str, float]:
    """keys()."""
    kv, _ = await _open(url, bucket)
    clock = worker.Clock()
    with clock.block():
        found = await kv.keys()
    assert len(found) >= count, len(found)
    return clock.medians()


async def watch(url: str, bucket: str, count: int) -> dict[str, float]:
    """watchall() until the end of the initial data."""
    kv, _ = await _open(url, bucket)
    clock, number = worker.Clock(), 0
    with clock.block():
        async for entry in await kv.watchall():
            if entry is None:
                break
            number += 1
    assert number >= count, number
    return clock.medians()


async def consume(url: str, bucket: str, count: int, acks: str) -> dict[str, float]:
    """fetch() until all have arrived."""
    client = await nats.connect(url)
    js = client.jetstream()
    policy = AckPolicy.NONE if acks == "none" else AckPolicy.EXPLICIT
    config = ConsumerConfig(ack_policy=policy, max_ack_pending=10_000 if acks == "explicit" else None)
    durable = f"theirs-{os.urandom(4).hex()}"
    subscription = await js.pull_subscribe(f"$KV.{bucket}.>", durable, stream=f"KV_{bucket}", config=config)
    clock, found = worker.Clock(), 0
    with clock.block():
        while found < count:
            messages = await subscription.fetch(FETCHED)
            found += len(messages)
            if acks == "explicit":
                for message in messages:
                    await message.ack()
        await client.flush()
    await js.delete_consumer(f"KV_{bucket}", durable)
    await client.close()
    return clock.medians()


async def load(url: str, bucket: str, file: str) -> dict[str, float]:
    """Rows of a file by publish_async, 4,000 pending."""
    _, js = await _open(url, bucket)
    clock = worker.Clock()
    with clock.block(), open(file, "rb") as rows:  # noqa: ASYNC230  # the rival at its leanest
        futures = []
        for line in rows:
            row = json.loads(line)
            futures.append(await js.publish_async(f"$KV.{bucket}.{row['key']}", row["value"].encode()))
            if len(futures) == 4000:
                await asyncio.gather(*futures)
                futures = []
        await asyncio.gather(*futures)
    return clock.medians()


async def dump(url: str, bucket: str) -> dict[str, float]:
    """watchall() to lines of JSON."""
    kv, _ = await _open(url, bucket)
    clock = worker.Clock()
    with clock.block(), open(os.devnull, "w") as out:  # noqa: ASYNC230
        async for entry in await kv.watchall():
            if entry is None:
                break
            row = {"bucket": bucket, "key": entry.key, "revision": entry.revision, "value": entry.value.decode()}
            out.write(json.dumps(row) + "\n")
    return clock.medians()


async def follow(url: str, bucket: str) -> None:
    """Print each key as it arrives, and `current` after the initial data, until killed."""
    kv, _ = await _open(url, bucket)
    async for entry in await kv.watchall():
        print("current" if entry is None else entry.key, flush=True)


async def _open(url: str, bucket: str) -> Any:
    client = await nats.connect(url)
    js = client.jetstream(publish_async_max_pending=4000)
    return await js.key_value(bucket), js


if __name__ == "__main__":
    worker.serve_plain(put, put_many, get, get_many, keys, watch, consume, load, dump, follow)
