"""A gateway between two clusters that is cut: what does not answer over there is unknown, never taken for missing."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

import kvctl
from kvctl.errors import OutcomeUnknown, UnreachableError
from tests.faults.hosts import GATEWAYS, cluster_config, run, started
from tests.faults.network import Network
from tests.faults.workload import Workload

pytestmark = pytest.mark.faults

LON, NYC = ["l1", "l2", "l3"], ["n1"]
KEYS = 20
PLAN = "version: 1\nbuckets: {O: {history: 5}}\n"
BOTH, UNKNOWN = {"MO", "AO"}, {"AO"}
GUARDED = [
    (("bucket", "delete", "O", "--yes"), {1}, UNKNOWN),
    (("bucket", "delete", "O", "--yes", "--force", "unreachable-stream"), {2}, BOTH),
    (("stream", "delete", "KV_O", "--yes"), {1}, UNKNOWN),
    (("stream", "purge", "KV_O", "--yes"), {1}, UNKNOWN),
    (("bucket", "compact", "O", "--older-than", "0s"), {1}, BOTH),
    (("topology", "plan", "-f", "@plan@"), {1}, BOTH),
    (("topology", "apply", "-f", "@plan@", "--yes"), {1}, BOTH),
    (("topology", "audit"), {5}, BOTH),
    (("topology", "audit", "O"), {5}, BOTH),
    (("topology", "audit", "O", "--repair", "--yes"), {5}, BOTH),
    (("doctor",), {1}, BOTH),
]
"""Commands that need to know who reads `O`, their exit codes while nobody can tell, and the readers that they name.

The origin still reports its mirror, so that a deletion is refused for the aggregate alone, which nobody knows; it lists
both where that is overridden, and does not take `--yes`.
"""


@pytest.fixture
def two_clusters(tmp_path):
    """Three servers in `lon`, one in `nyc`, each on its host."""
    with Network([*LON, *NYC]) as net:
        ways = ", ".join(
            f'{{ name: {name}, urls: ["nats://{net.address(hosts[0])}:{GATEWAYS}"] }}'
            for name, hosts in (("lon", LON), ("nyc", NYC))
        )
        configs = {}
        for cluster, hosts in (("lon", LON), ("nyc", NYC)):
            for own in hosts:
                gateway = (
                    f'gateway {{ name: {cluster}, listen: "{net.address(own)}:{GATEWAYS}", gateways: [{ways}] }}\n'
                )
                configs[own] = cluster_config(net, hosts, own, extra=gateway).replace("name: lab", f"name: {cluster}")
        servers = started(net, tmp_path, configs)
        try:
            yield servers
        finally:
            for server in servers.values():
                server.kill()


def until_done(url: str, *words: str, limit: float = 90) -> None:
    """Run a command until it succeeds: servers that start or come back have no leader yet."""
    deadline = time.monotonic() + limit
    while (ended := run(url, *words)).returncode != 0:
        assert time.monotonic() < deadline, ended
        time.sleep(1)


def prepare(lon: str) -> None:
    """A bucket in `lon` with deletions, its mirror and its aggregate in `nyc`."""
    until_done(lon, "bucket", "add", "O", "--replicas", "3", "--cluster", "lon", "--timeout", "10s")
    for number in range(KEYS):
        assert run(lon, "put", "O", f"k{number}", "v").returncode == 0
    until_done(lon, "mirror", "create", "MO", "--origin", "O", "--cluster", "nyc", "--timeout", "10s")
    until_done(lon, "aggregate", "create", "AO", "--origin", "bucket=O", "--cluster", "nyc", "--timeout", "10s")


async def test_gateway_cut(two_clusters, tmp_path, report):
    net, lon, nyc = two_clusters["l1"].network, two_clusters["l1"].url, two_clusters["n1"].url
    await asyncio.to_thread(prepare, lon)
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    for host in LON:
        net.cut(host, "n1")
    deleted = await asyncio.to_thread(run, lon, "delete", "O", "k0", "k1")  # which the replicas have not heard of
    assert deleted.returncode == 0, deleted
    work, going = Workload("O"), True
    stored = {f"k{number}": b"v" for number in range(2, KEYS)}
    unknown: dict[str, bytes] = {}

    async def write() -> None:
        async with kvctl.connect(kvctl.Context(url=lon, timeout=work.timeout)) as client:
            for number in itertools.count():
                if not going:
                    return
                key, value = f"w.{number}", b"%d" % number
                unknown[key] = value
                async with work.timed():
                    with suppress(UnreachableError, OutcomeUnknown):
                        await client.bucket("O").put(key, value)
                        stored[key] = unknown.pop(key)
                        work.acknowledged()
                await asyncio.sleep(0.05)

    writing = asyncio.create_task(write())
    for words, codes, names in GUARDED:
        ended = await asyncio.to_thread(run, lon, *(str(plan) if word == "@plan@" else word for word in words))
        work.operations += 1
        if ended.returncode not in codes or not names <= {*_names(ended.stderr + ended.stdout)}:
            work.violations.append(f"{' '.join(words)}: {ended.returncode}, {ended.stdout}{ended.stderr}")
    graph = json.loads((await asyncio.to_thread(run, lon, "topology", "graph", "-o", "json")).stdout)
    assert {"MO", "KV_AO"} <= {node["stream"] for node in graph["nodes"]}
    near = await asyncio.to_thread(run, nyc, "get", "O", "k5")
    assert (near.returncode, near.stdout) == (0, "v"), near
    going = False
    await writing
    net.heal()
    await asyncio.to_thread(until_done, lon, "topology", "audit", "O", limit=180)
    async with kvctl.connect(lon) as client:
        held = {
            name: {entry.key: entry.value async for entry in client.bucket(name).entries()}
            for name in ("O", "MO", "AO")
        }
    assert {key: value for key, value in held["O"].items() if key not in unknown} == stored
    assert held["MO"] == held["AO"] == held["O"]
    report(work, 1)
    assert work.violations == []


def _names(text: str) -> Iterator[str]:
    for name in ("MO", "AO"):
        if name in text:
            yield name
