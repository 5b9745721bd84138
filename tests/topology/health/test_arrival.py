"""Replicas that are read while they lack entries of their origins; waiting for a fill is tested with the builders."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import kvctl
from kvctl import Aggregate, External, Mirror, Origin, create_aggregate, create_mirror
from kvctl.labs import run_lab
from kvctl.topology.health import arrival
from kvctl.topology.health.inspection import seen
from tests.support.waiting import until


async def behind(client: kvctl.Client, name: str) -> tuple[list[str], list[str]]:
    """Return the evidence of hazards, and the warnings, for the mirror or aggregate of this name."""
    binding = await client.bucket(name).locate()
    assert binding.info is not None
    found, warnings = await arrival.behind(binding.api, binding.info)
    assert {hazard.name for hazard in found} <= {"lagging-replica"}
    return [hazard.evidence for hazard in found], warnings


@pytest.fixture
def hurried(monkeypatch):
    """Wait for less than entries take that never come."""
    monkeypatch.setattr(arrival, "BRIEFLY", timedelta(seconds=0.5))


@pytest.mark.guarantee("reading-22", by="fault")
async def test_replicas_that_keep_up_with_writes_are_not_behind(client, unique):
    origin = await client.create_bucket(unique("O"))
    mirror, aggregate, second = unique("M"), unique("A"), unique("M")
    await create_mirror(client, Mirror(mirror, Origin(origin.name)))
    await create_aggregate(client, Aggregate(aggregate, (Origin(origin.name, keys=("a.>",)),)))
    await create_mirror(client, Mirror(second, Origin(stream=f"KV_{aggregate}")))

    async def write() -> None:
        for number in range(10_000):
            await origin.put(f"a.{number % 7}", b"v")

    writing = asyncio.create_task(write())
    for name in (origin.name, mirror, aggregate, second) * 5:
        assert await behind(client, name) == ([], [])
    writing.cancel()


@pytest.mark.guarantee("reading-22", by="fault")
async def test_replica_that_lacks_entries_is_behind_and_so_are_its_readers(client, raw, replicas, unique, hurried):
    origin, mirror, aggregate = unique("O"), unique("M"), unique("A")
    raw.create_bucket(origin, {"a": b"v", "b": b"v"})
    replicas.mirror(mirror, origin, max_msgs=2, max_msgs_per_subject=5)
    replicas.aggregate(aggregate, {"name": mirror})
    until(lambda: replicas.info(f"KV_{aggregate}")["state"]["messages"] == 2)
    assert await behind(client, aggregate) == ([], [])
    raw.put(origin, "c", b"v")
    for name in (mirror, aggregate):
        (text,), warnings = await behind(client, name)
        assert text.startswith(f"`{mirror}` has not received all entries of `{origin}`: at revision 2 of 3, connected")
        assert not warnings


@pytest.mark.guarantee("reading-22", by="fault")
async def test_origin_that_cannot_be_read_is_a_warning(client, raw, replicas, unique):
    origin, other, aggregate = unique("O"), unique("O"), unique("A")
    raw.create_bucket(origin, {"a": b"v"})
    raw.create_bucket(other, {"b": b"v"})
    replicas.aggregate(aggregate, {"name": f"KV_{origin}"}, {"name": f"KV_{other}"})
    until(lambda: replicas.info(f"KV_{aggregate}")["state"]["messages"] == 2)
    raw.api(f"STREAM.DELETE.KV_{origin}")
    text = f"`{aggregate}` may lack entries of its origin `{origin}`, which could not be read"
    assert await behind(client, aggregate) == ([], [text])


@pytest.mark.guarantee("reading-22", by="fault")
async def test_mirror_across_a_link_that_was_down_is_behind_until_it_catches_up(unique):
    """Servers take up to 20 seconds to resume after a restart of the origin's server."""
    origin, mirror = unique("O"), unique("M")
    with run_lab("leaf") as lab:
        async with kvctl.connect(lab.contexts["hub"]) as hub, kvctl.connect(lab.contexts["leaf"]) as edge:
            await (await hub.create_bucket(origin)).put("k", b"v")
            await create_mirror(edge, Mirror(mirror, Origin(origin, external=External.of_domain("hub"))))
            assert await behind(edge, mirror) == ([], [])
            lab.stop("hub")
            assert (await behind(edge, mirror))[1] == [
                f"`{mirror}` may lack entries of its origin `{origin}`, which could not be read"
            ]
            lab.start("hub")
            await hub.bucket(origin).put("late", b"v")
            async with asyncio.timeout(60):
                while await seen(edge.api.at("$JS.hub.API"), f"KV_{origin}") is None:
                    await asyncio.sleep(0.1)
            late, warnings = await behind(edge, mirror)
            assert late or [key async for key in edge.bucket(mirror).keys()] == ["k", "late"]
            assert not warnings
