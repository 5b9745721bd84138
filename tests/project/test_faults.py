"""Faults on a cluster under traffic, checked: nothing acknowledged is lost, conditions hold, readings are whole."""

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

import kvctl
from kvctl import Bucket, Client, Entry
from kvctl.errors import KvctlError, UnreachableError
from kvctl.labs import Lab
from kvctl.server import Server
from tests.faults.workload import Workload
from tests.kv.read.test_watch import SLOW_READER
from tests.support.differences import differences


@asynccontextmanager
async def connections(lab: Lab, count: int) -> AsyncIterator[list[Client]]:
    """As many connections, each to the servers in an order of its own."""
    async with AsyncExitStack() as stack:
        urls = [server.url for server in lab.servers.values()]
        orders = (random.sample(urls, len(urls)) for _ in range(count))
        yield [await stack.enter_async_context(kvctl.connect(",".join(order))) for order in orders]


async def leader_of(bucket: Bucket, servers: Mapping[str, Server]) -> Server:
    """The server that leads the bucket's stream."""
    if len(servers) == 1:
        (only,) = servers.values()
        return only
    info = (await bucket.locate(fresh=True)).info
    return servers[info["cluster"]["leader"]]


async def killed(server: Server, down: float) -> None:
    server.kill()
    await asyncio.sleep(down)
    await asyncio.to_thread(server.start)


async def stopped(server: Server, away: float) -> None:
    server.pause()
    await asyncio.sleep(away)
    server.resume()


async def all_killed(lab: Lab) -> None:
    for server in lab.servers.values():
        server.kill()
    await asyncio.gather(*(asyncio.to_thread(server.start) for server in lab.servers.values()))


@pytest.mark.guarantee("writing-1", "reading-2", "reading-6", "transactions-2", by="kill")
async def test_nothing_acknowledged_is_lost_and_conditions_hold_when_a_leader_fails(own_cluster, seed):
    await worked(own_cluster.servers, lambda leader: killed(leader, 2.0))


@pytest.mark.slow
@pytest.mark.guarantee("writing-1", "reading-2", "reading-6", "transactions-2", by="kill")
@pytest.mark.parametrize(("fault", "seconds"), [(killed, 1.0), (stopped, 3.0), (stopped, 8.0)])
async def test_nothing_acknowledged_is_lost_and_conditions_hold_over_many_failures(own_cluster, seed, fault, seconds):
    await worked(own_cluster.servers, lambda leader: fault(leader, seconds), times=6)


@pytest.mark.guarantee("writing-1", "transactions-2", by="kill")
async def test_nothing_acknowledged_is_lost_and_conditions_hold_when_the_only_server_is_killed(own_server, seed):
    await worked({"": own_server}, lambda leader: killed(leader, 0.1), times=2)


@pytest.mark.slow
@pytest.mark.guarantee("writing-1", by="kill")
async def test_nothing_acknowledged_is_lost_when_all_servers_die(own_cluster, seed):
    await worked(own_cluster.servers, lambda _: all_killed(own_cluster))


async def worked(servers: Mapping[str, Server], fail: Callable[[Server], Awaitable[None]], times: int = 1) -> None:
    """Every kind of traffic while what leads the bucket fails so many times, and everything checked at the end."""
    work = Workload("B")
    urls = [server.url for server in servers.values()]
    async with kvctl.connect(",".join(urls)) as client:
        bucket = await work.prepare(client, replicas=len(servers))
        async with work.running(urls):
            for _ in range(times):
                await work.working()
                await fail(await leader_of(bucket, servers))
            await work.working()
        await work.check(client)


async def all_entries(bucket: Bucket, *filters: str) -> list[Entry]:
    """What the bucket holds, as soon as its stream has a leader again."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return [entry async for entry in bucket.entries(*filters)]
        except UnreachableError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


@pytest.mark.guarantee("reading-14", by="kill")
async def test_a_slow_reader_gets_everything_in_bounded_memory_though_the_leader_dies(own_cluster, seed):
    async with connections(own_cluster, 1) as (client,):
        bucket = await client.create_bucket("B", replicas=3)
        value = os.urandom(1_000_000)
        assert (await bucket.put_many((f"k.{number}", value) for number in range(120))).written == 120
        urls = ",".join(server.url for server in own_cluster.servers.values())
        reader = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SLOW_READER, urls, "asleep", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        said = await reader.stderr.readline()  # it has the first messages, and sleeps
        await killed(await leader_of(bucket, own_cluster.servers), 1.0)
        out, err = await asyncio.wait_for(reader.communicate(), 300)
        assert (reader.returncode, said) == (0, b"reading\n"), err.decode()
        seen, size, peak = map(int, re.findall(rb"\d+", out))
        assert (seen, size) == (120, 120_000_000)
        assert peak < 90, f"{peak} MB"


@pytest.mark.guarantee("writing-1", "writing-12", by="kill")
async def test_bulk_writes_over_a_leaders_death_are_all_accounted_for(own_cluster, seed):
    count = 20_000
    async with connections(own_cluster, 1) as (client,):
        bucket = await client.create_bucket("B", replicas=3)
        victim = await leader_of(bucket, own_cluster.servers)
        fault: list[asyncio.Task[Any]] = []

        async def items() -> AsyncIterator[tuple[str, bytes]]:
            for number in range(count):
                if number == count // 4:
                    fault.append(asyncio.create_task(killed(victim, 1.0)))
                    await asyncio.sleep(0)
                yield f"k.{number}", b"%d" % number

        summary = await bucket.put_many(items())
        await fault[0]
        assert summary.written + len(summary.failed) == count
        failed = {key for key, _ in summary.failed}
        rest = [(key, key.removeprefix("k.").encode()) for key in failed]
        deadline = time.monotonic() + 180
        while rest:  # what the summary names is what has to be done again
            assert time.monotonic() < deadline
            with suppress(KvctlError):
                again = await bucket.put_many(rest)
                left = {key for key, _ in again.failed}
                rest = [(key, value) for key, value in rest if key in left]
            await asyncio.sleep(0.1)
        found = {entry.key: entry.value for entry in await all_entries(bucket)}
        assert differences(found, {f"k.{number}": b"%d" % number for number in range(count)}) == []
