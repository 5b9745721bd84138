"""Touch: the value again, with a new ttl."""

from datetime import timedelta

import pytest

from kvctl.errors import KeyNotFound, ServerError, UsageError, WrongRevision
from kvctl.kv.write import touch

HOUR = timedelta(hours=1)


@pytest.fixture
async def bucket(client, bucket_name):
    """An empty bucket whose keys may have a ttl."""
    return await client.create_bucket(bucket_name, marker_ttl=timedelta(minutes=1))


async def test_touch_keeps_value_and_headers_and_replaces_the_ttl(bucket):
    header = b"NATS/1.0\r\nTrace: 7\r\nNats-TTL: 60\r\nNats-Msg-Id: once\r\n\r\n"
    first = await bucket.write_message("k", b"\x00value", header)
    assert await bucket.touch("k", 2 * HOUR) == first + 1
    entry = await bucket.get("k", leader=True)
    assert (entry.value, entry.ttl, entry.headers["Trace"]) == (b"\x00value", 2 * HOUR, "7")
    assert "Nats-Msg-Id" not in entry.headers


async def test_touch_of_a_key_that_does_not_live_writes_nothing(bucket):
    with pytest.raises(KeyNotFound):
        await bucket.touch("k", HOUR)
    await bucket.put("k", b"1")
    last = await bucket.delete("k")
    with pytest.raises(KeyNotFound, match="is not in bucket"):
        await bucket.touch("k", HOUR)
    assert (await bucket.status()).last_revision == last


async def test_touch_without_per_key_ttls_is_refused_with_a_hint(client, unique):
    bucket = await client.create_bucket(unique())
    await bucket.put("k", b"1")
    with pytest.raises(ServerError) as refused:
        await bucket.touch("k", HOUR)
    assert "--marker-ttl 1s" in str(refused.value.hint)
    assert (await bucket.status()).last_revision == 1


async def test_touch_with_too_short_a_ttl_is_refused(bucket):
    with pytest.raises(UsageError, match="at least 1 second"):
        await bucket.touch("k", timedelta(milliseconds=10))


async def test_touch_gives_the_ttl_to_the_value_of_a_concurrent_write(bucket, monkeypatch):
    await bucket.put("k", b"old")
    get, writes = bucket.get, iter([b"new", b"newer"])

    async def get_before_a_write(key: str, **settings: bool) -> object:
        entry = await get(key, leader=True)
        if (value := next(writes, None)) is not None:
            await bucket.put(key, value)
        return entry

    monkeypatch.setattr(bucket, "get", get_before_a_write)
    assert await bucket.touch("k", HOUR) == 4
    entry = await get("k", leader=True)
    assert (entry.value, entry.ttl) == (b"newer", HOUR)


async def test_touch_of_a_key_that_never_rests_gives_up(bucket, monkeypatch):
    await bucket.put("k", b"0")
    get = bucket.get

    async def get_before_a_write(key: str, **settings: bool) -> object:
        entry = await get(key, leader=True)
        await bucket.put(key, b"1")
        return entry

    monkeypatch.setattr(bucket, "get", get_before_a_write)
    with pytest.raises(WrongRevision, match="written concurrently"):
        await bucket.touch("k", HOUR)
    assert (await bucket.status()).last_revision == 1 + touch.ATTEMPTS
