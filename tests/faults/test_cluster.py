"""Faults on a cluster of three under every kind of traffic: nothing acknowledged is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import pytest

import kvctl
from kvctl.errors import KvctlError
from tests.faults.hosts import HostServer
from tests.faults.network import CLIENT
from tests.faults.workload import Workload

pytestmark = pytest.mark.faults

Servers = Mapping[str, HostServer]
Fault = Callable[[Servers, HostServer], Awaitable[None]]
"""Does harm around the leader of the stream, and takes it back."""

AWAY_S = 6.0


async def leader_of(servers: Servers, bucket: str) -> HostServer:
    """The server that leads the stream, as soon as somebody says."""
    urls = ",".join(server.url for server in servers.values())
    async with asyncio.timeout(120):
        while True:
            with suppress(KvctlError, KeyError):
                async with kvctl.connect(urls) as client:
                    info = (await client.bucket(bucket).locate(fresh=True)).info
                    return servers[info["cluster"]["leader"]]
            await asyncio.sleep(0.2)


async def partition(_: Servers, leader: HostServer) -> None:
    """The leader sees neither the other servers nor clients."""
    leader.network.isolate(leader.name)
    await asyncio.sleep(AWAY_S)
    leader.network.heal()


async def minority(_: Servers, leader: HostServer) -> None:
    """The leader sees clients, but no other server."""
    leader.network.isolate(leader.name, but=[CLIENT])
    await asyncio.sleep(AWAY_S)
    leader.network.heal()


async def mute(servers: Servers, leader: HostServer) -> None:
    """What the leader sends to the others is lost; it hears them."""
    for other in servers:
        if other != leader.name:
            leader.network.cut(leader.name, other, both=False)
    await asyncio.sleep(AWAY_S)
    leader.network.heal()


async def deaf(servers: Servers, leader: HostServer) -> None:
    """What the others send to the leader is lost; they hear it."""
    for other in servers:
        if other != leader.name:
            leader.network.cut(other, leader.name, both=False)
    await asyncio.sleep(AWAY_S)
    leader.network.heal()


async def clients_away(_: Servers, leader: HostServer) -> None:
    """Clients do not reach the leader, and their answers are lost; the servers see each other."""
    leader.network.cut(leader.name, CLIENT)
    await asyncio.sleep(AWAY_S)
    leader.network.heal()


async def answers_lost(_: Servers, leader: HostServer) -> None:
    """The leader's host sends nothing to clients, and hears them."""
    leader.network.cut(leader.name, CLIENT, both=False)
    await asyncio.sleep(AWAY_S)
    leader.network.heal()


async def flapping(servers: Servers, leader: HostServer) -> None:
    """One link after the other goes and comes back."""
    for _ in range(8):
        one, other = random.sample([*servers, CLIENT], 2)
        leader.network.cut(one, other, both=random.random() < 0.5)
        await asyncio.sleep(random.uniform(0.2, 1.5))
        leader.network.heal()
        await asyncio.sleep(random.uniform(0, 0.5))


async def killed(_: Servers, leader: HostServer) -> None:
    leader.kill()
    await asyncio.sleep(2)
    await asyncio.to_thread(leader.start)


async def stopped(_: Servers, leader: HostServer) -> None:
    leader.pause()
    await asyncio.sleep(AWAY_S)
    leader.resume()


async def all_killed(servers: Servers, _: HostServer) -> None:
    for server in servers.values():
        server.kill()
    await asyncio.gather(*(asyncio.to_thread(server.start) for server in servers.values()))


async def lame_duck(_: Servers, leader: HostServer) -> None:
    await asyncio.to_thread(leader.leave)
    await asyncio.to_thread(leader.start)


async def rolling_restart(servers: Servers, _: HostServer) -> None:
    for server in servers.values():
        await asyncio.to_thread(server.leave)
        await asyncio.to_thread(server.start)
        await asyncio.sleep(1)


FAULTS: list[Fault] = [partition, minority, mute, deaf, clients_away, answers_lost, flapping, killed, stopped]
FAULTS += [all_killed, lame_duck, rolling_restart]


@pytest.mark.guarantee("writing-1", "transactions-2", "leases-1", "reading-6", "reading-9")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_leader(cluster3, fault, seed, steps, report):
    random.seed(f"{seed} {fault.__name__}")
    urls, work = [server.url for server in cluster3.values()], Workload("W")
    await leader_ready(urls)
    async with kvctl.connect(kvctl.Context(url=",".join(urls), timeout=work.timeout * 5)) as client:
        await work.prepare(client, replicas=3)
        times = steps(2)
        async with work.running(urls):
            await work.working()
            for _ in range(times):
                await fault(cluster3, await leader_of(cluster3, work.name))
                await work.working()
    async with kvctl.connect(",".join(urls)) as client:
        try:
            await work.check(client)
        finally:
            report(work, times)


async def leader_ready(urls: list[str]) -> None:
    """Wait until the cluster takes a bucket with three replicas."""
    async with asyncio.timeout(60):
        while True:
            with suppress(KvctlError):
                async with kvctl.connect(",".join(urls)) as client:
                    await client.create_bucket("ready", replicas=3)
                    return
            await asyncio.sleep(0.2)
