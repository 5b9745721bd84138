"""Links between a hub and a leaf node that go while the hub is written: replicas end up equal, and say so before."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping

import pytest

import kvctl
from tests.faults.hosts import LEAVES, HostServer, run, started
from tests.faults.network import Network
from tests.faults.workload import Workload

pytestmark = pytest.mark.faults

KEYS = [f"k.{number}" for number in range(60)]


@pytest.fixture
def hub_and_leaf(tmp_path):
    """Two servers on two hosts, a JetStream domain each."""
    with Network(["hub", "leaf"]) as net:
        hub = 'jetstream { store_dir: "@store@", domain: hub }\n'
        hub += f'leafnodes {{ listen: "{net.address("hub")}:{LEAVES}" }}\n'
        leaf = 'jetstream { store_dir: "@store@", domain: leaf }\n'
        leaf += f'leafnodes {{ remotes: [{{ url: "nats://{net.address("hub")}:{LEAVES}" }}] }}\n'
        servers = started(net, tmp_path, {"hub": hub, "leaf": leaf})
        try:
            yield servers
        finally:
            for server in servers.values():
                server.kill()


async def cut(servers: Mapping[str, HostServer]) -> None:
    servers["hub"].network.cut("hub", "leaf")
    await asyncio.sleep(6)
    servers["hub"].network.heal()


async def one_way(servers: Mapping[str, HostServer]) -> None:
    servers["hub"].network.cut("leaf", "hub", both=False)
    await asyncio.sleep(6)
    servers["hub"].network.heal()


async def leaf_killed(servers: Mapping[str, HostServer]) -> None:
    servers["leaf"].kill()
    await asyncio.sleep(2)
    await asyncio.to_thread(servers["leaf"].start)


async def hub_killed(servers: Mapping[str, HostServer]) -> None:
    servers["hub"].kill()
    await asyncio.sleep(2)
    await asyncio.to_thread(servers["hub"].start)


@pytest.mark.parametrize("fault", [cut, one_way, leaf_killed, hub_killed], ids=lambda fault: fault.__name__)
async def test_replicas(hub_and_leaf, fault, seed, steps, report):
    dice = random.Random(f"{seed} {fault.__name__}")
    hub, leaf = hub_and_leaf["hub"].url, hub_and_leaf["leaf"].url
    for words in (("bucket", "add", "A", "--history", "3", "--marker-ttl", "1h"), ("bucket", "add", "B")):
        assert run(hub, *words).returncode == 0
    for key in KEYS[:3]:
        assert run(hub, "put", "A", key, "first").returncode == 0
    made = run(leaf, "mirror", "create", "M", "--origin", "A", "--origin-domain", "hub", "--wait-for", "60s")
    assert made.returncode == 0, made.stderr
    origins = ("--origin", "bucket=A,prefix=a,domain=hub", "--origin", "bucket=B,prefix=b,domain=hub")
    made = run(leaf, "aggregate", "create", "AG", *origins, "--wait-for", "60s")
    assert made.returncode == 0, made.stderr
    work, going, times = Workload("A"), True, steps(2)
    model: dict[tuple[str, str], bytes | None] = {("A", key): b"first" for key in KEYS[:3]}

    async def write() -> None:
        async with kvctl.connect(kvctl.Context(url=hub, timeout=work.timeout)) as client:
            while going:
                name, key, value = dice.choice("AB"), dice.choice(KEYS), b"%d" % dice.randrange(1 << 30)
                delete = dice.random() < 0.2 and model.get((name, key)) is not None
                async with work.timed():
                    try:
                        await (client.bucket(name).delete(key) if delete else client.bucket(name).put(key, value))
                    except kvctl.errors.UnreachableError:
                        work.failed += 1
                        continue
                    except kvctl.errors.OutcomeUnknown:
                        work.unknown += 1
                        entry = None
                        while entry is None:
                            try:
                                entry = await client.bucket(name).last_entry(key, leader=True)
                                break
                            except kvctl.errors.UnreachableError:
                                await asyncio.sleep(0.2)
                        model[name, key] = entry.value if entry is not None and entry.operation == "PUT" else None
                        continue
                model[name, key] = None if delete else value
                work.acknowledged()
                await asyncio.sleep(0.003)

    writing = asyncio.create_task(write())
    for _ in range(times):
        await asyncio.sleep(1)
        await fault(hub_and_leaf)  # type: ignore[misc]
        await asyncio.sleep(1)
    going = False
    await writing
    async with asyncio.timeout(120):
        while True:
            audit = await asyncio.to_thread(run, leaf, "topology", "audit", "-o", "json")
            if audit.returncode == 0:
                break
            assert audit.returncode in (4, 5, 9), audit.stderr
            await asyncio.sleep(1)
    assert json.loads(audit.stdout), "an audit of nothing"
    living = {place: value for place, value in model.items() if value is not None}
    async with kvctl.connect(leaf) as client:
        mirror = {entry.key: entry.value async for entry in client.bucket("M").entries(">")}
        merged = {entry.key: entry.value async for entry in client.bucket("AG").entries(">")}
    report(work, times)
    assert mirror == {key: value for (name, key), value in living.items() if name == "A"}
    assert merged == {f"{name.lower()}.{key}": value for (name, key), value in living.items()}
