"""Many keys at once: all outcomes are known, whatever the server, the connection and the items do."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import kvctl
from kvctl import Bucket, Client
from kvctl.errors import (
    ConnectionLost,
    KvctlError,
    NoResponders,
    OutcomeUnknown,
    RequestTimeout,
    ServerError,
    UsageError,
)
from kvctl.jetstream import request_window
from kvctl.jetstream.direct_get import NotUnderstood
from kvctl.kv.bulk import bulk_put
from kvctl.kv.read import bulk_get
from kvctl.wire import publish_frame
from tests.support.differences import differences

AT_ONCE = 30.0
"""Seconds, on a machine that may stand still for some of them; a timeout for each of the keys would be more."""


@pytest.fixture
async def bucket(client, bucket_name):
    return await client.create_bucket(bucket_name)


async def test_get_many_of_listed_keys_asks_the_leader_where_a_replica_holds_less(raw, client, bucket_name):
    raw.create_bucket(bucket_name)
    mirror = f"KV_M{bucket_name}"
    raw.create_bucket(f"M{bucket_name}", subjects=[], mirror={"name": f"KV_{bucket_name}"}, mirror_direct=True)
    revisions = {f"k{number}": raw.put(bucket_name, f"k{number}", b"x") for number in range(20)}
    async with asyncio.timeout(AT_ONCE):
        while raw.api(f"STREAM.INFO.{mirror}")["state"]["last_seq"] < 20:
            await asyncio.sleep(0.05)
    raw.api(f"STREAM.PURGE.{mirror}")
    for _ in range(20):
        found = await client.bucket(bucket_name).get_many(list(revisions), at_least=revisions)
        assert [entry and entry.revision for entry in found] == list(revisions.values())


class TestPutMany:
    async def test_ten_thousands_are_written_in_order(self, bucket):
        summary = await bucket.put_many((f"k.{number % 20_000}", b"%d" % number) for number in range(30_000))
        assert (summary.written, summary.failed, summary.last_revision) == (30_000, [], 30_000)
        entries = {entry.key: entry.value async for entry in bucket.entries()}
        expected = {f"k.{number}": b"%d" % (number + 20_000 if number < 10_000 else number) for number in range(20_000)}
        assert differences(entries, expected) == []

    async def test_items_may_come_slowly(self, bucket):
        async def slowly() -> AsyncIterator[tuple[str, bytes]]:
            for number in range(5):
                await asyncio.sleep(0.01)
                yield f"k.{number}", b"x"

        assert (await bucket.put_many(slowly())).written == 5

    async def test_none_at_all(self, bucket):
        assert (await bucket.put_many([])).written == 0

    async def test_a_small_window_is_kept(self, bucket, monkeypatch):
        most = 0
        collect = request_window.RequestWindow._collect

        async def counted(self: request_window.RequestWindow) -> None:
            nonlocal most
            most = max(most, len(self._open))
            await collect(self)

        monkeypatch.setattr(request_window.RequestWindow, "_collect", counted)
        assert (await bucket.put_many(((f"k.{n}", b"") for n in range(1000)), window=7)).written == 1000
        assert most == 7 + 1  # the last one waits for room

    async def test_large_values_are_bounded_by_their_bytes(self, bucket, monkeypatch):
        monkeypatch.setattr(request_window, "WINDOW_BYTES", 3 << 20)
        assert (await bucket.put_many((f"k.{n}", b"x" * (1 << 20)) for n in range(12))).written == 12

    @pytest.mark.guarantee("writing-12")
    async def test_a_full_bucket_fails_those_that_no_longer_fit(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, max_bytes=100_000)
        summary = await bucket.put_many((f"k.{number}", b"x" * 1000) for number in range(200))
        assert 80 < summary.written < 100
        assert summary.written + len(summary.failed) == 200
        assert {getattr(error, "err_code", 0) for _, error in summary.failed} == {10077}
        assert [key for key, _ in summary.failed] == [f"k.{number}" for number in range(summary.written, 200)]

    async def test_values_over_the_buckets_limit_fail_one_by_one(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, max_value_size=100)
        summary = await bucket.put_many((f"k.{number}", b"x" * (90 + number)) for number in range(20))
        assert (summary.written, len(summary.failed)) == (11, 9)
        assert all(isinstance(error, ServerError) and error.err_code == 10054 for _, error in summary.failed)

    @pytest.mark.parametrize("bad", [("k", b"x" * (2 << 20)), ("a b", b""), ("k" * 4096, b"")])
    async def test_invalid_item_ends_put_many_with_everything_before_it_written(self, client, bucket, bad):
        with pytest.raises(UsageError):
            await bucket.put_many([("first", b"1"), ("second", b"2"), bad, ("never", b"3")])
        assert [key async for key in bucket.keys()] == ["first", "second"]
        assert client.connection.epoch == 0

    async def test_an_error_in_the_items_is_the_callers(self, bucket):
        def items() -> Iterator[tuple[str, bytes]]:
            yield "k", b""
            raise LookupError

        with pytest.raises(LookupError):
            await bucket.put_many(items())

    async def test_a_bucket_deleted_under_it_fails_the_rest(self, server, client, bucket):
        client.connection.timeout = 1  # what is in the stream's queue when it goes is never answered, and so unknown

        async def items() -> AsyncIterator[tuple[str, bytes]]:
            for number in range(3000):
                if number == 1000:
                    async with kvctl.connect(server.url) as other:
                        await other.bucket(bucket.name).destroy()
                yield f"k.{number}", b""

        begun = time.monotonic()
        summary = await bucket.put_many(items())
        assert time.monotonic() - begun < AT_ONCE
        assert summary.written + len(summary.failed) == 3000
        assert summary.written <= 1000
        errors = Counter(type(error) for _, error in summary.failed)
        assert errors[NoResponders] >= 2000
        assert set(errors) <= {NoResponders, RequestTimeout, ConnectionLost, OutcomeUnknown}

    @pytest.mark.guarantee("writing-12", by="fault")
    async def test_a_cut_connection_is_made_good(self, own_server):
        count = 40_000
        async with kvctl.connect(own_server.url) as client:
            bucket = await client.create_bucket("B")

            async def items() -> AsyncIterator[tuple[str, bytes]]:
                for number in range(count):
                    if number in (10_000, 25_000):
                        own_server.kill()
                        await asyncio.to_thread(own_server.start)
                    yield f"k.{number % 500}", b"%d" % number

            summary = await bucket.put_many(items())
            assert (summary.written, summary.failed) == (count, [])
            entries = {entry.key: int(entry.value) async for entry in bucket.entries()}
            assert differences(entries, {f"k.{number % 500}": number for number in range(count - 500, count)}) == []

    async def test_a_server_that_stays_away_leaves_the_rest_unknown(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            bucket = await client.create_bucket("B")
            client.connection.timeout = 0.3

            def items() -> Iterator[tuple[str, bytes]]:
                for number in range(2000):
                    if number == 1000:
                        own_server.kill()
                    yield f"k.{number}", b""

            begun = time.monotonic()
            summary = await bucket.put_many(items())
            assert time.monotonic() - begun < AT_ONCE
            assert summary.written + len(summary.failed) == 2000
            assert len(summary.failed) >= 1000
            assert ConnectionLost in (kinds := {type(error) for _, error in summary.failed})
            assert kinds <= {ConnectionLost, RequestTimeout}

    @pytest.mark.guarantee("writing-12", by="fault")
    async def test_a_stopped_server_leaves_the_rest_unknown(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            bucket = await client.create_bucket("B")
            client.connection.timeout = 0.5
            own_server.pause()
            summary = await asyncio.wait_for(_put_without_locating(bucket), AT_ONCE)
            assert (summary.written, len(summary.failed)) == (0, 100)
            assert {type(error) for _, error in summary.failed} <= {RequestTimeout, ConnectionLost}


async def _put_without_locating(bucket: Bucket) -> bulk_put.PutSummary:
    bucket._located = True  # it was, before the server stopped
    return await bucket.put_many((f"k.{number}", b"") for number in range(100))


@contextmanager
def requests_of(client: Client) -> Iterator[list[str]]:
    """Record the subjects of the requests in the block."""
    asked: list[str] = []
    client.connection.trace = lambda subject, *_: asked.append(subject)
    yield asked
    client.connection.trace = None


class TestGetMany:
    async def test_ten_thousands_come_in_the_order_asked(self, client, bucket):
        await bucket.put_many((f"k.{number}", b"%d" % number) for number in range(10_000))
        keys = [f"k.{number}" for number in range(10_100, -1, -1)]
        for handle in (bucket, client.bucket(bucket.name)):
            found = await handle.get_many(keys)
            assert found[:101] == [None] * 101
            values = [entry.value for entry in found[101:] if entry]
            assert differences(values, [b"%d" % number for number in range(9_999, -1, -1)]) == []

    async def test_the_leader_may_be_asked(self, bucket):
        await bucket.put_many((f"k.{number}", b"%d" % number) for number in range(500))
        found = await bucket.get_many([f"k.{number}" for number in range(501)], leader=True)
        assert [entry and entry.value for entry in found] == [*(b"%d" % number for number in range(500)), None]

    @pytest.mark.parametrize("listed", [1, bulk_get.LISTED_KEYS])
    async def test_deleted_keys_and_keys_asked_twice(self, bucket, monkeypatch, listed):
        monkeypatch.setattr(bulk_get, "LISTED_KEYS", listed)
        await bucket.put_many([("a", b"1"), ("b", b"2")])
        await bucket.delete("a")
        found = await bucket.get_many(["b", "a", "b", "nope", "b"])
        assert [entry and entry.value for entry in found] == [b"2", None, b"2", None, b"2"]
        assert [(entry.delta, entry.stream) for entry in found if entry] == [(None, f"KV_{bucket.name}")] * 3

    async def test_many_keys_are_read_as_each_alone_whatever_their_headers_say(self, client, bucket):
        forged = (
            b"Nats-Stream: S\r\nNats-Subject: $KV.%b.plain\r\nNats-Sequence: 99\r\n"
            b"Nats-Time-Stamp: 2026-11-23T00:00:00Z\r\nNats-Num-Pending: 1\r\nNats-Last-Sequence: 0\r\n"
        ) % bucket.name.encode()
        blocks = {
            "plain": b"",
            "header": b"NATS/1.0\r\nA: b\r\n\r\n",
            "forged": b"NATS/1.0\r\n" + forged + b"\r\n",
            "cut": b"NATS/1.0\r\nA: b",
            "forged-and-cut": b"NATS/1.0\r\n" + forged + b"A: b",
        }
        for key, header in blocks.items():
            subject = f"$KV.{bucket.name}.{key}".encode()
            client.connection.write(publish_frame(subject, b"", header, key.encode()))
        for change in (bucket.put("plain", b"y"), bucket.delete("header")):
            await change
            single = [await bucket.last_entry(key) for key in blocks]
            found = await bulk_get.get_many(client.bucket(bucket.name), list(blocks), leader=False)
            assert list(found.values()) == single
            stored = await bulk_get.get_many(bucket, list(blocks), leader=True)
            assert [one and (one.key, one.value, one.revision, one.operation) for one in single] == [
                one and (one.key, one.value, one.revision, one.operation) for one in stored.values()
            ]

    async def test_known_keys_take_one_request_and_missing_ones_are_confirmed(self, client, bucket):
        await bucket.put_many([("a", b"1"), ("b", b"2")])
        for keys, requests in ((["a", "b"], 1), (["a", "b", "c"], 2), (["c", "d"], 3)):
            with requests_of(client) as asked:
                await client.bucket(bucket.name).get_many(keys)
            assert len(set(asked)) == requests, asked

    async def test_a_list_is_read_only_where_it_is_mostly_of_the_keys_and_not_large(self, client, bucket, monkeypatch):
        monkeypatch.setattr(bulk_get, "LISTED_KEYS", 20)
        keys = [f"k.{number}" for number in range(40)]

        async def lists(some: list[str]) -> bool:
            with requests_of(client) as asked:
                assert all(await client.bucket(bucket.name).get_many(some))
            return any(".CONSUMER.CREATE." in subject for subject in asked)

        await bucket.put_many((key, b"x") for key in keys)
        assert [await lists(keys[:most]) for most in (40, 20, 19)] == [True, True, False]
        monkeypatch.setattr(bulk_get, "LISTED_KEYS", 1)
        assert not await lists(keys[:19])
        await bucket.put("large", bytes(bulk_get.LISTED_BYTES * 40))
        assert not await lists(keys)

    async def test_none_and_one(self, bucket):
        await bucket.put("a", b"1")
        assert await bucket.get_many([]) == []
        assert [entry and entry.value for entry in await bucket.get_many(["a"])] == [b"1"]
        assert await bucket.get_many(["nope"]) == [None]

    async def test_large_values_neither_overrun_the_connection_nor_get_lost(self, client, bucket):
        await bucket.put_many((f"k.{number}", bytes([number]) * 900_000) for number in range(150))
        found = await client.bucket(bucket.name).get_many([f"k.{number}" for number in range(150)])
        assert [entry and (len(entry.value), entry.value[0]) for entry in found] == [(900_000, n) for n in range(150)]
        assert client.connection.epoch == 0

    async def test_servers_that_know_no_such_request_are_asked_key_by_key(self, bucket, monkeypatch):
        await bucket.put_many((f"k.{number}", b"%d" % number) for number in range(300))

        async def unknown(*_: Any) -> AsyncIterator[Any]:
            raise NotUnderstood("as 2.10 answers")
            yield

        monkeypatch.setattr(bulk_get, "pages_of", unknown)
        found = await bucket.get_many([f"k.{number}" for number in range(301)])
        assert [entry and entry.value for entry in found] == [*(b"%d" % number for number in range(300)), None]

    async def test_a_stopped_server_is_an_error_after_the_timeout(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            bucket = await client.create_bucket("B")
            await bucket.put_many((f"k.{number}", b"") for number in range(100))
            client.connection.timeout = 0.5
            own_server.pause()
            begun = time.monotonic()
            with pytest.raises(KvctlError) as caught:
                await bucket.get_many([f"k.{number}" for number in range(100)])
            assert time.monotonic() - begun < AT_ONCE
            assert caught.value.exit_code == 5

    async def test_a_restart_in_its_middle_changes_nothing(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            bucket = await client.create_bucket("B")
            keys = [f"k.{number}" for number in range(20_000)]
            await bucket.put_many((key, b"x") for key in keys)
            reading = asyncio.create_task(client.bucket("B").get_many(keys))
            await asyncio.sleep(0.05)
            own_server.kill()
            await asyncio.to_thread(own_server.start)
            assert all(await reading)


async def test_values_written_by_others_are_read_at_once(raw, client, bucket_name):
    bucket = await client.create_bucket(bucket_name)
    for number in range(100):
        raw.put(bucket_name, "k", b"%d" % number)
        found = await bucket.get_many(["k", "other"])
        assert [entry and entry.value for entry in found] == [b"%d" % number, None]
