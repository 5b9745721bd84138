"""Compaction removes what deletions left, and nothing that lives."""

import asyncio
from datetime import timedelta

import pytest

import kvctl
from kvctl.errors import PartlyDone, RefusedError, ServerError
from kvctl.kv.entry import Entry
from kvctl.kv.maintenance import compaction
from tests.support.raw import RawClient
from tests.support.waiting import until_async


async def stored(bucket: kvctl.Bucket) -> list[str]:
    """The key of every entry, in order."""
    return [entry.key async for entry in bucket.history()]


async def test_tombstones_go_with_their_history(client, bucket_name):
    bucket = await client.create_bucket(bucket_name, history=5)
    for key in ("kept", "deleted", "purged", "again"):
        await bucket.put(key, b"1")
        await bucket.put(key, b"2")
    await bucket.delete("deleted")
    await bucket.purge("purged")
    await bucket.delete("again")
    await bucket.create("again", b"3")
    found = await compaction.find(bucket)
    assert [(entry.key, str(entry.operation)) for entry in found.entries] == [("deleted", "DEL"), ("purged", "PURGE")]
    assert await compaction.remove(bucket, found) == 4
    assert await stored(bucket) == ["kept", "kept", "again", "again", "again", "again"]


async def test_limit_markers_are_tombstones(client, bucket_name):
    bucket = await client.create_bucket(bucket_name, marker_ttl=timedelta(hours=1))
    await bucket.create("short", b"1", ttl=timedelta(seconds=1))

    async def tombstones() -> list[Entry]:
        return (await compaction.find(bucket)).entries

    [marker] = await until_async(tombstones, what="marker of the expired key")
    assert marker.reason == "MaxAge"
    await compaction.remove(bucket, await compaction.find(bucket))
    assert await stored(bucket) == []


async def test_only_old_tombstones_are_removed(client, bucket_name):
    bucket = await client.create_bucket(bucket_name)
    await bucket.put_many((key, b"1") for key in ("old", "young"))
    await bucket.delete("old")
    await asyncio.sleep(4.2)
    await bucket.delete("young")
    found = await compaction.find(bucket, older_than=timedelta(seconds=4))
    assert [entry.key for entry in found.entries] == ["old"]


async def test_key_recreated_during_compaction_survives(client, bucket_name):
    bucket = await client.create_bucket(bucket_name, history=5)
    await bucket.put("k", b"old")
    await bucket.delete("k")
    found = await compaction.find(bucket)
    await bucket.create("k", b"new")
    await compaction.remove(bucket, found)
    assert (await bucket.get("k")).value == b"new"
    assert await stored(bucket) == ["k"]


async def test_nonconforming_key_is_compacted_without_removing_others(client, server, bucket_name):
    """To a purge, the literal key `star.*` is a wildcard."""
    bucket = await client.create_bucket(bucket_name, history=5)
    await bucket.put("star.a", b"kept")
    for key in ("star.*", "lone.*"):
        with RawClient(server.url) as raw:
            raw.request(f"$KV.{bucket_name}.{key}", b"", {"KV-Operation": "DEL"})
    found = await compaction.find(bucket)
    assert ([entry.key for entry in found.entries], [entry.key for entry in found.kept]) == (["lone.*"], ["star.*"])
    await compaction.remove(bucket, found)
    assert sorted(await stored(bucket)) == ["star.*", "star.a"]


async def test_thousands_go_in_bounded_portions(client, bucket_name):
    bucket = await client.create_bucket(bucket_name)
    await bucket.put_many((f"k{number}", b"") for number in range(1500))
    for start in range(0, 1500, 100):
        await asyncio.gather(*(bucket.delete(f"k{number}") for number in range(start, start + 99)))
    counts: list[int] = []
    found = await compaction.find(bucket)
    assert len(found.entries) == 1485
    await compaction.remove(bucket, found, counts.append)
    assert (sum(counts), len(await stored(bucket))) == (1485, 15)


async def test_nothing_deleted_is_nothing_to_do(client, bucket_name):
    bucket = await client.create_bucket(bucket_name)
    await bucket.put("k", b"1")
    found = await compaction.find(bucket)
    assert (found.entries, await compaction.remove(bucket, found)) == ([], 0)


async def test_a_mirror_sends_to_its_origin(client, raw, unique):
    origin, mirror = unique("O"), unique("M")
    raw.create_bucket(origin)
    raw.create_stream(mirror, mirror={"name": f"KV_{origin}"}, storage="memory")
    with pytest.raises(RefusedError) as refused:
        await compaction.find(client.bucket(mirror))
    assert f"kvctl bucket compact {origin}" in str(refused.value.hint)


async def test_a_bucket_that_denies_purges_says_so(client, raw, bucket_name):
    raw.create_bucket(bucket_name, deny_purge=True, allow_rollup_hdrs=False)
    bucket = client.bucket(bucket_name)
    await bucket.put("k", b"1")
    await bucket.delete("k")
    with pytest.raises(ServerError, match="purge"):
        await compaction.remove(bucket, await compaction.find(bucket))


async def test_interrupted_compaction_reports_its_progress(own_server):
    async with kvctl.connect(own_server.url) as client:
        # With history 1 the killed server would bring the values back: nats-server issue 8505.
        bucket = await client.create_bucket("B", history=2)
        await bucket.put_many((f"k{number}", b"") for number in range(200))
        await asyncio.gather(*(bucket.delete(f"k{number}") for number in range(200)))
        found = await compaction.find(bucket)
        client.connection.timeout = 1

        def kill(_: int) -> None:
            own_server.kill()

        with pytest.raises(PartlyDone, match="32 of 200 tombstones were removed"):
            await compaction.remove(bucket, found, kill)
        own_server.start()
        client.connection.timeout = 60
        await client.connection.wait_online(60)
        rest = await compaction.find(bucket)
        await compaction.remove(bucket, rest)
        assert await stored(bucket) == []
