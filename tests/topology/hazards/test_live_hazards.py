"""Hazards that arise later: recreated origins, edits, streams of others, cycles through accounts."""

from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl.doctor import examination
from kvctl.errors import HazardRefused, RefusedError, ServerError, UsageError
from kvctl.jetstream import streams
from kvctl.kv.settings import Republish
from kvctl.server import run_server
from kvctl.topology.apply.builders import add_aggregate_origin, create_aggregate, create_mirror
from kvctl.topology.apply.edit import plan_edit
from kvctl.topology.hazards import hazards
from kvctl.topology.hazards.cycle import Replication, cycles
from kvctl.topology.health import inspection
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from kvctl.topology.plan import planner
from kvctl.topology.survey import inventory, origin_lookup
from tests.support.raw import RawClient
from tests.support.waiting import until
from tests.topology.conftest import refused, source
from tests.topology.plain import topology


def answers(raw: RawClient, bucket: str, key: str, times: int = 60) -> set[bytes]:
    """Return the values that direct gets of a key return, from any replica."""
    return {raw.request(f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}").data for _ in range(times)}


async def edit(client: kvctl.Client, bucket: str, force: tuple[str, ...] = (), **changes: Any) -> None:
    """Edit as `kvctl bucket edit` does."""
    edit, found = await plan_edit(client.api, bucket, changes)
    hazards.refuse(found, force, f"The edit of `{bucket}` would lose or hide data")
    await client.api.call(f"STREAM.UPDATE.KV_{bucket}", edit.after)


# -- origins made anew -------------------------------------------------------------------------------------


async def test_recreated_origin(client, raw, replicas, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket, dict.fromkeys(("a", "b"), b"old"))
    replicas.mirror(mirror, bucket)
    until(lambda: len(replicas.subjects(mirror)) == 2)
    raw.api(f"STREAM.DELETE.KV_{bucket}")
    raw.create_bucket(bucket)
    for _ in range(3):
        raw.put(bucket, "a", b"new")
    until(lambda: b"old" in answers(raw, bucket, "a"))  # and says lag 0
    assert replicas.info(mirror)["mirror"]["lag"] == 0
    info = replicas.info(mirror)
    (hazard,) = inspection.of_replica(info, await inspection.origins_of(client.api, info["config"]))
    assert (hazard.name, "keeps serving the old values" in hazard.evidence) == ("recreated-origin", True)
    assert "audit" in hazard.remedy


# -- edits -------------------------------------------------------------------------------------------------


async def test_lossy_edit(client, raw, unique):
    bucket = unique()
    config = raw.create_bucket(bucket, max_msgs_per_subject=5)["config"]
    for value in (b"1", b"2", b"3"):
        raw.put(bucket, "k", value)
    assert "removes 2 revisions of 1 key" in await refused(edit(client, bucket, history=1))
    assert "error" not in raw.api(f"STREAM.UPDATE.KV_{bucket}", {**config, "max_msgs_per_subject": 1})  # no word of it
    assert raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["messages"] == 1


@pytest.mark.parametrize("size", ["1", "abc"])
async def test_large_value_counts_as_one_whatever_its_writer_says(client, raw, unique, size):
    bucket = unique()
    raw.create_bucket(bucket)
    assert "seq" in raw.request(f"$KV.{bucket}.k", b"v" * 5000, {"Nats-Msg-Size": size}).json()
    text = await refused(edit(client, bucket, max_value_size=1000))
    assert "max_value_size 1000 is below 1 revision" in text


async def test_edit_of_origin_that_makes_mirror_serve_expired_keys_is_refused(client, raw, replicas, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket, {"k": b"v"})
    replicas.mirror(mirror, bucket)
    until(lambda: replicas.subjects(mirror))
    text = await refused(edit(client, bucket, history=5))
    assert f"Mirror `{mirror}` keeps 1 revision, fewer than `{bucket}` (5)" in text
    text = await refused(edit(client, bucket, ttl=timedelta(seconds=1), force=("lossy-edit",)))
    assert "--force ttl-not-inherited" in text
    await edit(client, bucket, ttl=timedelta(seconds=1), force=("lossy-edit", "ttl-not-inherited"))
    until(lambda: not replicas.subjects(f"KV_{bucket}"))
    assert b"v" in answers(raw, bucket, "k")  # expired, and the mirror serves it
    await edit(client, bucket, description="harmless")  # nothing that was not there before


async def test_edit_of_mirror_has_the_hazards_of_its_creation(client, unique):
    bucket, mirror = await client.create_bucket(unique(), history=3), unique("M")
    await create_mirror(client, Mirror(mirror, Origin(bucket.name)))
    assert "--force shorter-history" in await refused(edit(client, mirror, history=1))
    assert "--force shorter-ttl" in await refused(edit(client, mirror, ttl=timedelta(hours=1)))


async def test_cycle_through_republishing(client, raw, unique):
    one, other = unique(), unique()
    for here, there in ((one, other), (other, one)):
        raw.create_bucket(here, republish={"src": f"$KV.{here}.>", "dest": f"$KV.{there}.>"})
    raw.put(one, "k", b"v")
    until(lambda: raw.api(f"STREAM.INFO.KV_{one}")["state"]["last_seq"] > 100)  # one put
    found = await examination.of_replicas(await inventory.survey({"": client.api}))
    (cycle,) = [item for item in found if item.subject in (one, other) and item.check == "cycle"]
    assert (cycle.severity, "--clear republish" in cycle.remedy) == ("error", True)
    for name in (one, other):
        raw.api(f"STREAM.DELETE.KV_{name}")

    back = Republish(f"$KV.{other}.>", f"$KV.{one}.>")
    raw.create_bucket(one, republish={"src": f"$KV.{one}.>", "dest": f"$KV.{other}.>"})
    await client.create_bucket(other)
    assert f"`{other}` <- `{one}` <- `{other}`" in await refused(edit(client, other, republish=back))
    (warning,) = await origin_lookup.republishing(client.api, raw.api(f"STREAM.INFO.KV_{one}")["config"])
    assert warning.startswith(f"`{one}` republishes into `{other}`")
    found = await examination.of_replicas(await inventory.survey({"": client.api}))
    assert [item.severity for item in found if item.subject == one] == ["warning"]
    file = topology(f"buckets: {{{other}: {{republish: '$KV.{other}.>=$KV.{one}.>'}}}}")
    (change,) = (await planner.plan(file, {"": client.api})).changes
    assert [hazard.name for hazard in change.hazards] == ["cycle"]
    for name in (one, other):
        raw.api(f"STREAM.DELETE.KV_{name}")


async def test_library_refuses_a_cycle_through_republishing(client, unique):
    one, other = unique(), unique()
    await client.create_bucket(one, republish=Republish(f"$KV.{one}.>", f"$KV.{other}.>"))
    back = kvctl.BucketConfig(other, republish=Republish(f"$KV.{other}.>", f"$KV.{one}.>"))
    for change in (client.create_bucket, client.create_or_update_bucket):
        assert f"`{other}` <- `{one}` <- `{other}`" in await refused(change(back))
    await client.create_bucket(other)
    for change in (client.update_bucket, client.create_or_update_bucket):
        text = await refused(change(back))
        assert "every write would circulate" in text
        assert "--force" not in text
    assert not (await client.bucket(other).status()).config.get("republish")
    await client.create_bucket(one, republish=Republish(f"$KV.{one}.>", f"$KV.{other}.>"))  # as it is
    for name in (one, other):
        await client.delete_bucket(name)


async def test_aggregate_of_a_bucket_that_is_republished_into_by_it_is_refused(client, raw, unique):
    bucket, aggregate = unique(), unique("G")
    raw.create_bucket(bucket, republish={"src": f"$KV.{bucket}.>", "dest": f"$KV.{aggregate}.>"})
    wanted = Aggregate(aggregate, (Origin(bucket),), republish=Republish(f"$KV.{aggregate}.>", f"$KV.{bucket}.>"))
    assert "every write would circulate" in await refused(create_aggregate(client, wanted))


async def test_mirror_cannot_rename_keys(unique):
    with pytest.raises(UsageError, match="cannot rename keys"):
        Mirror("M", Origin("B", prefix="p"))


# -- streams of others -------------------------------------------------------------------------------------


async def test_foreign_kind(client, raw, unique):
    bucket = unique()
    marked = raw.create_bucket(bucket, max_msgs_per_subject=5, metadata={"kvctl.kind": "table"})["config"]
    for value in (b"1", b"2"):
        raw.put(bucket, "k", value)
    unmarked = {**marked, "max_msgs_per_subject": 1}
    assert "error" not in raw.api(f"STREAM.UPDATE.KV_{bucket}", unmarked)
    assert raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["messages"] == 1  # what the table relied on is gone

    text = await refused(edit(client, bucket, description="x"))
    assert f"`KV_{bucket}` belongs to a table, which would break" in text
    assert "Use `kvctl table` instead. Use `--force foreign-kind` to proceed anyway" in text
    await edit(client, bucket, description="x", force=("foreign-kind",))
    handle = client.bucket(bucket)
    assert [entry.value async for entry in handle.history()] == [b"2"]  # reading harms nobody
    for attempt in (handle.put("k", b"3"), handle.delete("k"), handle.purge("k")):
        with pytest.raises(HazardRefused, match="belongs to a table"):
            await attempt
    for wanted in (Aggregate(unique("A"), (Origin(bucket),)), Aggregate(unique("A"), (Origin(bucket, keys=("k",)),))):
        assert "force=['foreign-kind']" in await refused(create_aggregate(client, wanted))
    filtered = Mirror(unique("M"), Origin(bucket, keys=("k",)))
    assert "'foreign-kind']" in await refused(create_mirror(client, filtered))
    await create_mirror(client, Mirror(unique("M"), Origin(bucket)))  # whole, and so the same


async def test_key_writes_never_reach_a_table(client, raw, unique):
    name = unique("T")
    config = {"name": f"KVT_{name}", "subjects": [f"$KVT.{name}.>"], "metadata": {"kvctl.kind": "table"}}
    raw.create_stream(**config)
    assert raw.request(f"$KV.{name}.k", b"v").headers["Status"] == "503"  # whoever tries
    for attempt in (client.bucket(name).put("k", b"v"), client.bucket(name).get("k"), edit(client, name, history=3)):
        with pytest.raises(RefusedError, match=f"`{name}` is a table, not a bucket") as caught:
            await attempt
        assert caught.value.hint == "Use `kvctl table` instead"


# -- cycles -----------------------------------------------------------------------------------------------

ACCOUNTS = """
listen: 127.0.0.1:@client@
jetstream { store_dir: "@store@" }
accounts {
  SYS: { users: [ { user: sys, password: sys } ] }
  ONE: { jetstream: enabled, users: [ { user: one, password: one } ], @one@ }
  TWO: { jetstream: enabled, users: [ { user: two, password: two } ], @two@ }
}
system_account: SYS
"""
"""Each account imports the whole API of the other one."""


def _shared(own: str, stream: str, other: str, theirs: str) -> str:
    return f"""
    exports: [
      {{ service: "$JS.API.>", response: stream }}, {{ service: "$JS.FC.{stream}.>" }}, {{ stream: "D.{own}.>" }}
    ]
    imports: [
      {{ service: {{ account: {other}, subject: "$JS.API.>" }}, to: "{other}.API.>" }}
      {{ service: {{ account: {other}, subject: "$JS.FC.{theirs}.>" }} }}
      {{ stream: {{ account: {other}, subject: "D.{other}.>" }} }}
    ]"""


@pytest.fixture
def joined():
    """Two accounts that replicate from each other."""
    config = ACCOUNTS.replace("@one@", _shared("ONE", "KV_X", "TWO", "KV_Y")).replace(
        "@two@", _shared("TWO", "KV_Y", "ONE", "KV_X")
    )
    with run_server(name="joined", config=config) as running:
        yield running


async def test_cycle_across_accounts(joined):
    contexts = {name: kvctl.Context(url=joined.url, user=name, password=name) for name in ("one", "two")}
    there, back = External("TWO.API", "D.TWO.x"), External("ONE.API", "D.ONE.y")
    with (
        RawClient(joined.url, user="one", password="one") as one,
        RawClient(joined.url, user="two", password="two") as two,
    ):
        one.create_bucket("X", sources=[source("Y", "X", external=there.to_json())], duplicate_window=0)
        two.create_bucket("Y", sources=[source("X", "Y", external=back.to_json())], duplicate_window=0)
        for raw, name in ((one, "X"), (two, "Y")):
            until(lambda raw=raw, name=name: raw.api(f"STREAM.INFO.KV_{name}")["sources"][0]["active"] >= 0)
        one.put("X", "k", b"v")
        until(lambda: one.api("STREAM.INFO.KV_X")["state"]["last_seq"] > 100)  # one put
        async with kvctl.connect(contexts["one"]) as ours, kvctl.connect(contexts["two"]) as theirs:
            seen = await inventory.survey({"one": ours.api, "two": theirs.api})
            doubts = [item for item in await examination.examine(ours.api) if item.check == "cycle"]
        one.api("STREAM.DELETE.KV_X")
        two.api("STREAM.DELETE.KV_Y")
        readings = []
        for link in filter(lambda link: link.origin_place, seen.links):
            ends = (link.place.name, link.info["config"]["name"]), (link.origin_place.name, link.source["name"])
            readings.append(Replication(*ends, link.source))
        (circle,) = cycles(readings)
        assert set(circle) == {("one", "KV_X"), ("two", "KV_Y")}
        assert [(str(item.severity), item.subject) for item in doubts] == [("warning", "X")]

        one.create_bucket("X")
        two.create_bucket("Y", sources=[source("X", "Y", external=back.to_json())], duplicate_window=0)
    async with kvctl.connect(contexts["one"]) as ours:
        base = await ours.create_bucket("BASE")
        await ours.delete_bucket("X")
        await create_aggregate(ours, Aggregate("X", (Origin(base.name),)))
        text = await refused(add_aggregate_origin(ours, "X", Origin("Y", prefix="y", external=there)))
        assert "`Y` itself replicates a bucket `X` under `ONE.API`: if that is this one" in text
        assert "force=['cycle']" in text


async def test_aggregate_of_bucket_and_its_mirror_is_refused(client, raw, replicas, unique):
    bucket, mirror, aggregate = unique(), unique("M"), unique("A")
    raw.create_bucket(bucket)
    replicas.mirror(mirror, bucket)
    both = [source(bucket, aggregate, dest="a.>"), source(bucket, aggregate, dest="b.>") | {"name": mirror}]
    answer = raw.api(f"STREAM.CREATE.KV_{aggregate}", {"name": f"KV_{aggregate}", "sources": both})
    assert answer["error"]["err_code"] == 10052
    with pytest.raises(ServerError) as error:
        await streams.create(client.api, {"name": f"KV_{aggregate}", "sources": both})
    assert error.value.hint == "A stream would replicate another one twice, or itself, through others"
    origins = (Origin(bucket, prefix="a"), Origin(bucket, stream=mirror, prefix="b"))
    with pytest.raises(RefusedError) as caught:
        await create_aggregate(client, Aggregate(aggregate, origins))
    assert f"would replicate `{bucket}` twice, directly and through `{mirror}`" in caught.value.message


# -- what exists -------------------------------------------------------------------------------------------


def test_unconnected_replica_is_reported_after_a_grace_period():
    def info(age: int, messages: int = 0, **live: Any) -> dict[str, Any]:
        config = {"name": "M", "mirror": {"name": "KV_B", "external": {"api": "$JS.nowhere.API"}}}
        live = {"name": "KV_B", "lag": 0, "active": -1, **live}
        created, now = "2026-01-01T00:00:00Z", f"2026-01-01T00:00:{age:02}Z"
        return {"config": config, "state": {"messages": messages}, "mirror": live, "created": created, "ts": now}

    assert inspection.of_replica(info(2), [None]) == []
    for messages, ever in ((0, "never connected"), (1, "has not connected since its server started")):
        (hazard,) = inspection.of_replica(info(20, messages), [None])
        assert hazard.name == "unconnected"
        assert f"`M` {ever} to `B` in domain `nowhere`" in hazard.evidence
    gone = {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
    (hazard,) = inspection.of_replica(info(2, **gone), [None])
    assert hazard.name == "missing-origin"


async def test_library_refuses_a_bucket_beside_the_mirror_of_its_namesake_elsewhere(leaf, unique):
    name, mirror = unique("O"), unique("M")
    async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["leaf"]) as edge:
        await (await hub.create_bucket(name)).put("k", b"v")
        await create_mirror(edge, Mirror(mirror, Origin(name, external=External.of_domain("hub"))))
        for create in (edge.create_bucket, edge.create_or_update_bucket):
            with pytest.raises(HazardRefused, match=f"Mirror `{mirror}` of `{name}` in domain `hub`") as refused:
                await create(name)
            assert refused.value.name == "shadowed-origin"
        await edge.create_bucket(name, force=["shadowed-origin"])
        await edge.create_bucket(name)
        for client, made in ((edge, name), (edge, mirror), (hub, name)):
            await client.delete_bucket(made)
