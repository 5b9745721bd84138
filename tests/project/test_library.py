"""The library by itself, as its documentation shows it, and side by side with the client library's own buckets."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from functools import partial

import nats
import pytest
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NoKeysError

import kvctl
from kvctl import CURRENT, Context, Entry, Operation
from kvctl.errors import BucketExists, BucketNotFound, KeyExists, KeyNotFound, NoServer, ReadOnly, WrongRevision
from tests.support.waiting import until_async


class TestAsDocumented:
    async def test_a_bucket_is_made_written_read_and_watched(self, server, bucket_name):
        async with kvctl.connect(server.url) as client:
            orders = await client.create_bucket(bucket_name, history=5)
            revision = await orders.put("NEW.7", b"two of these")
            entry = await orders.get("NEW.7")
            assert (entry.value, entry.revision) == (b"two of these", revision)

            async with await orders.watch() as watcher:
                seen: list[Entry] = []
                async for item in watcher:
                    if item is CURRENT:
                        await orders.update("NEW.7", b"none", revision)
                    else:
                        seen.append(item)
                    if len(seen) == 2:
                        break
            assert [entry.value for entry in seen] == [b"two of these", b"none"]

    async def test_connecting_takes_a_context_an_environment_or_a_url(self, server, monkeypatch):
        monkeypatch.setenv("NATS_URL", server.url)
        for where in (Context(url=server.url), server.url, None):
            async with kvctl.connect(where) as client:
                assert client.connection.url == server.url

    async def test_buckets_are_made_listed_and_deleted(self, client, bucket_name):
        await client.create_bucket(kvctl.BucketConfig(bucket_name, history=3))
        await client.create_bucket(bucket_name, history=3)  # the same again
        with pytest.raises(BucketExists):
            await client.create_bucket(bucket_name, history=4)
        assert bucket_name in await client.bucket_names()
        (status,) = [status for status in await client.buckets() if status.bucket == bucket_name]
        assert (status.history, status.values, status.backing_store) == (3, 0, "JetStream")
        await client.delete_bucket(bucket_name)
        with pytest.raises(BucketNotFound):
            await client.delete_bucket(bucket_name)

    async def test_many_handles_and_tasks_share_a_connection(self, client, bucket_name):
        await client.create_bucket(bucket_name)

        async def work(number: int) -> int:
            bucket = client.bucket(bucket_name)
            await bucket.put(f"k.{number}", b"x")
            return len([key async for key in bucket.keys(f"k.{number}")])

        assert await asyncio.gather(*(work(number) for number in range(50))) == [1] * 50

    async def test_everything_public_is_there(self):
        assert [name for name in kvctl.__all__ if not hasattr(kvctl, name)] == []
        with pytest.raises(AttributeError):
            _ = kvctl.nothing  # type: ignore[attr-defined]

    async def test_after_the_block_the_connection_is_closed(self, server, bucket_name):
        async with kvctl.connect(server.url) as client:
            bucket = await client.create_bucket(bucket_name)
        with pytest.raises(NoServer):
            await bucket.put("k", b"")

    async def test_an_error_in_the_block_goes_through(self, server):
        with pytest.raises(LookupError):
            async with kvctl.connect(server.url):
                raise LookupError

    async def test_cancelling_leaves_nothing_behind(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name)

        watching: list[object] = []

        async def watch() -> None:
            async with await bucket.watch() as watcher:
                async for item in watcher:
                    watching.append(item)

        tasks = [asyncio.create_task(watch()) for _ in range(5)]
        async with asyncio.timeout(60):
            while len(watching) < 5:
                await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while (await client.api.call(f"STREAM.INFO.KV_{bucket_name}"))["state"]["consumer_count"]:
                await asyncio.sleep(0.02)
        assert client.connection._subscriptions == []


@pytest.fixture
async def jetstream(server):
    """The client library's own."""
    connection = await nats.connect(server.url)
    yield connection.jetstream()
    await connection.close()


async def whole(listing):
    """What the client library lists; slow, it may find that nothing is pending before it takes the first entry."""
    for _ in range(20):
        with suppress(NoKeysError):
            return await listing()
    return []


class TestBesideTheClientLibrary:
    @pytest.fixture(params=["ours", "theirs", "theirs-direct"])
    async def both(self, request, client, jetstream, bucket_name):
        """Handles of both on a bucket that one of them made."""
        if request.param == "ours":
            await client.create_bucket(bucket_name, history=5)
        else:
            config = KeyValueConfig(bucket=bucket_name, history=5, direct=request.param == "theirs-direct")
            await jetstream.create_key_value(config)
        return client.bucket(bucket_name), await jetstream.key_value(bucket_name)

    @pytest.mark.guarantee("buckets-1")
    async def test_values_of_other_clients_are_read(self, both):
        ours, theirs = both
        first = await theirs.put("a.b", b"1")
        second = await theirs.update("a.b", b"2", last=first)
        created = await theirs.create("c", b"3")
        assert (await ours.get("a.b")).revision == second
        assert (await ours.get("a.b", revision=first)).value == b"1"
        assert (await ours.get("c")).revision == created
        assert [key async for key in ours.keys()] == ["a.b", "c"]
        with pytest.raises(KeyExists):
            await ours.create("c", b"x")
        with pytest.raises(WrongRevision):
            await ours.update("a.b", b"x", first)
        await theirs.delete("a.b")
        await theirs.purge("c")
        for key in ("a.b", "c"):
            with pytest.raises(KeyNotFound):
                await ours.get(key)
        operations = [entry.operation async for entry in ours.history()]
        assert operations == [Operation.PUT, Operation.PUT, Operation.DEL, Operation.PURGE]
        await ours.create("a.b", b"4")
        assert (await theirs.get("a.b")).value == b"4"

    @pytest.mark.guarantee("buckets-1")
    async def test_our_values_are_read_by_other_clients(self, both):
        ours, theirs = both
        first = await ours.put("a.b", b"1")
        second = await ours.update("a.b", b"2", first)
        await ours.create("c", b"3")
        entry = await theirs.get("a.b")
        assert (entry.value, entry.revision) == (b"2", second)
        assert (await theirs.get("a.b", revision=first)).value == b"1"
        assert sorted(await whole(theirs.keys)) == ["a.b", "c"]
        assert [item.value for item in await whole(partial(theirs.history, "a.b"))] == [b"1", b"2"]
        with pytest.raises(KeyWrongLastSequenceError):
            await theirs.update("a.b", b"x", last=first)
        await ours.delete("a.b")
        with pytest.raises(KeyNotFoundError):
            await theirs.get("a.b")
        await ours.purge("c")
        assert [item.operation for item in await whole(partial(theirs.history, "c"))] == ["PURGE"]
        await theirs.create("c", b"4")
        assert (await ours.get("c")).value == b"4"

    async def test_each_sees_the_others_changes(self, both):
        ours, theirs = both
        watcher = await theirs.watchall()
        assert await watcher.updates(timeout=60) is None  # the end of what was there
        async with await ours.watch(updates_only=True) as watching:
            seen = aiter(watching)
            assert await anext(seen) is CURRENT
            revision = await theirs.put("k", b"1")
            item = await asyncio.wait_for(anext(seen), 60)
            assert (item.key, item.value, item.revision) == ("k", b"1", revision)
            await ours.delete("k")
            item = await asyncio.wait_for(anext(seen), 60)
            assert (item.key, item.operation) == ("k", Operation.DEL)
        for expected in (None, "DEL"):
            entry = await watcher.updates(timeout=60)
            assert (entry.key, entry.operation) == ("k", expected)
        await watcher.stop()

    async def test_many_written_by_us_are_many_for_them(self, both):
        ours, theirs = both
        assert (await ours.put_many((f"k.{number}", b"%d" % number) for number in range(500))).written == 500
        assert len(await whole(theirs.keys)) == 500
        assert (await theirs.get("k.499")).value == b"499"


async def test_a_ttl_of_ours_ends_for_them(client, jetstream, bucket_name):
    second = timedelta(seconds=1)
    bucket = await client.create_bucket(bucket_name, marker_ttl=second)
    theirs = await jetstream.key_value(bucket_name)
    for key, ttl in (("k", second), ("kept", 3600 * second)):
        await bucket.create(key, b"1", ttl=ttl)
    assert (await theirs.get("kept")).value == b"1"

    async def ended() -> bool:
        return await bucket.last_entry("k") is None

    await until_async(ended, what="end of the key and of its marker")
    with pytest.raises(KeyNotFoundError):
        await theirs.get("k")


async def test_a_context_for_reading_reads(server, client, bucket_name):
    await (await client.create_bucket(bucket_name)).put("k", b"1")
    async with kvctl.connect(Context(url=server.url, read_only=True)) as reader:
        assert (await reader.bucket(bucket_name).get("k")).value == b"1"
        with pytest.raises(ReadOnly):
            await reader.bucket(bucket_name).put("k", b"2")
