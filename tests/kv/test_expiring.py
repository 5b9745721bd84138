"""What comes back when keys expire in a bucket with a history."""

import asyncio
import time
from datetime import timedelta

from kvctl import Client
from kvctl.kv.entry import Operation
from kvctl.kv.expiring import returning
from kvctl.kv.transaction import Transaction
from tests.patience import slower

SECOND = timedelta(seconds=1)


async def test_the_value_before_comes_back_when_a_key_expires_and_is_foretold(client: Client, bucket_name: str) -> None:
    async def check(seconds: float) -> None:
        ttl = seconds * SECOND
        name = f"{bucket_name}T{seconds}"
        bucket = await client.create_bucket(name, history=5, marker_ttl=SECOND, atomic=True)
        for key in ("put", "deleted"):
            await bucket.put(key, b"old")
        await bucket.delete("deleted")
        await bucket.create("brief", b"old", ttl=ttl)
        change = Transaction().put("put", b"new", ttl=2 * ttl).update("brief", b"new", 4, ttl=3 * ttl)
        await bucket.commit(change.create("deleted", b"new", ttl=2 * ttl).create("fresh", b"new", ttl=2 * ttl))
        found = await returning(bucket, ["put", "deleted", "brief", "fresh"])
        assert [(entry.key, entry.revision) for entry in found] == [("put", 1)]
        deadline = time.monotonic() + 60
        while [key async for key in bucket.keys()] != ["put"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        assert (await bucket.get("put")).value == b"old"
        entry = await bucket.last_entry("deleted")
        assert entry is not None
        assert (entry.operation, entry.revision) == (Operation.DEL, 3)

    await slower(check, (1, 8))


async def test_without_a_ttl_or_a_history_nothing_does(client: Client, bucket_name: str) -> None:
    bucket = await client.create_bucket(bucket_name, marker_ttl=SECOND)
    revision = await bucket.put("k", b"1")
    await bucket.update("k", b"2", revision, ttl=60 * SECOND)
    await bucket.put("l", b"1")
    await bucket.put("l", b"2")
    assert await returning(bucket, ["k", "l"]) == []
