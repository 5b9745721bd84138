"""Removal of the keys that an overwrite did not write: interrupted, repeated, and beside other clients."""

import asyncio
from typing import Any

import pytest

import kvctl
from kvctl.errors import BucketNotFound
from kvctl.kv.bulk.bulk_writer import target_of
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.write.decision import WriteMode, WritePlan
from kvctl.pipeline.write.publisher import Publisher
from kvctl.pipeline.write.write_task import ids_of
from kvctl.pipeline.write.writer import remove_others
from tests.pipeline.write.test_publisher import chunks, contents, puts
from tests.support.differences import differences


async def write(client: kvctl.Client, bucket: str, rows: list[dict[str, Any]]) -> int:
    """Write the rows as tasks do; return the revision before them."""
    target = await target_of(client.bucket(bucket))
    since = int(target.info["state"]["last_seq"])
    plan = WritePlan(ids=ids_of("JOB", 0, target), since=since)
    await Publisher(target, plan).run(chunks(rows, 1000, WriteMode.PUT))
    return since


async def living(client: kvctl.Client, bucket: str) -> dict[str, bytes]:
    return {entry.key: entry.value async for entry in client.bucket(bucket).entries()}


def wanted(rows: list[dict[str, Any]]) -> dict[str, bytes]:
    return {row["key"]: row["value"] for row in rows}


async def test_keys_that_were_not_written_are_deleted(client, bucket_name, raw, server):
    await client.create_bucket(bucket_name, history=3)
    for key in ("old.1", "old.2", "k.1"):
        raw.put(bucket_name, key, b"before")
    raw.put(bucket_name, "a\x01b", b"foreign")
    since = await write(client, bucket_name, puts(1200))
    assert len(await living(client, bucket_name)) == 1203
    assert await remove_others(SourceOptions(bucket=bucket_name, url=server.url), since) == 3
    assert differences(await living(client, bucket_name), wanted(puts(1200))) == []
    assert ("old.1", b"before", "PUT") in await contents(client, bucket_name)


async def test_concurrent_writes_of_others_stay(client, bucket_name, raw, server):
    await client.create_bucket(bucket_name)
    raw.put(bucket_name, "old", b"")
    raw.put(bucket_name, "older", b"")
    since = await write(client, bucket_name, puts(1))
    raw.put(bucket_name, "new", b"theirs")
    raw.put(bucket_name, "old", b"theirs")
    assert await remove_others(SourceOptions(bucket=bucket_name, url=server.url), since) == 1
    assert await living(client, bucket_name) == {"new": b"theirs", "old": b"theirs", **wanted(puts(1))}


@pytest.mark.guarantee("pipeline-17")
@pytest.mark.parametrize("rounds", [0, 1, 3])
async def test_interrupted_removal_is_completed_by_the_next_overwrite(client, bucket_name, raw, server, rounds):
    await client.create_bucket(bucket_name)
    options = SourceOptions(bucket=bucket_name, url=server.url)
    async with kvctl.connect(client.connection.context) as filling:
        await filling.bucket(bucket_name).put_many((f"old.{n}", b"x") for n in range(3000))
    since = await write(client, bucket_name, puts(3000))
    running = asyncio.create_task(remove_others(options, since))
    while raw.state(bucket_name)["last_seq"] < 6001 + rounds * 700 and not running.done():
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    since = await write(client, bucket_name, puts(2000))
    await remove_others(options, since)
    assert differences(await living(client, bucket_name), wanted(puts(2000))) == []


async def test_bucket_deleted_before_the_removal_is_reported(client, bucket_name, server):
    with pytest.raises(BucketNotFound):
        await remove_others(SourceOptions(bucket=bucket_name, url=server.url), 1)
