"""Findings on a connection, an account, and all of doctor's checks on live servers."""

import asyncio
import time

import pytest

import kvctl
from kvctl.doctor import examination
from kvctl.doctor.content import Finding
from kvctl.doctor.examination import clear, examine, version
from kvctl.jetstream import streams
from kvctl.labs import run_lab
from kvctl.server import Server, run_server
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from tests.support.raw import RawClient
from tests.support.waiting import until
from tests.topology.apply.test_builders import NARROW
from tests.topology.audited import audited
from tests.topology.conftest import Replicas, source


@pytest.fixture
def seeds(own_server):
    """Return a separate server, with no other streams."""
    with RawClient(own_server.url) as client:
        yield client


def told(found: list[Finding]) -> set[tuple[str, str, str]]:
    return {(str(item.severity), item.check, item.subject) for item in found if item.check != "fsync"}


async def test_healthy_topology_has_no_findings(own_server, seeds):
    async with kvctl.connect(own_server.url) as client:
        assert told(await examine(client.api)) == set()
        bucket = await client.create_bucket("B", history=3)
        await bucket.put("k", b"v")
        await create_mirror(client, Mirror("M", Origin("B")))
        await create_aggregate(client, Aggregate("A", (Origin("B", prefix="b"),)))
        assert told(await examine(client.api)) == set()


async def test_hazards_of_live_replicas_are_found_with_remedies(own_server, seeds):
    replicas = Replicas(seeds)
    seeds.create_bucket("B", max_msgs_per_subject=3, max_age=3600 * 10**9)
    seeds.create_bucket("OTHER")
    seeds.put("B", "k", b"v")
    replicas.mirror("SHORT", "B", max_age=3600 * 10**9)
    replicas.mirror("SOME", "B", max_msgs_per_subject=3, max_age=60 * 10**9, mirror={"filter_subject": "$KV.B.k"})
    replicas.aggregate("ALL", source("B", "ALL"), source("OTHER", "ALL"), duplicate_window=10**9, max_age=3600 * 10**9)
    async with kvctl.connect(own_server.url) as client:
        found = await examine(client.api)
    assert told(found) == {
        ("warning", "shorter-history", "SHORT"),
        ("error", "filtered-mirror", "SOME"),
        ("error", "shorter-ttl", "SOME"),
        ("warning", "key-collision", "ALL"),
        ("warning", "duplicate-window", "ALL"),
        ("error", "shorter-ttl", "ALL"),
        ("warning", "no-first-entry", "ALL"),
    }
    remedies = {(item.check, item.subject): item.remedy for item in found}
    assert remedies["shorter-history", "SHORT"] == "`kvctl bucket edit SHORT --history 3`"
    assert remedies["shorter-ttl", "SOME"] == "`kvctl bucket edit SOME --ttl 1h`"
    assert remedies["shorter-ttl", "ALL"] == "`kvctl bucket edit ALL --clear ttl`"
    assert remedies["filtered-mirror", "SOME"].startswith("`kvctl mirror delete SOME`; `kvctl aggregate create")


async def test_unconnected_replicas_are_found(own_server, seeds):
    replicas = Replicas(seeds)
    for bucket in ("B", "OLD"):
        seeds.create_bucket(bucket, {"k": b"v" * 300})
    replicas.mirror("LOST", "NOWHERE")
    replicas.mirror("POISONED", "OLD")
    until(lambda: replicas.subjects("POISONED"))
    seeds.api("STREAM.DELETE.KV_OLD")
    seeds.create_bucket("OLD")
    replicas.aggregate("STUCK", source("B", "STUCK", opt_start_seq=1), max_bytes=200)
    until(lambda: replicas.info("KV_STUCK")["sources"][0]["active"] >= 0)
    replicas.mirror("kvctl-repair-M", "B", metadata={"kvctl.repair": "M"})
    seeds.create_bucket("HALF", metadata={"kvctl.unfinished": "x"})
    async with kvctl.connect(own_server.url) as client:
        found = await examine(client.api)
    assert told(found) == {
        ("error", "missing-origin", "LOST"),
        ("error", "recreated-origin", "POISONED"),
        ("error", "stalled", "STUCK"),
        ("warning", "smaller-limits", "STUCK"),
        ("warning", "unfinished", "HALF"),
        ("warning", "unfinished", "M"),
    }
    remedies = {item.check: item.remedy for item in found}
    assert remedies["recreated-origin"] == "`kvctl topology audit POISONED --repair` recreates it"


async def test_cycle_through_domains_is_found(leaf):
    with RawClient(leaf.contexts["hub"].url) as hub, RawClient(leaf.contexts["leaf"].url) as edge:
        hub.create_bucket("ROUND", sources=[source("ABOUT", "ROUND", external={"api": "$JS.leaf.API"})])
        edge.create_bucket("ABOUT", sources=[source("ROUND", "ABOUT", external={"api": "$JS.hub.API"})])
        async with kvctl.connect(leaf.contexts["leaf"]) as client:
            found = [item for item in await examine(client.api) if item.check == "cycle"]
        hub.api("STREAM.DELETE.KV_ROUND")
        edge.api("STREAM.DELETE.KV_ABOUT")
    assert [str(item.severity) for item in found] == ["error"]
    assert "in domain `hub`" in found[0].evidence


async def test_hidden_origin_in_another_account_is_found_with_missing_exports():
    with run_server(name="narrow", config=NARROW) as server:
        origin, replica = (kvctl.Context(url=server.url, user=name, password=name) for name in ("origin", "replica"))
        async with kvctl.connect(origin) as there, kvctl.connect(replica) as client:
            await (await there.create_bucket("ORDERS")).put("k", b"v")
            way = External("ORIGIN.API", "DELIVER.ORDERS.m")
            await create_mirror(client, Mirror("M", Origin("ORDERS", external=way)))
            found = await examine(client.api)
            (outcome,) = await audited(client, "M")
        assert told(found) == {("note", "unconfirmed", "M")}
        assert "import them as `ORIGIN.API.STREAM.INFO.KV_ORDERS`" in (outcome.error.hint or "")


async def test_many_buckets_cost_no_more_requests(own_server, seeds):
    async with kvctl.connect(own_server.url) as client:
        asked: list[str] = []
        client.connection.trace = lambda subject, seconds, note: asked.append(subject)
        await examine(client.api)
        few = len(asked)
        for number in range(300):
            seeds.create_bucket(f"B{number}")
        asked.clear()
        await examine(client.api)
        assert len(asked) == few + 1  # another page of the listing


async def test_buckets_on_one_server_of_three_are_found(cluster, bucket_name):
    async with kvctl.connect(cluster.contexts["cluster"]) as client:
        await client.create_bucket(bucket_name)
        await client.create_bucket(f"{bucket_name}-3", replicas=3)
        names = {bucket_name, f"{bucket_name}-3"}
        for _ in range(600):  # until the new replicas have caught up
            cluster_info = (await streams.info(client.api, f"KV_{bucket_name}-3"))["cluster"]
            if all(peer.get("current") for peer in cluster_info["replicas"]):
                break
            await asyncio.sleep(0.1)
        found = [item for item in await examine(client.api) if item.subject in names]
    assert [(str(item.severity), item.check, item.subject) for item in found] == [
        ("warning", "one-replica", bucket_name)
    ]


@pytest.mark.slow
async def test_offline_servers_are_found_in_bounded_time():
    with run_lab("cluster") as lab:
        async with kvctl.connect(lab.contexts["cluster"]) as client:
            await client.create_bucket("B", replicas=3)
        lab.servers["n2"].kill()
        async with kvctl.connect(kvctl.Context(url=lab.servers["n1"].url)) as client:
            await _until(client, {"server-away"})
            lab.servers["n3"].kill()
            await _until(client, {"jetstream", "unseen", "unreachable", "no-leader"})


async def _until(client: kvctl.Client, checks: set[str]) -> None:
    """Wait until one of these is found: servers notice missing peers only after a while. Every look is short."""
    for _ in range(60):
        begun = time.monotonic()
        found = await examine(client.api)
        assert time.monotonic() - begun < 60
        if checks & {item.check for item in found}:
            return
        await asyncio.sleep(1)
    pytest.fail(f"never found: {checks}")


LIMITED = """
listen: 127.0.0.1:@client@
jetstream { store_dir: "@store@" }
accounts {
  SYS: { users: [ { user: sys, password: sys } ] }
  APP: {
    jetstream: { max_streams: 2, max_store: 100MB, max_mem: 1MB }
    users: [
      { user: app, password: app }
      { user: blind, password: blind, permissions: { publish: { deny: "$JS.API.STREAM.LIST" } } }
      { user: reader, password: reader, permissions: { publish: { deny: ["$JS.API.STREAM.CREATE.>", "$KV.>"] } } }
    ]
  }
}
system_account: SYS
"""


@pytest.mark.parametrize(
    ("number", "severity", "words"),
    [((2, 9, 25), "warning", "aggregates"), ((2, 10, 29), "warning", "per-key TTLs"), ((2, 11, 4), "note", "batches")],
)
def test_old_server_version_is_a_finding(number, severity, words):
    (finding,) = version(number)
    assert (str(finding.severity), words in finding.evidence) == (severity, True)
    assert list(version((2, 12, 0))) == []


def test_unencrypted_password_is_a_warning():
    assert [str(finding.severity) for finding in clear("nats://example.com:4222", secret=True)] == ["warning"]
    assert [str(finding.severity) for finding in clear("nats://10.0.0.7:4222", secret=False)] == ["note"]
    for here in ("nats://127.0.0.1:4222", "nats://localhost", "nats://[::1]:4222"):
        assert list(clear(here, secret=True)) == []


async def test_development_server_has_only_the_note_on_syncing(client):
    (finding,) = await examination.of_connection(client.connection)
    assert (str(finding.severity), finding.check) == ("note", "fsync")
    assert "not readable from this account" in finding.evidence


@pytest.mark.parametrize(("setting", "checks"), [("", ["fsync"]), (", sync_interval: always", [])])
async def test_system_account_reads_the_sync_setting(setting, checks):
    config = LIMITED.replace('"@store@"', '"@store@"' + setting)
    with run_server(name="syncing", config=config) as server:
        async with kvctl.connect(kvctl.Context(url=server.url, user="sys", password="sys")) as system:
            found = await examination.of_connection(system.connection)
            assert [finding.check for finding in found] == checks
            assert all("not readable" not in finding.evidence for finding in found)


async def test_nearly_reached_limits_and_missing_permissions_are_findings(unique):
    with run_server(name="limited", config=LIMITED) as server:
        async with kvctl.connect(_user(server, "app")) as client:
            await client.create_bucket("A")
            assert await examination.of_account(client.api) == []
            await client.create_bucket("B", max_bytes=85_000_000)
            found = await examination.of_account(client.api)
            assert [(str(finding.severity), finding.check) for finding in found] == [
                ("warning", "account-limit"),
                ("error", "account-limit"),
            ]
            assert "of the account's streams limit is used: 2 of 2" in found[1].evidence
        async with kvctl.connect(_user(server, "reader")) as reader:
            found = [finding for finding in await examination.of_account(reader.api) if finding.check == "permissions"]
            assert [finding.evidence for finding in found] == ["Not allowed to write a key, create buckets"]
            assert "`$JS.API.STREAM.CREATE.KV_BUCKET`" in found[0].remedy


async def test_missing_permission_to_list_streams_is_a_warning():
    with run_server(name="limited", config=LIMITED) as server:
        async with kvctl.connect(_user(server, "blind")) as client:
            found = [finding for finding in await examination.examine(client.api) if finding.check != "fsync"]
    assert [(str(finding.severity), finding.check) for finding in found] == [
        ("warning", "unseen"),
        ("note", "permissions"),
    ]


def _user(server: Server, name: str) -> kvctl.Context:
    return kvctl.Context(url=server.url, user=name, password=name)
