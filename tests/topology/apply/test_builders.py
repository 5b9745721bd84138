"""Mirrors and aggregates created on real servers: contents, access to origins, waiting."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest

import kvctl
from kvctl.errors import BucketExists, BucketNotFound, ReadOnly, RefusedError, UsageError, WaitExpired
from kvctl.server import run_server
from kvctl.topology.apply import builders
from kvctl.topology.apply.builders import add_aggregate_origin, create_aggregate, create_mirror
from kvctl.topology.health import arrival
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from tests.support.waiting import until
from tests.topology.conftest import keys_of, source

Names = Callable[..., str]


async def test_mirror_holds_all_entries_and_serves_reads_of_its_origin(client, raw, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket, max_msgs_per_subject=5)
    for number in range(2000):
        raw.publish(f"$KV.{bucket}.k.{number % 500}", b"v")
    last = raw.put(bucket, "k.last", b"v")
    await create_mirror(client, Mirror(mirror, Origin(bucket)))
    state = raw.api(f"STREAM.INFO.{mirror}")["state"]
    assert (state["messages"], state["last_seq"]) == (2001, last)
    asked = f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.k.last"
    until(lambda: raw.request(asked).headers["Nats-Stream"] == mirror)


async def test_purges_at_the_origin_erase_history_in_replicas(client, raw, unique):
    bucket, mirror, aggregate = await client.create_bucket(unique(), history=5), unique("M"), unique("A")
    await bucket.put_many(("k", value) for value in (b"1", b"2"))
    await create_mirror(client, Mirror(mirror, Origin(bucket.name)))
    await create_aggregate(client, Aggregate(aggregate, (Origin(bucket.name, prefix="p"),)))
    await bucket.purge("k")
    for stream in (mirror, f"KV_{aggregate}"):
        until(lambda stream=stream: raw.api(f"STREAM.INFO.{stream}")["state"]["messages"] == 1)


async def test_replica_that_denies_purges_keeps_history(client, raw, unique):
    bucket, mirror, aggregate = await client.create_bucket(unique(), history=5), unique("M"), unique("A")
    await bucket.put_many(("k", value) for value in (b"1", b"2"))
    await create_mirror(client, Mirror(mirror, Origin(bucket.name), deny_purge=True))
    await create_aggregate(client, Aggregate(aggregate, (Origin(bucket.name),), deny_purge=True))
    await bucket.purge("k")
    for stream in (mirror, f"KV_{aggregate}"):
        until(lambda stream=stream: raw.api(f"STREAM.INFO.{stream}")["state"]["messages"] == 3)


async def test_aggregate_has_keys_where_transforms_land_them(client, unique):
    orders, stock, aggregate = await client.create_bucket(unique()), await client.create_bucket(unique()), unique("A")
    await orders.put_many((key, b"v") for key in ("NEW.7", "NEW.8", "OLD.1"))
    await stock.put("lon.nails", b"v")
    origins = (
        Origin(orders.name, keys=("NEW.>",), prefix="orders.new"),
        Origin(stock.name, maps=(("*.*", "stock.$2.$1"),)),
    )
    await create_aggregate(client, Aggregate(aggregate, origins))
    assert await keys_of(client, aggregate) == ["orders.new.7", "orders.new.8", "stock.nails.lon"]
    with pytest.raises(RefusedError):
        await client.bucket(aggregate).put("k", b"v")


async def test_aggregate_of_a_mirror_has_the_keys_of_its_origin(client, unique):
    bucket, mirror = await client.create_bucket(unique()), unique("M")
    await bucket.put("a.1", b"v")
    await create_mirror(client, Mirror(mirror, Origin(bucket.name)))
    for origin in (Origin(stream=mirror), Origin(mirror), Origin(bucket.name, stream=mirror)):
        await create_aggregate(client, Aggregate(aggregate := unique("A"), (origin,)))
        assert await keys_of(client, aggregate) == ["a.1"]


async def test_added_origin_s_keys_arrive(client, raw, unique):
    one, other, aggregate = await client.create_bucket(unique()), await client.create_bucket(unique()), unique("A")
    await one.put("k", b"1")
    await other.put_many((f"k.{number}", b"2") for number in range(300))
    await create_aggregate(client, Aggregate(aggregate, (Origin(one.name, prefix="one"),)))
    await add_aggregate_origin(client, aggregate, Origin(other.name, prefix="other"))
    assert len(await keys_of(client, aggregate)) == 301
    before = raw.api(f"STREAM.INFO.KV_{aggregate}")["config"]
    await add_aggregate_origin(client, aggregate, Origin(other.name, prefix="other"))
    assert raw.api(f"STREAM.INFO.KV_{aggregate}")["config"] == before
    with pytest.raises(RefusedError, match="is a bucket, not an aggregate"):
        await add_aggregate_origin(client, one.name, Origin(other.name))


async def test_creating_again_is_an_error_only_with_another_configuration(client, unique):
    bucket, mirror, aggregate = await client.create_bucket(unique()), unique("M"), unique("A")
    for _ in range(2):
        await create_mirror(client, Mirror(mirror, Origin(bucket.name)))
        await create_aggregate(client, Aggregate(aggregate, (Origin(bucket.name),)))
    with pytest.raises(BucketExists, match="description"):
        await create_mirror(client, Mirror(mirror, Origin(bucket.name), description="another"))
    with pytest.raises(BucketExists, match="sources"):
        await create_aggregate(client, Aggregate(aggregate, (Origin(bucket.name, prefix="p"),)))


async def test_name_of_another_kind_is_taken(client, unique):
    bucket, mirror, aggregate = await client.create_bucket(unique()), unique("M"), unique("A")
    await create_mirror(client, Mirror(mirror, Origin(bucket.name)))
    await create_aggregate(client, Aggregate(aggregate, (Origin(bucket.name),)))
    for name in (bucket.name, aggregate):
        with pytest.raises(BucketExists):
            await create_mirror(client, Mirror(name, Origin(bucket.name)))
    for name in (bucket.name, mirror):
        with pytest.raises(BucketExists):
            await create_aggregate(client, Aggregate(name, (Origin(bucket.name),)))


async def test_read_only_client_creates_no_replicas(server, client, unique):
    bucket, mirror = await client.create_bucket(unique()), unique("M")
    async with kvctl.connect(server.url, read_only=True) as reading:
        with pytest.raises(ReadOnly):
            await create_mirror(reading, Mirror(mirror, Origin(bucket.name)))


# -- waiting -----------------------------------------------------------------------------------------------


async def test_empty_origin_is_waited_for_until_connected(client, raw, unique):
    bucket, mirror = await client.create_bucket(unique()), unique("M")
    await create_mirror(client, Mirror(mirror, Origin(bucket.name)))
    assert raw.api(f"STREAM.INFO.{mirror}")["mirror"]["active"] >= 0


async def test_removed_entries_are_not_waited_for(client, raw, unique):
    bucket, aggregate = await client.create_bucket(unique()), unique("A")
    await bucket.put_many([("a", b"v"), ("b", b"v")])
    plan = await builders.plan_aggregate(client.api, Aggregate(aggregate, (Origin(bucket.name),)))
    assert plan.goals[0].sequence == 2
    raw.api(f"STREAM.PURGE.KV_{bucket.name}", {"filter": f"$KV.{bucket.name}.b"})
    await builders.apply(client.api, plan)
    await builders.wait(client.api, plan, timedelta(seconds=60))
    assert await keys_of(client, aggregate) == ["a"]


async def test_tail_of_a_purged_origin_is_not_waited_for(client, raw, unique):
    bucket, mirror = await client.create_bucket(unique()), unique("M")
    await bucket.put_many((key, b"v") for key in ("a", "b"))
    raw.api(f"STREAM.PURGE.KV_{bucket.name}", {"filter": f"$KV.{bucket.name}.b"})
    await create_mirror(client, Mirror(mirror, Origin(bucket.name)), wait_for=timedelta(seconds=60))


async def test_arrival_is_found_by_entry_on_servers_that_report_no_sequence(client, unique):
    bucket, aggregate = await client.create_bucket(unique()), unique("A")
    await bucket.put("a", b"v")
    wanted = Aggregate(aggregate, (Origin(bucket.name, prefix="p"),))
    plan = await builders.plan_aggregate(client.api, wanted)
    await builders.apply(client.api, plan)
    await builders.wait(client.api, plan)
    info = await client.api.call(f"STREAM.INFO.KV_{aggregate}")
    del info["sources"][0]["seq"]  # as before 2.15
    assert await arrival.arrived(client.api, info, plan.goals[0]) == 1


async def test_filtered_origin_is_waited_for_up_to_its_last_matching_entry(client, unique):
    bucket, aggregate = await client.create_bucket(unique()), unique("A")
    await bucket.put_many((key, b"v") for key in ("NEW.1", "OLD.1", "OLD.2"))
    plan = await builders.plan_aggregate(client.api, Aggregate(aggregate, (Origin(bucket.name, keys=("NEW.>",)),)))
    assert (plan.goals[0].sequence, plan.goals[0].subject) == (1, f"$KV.{bucket.name}.NEW.1")


# -- other domains, other accounts -------------------------------------------------------------------------


async def test_replicas_of_another_domain(leaf, unique):
    mirror, filtered, aggregate = unique("M"), unique("M"), unique("A")
    hub = External.of_domain("hub")
    async with kvctl.connect(leaf.contexts["hub"]) as there, kvctl.connect(leaf.contexts["leaf"]) as client:
        bucket = await there.create_bucket(unique())
        await bucket.put_many((key, b"v") for key in ("a.1", "b.1"))
        await create_mirror(client, Mirror(mirror, Origin(bucket.name, external=hub)))
        await create_mirror(client, Mirror(filtered, Origin(bucket.name, keys=("a.>",), external=hub)))
        await create_aggregate(client, Aggregate(aggregate, (Origin(bucket.name, external=hub),)))
        assert await keys_of(client, aggregate) == ["a.1", "b.1"]
        assert (await client.api.call(f"STREAM.INFO.{filtered}"))["state"]["messages"] == 1


async def test_own_domain_is_not_external(leaf, unique):
    async with kvctl.connect(leaf.contexts["hub"]) as client:
        bucket, mirror = await client.create_bucket(unique()), unique("M")
        await bucket.put("k", b"v")
        await create_mirror(client, Mirror(mirror, Origin(bucket.name, external=External.of_domain("hub"))))
        assert "external" not in (await client.api.call(f"STREAM.INFO.{mirror}"))["config"]["mirror"]


async def test_replicas_of_another_account(accounts, unique):
    async with (
        kvctl.connect(accounts.contexts["origin"]) as there,
        kvctl.connect(accounts.contexts["replica"]) as client,
    ):
        with suppress(BucketNotFound):
            await there.delete_bucket("ORDERS")  # the lab exports this name alone, and other tests use it
        bucket = await there.create_bucket("ORDERS")
        await bucket.put_many((key, b"v") for key in ("a.1", "b.1"))
        mirror, aggregate, stuck = unique("M"), unique("A"), unique("M")
        way = External("ORIGIN.API", f"DELIVER.ORDERS.{mirror}")
        await create_mirror(client, Mirror(mirror, Origin("ORDERS", external=way)))
        way = External("ORIGIN.API", f"DELIVER.ORDERS.{aggregate}")
        await create_aggregate(client, Aggregate(aggregate, (Origin("ORDERS", keys=("a.>",), external=way),)))
        assert await keys_of(client, aggregate) == ["1"]

        wrong = Origin("ORDERS", external=External("ORIGIN.API", "NOT.EXPORTED"))
        with pytest.raises(WaitExpired) as caught:
            await create_mirror(client, Mirror(stuck, wrong), wait_for=timedelta(seconds=1))
        assert "at revision 0 of 2" in caught.value.message
        assert "`$JS.API.CONSUMER.CREATE.KV_ORDERS`" in str(caught.value.hint)
        assert "the stream `NOT.EXPORTED.>`" in str(caught.value.hint)


NARROW = """
server_name: @name@
listen: 127.0.0.1:@client@
jetstream { store_dir: "@store@" }
accounts {
  SYS: { users: [ { user: sys, password: sys } ] }
  ORIGIN: {
    jetstream: enabled
    users: [ { user: origin, password: origin } ]
    exports: [
      { service: "$JS.API.CONSUMER.CREATE.KV_ORDERS", accounts: [REPLICA] }
      { service: "$JS.API.CONSUMER.CREATE.KV_ORDERS.>", accounts: [REPLICA] }
      { stream: "DELIVER.ORDERS.>", accounts: [REPLICA] }
      { service: "$JS.FC.KV_ORDERS.>", accounts: [REPLICA] }
    ]
  }
  REPLICA: {
    jetstream: enabled
    users: [ { user: replica, password: replica } ]
    imports: [
      { service: { account: ORIGIN, subject: "$JS.API.CONSUMER.CREATE.KV_ORDERS" },
        to: "ORIGIN.API.CONSUMER.CREATE.KV_ORDERS" }
      { service: { account: ORIGIN, subject: "$JS.API.CONSUMER.CREATE.KV_ORDERS.>" },
        to: "ORIGIN.API.CONSUMER.CREATE.KV_ORDERS.>" }
      { stream: { account: ORIGIN, subject: "DELIVER.ORDERS.>" } }
      { service: { account: ORIGIN, subject: "$JS.FC.KV_ORDERS.>" } }
    ]
  }
}
system_account: SYS
"""


async def test_missing_exports_of_hidden_origin_are_named(monkeypatch):
    with run_server(name="narrow", config=NARROW) as server:
        origin = kvctl.Context(url=server.url, user="origin", password="origin")
        replica = kvctl.Context(url=server.url, user="replica", password="replica")
        async with kvctl.connect(origin) as there, kvctl.connect(replica) as client:
            bucket = await there.create_bucket("ORDERS")
            await bucket.put_many((key, b"v") for key in ("a.1", "b.1"))
            way = External("ORIGIN.API", "DELIVER.ORDERS.m")
            plan = await builders.plan_mirror(client.api, Mirror("M", Origin("ORDERS", external=way)))
            assert not plan.hazards
            (warning,) = plan.warnings
            assert "`$JS.API.STREAM.INFO.KV_ORDERS` and `$JS.API.DIRECT.GET.KV_ORDERS.>`" in warning
            assert "`ORIGIN.API.STREAM.INFO.KV_ORDERS`" in warning
            await builders.apply(client.api, plan)
            await builders.wait(client.api, plan, timedelta(seconds=60))
            assert (await client.api.call("STREAM.INFO.M"))["state"]["messages"] == 2

            silent = Origin("ORDERS", external=External("ORIGIN.API", "NOT.EXPORTED"))
            far = Origin("ORDERS", prefix="far", external=silent.external)
            with pytest.raises(WaitExpired, match="cannot be read from here"):
                await create_mirror(client, Mirror("N", silent), wait_for=timedelta(seconds=1))
            monkeypatch.setattr(arrival, "STEADY", 0.2)  # connected, lag 0, entries of another origin, and no heartbeat
            await (await client.create_bucket("NEAR")).put("k", b"v")
            await create_aggregate(client, Aggregate("NEARBY", (Origin("NEAR"),)))
            with pytest.raises(WaitExpired, match="cannot be read from here"):
                await add_aggregate_origin(client, "NEARBY", far, wait_for=timedelta(seconds=1))
            hidden = Origin(stream="M2", external=way)
            with pytest.raises(UsageError, match="Cannot tell which bucket `M2` replicates"):
                await create_aggregate(client, Aggregate("A", (hidden,)))


async def test_entry_that_an_aggregate_reports_and_does_not_hold_is_waited_for_until_nothing_moves(client, raw, unique):
    """Servers report an entry as replicated before they store it, and one that was removed forever."""
    bucket, target = unique(), unique("A")
    raw.create_bucket(bucket, {"k.1": b"v", "k.2": b"v"})
    plan = await builders.plan_aggregate(client.api, Aggregate(target, (Origin(bucket, prefix="p"),)))
    info = await builders.apply(client.api, plan)
    [goal] = plan.goals
    counts: list[int] = []
    await builders.wait(client.api, plan, advance=counts.append)
    assert sum(counts) == 2
    assert await arrival._is_stored(client.api, info, goal)
    assert raw.api(f"STREAM.PURGE.KV_{target}", {"filter": f"$KV.{target}.p.k.2"})["purged"] == 1
    assert not await arrival._is_stored(client.api, info, goal)
    await builders.wait(client.api, plan, timedelta(seconds=30))


@pytest.fixture
async def grown(client, raw, replicas, unique):
    """Create a bucket, another one, and an aggregate of the first, whose first entry was overwritten."""
    first, second, aggregate = unique("ONE"), unique("OTHER"), unique("AGG")
    for bucket in (first, second):
        raw.create_bucket(bucket, {"k": b"v"})
    await create_aggregate(client, Aggregate(aggregate, (Origin(first, prefix="a"),)))
    raw.put(first, "k", b"w")
    until(lambda: replicas.info(f"KV_{aggregate}")["state"]["first_seq"] == 2)
    return first, second, aggregate


async def test_entries_of_late_origin_never_arrive_without_start_sequence(raw, replicas, grown):
    _, second, aggregate = grown
    config = replicas.info(f"KV_{aggregate}")["config"]
    config["sources"].append(source(second, aggregate, dest="b.>"))
    assert "error" not in raw.api(f"STREAM.UPDATE.KV_{aggregate}", config)
    raw.put(second, "later", b"v")
    until(lambda: f"$KV.{aggregate}.b.later" in replicas.subjects(f"KV_{aggregate}"))
    assert f"$KV.{aggregate}.b.k" not in replicas.subjects(f"KV_{aggregate}")


async def test_late_origin_added_by_kvctl_arrives_completely(client, replicas, grown):
    first, second, aggregate = grown
    await add_aggregate_origin(client, aggregate, Origin(second, prefix="b"))
    assert replicas.subjects(f"KV_{aggregate}").keys() == {f"$KV.{aggregate}.{key}" for key in ("a.k", "b.k")}
    # What it takes is the same as if it had been there from the beginning.
    await add_aggregate_origin(client, aggregate, Origin(second, prefix="b"))
    await create_aggregate(client, Aggregate(aggregate, (Origin(first, prefix="a"), Origin(second, prefix="b"))))
