"""Health of replicas on real servers: a lag of 0 proves nothing; lineage of a mirror, from two infos."""

import time
from typing import Any

import pytest

import kvctl
from kvctl.doctor.examination import of_standing
from kvctl.jetstream import streams
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.health import health, overview
from kvctl.topology.health.health import Health, ReplicaHealth
from kvctl.topology.health.inspection import Lineage, lineage
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from kvctl.topology.survey.graph import Inventory, upstreams
from kvctl.topology.survey.inventory import survey
from tests.support.waiting import until, until_async
from tests.topology.conftest import source

QUICK = 0.2


async def look(client: kvctl.Client, *names: str) -> dict[str, ReplicaHealth]:
    """Return the health of the named replicas of one origin; others on the server are left out."""
    inventory = await survey({"": client.api})
    links = [link for link in inventory.links if link.info["config"]["name"].removeprefix("KV_") in names]
    return {item.link.node.name: item for item in await health.check_health(inventory.only(links), QUICK)}


async def test_replica_with_the_last_entry_is_ok(client, raw, replicas, unique):
    origin, mirror, some, none = unique("O"), unique("M"), unique("A"), unique("A")
    raw.create_bucket(origin)
    for key in ("a.1", "a.2", "b.1"):
        last = raw.put(origin, key, b"v")
    await create_mirror(client, Mirror(mirror, Origin(origin)))
    await create_aggregate(client, Aggregate(some, (Origin(origin, keys=("a.>",)),)))
    await create_aggregate(client, Aggregate(none, (Origin(origin, keys=("c.>",)),)))
    found = await look(client, mirror, some, none)
    assert {name: item.state for name, item in found.items()} == dict.fromkeys((mirror, some, none), Health.OK)
    assert (found[mirror].arrived, found[mirror].origin_last) == (last, last)


async def test_replica_is_ok_after_last_entries_of_origin_were_erased(client, raw, replicas, unique):
    origin, mirror = unique("O"), unique("M")
    raw.create_bucket(origin, dict.fromkeys(("a", "b", "c"), b"v"))
    raw.api(f"STREAM.PURGE.KV_{origin}", {"filter": f"$KV.{origin}.c"})
    replicas.mirror(mirror, origin)
    until(lambda: replicas.info(mirror)["state"]["messages"] == 2)
    assert (await look(client, mirror))[mirror].state is Health.OK


async def test_replica_that_refuses_an_entry_is_stalled(client, raw, replicas, unique):
    origin, aggregate = unique("O"), unique("A")
    raw.create_bucket(origin, {"small": b"v"})
    replicas.aggregate(aggregate, source(origin, aggregate), max_msg_size=300)
    until(lambda: replicas.info(f"KV_{aggregate}")["state"]["messages"])
    last = raw.put(origin, "large", b"v" * 500)
    found = (await look(client, aggregate))[aggregate]
    text, _, limit = found.evidence.partition(": ")
    assert (found.state, text) == (Health.STALLED, f"at revision {last - 1} of {last}, and nothing arrives")
    assert limit.startswith("the next entry takes at least 5")
    assert limit.endswith(" bytes here, above max-value-size 300 B")


async def test_end_of_a_chain_is_not_better_than_what_it_replicates_from(client, raw, replicas, unique):
    """It holds all of its own origin, which holds less than the source above it."""
    origin, stuck, near, far = unique("O"), unique("A"), unique("M"), unique("M")
    raw.create_bucket(origin, {"small": b"v"})
    replicas.aggregate(stuck, source(origin, stuck), max_msg_size=300)
    replicas.mirror(near, stuck)
    raw.api(f"STREAM.CREATE.{far}", {"name": far, "mirror": {"name": near}, "mirror_direct": True})
    until(lambda: replicas.info(far)["state"]["messages"])
    assert {item.state for item in (await look(client, near, far)).values()} == {Health.OK}
    raw.put(origin, "large", b"v" * 500)
    found = await look(client, far)
    assert [item.state for item in found.values()] == [Health.UNCONFIRMED], "also if the others are not asked for"
    assert found[far].evidence == f"its origin `{near}` replicates from `{stuck}`, which has the state `stalled`"
    (finding,) = of_standing(found[far])
    assert (finding.check, finding.evidence[:1]) == ("unconfirmed", "I")
    seen = (await overview.inspect(client.api, near)).health_of(near)
    assert (seen.state, seen.evidence) == (Health.UNCONFIRMED, f"its origin `{stuck}` has the state `stalled`")
    served = (await overview.readers_of(client.api, far)).alternates
    assert {(item.stream, item.state) for item in served} == {(near, Health.UNCONFIRMED), (far, Health.UNCONFIRMED)}
    raw.api(f"STREAM.DELETE.{far}")


async def test_end_of_a_chain_through_another_domain_is_not_better_either(leaf, unique):
    near, far = unique("M"), unique("M")
    async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["leaf"]) as edge:
        for api, config in (
            (edge.api, {"name": near, "mirror": {"name": "KV_NEVER_THERE"}}),
            (hub.api, {"name": far, "mirror": {"name": near, "external": {"api": "$JS.leaf.API"}}}),
        ):
            await streams.create(api, config)

        async def connected() -> bool:
            return not upstreams(await streams.info(hub.api, far))[0].silent

        await until_async(connected)
        found = (await look(hub, far))[far]
        assert (found.state, found.evidence) == (
            Health.UNCONFIRMED,
            f"its origin `{near}` receives nothing from `NEVER_THERE`",
        )
        for api, name in ((hub.api, far), (edge.api, near)):
            await streams.delete(api, name)


async def test_replica_that_catches_up_between_looks_is_ok(client, raw, replicas, unique):
    origin, aggregate = unique("O"), unique("A")
    raw.create_bucket(origin, {"small": b"v"})
    config = replicas.aggregate(aggregate, source(origin, aggregate), max_msg_size=300)["config"]
    until(lambda: replicas.info(f"KV_{aggregate}")["state"]["messages"])
    raw.put(origin, "large", b"v" * 500)
    inventory = await survey({"": client.api})
    links = tuple(link for link in inventory.links if link.info["config"]["name"] == f"KV_{aggregate}")
    raw.api(f"STREAM.UPDATE.KV_{aggregate}", {**config, "max_msg_size": -1})
    until(lambda: replicas.info(f"KV_{aggregate}")["state"]["messages"] == 2)
    assert [item.state for item in await health.check_health(Inventory(inventory.places, links), 0)] == [Health.OK]


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"max_bytes": 300}, ": it is full, with "),
        ({"max_msg_size": 150}, ": the next entry takes "),
        ({"max_msgs": 2}, ": it is full, with max_msgs 2"),
        ({}, None),
    ],
)
@pytest.mark.parametrize("kind", ["mirror", "aggregate"])
async def test_limit_that_stops_a_replica_is_named(client, raw, replicas, unique, kind, limit, reason):
    origin, replica = unique("O"), unique("R")
    raw.create_bucket(origin)
    if kind == "mirror":
        replicas.mirror(replica, origin, **limit)
    else:
        replicas.aggregate(replica, source(origin, replica), **limit)
    stream = replica if kind == "mirror" else f"KV_{replica}"
    for number in range(5):
        raw.put(origin, f"k{number}", b"v" * (1 if number < 3 else 200))
    time.sleep(0.5)  # what does not come cannot be waited for
    inventory = await survey({"": client.api})
    links = [link for link in inventory.links if link.reader == stream]
    (found,) = await health.check_health(inventory.only(links), 0.5)
    if reason is None:
        assert found.state is Health.OK
    else:
        assert found.state is Health.STALLED
        assert reason in found.evidence
        (finding,) = of_standing(found)
        assert ("none` removes the limit" in finding.remedy) == ("max_msgs" not in limit)


async def test_missing_and_unconnected_origins_are_distinguished(client, raw, replicas, unique):
    lost, far = unique("M"), unique("M")
    replicas.mirror(lost, "NEVER_THERE")
    replicas.mirror(far, "X", mirror={"external": {"api": "$JS.nowhere.API"}})
    found = await look(client, lost, far)
    assert (found[lost].state, found[lost].evidence) == (Health.MISSING_ORIGIN, "`NEVER_THERE` does not exist")
    assert found[far].state is Health.NEVER_CONNECTED
    raw.api(f"STREAM.DELETE.{far}")  # every look at the server would wait for its domain


async def test_mirror_of_earlier_stream_instance_has_recreated_origin(client, raw, replicas, unique):
    origin, mirror = unique("O"), unique("M")
    raw.create_bucket(origin, {"a": b"old", "b": b"old"})
    replicas.mirror(mirror, origin)
    until(lambda: replicas.info(mirror)["state"]["messages"] == 2)
    raw.api(f"STREAM.DELETE.KV_{origin}")
    raw.create_bucket(origin, {"a": b"new"})
    found = (await look(client, mirror))[mirror]
    assert found.link.upstream.lag == 0
    assert found.state is Health.RECREATED_ORIGIN
    assert f"`{mirror}` is at revision 2" in found.evidence


async def test_replica_of_origin_out_of_view_is_unconfirmed(leaf, unique):
    origin, mirror = unique("O"), unique("M")
    async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["leaf"]) as edge:
        await (await hub.create_bucket(origin)).put("k", b"v")
        await create_mirror(edge, Mirror(mirror, Origin(origin, external=External.of_domain("hub"))))
        inventory = await survey({"": edge.api})
        (link,) = (link for link in inventory.links if link.info["config"]["name"] == mirror)
        seen, unseen = await health.check_health(Inventory(inventory.places, (link, link._replace(origin=None))))
        assert (seen.state, unseen.state) == (Health.OK, Health.UNCONFIRMED)
        await edge.delete_bucket(mirror)


async def test_origin_whose_servers_are_silent_is_offline(client, unique):
    origin, mirror = unique("O"), unique("M")
    await client.create_bucket(origin)
    await create_mirror(client, Mirror(mirror, Origin(origin)))
    inventory = await survey({"": client.api})
    (link,) = (link for link in inventory.links if link.info["config"]["name"] == mirror)
    place = link.place._replace(unreachable=(f"KV_{origin}",))
    (found,) = await health.check_health(Inventory({"": place}, (link._replace(place=place, origin=None),)))
    assert (found.state, found.evidence) == (Health.OFFLINE_ORIGIN, f"the servers of `{origin}` do not answer")


async def test_silent_replica_has_no_lag_and_says_for_how_long(client, unique):
    """Servers go on to report the lag of the last message that came, mostly 0."""
    origin, mirror = unique("O"), unique("M")
    await client.create_bucket(origin)
    await create_mirror(client, Mirror(mirror, Origin(origin)))
    inventory = await survey({"": client.api})
    (link,) = (link for link in inventory.links if link.info["config"]["name"] == mirror)
    state = link.info["mirror"] | {"active": 125 * 10**9, "lag": 0}
    link = link._replace(info={**link.info, "mirror": state})
    (found,) = await health.check_health(Inventory(inventory.places, (link,)))
    assert (found.state, found.evidence) == (Health.SILENT, "no message from the origin for 2m5s")
    assert (found.lag, round(found.last_seen or 0)) == (None, 125)


EARLY, MADE, LATER, LATEST = (f"2026-01-01T00:00:0{number}Z" for number in range(1, 5))


def info(name: str, created: str, first: int, last: int, first_ts: str, **config: Any) -> dict[str, Any]:
    count = last - first + 1
    state = {"first_seq": first, "last_seq": last, "messages": count, "first_ts": first_ts}
    return {"config": {"name": name, **config}, "created": created, "state": state}


def mirror(first: int, last: int, first_ts: str, **mirror: Any) -> dict[str, Any]:
    return info("M", MADE, first, last, first_ts, mirror={"name": "KV_B", **mirror})


def origin(created: str, first: int, last: int, first_ts: str) -> dict[str, Any]:
    return info("KV_B", created, first, last, first_ts)


@pytest.mark.parametrize(
    ("there", "here", "evidence"),
    [
        (origin(LATER, 1, 3, LATER), mirror(1, 5, EARLY), "`M` is at revision 5, but `B` only at 3"),
        (origin(LATER, 1, 9, LATER), mirror(1, 9, EARLY), "`M` holds entries of 2026-01-01T00:00:01"),
        (origin(LATER, 1, 9, LATER), mirror(6, 9, LATEST), "`M` begins at revision 6, but `B` at 1"),
        (origin(EARLY, 1, 3, EARLY), mirror(1, 5, EARLY), "recreated or restored"),
    ],
    ids=["ahead", "older entries", "first entries missed", "rolled back"],
)
def test_recreated_origin_is_recognised(there, here, evidence):
    found = lineage(here, there)
    assert found.same is False
    assert evidence in found.evidence
    assert [hazard.name for hazard in found.hazards()] == ["recreated-origin"]


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (origin(EARLY, 1, 9, EARLY), mirror(3, 7, EARLY)),
        (origin(LATER, 1, 9, LATEST), mirror(1, 0, "0001-01-01T00:00:00Z")),
        (origin(LATER, 1, 9, LATEST), mirror(1, 9, LATEST)),
        (origin(LATER, 1, 9, LATEST), mirror(6, 9, LATEST, filter_subject="$KV.B.a")),
    ],
    ids=["behind", "made before its origin", "made before, and filled", "some keys alone"],
)
def test_mirror_of_current_instance_is_not_stale(there, here):
    assert lineage(here, there) == Lineage(True)


def test_mirror_of_restored_origin_is_undecided():
    found = lineage(mirror(1, 9, EARLY), origin(LATER, 1, 9, EARLY))
    assert (found.same, found.hazards()) == (None, [])
    assert "may hold old values" in found.evidence
