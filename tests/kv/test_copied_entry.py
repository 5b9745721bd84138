"""What comes back when keys expire in a bucket with a history."""

from __future__ import annotations

from datetime import timedelta

from kvctl import Bucket, Client
from kvctl.kv.copied_entry import returning
from kvctl.kv.entry import Operation
from kvctl.kv.transaction.transaction import Transaction
from tests.support.waiting import until_async

SECOND = timedelta(seconds=1)


async def test_the_value_before_comes_back_when_a_key_expires_and_is_foretold(client, bucket_name):
    hour = await overwritten(client, f"{bucket_name}H", 3600 * SECOND)
    found = await returning(hour, ["put", "deleted", "brief", "fresh"])
    assert [(entry.key, entry.revision) for entry in found] == [("put", 1)]

    brief = await overwritten(client, bucket_name, 2 * SECOND)

    async def only_put_is_left() -> bool:
        return [key async for key in brief.keys()] == ["put"]

    await until_async(only_put_is_left, what="expiry of all keys but `put`")
    assert (await brief.get("put")).value == b"old"
    entry = await brief.last_entry("deleted")
    assert (entry.operation, entry.revision) == (Operation.DEL, 3)


async def overwritten(client: Client, name: str, ttl: timedelta) -> Bucket:
    """A bucket whose keys were written over with values that expire after the ttl, `brief` a while later."""
    bucket = await client.create_bucket(name, history=5, marker_ttl=SECOND, atomic=True)
    for key in ("put", "deleted"):
        await bucket.put(key, b"old")
    await bucket.delete("deleted")
    await bucket.create("brief", b"old", ttl=ttl)
    change = Transaction().put("put", b"new", ttl=ttl).put("brief", b"new", ttl=1.5 * ttl)
    await bucket.commit(change.create("deleted", b"new", ttl=ttl).create("fresh", b"new", ttl=ttl))
    return bucket


async def test_no_value_comes_back_without_ttl_or_history(client, bucket_name):
    bucket = await client.create_bucket(bucket_name, marker_ttl=SECOND)
    revision = await bucket.put("k", b"1")
    await bucket.update("k", b"2", revision, ttl=60 * SECOND)
    await bucket.put("l", b"1")
    await bucket.put("l", b"2")
    assert await returning(bucket, ["k", "l"]) == []
