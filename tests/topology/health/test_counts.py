"""Comparison by count: replicas that are up to date with their origins but hold fewer or more entries."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import kvctl
from kvctl.doctor.examination import of_standing
from kvctl.errors import KeyNotFound
from kvctl.topology.health import counts, overview
from kvctl.topology.health.counts import SourceCounts, lacking, late_start, surplus
from kvctl.topology.health.health import Health, check_health
from kvctl.topology.survey.graph import Inventory
from kvctl.topology.survey.inventory import survey
from tests.support.waiting import until
from tests.topology.conftest import source

KEYS = 12


def info(name: str, messages: int, keys: int, *, first: int = 1, **config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "max_msgs_per_subject": 1, **config}
    if name.startswith("KV_") and "sources" not in found:
        found["subjects"] = [f"$KV.{name[3:]}.>"]
    state = {"messages": messages, "num_subjects": keys, "first_seq": first, "first_ts": "2026-01-01T00:00:00Z"}
    return {"config": found, "state": state}


MIRROR: dict[str, Any] = {"mirror": {"name": "KV_O"}}


def of(origin: dict[str, Any], **settings: Any) -> list[SourceCounts]:
    return [SourceCounts(0, {"name": origin["config"]["name"]}, origin, **settings)]


class TestOfAMirror:
    def test_mirror_lacks_entries_of_its_origin(self):
        assert lacking(info("M", 3, 3, **MIRROR), of(info("KV_O", 3, 3))) is None
        text = lacking(info("M", 2, 2, **MIRROR), of(info("KV_O", 3, 3)))
        assert text == (True, "`M` holds 2 entries of 2 keys, but `O` 3 entries of 3 keys")

    def test_mirror_with_pending_entries_lacks_nothing(self):
        assert lacking(info("M", 2, 2, **MIRROR), of(info("KV_O", 3, 3), pending=1)) is None
        assert lacking(info("M", 1, 1, **MIRROR), of(info("KV_O", 3, 3), pending=1))

    def test_mirror_with_shorter_history_is_compared_by_keys(self):
        origin = info("KV_O", 9, 3, max_msgs_per_subject=5)
        assert lacking(info("M", 3, 3, **MIRROR), of(origin)) is None
        assert lacking(info("M", 2, 2, **MIRROR), of(origin))

    def test_only_revisions_differ_where_the_keys_agree_in_number(self):
        origin = info("KV_O", 4, 2, max_msgs_per_subject=5)
        doubt = lacking(info("M", 3, 2, **MIRROR | {"max_msgs_per_subject": 5}), of(origin))
        assert doubt is not None
        assert not doubt.missing
        assert doubt.evidence.endswith("the keys agree in number, and revisions of them differ")
        assert lacking(info("M", 3, 1, **MIRROR | {"max_msgs_per_subject": 5}), of(origin)).missing

    def test_mirror_with_surplus_is_reported(self):
        assert surplus(info("M", 4, 4, **MIRROR), of(info("KV_O", 3, 3))) != ""
        longer = info("M", 4, 3, **MIRROR | {"max_msgs_per_subject": 5})
        assert surplus(longer, of(info("KV_O", 3, 3))) == ""

    def test_surplus_may_be_of_an_earlier_bucket_if_the_origin_is_younger(self):
        early, late = ({"created": f"2026-01-0{day}T00:00:00Z"} for day in (1, 2))
        replica, origin = info("M", 4, 4, **MIRROR), info("KV_O", 3, 3)
        assert "earlier" not in surplus(replica | late, of(origin | early))
        text = surplus(replica | early, of(origin | late))
        assert text.endswith("markers compacted there, keys whose deletion did not arrive or keys of an earlier `O`")

    def test_filtered_mirror_is_not_counted(self):
        filtered = info("M", 1, 1, mirror={"name": "KV_O", "filter_subject": "$KV.O.a"})
        assert lacking(filtered, [SourceCounts(0, filtered["config"]["mirror"], info("KV_O", 3, 3))]) is None


class TestOfAnAggregate:
    def readings(self, *counts: int) -> tuple[list[dict[str, Any]], list[SourceCounts]]:
        names = "BCD"[: len(counts)]
        sources = [source(name, "A", dest=f"{name.lower()}.>") for name in names]
        origins = [info(f"KV_{name}", number, number) for name, number in zip(names, counts, strict=True)]
        return sources, [SourceCounts(at, *pair) for at, pair in enumerate(zip(sources, origins, strict=True))]

    def test_aggregate_holds_at_least_the_sum_of_its_origins(self):
        sources, readings = self.readings(3, 4)
        assert lacking(info("KV_A", 7, 7, sources=sources), readings) is None
        assert lacking(info("KV_A", 6, 6, sources=sources), readings)

    def test_aggregate_of_colliding_origins_is_not_counted(self):
        sources = [source("B", "A"), source("C", "A")]
        readings = [SourceCounts(at, one, info(one["name"], 3, 3)) for at, one in enumerate(sources)]
        assert lacking(info("KV_A", 3, 3, sources=sources), readings) is None

    def test_writable_aggregate_may_hold_more(self):
        sources, readings = self.readings(3)
        assert surplus(info("KV_A", 4, 4, sources=sources), readings) != ""
        assert surplus(info("KV_A", 4, 4, sources=sources, subjects=["$KV.A.>"]), readings) == ""


@pytest.mark.parametrize(
    ("start", "late"),
    [
        ({"opt_start_seq": 1}, False),
        ({"opt_start_seq": 5}, False),
        ({"opt_start_seq": 6}, True),
        ({"opt_start_time": "2025-12-31T00:00:00Z"}, False),
        ({"opt_start_time": "2026-01-02T00:00:00Z"}, True),
        ({}, False),
    ],
)
def test_source_with_late_start_is_described(start, late):
    reading = SourceCounts(0, {"name": "KV_O", **start}, info("KV_O", 3, 3, first=5))
    assert bool(late_start(reading)) == late


# -- on servers ----------------------------------------------------------------------------------------------


@pytest.fixture
def filled(raw, replicas, unique):
    """Two buckets, a mirror of the first, and an aggregate of both."""
    first, second, mirror, aggregate = unique(), unique(), unique("M"), unique("A")
    for bucket in (first, second):
        raw.create_bucket(bucket, {f"k{number}": b"v" for number in range(KEYS)})
    replicas.mirror(mirror, first)
    replicas.aggregate(aggregate, source(first, aggregate, dest="a.>"), source(second, aggregate, dest="b.>"))
    until(lambda: len(replicas.subjects(mirror)) == KEYS and len(replicas.subjects(f"KV_{aggregate}")) == 2 * KEYS)
    return first, second, mirror, aggregate


async def survey_of(client: kvctl.Client, *streams: str) -> Inventory:
    inventory = await survey({"": client.api})
    return inventory.only(link for link in inventory.links if link.info["config"]["name"] in streams)


async def states(client: kvctl.Client, *streams: str) -> dict[str, set[Health]]:
    found: dict[str, set[Health]] = {}
    for standing in await check_health(await survey_of(client, *streams), second_look=0.3):
        found.setdefault(standing.link.info["config"]["name"], set()).add(standing.state)
        severities = [str(finding.severity) for finding in of_standing(standing)]
        expected = {Health.OK: [], Health.UNCONFIRMED: ["note"]}.get(standing.state, ["error"])
        assert severities == expected, standing
    return found


async def test_healthy_replicas_are_ok(client, filled):
    _, _, mirror, aggregate = filled
    found = await states(client, mirror, f"KV_{aggregate}")
    assert found == {mirror: {Health.OK}, f"KV_{aggregate}": {Health.OK}}


async def test_healthy_replicas_are_ok_during_writes(client, filled):
    first, second, mirror, aggregate = filled
    done = False

    async def write(name: str) -> None:
        bucket, number = client.bucket(name), 0
        while not done:
            number += 1
            with suppress(KeyNotFound):
                await (bucket.delete if number % 3 == 0 else bucket.purge)(f"k{number % 50}")
            await bucket.put(f"k{number % 40}", b"v")

    writing = [asyncio.create_task(write(name)) for name in (first, second)]
    for _ in range(10):
        found = await states(client, mirror, f"KV_{aggregate}")
        assert set().union(*found.values()) <= {Health.OK, Health.BEHIND}
    done = True
    await asyncio.gather(*writing)


@pytest.mark.parametrize("purge", [{}, {"filter": "one"}, {"seq": 5}])
async def test_purged_replicas_have_missing_entries(client, raw, filled, purge):
    first, _, mirror, aggregate = filled
    for stream, subject in ((mirror, f"$KV.{first}.k3"), (f"KV_{aggregate}", f"$KV.{aggregate}.a.k3")):
        request = {"filter": subject} if "filter" in purge else purge
        assert "error" not in raw.api(f"STREAM.PURGE.{stream}", request or None)
    found = await states(client, mirror, f"KV_{aggregate}")
    assert found == {mirror: {Health.MISSING_ENTRIES}, f"KV_{aggregate}": {Health.MISSING_ENTRIES}}


async def test_overview_shows_entries_that_replicas_lack(client, raw, filled):
    first, second, mirror, aggregate = filled
    assert [(await overview.inspect(client.api, name)).doubts for name in filled] == [[], [], [], []]
    for stream in (mirror, f"KV_{aggregate}"):
        raw.api(f"STREAM.PURGE.{stream}", {"seq": 5})
    doubts = {name: (await overview.inspect(client.api, name)).doubts for name in filled}
    assert {name: len(found) for name, found in doubts.items()} == {first: 2, second: 1, mirror: 1, aggregate: 1}
    assert f"`{mirror}` holds 8 entries of 8 keys, but `{first}` 12 entries of 12 keys" in doubts[first]


async def test_emptied_filtered_aggregate_has_missing_entries(client, raw, replicas, unique):
    bucket, aggregate = unique(), unique("A")
    raw.create_bucket(bucket, dict.fromkeys(("a.1", "b.1"), b"v"))
    replicas.aggregate(aggregate, source(bucket, aggregate, "a.*", "a.{{wildcard(1)}}"))
    until(lambda: replicas.subjects(f"KV_{aggregate}"))
    assert await states(client, f"KV_{aggregate}") == {f"KV_{aggregate}": {Health.OK}}
    raw.api(f"STREAM.PURGE.KV_{aggregate}")
    assert await states(client, f"KV_{aggregate}") == {f"KV_{aggregate}": {Health.MISSING_ENTRIES}}


@pytest.mark.parametrize("names", [10_000, 0])
async def test_filtered_mirror_that_lacks_keys_has_missing_entries(client, raw, replicas, unique, monkeypatch, names):
    monkeypatch.setattr(counts, "MOST_NAMES", names)
    bucket, mirror = unique(), unique("M")
    raw.create_bucket(bucket, dict.fromkeys(("a.1", "a.2", "b.1"), b"v"), allow_direct=False)
    replicas.mirror(mirror, bucket, mirror={"filter_subject": f"$KV.{bucket}.a.>"})
    until(lambda: len(replicas.subjects(mirror)) == 2)
    assert await states(client, mirror) == {mirror: {Health.OK}}
    raw.api(f"STREAM.PURGE.{mirror}", {"filter": f"$KV.{bucket}.a.1"})
    assert await states(client, mirror) == {mirror: {Health.MISSING_ENTRIES}}
    raw.put(bucket, "b.2", b"v")
    raw.put(bucket, "a.1", b"again")
    until(lambda: len(replicas.subjects(mirror)) == 2)
    assert await states(client, mirror) == {mirror: {Health.OK}}


@pytest.mark.parametrize("names", [10_000, 0])
async def test_each_part_of_an_aggregate_is_counted(client, raw, replicas, unique, monkeypatch, names):
    monkeypatch.setattr(counts, "MOST_NAMES", names)
    one, other, stock, aggregate = unique(), unique(), unique(), unique("A")
    for bucket in (one, other, stock):
        raw.create_bucket(bucket, dict.fromkeys(("NEW.1", "NEW.2", "OLD.1"), b"v"))
    sources = [source(bucket, aggregate, "NEW.>", f"{bucket}.>") for bucket in (one, other)]
    replicas.aggregate(aggregate, *sources, source(stock, aggregate, dest="stock.>"))
    stream = f"KV_{aggregate}"
    until(lambda: len(replicas.subjects(stream)) == 7)
    assert await states(client, stream) == {stream: {Health.OK}}
    for subject, bucket in (("stock.>", stock), (f"{one}.1", one)):
        assert "error" not in raw.api(f"STREAM.PURGE.{stream}", {"filter": f"$KV.{aggregate}.{subject}"})
        found = {item.link.origin_node.name: item for item in await check_health(await survey_of(client, stream), 0.1)}
        assert {name for name, item in found.items() if item.state is Health.MISSING_ENTRIES} >= {bucket}
        assert found[other].state is Health.OK
    assert found[stock].evidence == f"`{aggregate}` holds 0 of 3 keys of `{stock}`"


async def test_part_that_shares_places_is_compared_by_name(client, raw, replicas, unique, monkeypatch):
    one, other, aggregate = unique(), unique(), unique("A")
    raw.create_bucket(one, dict.fromkeys(("a", "b"), b"v"))
    raw.create_bucket(other, dict.fromkeys(("c", "d"), b"v"))
    replicas.aggregate(aggregate, source(one, aggregate), source(other, aggregate, dest="p.>"))
    stream = f"KV_{aggregate}"
    until(lambda: len(replicas.subjects(stream)) == 4)
    assert await states(client, stream) == {stream: {Health.OK}}
    raw.api(f"STREAM.PURGE.{stream}", {"filter": f"$KV.{aggregate}.p.>"})
    assert await states(client, stream) == {stream: {Health.OK, Health.MISSING_ENTRIES}}
    monkeypatch.setattr(counts, "MOST_NAMES", 0)
    assert await states(client, stream) == {stream: {Health.UNCONFIRMED}}


async def test_replica_of_silently_purged_origin_is_unconfirmed(client, raw, filled):
    first, _, mirror, aggregate = filled
    raw.api(f"STREAM.PURGE.KV_{first}")
    found = await states(client, mirror, f"KV_{aggregate}")
    assert found == {mirror: {Health.UNCONFIRMED}, f"KV_{aggregate}": {Health.UNCONFIRMED}}


async def test_rollup_of_all_from_one_origin_removes_keys_of_others(client, raw, replicas, filled):
    first, _, _, aggregate = filled
    raw.put(first, "k0", b"only", {"Nats-Rollup": "all"})
    until(lambda: len(replicas.subjects(f"KV_{aggregate}")) == 1)
    assert Health.MISSING_ENTRIES in (await states(client, f"KV_{aggregate}"))[f"KV_{aggregate}"]


async def test_aggregate_beyond_last_revision_of_origin_has_recreated_origin(client, raw, filled):
    first, _, _, aggregate = filled
    raw.api(f"STREAM.DELETE.KV_{first}")
    raw.create_bucket(first, {"k0": b"new"})
    found = await states(client, f"KV_{aggregate}")
    assert found == {f"KV_{aggregate}": {Health.RECREATED_ORIGIN, Health.OK}}


async def test_source_with_late_start_is_unconfirmed(client, raw, replicas, unique):
    bucket, mirror, aggregate = unique(), unique("M"), unique("A")
    raw.create_bucket(bucket, {f"k{number}": b"v" for number in range(KEYS)})
    replicas.mirror(mirror, bucket, mirror={"opt_start_seq": 4})
    replicas.aggregate(aggregate, source(bucket, aggregate, opt_start_seq=4))
    for stream in (mirror, f"KV_{aggregate}"):
        until(lambda stream=stream: len(replicas.subjects(stream)) == KEYS - 3)
    found = await states(client, mirror, f"KV_{aggregate}")
    assert found == {mirror: {Health.MISSING_ENTRIES}, f"KV_{aggregate}": {Health.MISSING_ENTRIES}}
