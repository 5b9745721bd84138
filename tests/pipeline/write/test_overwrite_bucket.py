"""Exchange of a bucket's content with the staged rows, interrupted at every point and repeated."""

import asyncio
from typing import Any

import pytest

import kvctl
from kvctl.errors import KvctlError, PartlyDone, RefusedError
from kvctl.kv.load.target import target_of
from kvctl.pipeline.write import overwrite_bucket
from kvctl.pipeline.write.decision import WriteMode
from kvctl.pipeline.write.overwrite_bucket import Exchanged, Stage
from kvctl.pipeline.write.publisher import Plan, Publisher
from kvctl.pipeline.write.row_ids import RowIds
from tests.pipeline.write.test_publisher import chunks, contents, last_seq, puts
from tests.support.differences import differences


async def staged(client: kvctl.Client, bucket: str, rows: list[dict[str, Any]]) -> Stage:
    """A stage that holds the rows, as tasks write them."""
    stage = await overwrite_bucket.begin(client, bucket)
    target = await overwrite_bucket.opened(client, stage, bucket)
    await Publisher(target, Plan(ids=RowIds("JOB", 0), since=0)).run(_to_stage(client, bucket, rows))
    return stage


async def _to_stage(client: kvctl.Client, bucket: str, rows: list[dict[str, Any]]) -> Any:
    target = await target_of(client.bucket(bucket))
    async for chunk in chunks(rows, 1000, WriteMode.PUT):
        yield overwrite_bucket.to_stage(chunk, target)


async def exchange(client: kvctl.Client, bucket: str, stage: Stage, written: int, **options: Any) -> Exchanged:
    return await overwrite_bucket.exchange(client, bucket, stage, written, RowIds("JOB", 0), **options)


async def living(client: kvctl.Client, bucket: str) -> dict[str, bytes]:
    return {entry.key: entry.value async for entry in client.bucket(bucket).entries()}


def wanted(rows: list[dict[str, Any]]) -> dict[str, bytes]:
    return {row["key"]: row["value"] for row in rows}


async def test_content_is_exchanged(client, bucket_name, raw):
    await client.create_bucket(bucket_name, history=3)
    for key in ("old.1", "old.2", "k.1"):
        raw.put(bucket_name, key, b"before")
    raw.put(bucket_name, "a\x01b", b"foreign")
    stage = await staged(client, bucket_name, puts(1200))
    assert len(await living(client, bucket_name)) == 4
    done = await exchange(client, bucket_name, stage, 1200)
    assert (done.counts.written, done.removed, sorted(done.first_removed)) == (1200, 3, ["a\x01b", "old.1", "old.2"])
    assert differences(await living(client, bucket_name), wanted(puts(1200))) == []
    assert ("old.1", b"before", "PUT") in await contents(client, bucket_name)


async def test_if_different_leaves_equal_values_unchanged(client, bucket_name, raw):
    await client.create_bucket(bucket_name)
    for row in puts(50):
        raw.put(bucket_name, row["key"], row["value"])
    stage = await staged(client, bucket_name, puts(40, start=5))
    done = await exchange(client, bucket_name, stage, 40, if_different=True)
    assert (done.counts.written, done.counts.unchanged, done.removed) == (0, 40, 10)
    assert await living(client, bucket_name) == wanted(puts(40, start=5))
    assert last_seq(raw, bucket_name) == 60


async def test_histories_deletions_headers_and_ttls_come_through(client, bucket_name, raw):
    raw.create_bucket(bucket_name, max_msgs_per_subject=5, allow_msg_ttl=True)
    raw.put(bucket_name, "b", b"old")
    rows = [
        {"key": "a", "value": b"1", "operation": "PUT", "headers": {"Color": "red"}, "ttl": None},
        {"key": "a", "value": b"2", "operation": "PUT", "headers": None, "ttl": 3600.0},
        {"key": "b", "value": None, "operation": "PURGE", "headers": None, "ttl": None},
        {"key": "c", "value": b"3", "operation": "PUT", "headers": None, "ttl": None},
        {"key": "c", "value": None, "operation": "DEL", "headers": None, "ttl": None},
    ]
    done = await exchange(client, bucket_name, await staged(client, bucket_name, rows), 5)
    assert (done.counts.written, done.removed) == (5, 0)
    entries = [entry async for entry in client.bucket(bucket_name).history()]
    found = [(e.key, e.value, str(e.operation), e.ttl.total_seconds() if e.ttl else None) for e in entries]
    assert found == [
        ("a", b"1", "PUT", None), ("a", b"2", "PUT", 3600.0), ("b", b"", "PURGE", None), ("c", b"3", "PUT", None),
        ("c", b"", "DEL", None),
    ]  # fmt: skip
    assert entries[0].headers == {"Color": "red"}


async def test_concurrent_writes_of_others_stay(client, bucket_name, raw):
    await client.create_bucket(bucket_name)
    raw.put(bucket_name, "old", b"")
    stage = await staged(client, bucket_name, puts(10))
    info = (await target_of(client.bucket(bucket_name))).info
    raw.put(bucket_name, "new", b"theirs")
    target = await target_of(client.bucket(bucket_name))
    opened = await overwrite_bucket.opened(client, stage, bucket_name)
    before = int(info["state"]["last_seq"])
    assert await overwrite_bucket._remove_others(client, stage, target, opened, before) == ["old"]
    assert await living(client, bucket_name) == {"new": b"theirs"}


@pytest.mark.guarantee("pipeline-17")
@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 8, 13])
async def test_interrupted_exchange_is_completed_by_the_next(client, bucket_name, raw, rounds):
    await client.create_bucket(bucket_name)
    async with kvctl.connect(client.connection.context) as filling:
        await filling.bucket(bucket_name).put_many((f"old.{n}", b"x") for n in range(3000))
    stage = await staged(client, bucket_name, puts(3000))
    running = asyncio.create_task(exchange(client, bucket_name, stage, 3000))
    while last_seq(raw, bucket_name) < 3000 + rounds * 400 and not running.done():
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    stage = await staged(client, bucket_name, puts(3000))
    await exchange(client, bucket_name, stage, 3000)
    assert differences(await living(client, bucket_name), wanted(puts(3000))) == []


async def test_incomplete_stage_is_not_exchanged(client, bucket_name, raw):
    await client.create_bucket(bucket_name)
    raw.put(bucket_name, "old", b"1")
    stage = await staged(client, bucket_name, puts(9))
    with pytest.raises(KvctlError, match=f"Bucket `{bucket_name}` is unchanged: only 9 of 10 rows are staged"):
        await exchange(client, bucket_name, stage, 10)
    assert await living(client, bucket_name) == {"old": b"1"}


@pytest.mark.guarantee("pipeline-16")
async def test_stage_without_room_is_not_exchanged(client, bucket_name, raw):
    await client.create_bucket(bucket_name, max_bytes=20_000)
    raw.put(bucket_name, "old", b"1" * 15_000)
    stage = await staged(client, bucket_name, puts(100))
    with pytest.raises(KvctlError, match="no room for the staged"):
        await exchange(client, bucket_name, stage, 100)
    assert last_seq(raw, bucket_name) == 1


@pytest.mark.guarantee("pipeline-17")
async def test_one_overwrite_ends_another(client, bucket_name):
    await client.create_bucket(bucket_name)
    first = await staged(client, bucket_name, puts(10))
    second = await staged(client, bucket_name, puts(20))
    with pytest.raises(KvctlError, match="Another overwrite of"):
        await exchange(client, bucket_name, first, 10)
    await overwrite_bucket.discard(client, bucket_name, first.created)
    assert (await exchange(client, bucket_name, second, 20)).counts.written == 20


async def test_overwrite_that_begins_during_removal_costs_no_key(client, bucket_name, raw, monkeypatch):
    """Keys that the first one left as they are, because they are the same, are not in the new stage."""
    await client.create_bucket(bucket_name)
    for row in puts(20):
        raw.put(bucket_name, row["key"], row["value"])
    stage = await staged(client, bucket_name, puts(20))
    look = overwrite_bucket._not_staged

    async def after_another_began(*args: Any) -> Any:
        await overwrite_bucket.begin(client, bucket_name)
        return await look(*args)

    monkeypatch.setattr(overwrite_bucket, "_not_staged", after_another_began)
    with pytest.raises(PartlyDone, match="Another overwrite of"):
        await exchange(client, bucket_name, stage, 20, if_different=True)
    assert await living(client, bucket_name) == wanted(puts(20))


async def test_bucket_that_is_not_a_stage_is_refused(client, bucket_name):
    await client.create_bucket(bucket_name)
    theirs = await client.create_bucket(bucket_name + overwrite_bucket.SUFFIX)
    await theirs.put("a", b"theirs")
    with pytest.raises(RefusedError, match="already exists and was not created by kvctl"):
        await overwrite_bucket.begin(client, bucket_name)
    assert (await theirs.get("a")).value == b"theirs"


async def test_bucket_deleted_during_the_exchange_is_reported(client, bucket_name):
    await client.create_bucket(bucket_name)
    stage = await staged(client, bucket_name, puts(5000))
    running = asyncio.create_task(exchange(client, bucket_name, stage, 5000))
    async with kvctl.connect(client.connection.context) as other:
        while not (await other.bucket(bucket_name).status()).last_revision:
            assert not running.done()
        await other.delete_bucket(bucket_name)
    with pytest.raises(PartlyDone, match=f"`{bucket_name}` is partly overwritten"):
        await running
