"""Audits across clusters, domains and accounts, on a cluster, and beside a busy writer."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

import kvctl
from kvctl.errors import BucketNotFound
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.audit import repair
from kvctl.topology.audit.audit import audit
from kvctl.topology.health import arrival
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from kvctl.topology.survey import graph
from kvctl.topology.survey.inventory import survey
from tests.support.raw import RawClient
from tests.support.waiting import until
from tests.topology.audited import SHORTLY, audited, one, said

WRITER = """
import random, sys
from tests.support.raw import RawClient
url, bucket, keys, deleted = sys.argv[1:]
chance, number = random.Random(7), 0
with RawClient(url) as raw:
    while True:
        for _ in range(100):
            number += 1
            hot = chance.random() < 0.3
            key, dice = f"k.{chance.randrange(10 if hot else int(keys))}", chance.random()
            if dice < float(deleted) / 2:
                raw.publish(f"$KV.{bucket}.{key}", b"", {"KV-Operation": "DEL"})
            elif dice < float(deleted):
                raw.publish(f"$KV.{bucket}.{key}", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
            else:
                raw.publish(f"$KV.{bucket}.{key}", b"%d" % number)
        raw.flush()
"""


@contextmanager
def writing(url: str, bucket: str, keys: int, deleted: float = 0.08) -> Iterator[None]:
    """Run a process that puts keys of the bucket without a pause, some constantly, and deletes and purges a share."""
    here = Path(__file__).parents[3]
    process = subprocess.Popen([sys.executable, "-c", WRITER, url, bucket, str(keys), str(deleted)], cwd=here)
    try:
        yield
        assert process.poll() is None, "the writer stopped"
    finally:
        process.kill()
        process.wait()


async def replicated(client: kvctl.Client, bucket: str, mirror: str, aggregate: str, keys: int) -> None:
    """Fill the bucket, and create a mirror of it and an aggregate that has it below `p`."""
    await client.bucket(bucket).put_many((f"k.{number}", b"v%d" % number) for number in range(keys))
    await create_mirror(client, Mirror(mirror, Origin(bucket)))
    await create_aggregate(client, Aggregate(aggregate, (Origin(bucket, prefix="p"),), writable=True))


@pytest.mark.guarantee("replicas-4", by="race")
async def test_audit_beside_a_writer_reports_only_real_differences(client, server, raw, unique):
    bucket, mirror, aggregate = unique("ORIGIN"), unique("M"), unique("AGG")
    raw.create_bucket(bucket)
    await replicated(client, bucket, mirror, aggregate, 500)
    raw.put(bucket, "steady", b"v")
    with writing(server.url, bucket, 500):
        begun = until(lambda: raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["last_seq"] > 1000 and time.monotonic())
        for _ in range(3):
            for outcome in await audited(client, bucket, patience=timedelta(seconds=120)):
                assert (outcome.error, said(outcome), outcome.consistent) == (None, [], True)
        raw.put(aggregate, "p.steady", b"wrong")
        raw.api(f"STREAM.PURGE.KV_{aggregate}", {"filter": f"$KV.{aggregate}.p.k.499"})
        outcome = await one(client, aggregate, patience=timedelta(seconds=120))
        assert ("differing", "p.steady", "local-write") in said(outcome)
        rate = raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["last_seq"] / (time.monotonic() - begun)
        assert rate > 20, "the writer hardly wrote"


async def test_keys_that_are_rewritten_during_an_audit_are_counted_once(client, server, raw, unique):
    bucket, mirror, aggregate = unique("ORIGIN"), unique("M"), unique("AGG")
    raw.create_bucket(bucket)
    await replicated(client, bucket, mirror, aggregate, 3000)
    with writing(server.url, bucket, 3000, deleted=0):
        for _ in range(3):
            outcomes = await audited(client, bucket, patience=timedelta(seconds=120))
            assert [(outcome.error, outcome.keys) for outcome in outcomes] == [(None, 3000)] * 2


@pytest.mark.guarantee("replicas-4", by="race")
@pytest.mark.slow
async def test_many_audits_beside_a_writer_agree(own_server):
    async with kvctl.connect(own_server.url) as client:
        with RawClient(own_server.url) as raw:
            raw.create_bucket("ORIGIN")
        await replicated(client, "ORIGIN", "M", "AGG", 5000)
        with writing(own_server.url, "ORIGIN", 5000):
            for _ in range(20):
                for outcome in await audited(client, "ORIGIN", patience=timedelta(seconds=60)):
                    assert (outcome.error, said(outcome)) == (None, [])


@pytest.mark.guarantee("replicas-4")
async def test_expiring_keys_are_not_drift(client, raw, unique):
    bucket, mirror, aggregate = unique("ORIGIN"), unique("M"), unique("AGG")
    raw.create_bucket(bucket, {f"k.{number}": b"v" for number in range(20)}, max_age=2 * 10**9, duplicate_window=10**9)
    await create_mirror(client, Mirror(mirror, Origin(bucket)))
    until(lambda: raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["messages"] == 0)
    await create_aggregate(client, Aggregate(aggregate, (Origin(bucket),)))
    for number in range(20):
        raw.put(bucket, f"k.{number}", b"w")
    while raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["messages"]:
        for outcome in await audited(client, bucket):
            assert said(outcome) == []


async def test_key_expired_only_in_origin_is_extra(client, raw, unique):
    bucket, mirror = unique("ORIGIN"), unique("M")
    raw.create_bucket(bucket, {"k": b"v"}, max_age=10**9, duplicate_window=10**9)
    stream = {"name": mirror, "mirror": {"name": f"KV_{bucket}"}, "max_msgs_per_subject": 1, "allow_direct": True}
    raw.create_stream(**stream)
    until(lambda: raw.api(f"STREAM.INFO.{mirror}")["state"]["messages"] == 1)
    until(lambda: raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["messages"] == 0)
    assert said(await one(client, mirror)) == [("extra", "k", "ttl-not-inherited")]


async def test_non_conforming_keys_are_compared(client, raw, unique):
    bucket, mirror, aggregate = unique("ORIGIN"), unique("M"), unique("AGG")
    raw.create_bucket(bucket, dict.fromkeys(("star.*", "star.a", "more.>", "b\udcff"), b"v"))
    await create_mirror(client, Mirror(mirror, Origin(bucket)))
    await create_aggregate(client, Aggregate(aggregate, (Origin(bucket),), writable=True))
    merged, mirrored = await audited(client, bucket)
    assert (mirrored.keys, said(mirrored)) == (4, [])
    # Servers let no subject with a wildcard through a transform.
    assert said(merged) == [("missing", "more.>", None), ("missing", "star.*", None)]
    raw.put(aggregate, "b\udcff", b"wrong")
    assert said(await one(client, aggregate))[-1] == ("differing", "b\udcff", "local-write")


async def test_replica_of_a_replica_that_lacks_entries_is_not_confirmed(client, raw, replicas, unique, monkeypatch):
    monkeypatch.setattr(arrival, "BRIEFLY", timedelta(seconds=0.5))
    origin, mirror, aggregate = unique("O"), unique("M"), unique("A")
    raw.create_bucket(origin, {"a": b"v", "b": b"v"})
    replicas.mirror(mirror, origin, max_msgs=2, max_msgs_per_subject=5)
    rules = [{"src": f"$KV.{origin}.>", "dest": f"$KV.{aggregate}.>"}]
    replicas.aggregate(aggregate, {"name": mirror, "subject_transforms": rules})
    until(lambda: replicas.info(f"KV_{aggregate}")["state"]["messages"] == 2)
    assert (await one(client, aggregate)).consistent
    raw.put(origin, "c", b"v")
    outcome = await one(client, aggregate)
    assert (outcome.consistent, outcome.state, outcome.keys, outcome.differences) == (None, "unconfirmed", 2, 0)
    assert outcome.doubt.startswith(f"`{mirror}` has not received all entries of `{origin}`: at revision 2 of 3")


async def test_keys_that_servers_leave_out_of_aggregates_are_named(client, raw, unique):
    origin, aggregate, mirror = unique("O"), unique("A"), unique("M")
    raw.create_bucket(origin, {"a": b"v", "a\x7fb": b"v"}, max_msgs_per_subject=5)
    await create_aggregate(client, Aggregate(aggregate, (Origin(origin),)))
    await create_mirror(client, Mirror(mirror, Origin(origin)))
    outcome = await one(client, aggregate)
    assert (outcome.consistent, outcome.keys) == (None, 1)
    assert outcome.doubt == f"`{origin}` has keys with the byte 0x7f, which do not reach aggregates"
    assert (await one(client, mirror)).consistent


async def test_audit_on_a_cluster_with_stream_replicas(cluster, unique):
    async with kvctl.connect(cluster.contexts["cluster"]) as client:
        bucket, mirror, aggregate = unique("ORIGIN"), unique("M"), unique("AGG")
        await client.create_bucket(bucket, replicas=3, history=3)
        await replicated(client, bucket, mirror, aggregate, 200)
        assert [item.consistent for item in await audited(client, bucket)] == [True, True]
        await client.bucket(aggregate).put("p.k.1", b"wrong")
        assert said(await one(client, aggregate)) == [("differing", "p.k.1", "local-write")]


@pytest.mark.guarantee("replicas-6")
async def test_audit_across_clusters(supercluster, unique):
    bucket, mirror = unique("ORIGIN"), unique("M")
    async with kvctl.connect(supercluster.contexts["lon"]) as lon, kvctl.connect(supercluster.contexts["nyc"]) as nyc:
        await lon.create_bucket(bucket, cluster="lon")
        await lon.bucket(bucket).put_many((f"k.{number}", b"v") for number in range(100))
        await create_mirror(nyc, Mirror(mirror, Origin(bucket), cluster="nyc"), wait_for=timedelta(seconds=30))
        for client in (lon, nyc):
            outcome = await one(client, bucket, patience=timedelta(seconds=10))
            assert (outcome.replica, outcome.keys, outcome.consistent) == (mirror, 100, True)


@pytest.mark.guarantee("replicas-6")
async def test_audit_and_repair_across_domains(leaf, unique):
    bucket, mirror = unique("ORIGIN"), unique("M")
    async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["leaf"]) as edge:
        await hub.create_bucket(bucket)
        await hub.bucket(bucket).put_many((f"k.{number}", b"old") for number in range(5))
        await create_mirror(edge, Mirror(mirror, Origin(bucket, external=External.of_domain("hub"))))
        outcome = await one(edge, bucket)
        assert (outcome.where, outcome.keys, outcome.consistent) == ("hub", 5, True)
        await hub.delete_bucket(bucket)
        await hub.create_bucket(bucket)
        await hub.bucket(bucket).put("k.1", b"new")
        inventory = await survey({"": edge.api, "hub": hub.api})
        (replica,) = graph.named(inventory.replicas(), [mirror])
        (outcome,) = await audit(replica, SHORTLY)
        assert (outcome.differences, outcome.causes) == (5, {"recreated-origin"})
        await repair.run(repair.Repair(replica))
        assert (await one(edge, mirror)).consistent


@pytest.mark.guarantee("replicas-6")
async def test_audit_across_accounts_by_names_and_single_keys(accounts, unique):
    """The exports hide the listing of the origin, but allow its info and its keys."""
    mirror = unique("M")
    origin = Origin("ORDERS", external=External("ORIGIN.API", "DELIVER.ORDERS.m"))
    async with (
        kvctl.connect(accounts.contexts["origin"]) as owner,
        kvctl.connect(accounts.contexts["replica"]) as other,
    ):
        with suppress(BucketNotFound):  # of other tests: the exports are for this name alone
            await owner.delete_bucket("ORDERS")
        await owner.create_bucket("ORDERS")
        await owner.bucket("ORDERS").put_many((f"k.{number}", b"v") for number in range(20))
        await create_mirror(other, Mirror(mirror, origin))
        outcome = await one(other, mirror)
        assert (outcome.where, outcome.keys, outcome.consistent) == ("ORIGIN.API", 20, True)
        await owner.api.call("STREAM.PURGE.KV_ORDERS", {"filter": "$KV.ORDERS.k.7"})
        assert said(await one(other, mirror)) == [("extra", "k.7", None)]
        await owner.delete_bucket("ORDERS")
        (outcome,) = await audited(other, mirror)
        assert outcome.consistent is None
