"""Consuming while servers of a cluster die and stand still: everything comes, and it never hangs."""

import asyncio
import random
from datetime import timedelta

import pytest

import kvctl
from kvctl import Client
from kvctl.errors import UnreachableError
from kvctl.jetstream.publish import publish
from kvctl.labs import Lab

MESSAGES = 3000


@pytest.mark.guarantee("consumers-1", "consumers-3", by="fault")
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_everything_is_delivered_while_the_consumers_leader_fails(own_cluster, fault):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    failing: list[asyncio.Task[None]] = []
    async with kvctl.connect(own_cluster.contexts["cluster"]) as client:
        stream = await client.jetstream.create_stream("S", subjects=["S.>"], num_replicas=3)
        consumer = await stream.create_consumer("c", ack_wait=timedelta(seconds=3), max_ack_pending=200)
        writing = asyncio.create_task(_write(client))
        found: set[int] = set()
        faults = iter(sorted(chance.sample(range(200, MESSAGES - 500), 2)))
        due = next(faults)
        stored: set[int] | None = None
        async with asyncio.timeout(120), consumer.consume(max_messages=100) as messages:
            async for message in messages:
                found.add(message.sequence)
                if client.connection.online:
                    await message.ack()
                if len(found) >= due:
                    due = next(faults, MESSAGES * 2)
                    failing.append(asyncio.create_task(_fail(client, own_cluster, fault)))
                if stored is None and writing.done():
                    stored = writing.result()
                if stored is not None and found >= stored:
                    break
    assert len(found) >= MESSAGES
    assert len(failing) == 2


async def _write(client: Client) -> set[int]:
    """The sequences that were acknowledged; what was not is written again."""
    stored: set[int] = set()
    while len(stored) < MESSAGES:
        try:
            stored.add(await publish(client.connection, f"S.{len(stored)}", b"x", timeout=2))
        except UnreachableError:
            await asyncio.sleep(0.05)
    return stored


async def _fail(client: Client, lab: Lab, fault: str) -> None:
    """The consumer's leader dies, or stands still for a while."""
    try:
        info = await client.jetstream.stream("S").consumer("c").info()
    except UnreachableError:
        return  # it has just failed
    leader = lab.servers[info["cluster"]["leader"]]
    if fault == "kill":
        leader.kill()
        await asyncio.sleep(2)
        await asyncio.to_thread(leader.start)
    else:
        leader.pause()
        await asyncio.sleep(3)
        leader.resume()
