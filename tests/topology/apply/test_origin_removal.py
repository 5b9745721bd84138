"""Removal of origins from aggregates, with their keys."""

from pathlib import Path

import pytest

import kvctl
from kvctl.errors import BucketNotFound, HazardRefused, NotFoundError, RefusedError
from kvctl.kv.stream_kind import LEAVING
from kvctl.topology.apply import origin_removal
from kvctl.topology.apply.builders import add_aggregate_origin, create_aggregate, create_mirror
from kvctl.topology.model.origins import Aggregate, Mirror, Origin
from tests.support.raw import RawClient
from tests.support.waiting import until
from tests.topology import killed
from tests.topology.conftest import keys_of, source


async def filled(client: kvctl.Client, name: str, *keys: str) -> str:
    """Create a bucket with these keys, two revisions each."""
    bucket = await client.create_bucket(name, history=2)
    await bucket.put_many((key, b"v") for key in keys * 2)
    return name


async def test_removal_takes_keys_of_the_origin_and_leaves_others(client, replicas, unique):
    one, other = await filled(client, unique(), "a", "b"), await filled(client, unique(), "a", "c")
    name = unique("A")
    await create_aggregate(client, Aggregate(name, (Origin(one, prefix="one"), Origin(other, prefix="other"))))
    found = await origin_removal.plan(client.api, name, other)
    assert (found.keys, found.mixed) == ([], [])
    assert (await origin_removal.apply(client.api, found)).messages == 4
    assert await keys_of(client, name) == ["one.a", "one.b"]
    await client.bucket(other).put("d", b"v")
    await client.bucket(one).put("e", b"v")
    until(lambda: f"$KV.{name}.one.e" in replicas.subjects(f"KV_{name}"))  # then the other's would have come, too
    assert await keys_of(client, name) == ["one.a", "one.b", "one.e"]


async def test_removal_with_keep_data_leaves_all_keys(client, unique):
    one, other, name = await filled(client, unique(), "a"), await filled(client, unique(), "b"), unique("A")
    await create_aggregate(client, Aggregate(name, (Origin(one, prefix="one"), Origin(other, prefix="other"))))
    found = await origin_removal.plan(client.api, name, other, keep_data=True)
    assert (await origin_removal.apply(client.api, found)).messages == 0
    assert await keys_of(client, name) == ["one.a", "other.b"]
    sources = (await client.api.call(f"STREAM.INFO.KV_{name}"))["config"]["sources"]
    assert [item["name"] for item in sources] == [f"KV_{one}"]


async def test_removal_examines_each_key_of_overlapping_origins(client, raw, replicas, unique):
    one, other = await filled(client, unique(), "a", "both"), await filled(client, unique(), "b", "both")
    name = unique("A")
    replicas.aggregate(name, source(one, name), source(other, name), max_msgs_per_subject=10)
    until(lambda: replicas.info(f"KV_{name}")["state"]["messages"] == 8)
    found = await origin_removal.plan(client.api, name, other)
    assert (found.keys, found.mixed) == ([f"$KV.{name}.b"], [f"$KV.{name}.both"])
    assert (await origin_removal.apply(client.api, found)).messages == 2
    assert await keys_of(client, name) == ["a", "both"]


async def test_removal_leaves_keys_written_to_the_aggregate(client, unique):
    one, other, name = await filled(client, unique(), "a"), await filled(client, unique(), "b"), unique("A")
    origins = (Origin(one, prefix="one"), Origin(other, prefix="other"))
    await create_aggregate(client, Aggregate(name, origins, writable=True))
    await client.bucket(name).put("other.mine", b"v")
    await origin_removal.apply(client.api, await origin_removal.plan(client.api, name, other))
    assert await keys_of(client, name) == ["one.a", "other.mine"]


async def test_removal_takes_all_streams_of_one_bucket(client, unique):
    one, other, mirror, name = (
        await filled(client, unique(), "a"),
        await filled(client, unique(), "b"),
        unique("M"),
        unique("A"),
    )
    await create_mirror(client, Mirror(mirror, Origin(other)))
    origins = (Origin(one, prefix="one"), Origin(other, stream=mirror, prefix="other"))
    await create_aggregate(client, Aggregate(name, origins))
    await origin_removal.apply(client.api, await origin_removal.plan(client.api, name, other))
    assert await keys_of(client, name) == ["one.a"]


async def test_interrupted_removal_is_completed_by_the_next(client, unique):
    one, other, name = await filled(client, unique(), "a"), await filled(client, unique(), "b"), unique("A")
    await create_aggregate(client, Aggregate(name, (Origin(one, prefix="one"), Origin(other, prefix="other"))))
    await origin_removal.apply(client.api, await origin_removal.plan(client.api, name, other, keep_data=True))
    await origin_removal.apply(client.api, await origin_removal.plan(client.api, name, other))
    assert await keys_of(client, name) == ["one.a"]
    with pytest.raises(NotFoundError):
        await origin_removal.plan(client.api, name, other)


async def test_removal_of_the_last_origin_is_a_hazard(client, raw, replicas, unique):
    bucket, damaged, name = await filled(client, unique(), "a"), unique("A"), unique("A")
    config = replicas.aggregate(damaged, source(bucket, damaged))["config"]
    left = raw.api(f"STREAM.UPDATE.KV_{damaged}", config | {"sources": []})
    assert left["config"]["subjects"] == [f"KV_{damaged}"]  # neither a bucket nor an aggregate any more

    await create_aggregate(client, Aggregate(name, (Origin(bucket),)))
    found = await origin_removal.plan(client.api, name, bucket)
    with pytest.raises(HazardRefused, match="last origin") as caught:
        await origin_removal.apply(client.api, found)
    assert "--force last-origin" in str(caught.value.hint)
    await origin_removal.apply(client.api, found, force=["last-origin"])
    await client.bucket(name).put("k", b"v")
    assert await keys_of(client, name) == ["k"]


async def test_removal_of_unknown_origin_is_not_found(client, unique):
    bucket, name, denying = await filled(client, unique(), "a"), unique("A"), unique("A")
    await create_aggregate(client, Aggregate(name, (Origin(bucket),)))
    await create_aggregate(client, Aggregate(denying, (Origin(bucket),), deny_purge=True))
    with pytest.raises(NotFoundError, match="is not an origin"):
        await origin_removal.plan(client.api, name, "another")
    with pytest.raises(RefusedError, match="not an aggregate"):
        await origin_removal.plan(client.api, bucket, "another")
    with pytest.raises(BucketNotFound):
        await origin_removal.plan(client.api, unique("NONE"), bucket)
    with pytest.raises(RefusedError, match="denies purges"):
        await origin_removal.plan(client.api, denying, bucket)


async def test_write_since_the_plan_survives_the_removal(client, raw, unique):
    one, other, name = await filled(client, unique(), "a"), await filled(client, unique(), "x", "y"), unique("A")
    origins = (Origin(one, prefix="one"), Origin(other, prefix="two"))
    await create_aggregate(client, Aggregate(name, origins, writable=True))
    found = await origin_removal.plan(client.api, name, other)
    raw.put(name, "two.x", b"LOCAL")
    taken = await origin_removal.apply(client.api, found)
    assert taken.kept == [f"$KV.{name}.two.x"]
    assert await keys_of(client, name) == ["one.a", "two.x"]
    assert (await client.bucket(name).get("two.x")).value == b"LOCAL"


async def test_origin_added_since_the_plan_survives_the_removal(client, raw, unique):
    one, other, third = [await filled(client, unique(), "a") for _ in range(3)]
    name = unique("A")
    await create_aggregate(client, Aggregate(name, (Origin(one, prefix="one"), Origin(other, prefix="two"))))
    found = await origin_removal.plan(client.api, name, other)
    await add_aggregate_origin(client, name, Origin(third, prefix="three"))
    await origin_removal.apply(client.api, found)
    sources = raw.api(f"STREAM.INFO.KV_{name}")["config"]["sources"]
    assert [item["name"] for item in sources] == [f"KV_{one}", f"KV_{third}"]
    assert await keys_of(client, name) == ["one.a", "three.a"]


@pytest.mark.parametrize(("at", "answered"), [(0, True), (1, False), (1, True), (2, False)])
async def test_removal_that_was_killed_is_finished_by_the_next_with_success(client, raw, server, unique, at, answered):
    one, other, name = await filled(client, unique(), "a"), await filled(client, unique(), "b"), unique("A")
    await create_aggregate(client, Aggregate(name, (Origin(one, prefix="one"), Origin(other, prefix="two"))))
    args = ["aggregate", "remove-origin", name, other, "--yes", "-s", server.url]
    assert killed.run(args, at=at, answered=answered)[0] == killed.KILLED
    assert killed.run(args)[0] == 0
    assert await keys_of(client, name) == ["one.a"]
    assert LEAVING not in raw.api(f"STREAM.INFO.KV_{name}")["config"]["metadata"]
    assert killed.run(args)[0] == NotFoundError.exit_code


def long_and_short(raw: RawClient, url: str, path: Path, name: str) -> list[str]:
    """Apply an aggregate of a bucket with a long history and one with a short one, and return the apply without it."""
    names = {"LONG": f"{name}L", "SHORT": f"{name}S", "AGGREGATE": name}
    buckets, short = "buckets: {LONG: {history: 4}, SHORT: {history: 2}}", "{bucket: SHORT, prefix: short}"
    for file, origins in (("one", short), ("both", f"{short}, {{bucket: LONG, prefix: long}}")):
        text = f"version: 1\nname: AGGREGATE\n{buckets}\naggregates: {{AGGREGATE: {{origins: [{origins}]}}}}\n"
        for word, said in names.items():
            text = text.replace(word, said)
        (path / file).write_text(text)
    apply = ["topology", "apply", "--yes", "-s", url, "-f"]
    assert killed.run([*apply, str(path / "both")])[0] == 0
    for value in (b"1", b"2", b"3", b"4"):
        raw.put(names["LONG"], "k", value)
    raw.put(names["SHORT"], "k", b"1")
    until(lambda: raw.api(f"STREAM.INFO.KV_{name}")["state"]["messages"] == 5)
    return [*apply, str(path / "one")]


async def test_keys_of_a_removed_origin_with_a_longer_history_stay_away_after_a_server_is_killed(own_server, tmp_path):
    with RawClient(own_server.url) as raw:
        assert killed.run(long_and_short(raw, own_server.url, tmp_path, "A"))[0] == 0
        assert raw.api("STREAM.INFO.KV_A")["config"]["max_msgs_per_subject"] == 2
        raw.put("AS", "k", b"2")
        until(lambda: raw.api("STREAM.INFO.KV_A")["state"]["messages"] == 2)
    own_server.kill()
    own_server.start()
    with RawClient(own_server.url) as raw:
        found = raw.api("STREAM.INFO.KV_A", {"subjects_filter": ">"})["state"]
    assert found["subjects"] == {"$KV.A.short.k": 2}


@pytest.mark.parametrize(("at", "answered"), [(0, True), (1, False), (1, True), (2, False), (2, True)])
async def test_killed_apply_that_shortens_the_history_is_completed_by_the_next(
    raw, server, unique, tmp_path, at, answered
):
    name = unique("A")
    args = long_and_short(raw, server.url, tmp_path, name)
    assert killed.run(args, at=at, answered=answered)[0] == killed.KILLED
    assert killed.run(args)[0] == 0
    info = raw.api(f"STREAM.INFO.KV_{name}", {"subjects_filter": ">"})
    assert info["config"]["max_msgs_per_subject"] == 2
    assert LEAVING not in info["config"]["metadata"]
    assert info["state"]["subjects"] == {f"$KV.{name}.short.k": 1}
    assert killed.run(args) == (0, [])
