"""Each hazard: first the damage on a real server with raw stream JSON, then kvctl's refusal."""

import asyncio
import json
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl.doctor.examination import of_replicas
from kvctl.errors import BucketNotFound, WaitExpired
from kvctl.kv.config import BucketConfig
from kvctl.topology.apply import builders
from kvctl.topology.apply.builders import add_aggregate_origin, create_aggregate, create_mirror
from kvctl.topology.apply.edit import hazards_of
from kvctl.topology.hazards import hazards, lossy_edit
from kvctl.topology.health import inspection, overview
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from kvctl.topology.survey import inventory
from tests.support.raw import RawClient
from tests.support.waiting import until
from tests.topology.conftest import Replicas, refused, source

SECOND = timedelta(seconds=1)


def statuses(raw: RawClient, bucket: str, key: str, times: int = 100) -> set[str]:
    """Return the statuses of many direct gets of one key; an empty one is a value."""
    asked = f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}"
    return {raw.request(asked).headers.get("Status", "")[:3] for _ in range(times)}


async def names_of(client: kvctl.Client, stream: str) -> set[str]:
    """Return the hazards that kvctl finds in an existing stream."""
    info = await client.api.call(f"STREAM.INFO.{stream}")
    origins = await inspection.origins_of(client.api, info["config"])
    return {hazard.name for hazard in inspection.of_replica(info, origins)}


# -- mirrors -----------------------------------------------------------------------------------------------


async def test_filtered_mirror(client, raw, replicas, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket, {"NEW.1": b"v", "OLD.1": b"v"})
    replicas.mirror(mirror, bucket, mirror={"filter_subject": f"$KV.{bucket}.NEW.>"})
    until(lambda: "404" in statuses(raw, bucket, "OLD.1"))
    assert await names_of(client, mirror) == {"filtered-mirror"}

    wanted = Mirror(unique("M"), Origin(bucket, keys=("NEW.>",)))
    text = await refused(create_mirror(client, wanted))
    assert f"kvctl aggregate create NAME --origin {bucket} --keys" in text
    assert "force=['filtered-mirror']" in text
    await create_mirror(client, wanted, force=["filtered-mirror"])


async def test_filtered_mirror_in_another_domain_is_harmless(client, raw, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket, dict.fromkeys(("a.1", "b.1", "c.1"), b"v"), allow_direct=False)
    await create_mirror(client, Mirror(mirror, Origin(bucket, keys=("a.>", "b.>"))))
    info = raw.api(f"STREAM.INFO.{mirror}")
    assert (info["state"]["messages"], info["config"]["mirror_direct"]) == (2, False)


async def test_renaming_mirror(client, raw, replicas, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket, {"k": b"v"})
    rules = [{"src": f"$KV.{bucket}.>", "dest": f"$KV.{mirror}.>"}]
    replicas.mirror(mirror, bucket, mirror={"subject_transforms": rules})
    until(lambda: "404" in statuses(raw, bucket, "k"))
    assert await names_of(client, mirror) == {"renaming-mirror"}


async def test_shorter_ttl(client, raw, replicas, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket, {"k": b"v"})
    replicas.mirror(mirror, bucket, max_age=500_000_000)
    until(lambda: "404" in statuses(raw, bucket, "k"))
    assert await names_of(client, mirror) == {"shorter-ttl"}
    assert "shorter-ttl" in await refused(create_mirror(client, Mirror(unique("M"), Origin(bucket), ttl=SECOND)))
    aggregate = Aggregate(unique("A"), (Origin(bucket),), ttl=SECOND)
    assert "ttl 1s is shorter" in await refused(create_aggregate(client, aggregate))


async def test_shorter_history(client, raw, replicas, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket, max_msgs_per_subject=3)
    first = raw.put(bucket, "k", b"1")
    raw.put(bucket, "k", b"2")
    replicas.mirror(mirror, bucket)
    asked = json.dumps({"seq": first}).encode()
    until(lambda: raw.request(f"$JS.API.DIRECT.GET.KV_{bucket}", asked).headers.get("Status", "").startswith("404"))
    assert await names_of(client, mirror) == {"shorter-history"}
    assert "shorter-history" in await refused(create_mirror(client, Mirror(unique("M"), Origin(bucket), history=1)))
    await create_mirror(client, Mirror(inheriting := unique("M"), Origin(bucket)))
    assert await names_of(client, inheriting) == set()


async def test_ttl_not_inherited(client, raw, replicas, unique):
    bucket, mirror, aggregate = unique(), unique("M"), unique("A")
    raw.create_bucket(bucket, {"k": b"v"}, max_age=1_500_000_000, duplicate_window=1_500_000_000)
    replicas.mirror(mirror, bucket)
    replicas.aggregate(aggregate, source(bucket, aggregate))
    until(lambda: replicas.subjects(mirror) and replicas.subjects(f"KV_{aggregate}"))
    until(lambda: not replicas.subjects(f"KV_{bucket}"))
    until(lambda: "" in statuses(raw, bucket, "k"))  # expired, and the mirror serves it
    assert replicas.subjects(f"KV_{aggregate}")
    assert await names_of(client, mirror) == await names_of(client, f"KV_{aggregate}") == {"ttl-not-inherited"}

    longer = timedelta(hours=1)
    assert "ttl-not-inherited" in await refused(create_mirror(client, Mirror(unique("M"), Origin(bucket), ttl=longer)))
    wanted = Aggregate(unique("A"), (Origin(bucket),), ttl=longer)
    assert "ttl-not-inherited" in await refused(create_aggregate(client, wanted))


async def test_aggregate_takes_longest_ttl_and_warns_of_keys_that_stay(client, raw, replicas, unique):
    second = 1_000_000_000
    marking, expiring, lasting, aggregate = unique(), unique(), unique(), unique("A")
    ages = {"max_age": second, "duplicate_window": second}
    raw.create_bucket(marking, **ages, allow_msg_ttl=True, subject_delete_marker_ttl=60 * second)
    raw.create_bucket(expiring, **ages)
    raw.create_bucket(lasting)
    wanted = Aggregate(aggregate, tuple(Origin(name, prefix=name) for name in (marking, expiring, lasting)))
    plan = await builders.plan_aggregate(client.api, wanted)
    assert (plan.config["max_age"], plan.hazards) == (0, [])
    assert [warning.split("`")[1] for warning in plan.warnings] == [expiring]
    assert f"`kvctl bucket edit {expiring} --marker-ttl 1h`" in plan.warnings[0]
    for name in (marking, expiring, lasting):
        raw.put(name, "k", b"v")
    await builders.apply(client.api, plan)
    await builders.wait(client.api, plan)
    until(lambda: not raw.request(f"$JS.API.DIRECT.GET.KV_{expiring}.$KV.{expiring}.k").data)
    bucket = client.bucket(aggregate)
    keys = {f"{expiring}.k", f"{lasting}.k"}
    for _ in range(1200):
        if (found := {key async for key in bucket.keys()}) == keys:
            break
        await asyncio.sleep(0.05)
    assert found == keys  # what left a marker has gone, what left none stays
    longest = replace(wanted, name=unique("A"), origins=wanted.origins[:2], ttl=timedelta(hours=1))
    assert {hazard.name for hazard in (await builders.plan_aggregate(client.api, longest)).hazards} == {
        "ttl-not-inherited"
    }


async def test_per_key_ttl_not_inherited(client, raw, replicas, unique):
    bucket, mirror, inheriting = unique(), unique("M"), unique("M")
    raw.create_bucket(bucket, allow_msg_ttl=True)
    raw.put(bucket, "k", b"v", {"Nats-TTL": "2s"})
    replicas.mirror(mirror, bucket)
    until(lambda: replicas.subjects(mirror))
    assert await names_of(client, mirror) == {"ttl-not-inherited"}
    await create_mirror(client, Mirror(inheriting, Origin(bucket)))
    until(lambda: not replicas.subjects(f"KV_{bucket}") and not replicas.subjects(inheriting))
    assert replicas.subjects(mirror)


async def test_origin_not_direct(client, raw, replicas, unique):
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket, allow_direct=False)
    made = replicas.mirror(mirror, bucket)
    assert made["config"]["mirror_direct"] is False  # asked for, and silently dropped
    assert statuses(raw, bucket, "k", times=1) == {"503"}
    assert await names_of(client, mirror) == {"origin-not-direct"}
    assert "origin-not-direct" in await refused(create_mirror(client, Mirror(unique("M"), Origin(bucket))))
    await create_mirror(client, Mirror(unique("M"), Origin(bucket)), force=["origin-not-direct"])


async def test_mirror_of_an_origin_that_was_not_direct_answers_after_an_edit(client, raw, replicas, unique):
    bucket, mirror, filtered = unique(), unique("M"), unique("M")
    origin = raw.create_bucket(bucket, {"k": b"v"}, allow_direct=False)["config"]
    made = replicas.mirror(mirror, bucket)
    replicas.mirror(filtered, bucket, mirror={"filter_subject": f"$KV.{bucket}.a.>"})
    raw.api(f"STREAM.UPDATE.KV_{bucket}", origin | {"allow_direct": True})
    assert await names_of(client, mirror) == {"mirror-not-direct"}
    assert await names_of(client, filtered) == {"filtered-mirror"}  # which had better not answer
    found = await of_replicas(await inventory.survey({"": client.api}))
    findings = {finding.check: finding for finding in found if finding.subject == mirror}
    assert findings["mirror-not-direct"].remedy == f"`kvctl stream edit {mirror} --set mirror_direct=true`"
    seen = await overview.inspect(client.api, bucket)
    assert [item.stream for item in seen.reads.alternates] == [f"KV_{bucket}"]
    assert [hazard.evidence.split("`")[1] for hazard in seen.reads.unable] == [mirror]
    raw.api(f"STREAM.UPDATE.{mirror}", made["config"] | {"mirror_direct": True})
    assert await names_of(client, mirror) == set()
    assert mirror in {item.stream for item in (await overview.inspect(client.api, bucket)).reads.alternates}


async def test_missing_origin(client, raw, replicas, unique):
    absent, mirror = unique(), unique("M")
    assert replicas.mirror(mirror, absent)["did_create"]  # no word of it
    with pytest.raises(BucketNotFound, match=f"Origin `{absent}` does not exist"):
        await create_mirror(client, Mirror(unique("M"), Origin(absent)))
    with pytest.raises(BucketNotFound):
        await create_aggregate(client, Aggregate(unique("A"), (Origin(absent),)))
    raw.create_bucket(bucket := unique())
    with pytest.raises(BucketNotFound, match=f"Origin `{absent}` does not exist") as missing:
        # the stream, not the bucket
        await create_aggregate(client, Aggregate(unique("A"), (Origin(bucket, stream=absent),)))
    assert missing.value.hint.startswith("List streams with `kvctl stream ls`")
    await create_mirror(client, Mirror(unique("M"), Origin(absent)), force=["missing-origin"], wait_for=None)


# -- aggregates --------------------------------------------------------------------------------------------


async def test_outside_prefix(client, raw, replicas, unique):
    bucket, aggregate = unique(), unique("A")
    raw.create_bucket(bucket, {"k": b"v"})
    replicas.aggregate(aggregate, {"name": f"KV_{bucket}"})
    until(lambda: replicas.subjects(f"KV_{aggregate}"))
    assert [key async for key in client.bucket(aggregate).keys()] == []  # it holds the key, and shows none
    assert await names_of(client, f"KV_{aggregate}") == {"outside-prefix"}


async def test_key_collision(client, raw, replicas, unique):
    one, other, aggregate = unique(), unique(), unique("A")
    for bucket in (one, other):
        raw.create_bucket(bucket, {"k": bucket.encode()})
    replicas.aggregate(aggregate, source(one, aggregate), source(other, aggregate))
    until(lambda: replicas.info(f"KV_{aggregate}")["state"]["last_seq"] == 2)
    raw.put(one, "k", b"", {"KV-Operation": "DEL"})
    until(lambda: replicas.info(f"KV_{aggregate}")["state"]["last_seq"] == 3)
    assert [key async for key in client.bucket(aggregate).keys()] == []  # `other` still has it
    assert await names_of(client, f"KV_{aggregate}") == {"key-collision"}

    wanted = Aggregate(unique("A"), (Origin(one), Origin(other)))
    assert "a deletion in one hides the other's" in await refused(create_aggregate(client, wanted))
    apart = Aggregate(unique("A"), (Origin(one, prefix="one"), Origin(other, prefix="other")))
    await create_aggregate(client, apart)


async def test_key_collision_of_stored_keys_under_overlapping_names(client, raw, unique):
    one, other, aggregate = unique(), unique(), unique("A")
    raw.create_bucket(one)
    raw.create_bucket(other)
    raw.put(one, "stock.k", b"1")
    raw.put(one, "else", b"1")
    raw.put(other, "k", b"2")
    wanted = Aggregate(aggregate, (Origin(one), Origin(other, prefix="stock")))
    assert "`stock.k`" in await refused(create_aggregate(client, wanted))
    raw.put(other, "k", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    await create_aggregate(client, Aggregate(aggregate, (Origin(one),)))
    assert "`stock.k`" in await refused(add_aggregate_origin(client, aggregate, Origin(other, prefix="stock")))
    raw.api(f"STREAM.PURGE.KV_{other}")
    plan = await builders.plan_origin(client.api, aggregate, Origin(other, prefix="stock"))
    assert not plan.hazards
    assert "no stored keys do" in plan.warnings[0]


async def test_key_collision_of_keys_that_differ_in_a_dropped_token(client, raw, replicas, unique):
    bucket, aggregate = unique(), unique("A")
    raw.create_bucket(bucket, {"lon.x": b"1", "nyc.x": b"2"})
    replicas.aggregate(aggregate, source(bucket, aggregate, "*.*", "{{wildcard(2)}}"))
    until(lambda: replicas.info(f"KV_{aggregate}")["state"]["last_seq"] == 2)
    assert [key async for key in client.bucket(aggregate).keys()] == ["x"]
    assert await names_of(client, f"KV_{aggregate}") == {"key-collision"}
    wanted = Aggregate(unique("A"), (Origin(bucket, maps=(("*.*", "$2"),)),))
    assert "differ only in token 1" in await refused(create_aggregate(client, wanted))


async def test_duplicate_window(client, raw, replicas, unique):
    one, other, aggregate, sound = unique(), unique(), unique("A"), unique("A")
    for bucket in (one, other):
        raw.create_bucket(bucket)
        raw.put(bucket, "k", b"v", {"Nats-Msg-Id": "import-1"})
    sources = [source(bucket, aggregate, dest=f"{bucket}.>") for bucket in (one, other)]
    replicas.aggregate(aggregate, *sources, duplicate_window=120 * 10**9)
    until(lambda: replicas.subjects(f"KV_{aggregate}"))
    time.sleep(0.5)  # what does not come cannot be waited for
    assert len(replicas.subjects(f"KV_{aggregate}")) == 1
    assert await names_of(client, f"KV_{aggregate}") == {"duplicate-window"}

    await create_aggregate(client, Aggregate(sound, (Origin(one, prefix="one"), Origin(other, prefix="other"))))
    assert len(replicas.subjects(f"KV_{sound}")) == 2


async def test_stream_edit_has_the_hazards_of_creating_an_aggregate(client, raw, replicas, unique):
    one, other, aggregate = unique(), unique(), unique("A")
    for bucket in (one, other):
        raw.create_bucket(bucket)
    await create_aggregate(client, Aggregate(aggregate, (Origin(one, prefix="one"),)))
    info = replicas.info(f"KV_{aggregate}")

    async def named(stream: dict[str, Any], **changes: Any) -> set[str]:
        found = await hazards_of(client.api, stream, {**stream["config"], **changes}, lossy_edit.STREAM)
        return {hazard.name for hazard in found}

    assert await named(info, duplicate_window=120 * 10**9) == {"duplicate-window"}
    assert await named(info, description="x") == set()
    both = [source(one, aggregate), source(other, aggregate)]
    assert await named(info, sources=both) == {"key-collision"}
    assert await named(info, sources=[{"name": f"KV_{one}"}]) == {"outside-prefix"}
    plain = replicas.info(f"KV_{one}")
    assert await named(plain, duplicate_window=10**9) == set()
    assert await named(plain, sources=[source(other, one)]) == {"duplicate-window"}


async def test_smaller_limits(client, raw, replicas, unique):
    bucket, aggregate = unique(), unique("A")
    raw.create_bucket(bucket, {"large": b"v" * 1000, "small": b"v"})
    replicas.aggregate(aggregate, source(bucket, aggregate), max_msg_size=500)
    until(lambda: replicas.info(f"KV_{aggregate}")["sources"][0]["active"] >= 0)
    time.sleep(0.5)  # what does not come cannot be waited for
    live = replicas.info(f"KV_{aggregate}")["sources"][0]
    assert (replicas.subjects(f"KV_{aggregate}"), live.get("error")) == ({}, None)  # stuck, in silence
    assert await names_of(client, f"KV_{aggregate}") == {"smaller-limits"}

    by_value = Aggregate(unique("A"), (Origin(bucket),), max_value_size=500)
    by_size = Aggregate(unique("A"), (Origin(bucket),), max_bytes=500)
    for wanted in (by_value, by_size):
        assert "smaller-limits" in await refused(create_aggregate(client, wanted))
    assert "smaller-limits" in await refused(create_mirror(client, Mirror(unique("M"), Origin(bucket), max_bytes=500)))


KB = 1000
UNLIMITED, FULL, MORE, PLENTY = Origin("O"), 100 * KB, 110 * KB, 10**6


@pytest.mark.parametrize(
    ("limits", "replica", "refused", "warned"),
    [
        ({}, Mirror("M", UNLIMITED, max_bytes=KB), True, False),
        ({}, Aggregate("G", (UNLIMITED,), max_bytes=KB), True, False),
        ({}, Aggregate("G", (UNLIMITED,), max_value_size=PLENTY), True, False),
        ({"max_bytes": FULL}, Mirror("M", UNLIMITED, max_bytes=FULL), False, False),
        ({"max_bytes": FULL}, Mirror("M", UNLIMITED, max_bytes=FULL - 1), True, False),
        ({"max_bytes": FULL}, Mirror("M", UNLIMITED, max_bytes=FULL, history=2), False, True),
        ({"max_bytes": FULL, "storage": "memory"}, Mirror("M", UNLIMITED, max_bytes=FULL), True, False),
        ({"max_bytes": FULL}, Aggregate("G", (UNLIMITED,), max_bytes=FULL), True, False),
        ({"max_bytes": FULL}, Aggregate("G", (UNLIMITED,), max_bytes=MORE), False, True),
        ({"max_bytes": FULL}, Aggregate("G", (UNLIMITED,), max_bytes=PLENTY), False, False),
        ({"max_bytes": FULL}, Aggregate("G", (UNLIMITED,), max_bytes=PLENTY, writable=True), False, True),
        ({"max_bytes": FULL}, Aggregate("G", (UNLIMITED,)), False, False),
        ({"max_value_size": KB}, Aggregate("G", (UNLIMITED,), max_value_size=KB), True, False),
        ({"max_value_size": KB}, Aggregate("G", (UNLIMITED,), max_value_size=KB + 200), False, True),
        ({"max_value_size": KB}, Aggregate("G", (UNLIMITED,), max_value_size=3 * KB), False, False),
        ({"discard": "old", "max_bytes": KB}, Mirror("M", UNLIMITED, max_bytes=PLENTY), True, False),
        ({"max_msgs": 10, "max_bytes": KB}, Mirror("M", UNLIMITED), False, False),
    ],
    ids=str,
)
def test_replica_needs_room_for_what_its_origin_may_hold(limits, replica, refused, warned):
    origin = BucketConfig("O").to_stream()
    names = {"max_value_size": "max_msg_size"}
    origin |= {names.get(name, name): value for name, value in limits.items()}
    config = replica.to_stream([origin] if isinstance(replica, Aggregate) else origin)
    found = [item.name for item in hazards.of_replica(config, [origin])]
    assert (found, bool(hazards.possible(config, [origin]))) == (["smaller-limits"] if refused else [], warned)


def test_room_for_a_replica_without_a_limit_is_unknown():
    between = Mirror("M", UNLIMITED).to_stream(BucketConfig("O", max_bytes=FULL).to_stream())
    config = Mirror("N", Origin("O", stream="M"), max_bytes=KB).to_stream(between)
    assert hazards.of_replica(config, [between]) == []
    assert "may be too small" in hazards.possible(config, [between])[0]


async def test_added_origin_counts_with_those_that_an_aggregate_has(client, unique):
    one, other, aggregate = unique(), unique(), unique("A")
    for name in (one, other):
        await client.create_bucket(name, max_bytes=FULL)
    limited = Aggregate(aggregate, (Origin(one, prefix="one"),), max_bytes=5 * FULL)
    await create_aggregate(client, limited)
    assert (await builders.plan_origin(client.api, aggregate, Origin(other, prefix="other"))).warnings


@pytest.mark.parametrize(("kept", "name"), [(1, "shorter-history"), (5, "longer-history")])
async def test_history_of_keys_that_expire_one_by_one(client, raw, replicas, unique, kept, name):
    bucket, aggregate = unique(), unique("A")
    raw.create_bucket(bucket, allow_msg_ttl=True, max_msgs_per_subject=2)
    replicas.aggregate(aggregate, source(bucket, aggregate), allow_msg_ttl=True, max_msgs_per_subject=kept)
    for value, ttl in ((b"1", None), (b"2", None), (b"3", {"Nats-TTL": "1s"}), (b"4", {"Nats-TTL": "1s"})):
        wanted = raw.put(bucket, "k", value, ttl)
        until(lambda wanted=wanted: replicas.info(f"KV_{aggregate}")["sources"][0].get("seq", 0) >= wanted)
        if value == b"3" and kept == 1:
            break
    left = {b"2"} if kept == 1 else {b""}
    until(lambda: {raw.request(f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.k").data} == left)
    theirs = b"" if kept == 1 else b"2"
    until(lambda: raw.request(f"$JS.API.DIRECT.GET.KV_{aggregate}.$KV.{aggregate}.k").data == theirs)
    assert await names_of(client, f"KV_{aggregate}") == {name}
    assert name in await refused(create_aggregate(client, Aggregate(unique("A"), (Origin(bucket),), history=kept)))
    await create_aggregate(client, Aggregate(unique("A"), (Origin(bucket),)))


# -- both --------------------------------------------------------------------------------------------------


async def test_cycle_across_domains(leaf, unique):
    here, there = unique("X"), unique("Y")
    with RawClient(leaf.contexts["hub"].url) as hub, RawClient(leaf.contexts["leaf"].url) as edge:
        to_leaf = {"external": {"api": "$JS.leaf.API"}}
        to_hub = {"external": {"api": "$JS.hub.API"}}
        for raw, name, other, way in ((hub, here, there, to_leaf), (edge, there, here, to_hub)):
            raw.create_bucket(name, sources=[source(other, name, **way)], duplicate_window=0)
        until(lambda: edge.api(f"STREAM.INFO.KV_{there}")["sources"][0]["active"] >= 0)
        until(lambda: hub.api(f"STREAM.INFO.KV_{here}")["sources"][0]["active"] >= 0)
        hub.put(here, "k", b"v")
        until(lambda: hub.api(f"STREAM.INFO.KV_{here}")["state"]["last_seq"] > 100)  # one put
        hub.api(f"STREAM.DELETE.KV_{here}")
        edge.api(f"STREAM.DELETE.KV_{there}")

    async with kvctl.connect(leaf.contexts["hub"]) as hub_client, kvctl.connect(leaf.contexts["leaf"]) as leaf_client:
        await hub_client.create_bucket(unique())
        base = await leaf_client.create_bucket(unique())
        await create_aggregate(leaf_client, Aggregate(there, (Origin(base.name),)))
        reading = Origin(there, external=External.of_domain("leaf"))
        await create_aggregate(hub_client, Aggregate(here, (reading,)))
        back = Origin(here, prefix="back", external=External.of_domain("hub"))
        text = await refused(add_aggregate_origin(leaf_client, there, back))
        assert f"`{there}` in domain `leaf` <- `{here}` in domain `hub` <- `{there}` in domain `leaf`" in text


async def test_cycle_in_one_account(client, unique):
    bucket, one, other = await client.create_bucket(unique()), unique("A"), unique("A")
    await create_aggregate(client, Aggregate(one, (Origin(bucket.name),)))
    await create_aggregate(client, Aggregate(other, (Origin(one),)))
    text = await refused(add_aggregate_origin(client, one, Origin(other, prefix="back")))
    assert f"`{one}` <- `{other}` <- `{one}`" in text


async def test_unconnected(leaf, unique):
    mirror = unique("M")
    with RawClient(leaf.contexts["leaf"].url) as raw:
        made = Replicas(raw).mirror(mirror, "ORDERS", mirror={"external": {"api": "$JS.nowhere.API"}})
        time.sleep(0.5)
        live = raw.api(f"STREAM.INFO.{mirror}")["mirror"]
        assert made["did_create"]
        assert (live["lag"], live["active"], live.get("error")) == (0, -1, None)  # all is well, by that
    async with kvctl.connect(leaf.contexts["leaf"]) as client:
        nowhere = Origin("ORDERS", external=External.of_domain("nowhere"))
        assert "Nothing answers in domain `nowhere`" in await refused(
            create_mirror(client, Mirror(mirror + "2", nowhere))
        )
        with pytest.raises(WaitExpired, match="never connected"):
            await create_mirror(client, Mirror(mirror + "2", nowhere), force=["unconnected"], wait_for=SECOND)


async def test_refusal_names_all_hazards(client, raw, unique):
    bucket = unique()
    raw.create_bucket(bucket, max_msgs_per_subject=5)
    wanted = Mirror(unique("M"), Origin(bucket, keys=("a.>",)), history=1, ttl=SECOND)
    text = await refused(create_mirror(client, wanted))
    assert "force=['filtered-mirror', 'shorter-ttl', 'shorter-history']" in text
    text = await refused(create_mirror(client, wanted, force=["shorter-ttl", "filtered-mirror"]))
    assert "force=['shorter-history']" in text
