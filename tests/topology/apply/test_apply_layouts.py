"""Topology files applied to real layouts: domains, accounts, clusters joined by gateways."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

import kvctl
from kvctl.contexts import Context, ContextStore
from kvctl.documents import parser
from kvctl.errors import ConflictError, PartlyDone, UnreachableError
from kvctl.kv import catalog
from kvctl.labs import Lab
from kvctl.topology.apply import applier
from kvctl.topology.model.file import read_topology
from kvctl.topology.plan import planner
from kvctl.topology.plan.change import TopologyPlan
from kvctl.topology.plan.saved import SavedPlan, renewed
from tests.cli.conftest import Run, run_process
from tests.support.waiting import until
from tests.topology.apply.test_applier import apply


@asynccontextmanager
async def connected(lab: Lab, *names: str) -> AsyncIterator[dict[str, kvctl.Client]]:
    """Return clients of some of a lab's contexts."""
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(kvctl.connect(lab.contexts[name])) for name in names}


def test_apply_of_the_contract_s_example(leaf, home, unique, tmp_path):
    """The example of the contract, except settings that need a cluster of three."""
    orders, stock, near, edge = unique("ORDERS"), unique("STOCK"), unique("NEAR"), unique("EDGE")
    run: Run = run_process
    ContextStore().save(_named(leaf, "hub", "prod-hub"))
    on_hub, on_edge = ("-s", leaf.servers["hub"].url), ("-s", leaf.servers["leaf"].url)
    run("bucket", "add", stock, *on_hub)
    run("put", stock, "lon.nails", "5", *on_hub)
    file = tmp_path / "topology.yaml"
    file.write_text(
        f"""
version: 1
contexts:
  hub: {{context: prod-hub}}
  edge: {{url: "{leaf.servers["leaf"].url}", domain: leaf}}
buckets:
  {orders}: {{history: 5, ttl: 30d, in: hub}}
mirrors:
  {near}: {{origin: {orders}, in: hub}}
aggregates:
  {edge}:
    in: edge
    origins:
      - {{bucket: {orders}, domain: hub, keys: ["NEW.>"], prefix: orders.new}}
      - {{bucket: {stock}, domain: hub, map: {{"*.*": "stock.$2.$1"}}}}
"""
    )
    applied = run("topology", "apply", "-f", str(file), "--yes", "-o", "name")
    assert (applied.exit_code, applied.out.split()) == (0, [orders, near, edge])
    assert f"Keys of `{orders}` expire after 30d but stay in `{edge}`" in applied.err
    assert run("get", edge, "stock.nails.lon", *on_edge).stdout == b"5"
    run("put", orders, "NEW.7", "paid", *on_hub)
    until(lambda: run("get", edge, "orders.new.7", *on_edge).stdout == b"paid")
    again = run("topology", "apply", "-f", str(file), "--yes")
    assert (again.exit_code, again.out, again.err) == (0, "Nothing to change\n", "")


async def test_apply_of_replicas_in_another_domain(leaf, unique):
    bucket, mirror, aggregate = unique(), unique("M"), unique("A")
    async with connected(leaf, "hub", "leaf") as clients:
        apis = {"hub": clients["hub"].api, "edge": clients["leaf"].api}
        text = (
            f"contexts: {{hub: {{}}, edge: {{}}}}\nbuckets: {{{bucket}: {{history: 3, in: hub}}}}\n"
            f"mirrors: {{{mirror}: {{origin: {bucket}, origin_domain: hub, in: edge}}}}\n"
            f"aggregates: {{{aggregate}: {{origins: [{{stream: {mirror}}}], in: edge}}}}"
        )
        plan, report = await apply(apis, text)
        assert (report.error, [change.name for change in plan.changes]) == (None, [bucket, mirror, aggregate])
        await clients["hub"].bucket(bucket).put("k", b"v")
        plan, report = await apply(apis, text.replace("history: 3", "history: 4, storage: memory"))
        assert report.error is None
        assert [str(change.action) for change in plan.changes] == ["recreate"] * 3
        assert [change.after["max_msgs_per_subject"] for change in plan.changes if change.after] == [4, 4, 4]
        assert [key async for key in clients["leaf"].bucket(aggregate).keys()] == []
        plan, report = await apply(apis, text.replace("history: 3", "history: 6, storage: memory"))
        assert [(str(change.action), change.name) for change in plan.changes] == [
            ("change", aggregate),
            ("change", mirror),
            ("change", bucket),
        ]
        assert report.error is None


async def test_apply_across_accounts(accounts, unique):
    mirror, aggregate = unique("M"), unique("A")
    way = "ORIGIN.API"
    async with connected(accounts, "origin", "replica") as clients:
        if "ORDERS" in await clients["origin"].bucket_names():
            await clients["origin"].delete_bucket("ORDERS")
        apis = {"origin": clients["origin"].api, "replica": clients["replica"].api}
        text = (
            f"contexts: {{origin: {{}}, replica: {{}}}}\nbuckets: {{ORDERS: {{history: 2, in: origin}}}}\n"
            f"mirrors: {{{mirror}: {{in: replica, origin: ORDERS, origin_api: {way}, "
            f"deliver: DELIVER.ORDERS.{mirror}}}}}\n"
            f"aggregates: {{{aggregate}: {{in: replica, origins: [{{bucket: ORDERS, prefix: p, api: {way}, "
            f"deliver: DELIVER.ORDERS.{aggregate}}}]}}}}"
        )
        plan, report = await apply(apis, text)
        assert (report.error, plan.hazards) == (None, [])
        assert [change.name for change in plan.changes] == ["ORDERS", mirror, aggregate]
        await clients["origin"].bucket("ORDERS").put("k", b"v")
        replica = clients["replica"]
        info = {name: await replica.api.call(f"STREAM.INFO.{name}") for name in (mirror, f"KV_{aggregate}")}
        assert {item["config"]["max_msgs_per_subject"] for item in info.values()} == {2}
        plan, _ = await apply(apis, text.replace("history: 2", "history: 3"))
        assert [change.name for change in plan.changes] == [mirror, aggregate, "ORDERS"]


@pytest.mark.guarantee("topology-6")
async def test_saved_plan_is_stale_after_a_change_of_an_origin_out_of_view(leaf, unique):
    origin, near, far = unique(), unique("M"), unique("M")
    text = "mirrors: {" + ", ".join(f"{name}: {{origin: {origin}, origin_domain: hub}}" for name in (near, far)) + "}"
    document = parser.parse(f"version: 1\n{text}".encode(), "t.yaml")
    async with connected(leaf, "hub", "leaf") as clients:
        await clients["hub"].create_bucket(origin, history=2)
        apis = {"": clients["leaf"].api}
        saved = SavedPlan.of(document, await planner.plan(read_topology(document), apis), apis)
        assert len((await renewed(saved, apis)).changes) == 2
        hub = clients["hub"].api
        await catalog.apply_edit(hub, await catalog.plan_edit(hub, origin, {"history": 3}))
        with pytest.raises(ConflictError, match=f"mirror `{near}` would change otherwise, as an origin out of view"):
            await renewed(saved, apis)


async def test_apply_with_placement_in_a_supercluster(supercluster, unique):
    bucket, mirror = unique(), unique("M")
    async with connected(supercluster, "lon", "nyc") as clients:
        apis = {"": clients["lon"].api}
        text = (
            f"buckets: {{{bucket}: {{cluster: lon, history: 2}}}}\n"
            f"mirrors: {{{mirror}: {{origin: {bucket}, cluster: nyc}}}}"
        )
        plan, report = await apply(apis, text)
        assert (report.error, len(plan.changes)) == (None, 2)
        info = await clients["nyc"].api.call(f"STREAM.INFO.{mirror}")
        assert (info["cluster"]["name"], info["config"]["mirror_direct"]) == ("nyc", True)
        await clients["lon"].bucket(bucket).put("k", b"v")
        plan, report = await apply(apis, text)
        assert plan.changes == []
        # While servers move a stream it has no leader, and looks offline.
        plan, report = await apply(apis, text.replace("nyc", "CLUSTER").replace("lon", "nyc").replace("CLUSTER", "lon"))
        assert (report.error, len(plan.changes)) == (None, 2)


async def test_result_that_cannot_be_compared_is_partly_done():
    async def replan() -> TopologyPlan:
        raise UnreachableError("`O` is offline")

    error = await applier.verify(replan, 1)
    assert isinstance(error, PartlyDone)
    assert "could not be compared: `O` is offline" in error.message


def _named(lab: Lab, context: str, name: str) -> Context:
    return replace(lab.contexts[context], name=name)


async def test_apply_of_stream_replicas_in_a_cluster(cluster, unique):
    bucket, mirror, aggregate = unique(), unique("M"), unique("A")
    async with connected(cluster, "cluster") as clients:
        client = clients["cluster"]
        text = (
            f"buckets: {{{bucket}: {{replicas: 3, history: 2}}}}\nmirrors: {{{mirror}: {{origin: {bucket}}}}}\n"
            f"aggregates: {{{aggregate}: {{replicas: 3, origins: [{{bucket: {bucket}, prefix: p}}]}}}}"
        )
        plan, report = await apply({"": client.api}, text)
        assert (report.error, len(plan.changes)) == (None, 3)
        await client.bucket(bucket).put("k", b"v")
        plan, report = await apply({"": client.api}, text.replace("replicas: 3, history: 2", "replicas: 1"))
        assert (report.error, [change.name for change in plan.changes]) == (None, [bucket])
        info = await client.api.call(f"STREAM.INFO.KV_{bucket}")
        assert (info["config"]["num_replicas"], info["config"]["max_msgs_per_subject"]) == (1, 2)
        plan, _ = await apply({"": client.api}, text.replace("replicas: 3, history: 2", "replicas: 1"))
        assert plan.changes == []
