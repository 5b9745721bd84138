"""Two buckets compared key by key."""

import asyncio
from collections.abc import Callable

import pytest

import kvctl
from kvctl.errors import BucketNotFound
from kvctl.kv.maintenance.compare_buckets import KeyDifference, compare


async def pair(client: kvctl.Client, unique: Callable[..., str]) -> tuple[kvctl.Bucket, kvctl.Bucket]:
    """Two buckets."""
    return await client.create_bucket(unique()), await client.create_bucket(unique())


async def test_differing_key_is_missing_extra_or_has_another_value(client, unique):
    first, second = await pair(client, unique)
    await first.put_many([("same", b"1"), ("gone", b"1"), ("changed", b"1"), ("empty", b"")])
    await second.put_many([("new", b"1"), ("changed", b"2"), ("same", b"1"), ("empty", b"x")])
    found = [
        (item.key, str(item.difference), item.revision, item.other_revision) for item in await compare(first, second)
    ]
    assert found == [
        ("changed", "differs", 3, 2),
        ("empty", "differs", 4, 4),
        ("gone", "missing", 2, None),
        ("new", "extra", None, 1),
    ]
    back = {item.key: str(item.difference) for item in await compare(second, first)}
    assert back == {"changed": "differs", "empty": "differs", "gone": "extra", "new": "missing"}


async def test_equal_buckets_do_not_differ(client, unique):
    first, second = await pair(client, unique)
    await first.put_many((f"k{number}", b"%d" % number) for number in range(3000))
    await second.put_many((f"k{number}", b"%d" % number) for number in reversed(range(3000)))
    assert await compare(first, second) == []
    assert await compare(first, first) == []


async def test_deleted_keys_are_absent(client, unique):
    first, second = await pair(client, unique)
    for bucket in (first, second):
        await bucket.put("a", b"1")
        await bucket.put("b", b"1")
    await first.delete("a")
    await second.purge("b")
    assert {item.key: str(item.difference) for item in await compare(first, second)} == {"a": "extra", "b": "missing"}


async def test_a_mirror_is_compared_under_its_origin_s_keys(client, raw, unique):
    origin, mirror = await client.create_bucket(unique("O")), unique("M")
    await origin.put_many([("a", b"1"), ("b", b"2")])
    raw.api(f"STREAM.CREATE.{mirror}", {"name": mirror, "mirror": {"name": f"KV_{origin.name}"}, "storage": "memory"})
    async with asyncio.timeout(60):
        while await compare(origin, client.bucket(mirror)):
            await asyncio.sleep(0.05)
    raw.api(f"STREAM.PURGE.KV_{origin.name}", {"filter": f"$KV.{origin.name}.a"})
    assert await compare(origin, client.bucket(mirror)) == [KeyDifference("a", "extra", None, 1)]  # type: ignore[arg-type]


async def test_a_bucket_that_is_not_there_is_an_error(client, unique):
    first = await client.create_bucket(unique())
    with pytest.raises(BucketNotFound):
        await compare(first, client.bucket(unique()))
