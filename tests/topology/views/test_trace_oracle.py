"""Random topologies on a real server: a trace finds exactly the replicas that hold a key, and the way back."""

import random
from typing import Any

import pytest

import kvctl
from kvctl.documents.parser import Document
from kvctl.topology.model.file import read_topology
from kvctl.topology.plan.desired import render
from kvctl.topology.views import live_trace
from kvctl.topology.views.drawing import of_topology
from kvctl.topology.views.trace import KeyTrace, Stop, predicted
from tests.support.raw import RawClient
from tests.support.waiting import until
from tests.topology.random_topology import TOKENS, Contents, RandomTopology, lands, living

pytestmark = pytest.mark.oracle

Place = tuple[str, str | None]
"""Name of a stream, and the key there; None if it is filtered out."""


def below(topology: RandomTopology, name: str, key: str) -> set[tuple[str, Place]]:
    """Return each stream that reads a key, with the stream that it reads it from."""
    found: set[tuple[str, Place]] = set()
    for item in topology.replicas:
        for origin in item.origins:
            if origin.name == name:
                place = lands(origin.rules, key)
                found.add((name, (item.name, place)))
                found |= below(topology, item.name, place) if place is not None else set()
    return found


def stops(items: tuple[Stop, ...], before: str) -> set[tuple[str, Place]]:
    """Return the same of a trace."""
    found: set[tuple[str, Place]] = set()
    for item in items:
        found |= {(before, (item.node.name, item.key))} | stops(item.onward, item.node.name)
    return found


def states(trace: KeyTrace) -> dict[Place, set[str]]:
    """Return the states of each replica and key."""
    found: dict[Place, set[str]] = {}

    def add(items: tuple[Stop, ...]) -> None:
        for item in items:
            found.setdefault((item.node.name, item.key), set()).add(str(item.state))
            add(item.onward)

    add(trace.replicas)
    return found


async def check(client: kvctl.Client, topology: RandomTopology, graph: Any, alive: dict[str, Contents]) -> None:
    """Trace every key that a bucket holds, and everything that it becomes."""
    held = topology.contents(alive)
    for bucket, contents in alive.items():
        for key, value in contents.items():
            expected = below(topology, bucket, key)
            planned, live = predicted(graph, bucket, key), await live_trace.trace({"": client.api}, bucket, key)
            assert stops(planned.replicas, bucket) == stops(live.replicas, bucket) == expected
            reached = {place for _, place in expected if place[1] is not None}
            assert states(live) == {place: {"arrived" if place in reached else "filtered out"} for _, place in expected}
            holders = {(name, at) for name, found in held.items() for at, there in found.items() if there == value}
            assert holders == reached | {(bucket, key)}  # values are unique
            for name, at in reached:
                back = await live_trace.trace({"": client.api}, name, at or "")
                assert (bucket, key) in {place for _, place in stops(back.origins, name)}
                assert _arrived(back.origins) >= {(bucket, key)}


def _arrived(items: tuple[Stop, ...]) -> set[Place]:
    found: set[Place] = set()
    for item in items:
        found |= {(item.node.name, item.key)} if item.state == "arrived" else set()
        found |= _arrived(item.onward)
    return found


async def test_trace_finds_exactly_the_replicas_that_hold_a_key(own_server, seed, steps, unique):
    async with kvctl.connect(own_server.url) as client:
        with RawClient(own_server.url) as raw:
            for number in range(steps(2)):
                dice = random.Random(f"{seed} {number}")
                topology = RandomTopology(dice, unique)
                topology.grow(dice.randint(4, 9))
                file = read_topology(Document(topology.document(), "topology.yaml"))
                for stream in render(file).streams:
                    raw.create_stream(**stream)
                print(topology.document())
                alive: dict[str, Contents] = {}
                for at in range(8):
                    item = dice.choice([item for item in topology.resources.values() if item.section == "buckets"])
                    key = ".".join(dice.choices(TOKENS, k=dice.randint(1, 3)))
                    value = f"{number}-{at}".encode()
                    raw.put(item.name, key, value)
                    alive.setdefault(item.name, {})[key] = value
                wanted = topology.contents(alive)

                def settled(topology: RandomTopology = topology, wanted: dict[str, Contents] = wanted) -> bool:
                    return all(living(raw, topology, name) == contents for name, contents in wanted.items())

                until(settled, what="replicas hold what was written")
                await check(client, topology, of_topology(file), alive)
