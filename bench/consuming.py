"""Consuming 100,000 messages of 100 B: kvctl's consume beside nats-py's fetch, the same consumer for both.

Run as `python -m bench.consuming WHO URL BUCKET COUNT ACKS`: prints the seconds. WHO is `ours`, `batches` or `theirs`.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import kvctl

FETCHED = 500
"""Messages per fetch of nats-py; kvctl's buffer holds as many."""


def consume(bench: Any, timed: Callable[..., Any]) -> None:
    """Messages per second, without and with acknowledgements."""
    name = bench.bucket("K100", 100_000)
    for acks, title, aim in (
        ("none", "consume 100,000 messages", "4x"),
        ("explicit", "consume 100,000 messages, each acknowledged", ""),
    ):
        bench.compare(title, aim, {
            "kvctl consume": timed("ours", name, acks),
            "nats-py fetch(500)": timed("theirs", name, acks),
            "kvctl consume, by batches": timed("batches", name, acks),
        })  # fmt: skip


async def ours(url: str, bucket: str, count: int, acks: str) -> float:
    """One message after the other."""
    async with kvctl.connect(url) as client:
        consumer = await client.jetstream.stream(f"KV_{bucket}").create_consumer(**_config(acks))
        begun = time.perf_counter()
        async with consumer.consume(count=count) as messages:
            async for message in messages:
                if acks == "explicit":
                    await message.ack()
        return await _ended(consumer, begun)


async def batches(url: str, bucket: str, count: int, acks: str) -> float:
    """All messages that have arrived, together."""
    async with kvctl.connect(url) as client:
        consumer = await client.jetstream.stream(f"KV_{bucket}").create_consumer(**_config(acks))
        begun = time.perf_counter()
        async with consumer.consume(count=count) as messages:
            async for batch in messages.batches():
                if acks == "explicit":
                    for message in batch:
                        await message.ack()
        return await _ended(consumer, begun)


async def theirs(url: str, bucket: str, count: int, acks: str) -> float:
    """fetch() until all have arrived."""
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    client = await nats.connect(url)
    js = client.jetstream()
    policy = AckPolicy.NONE if acks == "none" else AckPolicy.EXPLICIT
    config = ConsumerConfig(ack_policy=policy, max_ack_pending=10_000 if acks == "explicit" else None)
    durable = f"theirs-{os.urandom(4).hex()}"
    subscription = await js.pull_subscribe(f"$KV.{bucket}.>", durable, stream=f"KV_{bucket}", config=config)
    begun, found = time.perf_counter(), 0
    while found < count:
        messages = await subscription.fetch(FETCHED)
        found += len(messages)
        if acks == "explicit":
            for message in messages:
                await message.ack()
    await client.flush()
    seconds = time.perf_counter() - begun
    await js.delete_consumer(f"KV_{bucket}", durable)
    await client.close()
    return seconds


def _config(acks: str) -> dict[str, Any]:
    return {"ack_policy": acks} | ({"max_ack_pending": 10_000} if acks == "explicit" else {})


async def _ended(consumer: kvctl.Consumer, begun: float) -> float:
    await consumer.api.connection.flush()
    seconds = time.perf_counter() - begun
    await consumer.delete()
    return seconds


if __name__ == "__main__":
    who, address, bucket_name, number, policy = sys.argv[1:]
    print(asyncio.run(globals()[who](address, bucket_name, int(number), policy)))
