"""Promotion of mirrors whose origins are lost."""

from collections.abc import Callable

import pytest

import kvctl
from kvctl.errors import BucketExists, BucketNotFound, HazardRefused, RefusedError, UsageError
from kvctl.kv.config import Kind
from kvctl.topology.apply import promotion
from kvctl.topology.apply.builders import create_mirror
from kvctl.topology.model.origins import Mirror, Origin
from tests.support.raw import RawClient
from tests.support.waiting import until

Names = Callable[..., str]


async def mirrored(
    client: kvctl.Client, raw: RawClient, unique: Names
) -> tuple[str, str, list[tuple[str, str, bytes]]]:
    """Return a lost bucket, its mirror, and the bucket's complete history."""
    bucket, mirror = await client.create_bucket(unique(), history=5), unique("M")
    for number in range(3):
        await bucket.put("a", b"%d" % number)
        await bucket.put(f"b.{number}", b"x")
    await bucket.delete("b.1")
    await bucket.purge("b.2")
    await create_mirror(client, Mirror(mirror, Origin(bucket.name)))
    entries = await history_of(client, bucket.name)
    raw.api(f"STREAM.DELETE.KV_{bucket.name}")
    return bucket.name, mirror, entries


async def history_of(client: kvctl.Client, bucket: str) -> list[tuple[str, str, bytes]]:
    return [(entry.key, str(entry.operation), entry.value) async for entry in client.bucket(bucket).history()]


async def test_promoted_bucket_equals_the_mirror(client, raw, unique):
    _, mirror, entries = await mirrored(client, raw, unique)
    name = unique("RESCUED")
    found = await promotion.plan(client.api, mirror, name)
    assert await promotion.apply(client, found) == len(entries)
    assert await history_of(client, name) == entries
    status = await client.bucket(name).status()
    assert (status.kind, status.history) == (Kind.BUCKET, 5)
    assert await client.bucket(name).put("k", b"v")
    assert (await client.bucket(mirror).status()).kind is Kind.MIRROR


async def test_promotion_under_the_origin_s_name_requires_deleting_the_mirror(client, raw, unique):
    bucket, mirror, entries = await mirrored(client, raw, unique)
    with pytest.raises(HazardRefused) as caught:
        await promotion.apply(client, await promotion.plan(client.api, mirror, bucket))
    assert caught.value.name == "recreated-origin"
    found = await promotion.plan(client.api, mirror, bucket, delete_mirror=True)
    await promotion.apply(client, found, delete_mirror=True)
    assert await history_of(client, bucket) == entries
    assert "error" in raw.api(f"STREAM.INFO.{mirror}")


async def test_recreated_origin_is_hidden_by_its_stale_mirror(client, raw, unique):
    """The damage that the hazard describes."""
    bucket, mirror, _ = await mirrored(client, raw, unique)
    raw.create_bucket(bucket, max_msgs_per_subject=5)
    raw.put(bucket, "a", b"newer")
    asked = f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.a"
    until(lambda: raw.request(asked).data == b"2")  # what the mirror held before
    assert raw.api(f"STREAM.INFO.{mirror}")["mirror"]["lag"] == 0


async def test_invalid_promotion_is_refused(client, raw, unique):
    _, mirror, _ = await mirrored(client, raw, unique)
    other = await client.create_bucket(unique())
    with pytest.raises(BucketExists):
        await promotion.plan(client.api, mirror, other.name)
    with pytest.raises(RefusedError):
        await promotion.plan(client.api, other.name, unique())
    with pytest.raises(BucketNotFound):
        await promotion.plan(client.api, unique("NONE"), unique())
    with pytest.raises(UsageError):
        await promotion.plan(client.api, mirror, "a b")
