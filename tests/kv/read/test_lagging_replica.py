"""Finite readings beside a replica that lags: what was overwritten or deleted before they began is not in them."""

import asyncio
import io
import json

import pytest

import kvctl
from kvctl import Bucket
from kvctl.jetstream import streams
from kvctl.kv.bulk.dump_file import dump
from tests.project.test_faults import leader_of

KEYS = 300
ROUNDS = 2
READERS = 4


@pytest.fixture(params=[1, 5])
async def bucket(request, own_cluster):
    async with kvctl.connect(own_cluster.contexts["cluster"]) as client:
        yield await client.create_bucket("B", history=request.param, replicas=3)


async def dumped(bucket: Bucket) -> list[tuple[str, str]]:
    file = io.BytesIO()
    assert (await dump(bucket, file)).exact
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    return [(line["key"], line["value"]) for line in lines if "key" in line]


async def entries(bucket: Bucket) -> list[tuple[str, str]]:
    return [(entry.key, entry.value.decode()) async for entry in bucket.entries()]


async def keys(bucket: Bucket) -> list[str]:
    return [key async for key in bucket.keys()]


@pytest.mark.guarantee("reading-6", by="fault")
async def test_listings_and_dumps_show_only_the_latest_values(bucket, own_cluster):
    """A follower is away for 8,000 writes, and back while it applies them."""
    leader = await leader_of(bucket, own_cluster.servers)
    followers = [server for server in own_cluster.servers.values() if server is not leader]
    async with kvctl.connect(leader.url) as client:
        bucket = client.bucket("B")
        for number in range(ROUNDS):
            away = followers[number % 2]
            away.pause()
            try:
                for turn in range(25):
                    await bucket.put_many((f"k{key}", b"%d.%d" % (number, turn)) for key in range(KEYS))
                await bucket.put_many((f"gone{key}", b"") for key in range(KEYS))
                await asyncio.gather(*(bucket.delete(f"gone{key}") for key in range(KEYS)))
            finally:
                away.resume()
            expected = [(f"k{key}", f"{number}.24") for key in range(KEYS)]
            reading = [asyncio.gather(dumped(bucket), entries(bucket), keys(bucket)) for _ in range(READERS)]
            for whole, listed, names in await asyncio.gather(*reading):
                assert whole == expected
                assert listed == expected
                assert names == [key for key, _ in expected]


@pytest.mark.parametrize("limit", [-1, 1])
async def test_listings_leave_no_consumer_wherever_the_first_was_placed(own_cluster, limit):
    async with kvctl.connect(own_cluster.contexts["cluster"]) as client:
        bucket = await client.create_bucket("B", replicas=3)
        info = await streams.info(client.api, "KV_B")
        await streams.update(client.api, {**info["config"], "max_consumers": limit})
        await bucket.put("k", b"v")
        for _ in range(15):
            assert await keys(bucket) == ["k"]
            assert await entries(bucket) == [("k", "v")]
        assert (await client.api.call("CONSUMER.NAMES.KV_B", {}))["consumers"] in ([], None)
