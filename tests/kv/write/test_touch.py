"""Touch: the value again, with a new ttl."""

from datetime import timedelta

import pytest

from kvctl.errors import KeyNotFound, ServerError, UsageError, WrongRevision
from kvctl.kv.write import touch

HOUR = timedelta(hours=1)


@pytest.fixture
async def with_ttls(client, bucket_name):
    """An empty bucket whose keys may have a ttl."""
    return await client.create_bucket(bucket_name, marker_ttl=timedelta(minutes=1))


async def test_touch_keeps_value_and_headers_and_replaces_the_ttl(with_ttls):
    header = b"NATS/1.0\r\nTrace: 7\r\nNats-TTL: 60\r\nNats-Msg-Id: once\r\n\r\n"
    first = await with_ttls.write_message("k", b"\x00value", header)
    assert await with_ttls.touch("k", 2 * HOUR) == first + 1
    entry = await with_ttls.get("k", leader=True)
    assert (entry.value, entry.ttl, entry.headers["Trace"]) == (b"\x00value", 2 * HOUR, "7")
    assert "Nats-Msg-Id" not in entry.headers


async def test_touch_of_a_key_that_does_not_live_writes_nothing(with_ttls):
    with pytest.raises(KeyNotFound):
        await with_ttls.touch("k", HOUR)
    await with_ttls.put("k", b"1")
    last = await with_ttls.delete("k")
    with pytest.raises(KeyNotFound, match="is not in bucket"):
        await with_ttls.touch("k", HOUR)
    assert (await with_ttls.status()).last_revision == last


async def test_touch_without_per_key_ttls_is_refused_with_a_hint(client, unique):
    bucket = await client.create_bucket(unique())
    await bucket.put("k", b"1")
    with pytest.raises(ServerError) as refused:
        await bucket.touch("k", HOUR)
    assert "--marker-ttl 1s" in str(refused.value.hint)
    assert (await bucket.status()).last_revision == 1


async def test_touch_with_too_short_a_ttl_is_refused(with_ttls):
    with pytest.raises(UsageError, match="at least 1 second"):
        await with_ttls.touch("k", timedelta(milliseconds=10))


async def test_touch_gives_the_ttl_to_the_value_of_a_concurrent_write(with_ttls, monkeypatch):
    await with_ttls.put("k", b"old")
    get, writes = with_ttls.get, iter([b"new", b"newer"])

    async def get_before_a_write(key: str, **settings: bool) -> object:
        entry = await get(key, leader=True)
        if (value := next(writes, None)) is not None:
            await with_ttls.put(key, value)
        return entry

    monkeypatch.setattr(with_ttls, "get", get_before_a_write)
    assert await with_ttls.touch("k", HOUR) == 4
    entry = await get("k", leader=True)
    assert (entry.value, entry.ttl) == (b"newer", HOUR)


async def test_touch_of_a_key_that_never_rests_gives_up(with_ttls, monkeypatch):
    await with_ttls.put("k", b"0")
    get = with_ttls.get

    async def get_before_a_write(key: str, **settings: bool) -> object:
        entry = await get(key, leader=True)
        await with_ttls.put(key, b"1")
        return entry

    monkeypatch.setattr(with_ttls, "get", get_before_a_write)
    with pytest.raises(WrongRevision, match="written concurrently"):
        await with_ttls.touch("k", HOUR)
    assert (await with_ttls.status()).last_revision == 1 + touch.ATTEMPTS
