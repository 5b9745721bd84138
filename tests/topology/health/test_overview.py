"""Overview of buckets and replicas: who answers here, progress, stale mirrors."""

import asyncio
import time
from contextlib import suppress

import pytest

import kvctl
from kvctl.errors import BucketNotFound
from kvctl.labs import run_lab
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.health import overview
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from tests.support.waiting import until


async def test_bucket_and_mirror_on_one_server_both_answer(client, raw, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket)
    empty = await overview.inspect(client.api, bucket)
    assert (empty.answered_by, empty.reads.reported, empty.hazards) == (None, False, [])
    revision = raw.put(bucket, "k", b"v")
    await create_mirror(client, Mirror(mirror, Origin(bucket)))
    seen = await overview.inspect(client.api, bucket)
    assert set(seen.answered_by or ()) <= {f"KV_{bucket}", mirror}
    assert seen.lineages[mirror].same is True
    (item,) = seen.dependents or ()
    health = seen.health_of(mirror)
    assert (item.node.name, item.last_revision, health and health.state) == (mirror, revision, "ok")
    reverse = await overview.inspect(client.api, mirror)
    (origin,) = reverse.origins
    assert (origin["state"]["last_seq"], reverse.lineage and reverse.lineage.same) == (revision, True)


async def test_overview_distinguishes_recreated_origin(client, raw, replicas, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket, {"k": b"old"})
    replicas.mirror(mirror, bucket)
    until(lambda: replicas.subjects(mirror))
    raw.api(f"STREAM.DELETE.KV_{bucket}")
    raw.create_bucket(bucket, {"k": b"new"})
    for name in (bucket, mirror):
        seen = await overview.inspect(client.api, name)
        found = seen.lineage or seen.lineages[mirror]
        assert (found.same, "was recreated" in found.evidence) == (False, True)


async def test_concurrent_writes_do_not_make_a_mirror_look_stale(client, raw, replicas, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket)
    replicas.mirror(mirror, bucket)
    handle = client.bucket(bucket)
    done = False

    async def write() -> None:
        while not done:
            await handle.put("k", b"v")

    writing = asyncio.create_task(write())
    for name in [bucket, mirror] * 10:
        seen = await overview.inspect(client.api, name)
        assert (seen.lineage or seen.lineages[mirror]).same
    done = True
    await writing


async def test_alternates_are_ordered_by_distance_from_the_client(supercluster, unique):
    bucket, mirror = unique(), unique("M")
    async with kvctl.connect(supercluster.contexts["lon"]) as lon, kvctl.connect(supercluster.contexts["nyc"]) as nyc:
        await (await lon.create_bucket(bucket, cluster="lon")).put("k", b"v")
        await create_mirror(lon, Mirror(mirror, Origin(bucket), cluster="nyc"))
        ours = (bucket, f"KV_{bucket}", "origin", "lon", "lon", "ok", 0)
        theirs = (mirror, mirror, "mirror", "nyc", "nyc", "ok", 0)
        for client, order in ((lon, [ours, theirs]), (nyc, [theirs, ours])):
            for name in (bucket, mirror):
                found = (await overview.inspect(client.api, name)).reads
                assert found.reported
                rows = found.alternates
                assert [
                    (row.served_by, row.stream, row.role, row.cluster, row.leader, row.state, row.entries_behind)
                    for row in rows
                ] == order
                assert [(row.here, row.round_trip is not None) for row in rows] == [(True, True), (False, False)]


async def test_mirror_at_the_edge_answers_there(leaf, unique):
    bucket, mirror, aggregate = unique(), unique("M"), unique("A")
    async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["leaf"]) as edge:
        await (await hub.create_bucket(bucket)).put("k", b"v")
        way = Origin(bucket, external=External.of_domain("hub"))
        await create_mirror(edge, Mirror(mirror, way))
        await create_aggregate(edge, Aggregate(aggregate, (way,)))
        seen = await overview.inspect(edge.api, mirror)
        assert (seen.answered_by, seen.reads.reported) == ([mirror], False)
        rows = [(row.stream, row.role, row.state, row.here) for row in seen.reads.alternates]
        assert rows == [(mirror, "mirror", "ok", True), (f"KV_{bucket}", "origin", "ok", False)]
        assert seen.lineage.same
        seen = await overview.inspect(edge.api, aggregate)
        assert (seen.answered_by, seen.hazards) == ([f"KV_{aggregate}"], [])
        assert [item["state"]["last_seq"] for item in seen.origins if item] == [1]


async def test_overview_of_another_account_is_limited_by_its_exports(accounts, unique):
    mirror = unique("M")
    async with (
        kvctl.connect(accounts.contexts["origin"]) as there,
        kvctl.connect(accounts.contexts["replica"]) as client,
    ):
        with suppress(BucketNotFound):
            await there.delete_bucket("ORDERS")  # the lab exports this name alone, and other tests use it
        await (await there.create_bucket("ORDERS")).put("k", b"v")
        way = External("ORIGIN.API", f"DELIVER.ORDERS.{mirror}")
        await create_mirror(client, Mirror(mirror, Origin("ORDERS", external=way)))
        seen = await overview.inspect(client.api, mirror)
        assert seen.answered_by  # by mirrors of other tests, too: they share the origin that the lab exports
        assert "KV_ORDERS" not in seen.answered_by
        assert seen.hazards == []
        assert [item["state"]["last_seq"] for item in seen.origins if item] == [1]
        assert seen.lineage.same
        assert (await overview.inspect(there.api, "ORDERS")).dependents == []  # other accounts cannot be seen


async def test_overview_of_replicas_on_three_servers(cluster, unique):
    bucket, mirror = unique(), unique("M")
    async with kvctl.connect(cluster.contexts["cluster"]) as client:
        await (await client.create_bucket(bucket, replicas=3)).put("k", b"v")
        await create_mirror(client, Mirror(mirror, Origin(bucket), replicas=3))
        for name in (bucket, mirror):
            seen = await overview.inspect(client.api, name)
            assert {item.stream for item in seen.reads.alternates} == {f"KV_{bucket}", mirror}
            assert set(seen.answered_by or ()) <= {f"KV_{bucket}", mirror}
            assert (seen.lineage or seen.lineages[mirror]).same


@pytest.mark.slow
async def test_overview_when_the_origin_s_cluster_is_down():
    with run_lab("supercluster") as lab:
        async with kvctl.connect(lab.contexts["lon"]) as lon:
            await (await lon.create_bucket("ORDERS", cluster="lon")).put("k", b"v")
            await create_mirror(lon, Mirror("ORDERS_NYC", Origin("ORDERS"), cluster="nyc"))
        lab.servers["lon"].kill()
        async with kvctl.connect(lab.contexts["nyc"]) as nyc:
            assert (await nyc.bucket("ORDERS").get("k")).stream == "ORDERS_NYC"
            begun = time.monotonic()
            seen = await overview.inspect(nyc.api, "ORDERS")
            assert time.monotonic() - begun < 15
            assert (seen.status, seen.answered_by) == (None, ["ORDERS_NYC"])
            assert [item.node.name for item in seen.dependents or ()] == ["ORDERS_NYC"]
            rows = [(row.served_by, row.role, row.state, row.here) for row in seen.reads.alternates]
            assert rows == [("ORDERS_NYC", "mirror", "offline origin", True), ("ORDERS", "origin", "offline", False)]
            seen = await overview.inspect(nyc.api, "ORDERS_NYC")
            assert (seen.origins, seen.lineage, seen.answered_by) == ([None], None, ["ORDERS_NYC"])
