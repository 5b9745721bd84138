"""Copy and rename: what arrives, what is left, and that no interruption leaves neither name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

import kvctl
from kvctl import Bucket, Operation
from kvctl.errors import (
    ConnectionLost,
    KeyExists,
    KeyNotFound,
    KvctlError,
    OutcomeUnknown,
    ReadOnly,
    ServerError,
    UsageError,
    WrongRevision,
)
from kvctl.kv import conditional_write, copy_key
from kvctl.kv.copy_key import copy, rename
from kvctl.kv.transaction import execution
from kvctl.wire import header_value
from tests.support.contents import contents

SECOND = timedelta(seconds=1)


@pytest.fixture(params=[False, True], ids=["one-by-one", "at-once"])
async def bucket(request, client, bucket_name):
    """A bucket that takes no batches, and one that does."""
    return await client.create_bucket(bucket_name, history=5, atomic=request.param)


@pytest.fixture
async def other(client, bucket_name):
    return await client.create_bucket(f"{bucket_name}x", marker_ttl=SECOND)


class TestCopy:
    async def test_keeps_both(self, bucket):
        await bucket.put("a", b"1")
        assert await copy(bucket, "a", bucket, "b") == 2
        assert await contents(bucket) == {"a": b"1", "b": b"1"}

    async def test_to_another_bucket(self, bucket, other):
        await bucket.put("a", b"1")
        await copy(bucket, "a", other, "a")
        assert await contents(other) == {"a": b"1"}

    async def test_overwrites_only_when_told(self, bucket):
        await bucket.put_many([("a", b"1"), ("b", b"2")])
        with pytest.raises(KeyExists):
            await copy(bucket, "a", bucket, "b")
        await copy(bucket, "a", bucket, "b", overwrite=True)
        assert await contents(bucket) == {"a": b"1", "b": b"1"}

    async def test_of_a_missing_key(self, bucket):
        with pytest.raises(KeyNotFound):
            await copy(bucket, "a", bucket, "b")

    @pytest.mark.parametrize("overwrite", [False, True])
    async def test_takes_along_what_is_left_of_the_ttl(self, client, other, overwrite):
        await other.create("a", b"1", ttl=100 * SECOND)
        await other.put("c", b"2")
        await copy(other, "a", other, "c" if overwrite else "b", overwrite=overwrite)
        left = (await other.get("c" if overwrite else "b")).ttl
        assert left is not None
        assert 60 * SECOND < left <= 100 * SECOND
        await copy(other, "a", other, "d")
        assert (await other.get("d")).ttl == left


class TestRename:
    async def test_leaves_the_new_name_only(self, bucket):
        await bucket.put("a", b"1")
        revision = await rename(bucket, "a", bucket, "b")
        assert revision == (await bucket.get("b")).revision == 2
        assert await contents(bucket) == {"b": b"1"}
        assert [entry.operation async for entry in bucket.history("a")] == [Operation.PUT, Operation.DEL]

    async def test_to_another_bucket(self, bucket, other):
        await bucket.put("a", b"1")
        await rename(bucket, "a", other, "a")
        assert (await contents(bucket), await contents(other)) == ({}, {"a": b"1"})

    async def test_overwrites_only_when_told(self, bucket):
        await bucket.put_many([("a", b"1"), ("b", b"2")])
        with pytest.raises(KeyExists):
            await rename(bucket, "a", bucket, "b")
        assert await contents(bucket) == {"a": b"1", "b": b"2"}
        await rename(bucket, "a", bucket, "b", overwrite=True)
        assert await contents(bucket) == {"b": b"1"}

    async def test_over_a_deleted_key(self, bucket):
        await bucket.put_many([("a", b"1"), ("b", b"2")])
        await bucket.delete("b")
        await rename(bucket, "a", bucket, "b")
        assert await contents(bucket) == {"b": b"1"}

    async def test_rename_onto_itself_is_refused(self, client, bucket):
        await bucket.put("a", b"1")
        for handle in (bucket, client.bucket(bucket.name)):
            with pytest.raises(UsageError, match="equals the old one"):
                await rename(bucket, "a", handle, "a", overwrite=True)
        assert await contents(bucket) == {"a": b"1"}

    async def test_of_a_missing_key(self, bucket):
        with pytest.raises(KeyNotFound):
            await rename(bucket, "a", bucket, "b")

    async def test_rename_is_refused_on_a_read_only_handle(self, client, bucket):
        await bucket.put("a", b"1")
        reader = client.bucket(bucket.name, read_only=True)
        with pytest.raises(ReadOnly):
            await rename(reader, "a", reader, "b")
        assert await contents(bucket) == {"a": b"1"}

    async def test_rename_of_a_key_with_a_ttl_is_one_batch_and_keeps_the_remaining_ttl(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, atomic=True, marker_ttl=timedelta(seconds=1))
        await bucket.create("a", b"1", ttl=timedelta(hours=1))
        assert await rename(bucket, "a", bucket, "b") == 2
        entry = await bucket.get("b")
        assert entry.ttl is not None
        assert timedelta(minutes=59) < entry.ttl <= timedelta(hours=1)
        assert len(_batches([item async for item in bucket.entries(deleted=True)])) == 1
        assert await contents(bucket) == {"b": b"1"}

    @pytest.mark.guarantee("writing-10")
    async def test_atomic_rename_is_one_batch(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, atomic=True)
        await bucket.put("a", b"1")
        await rename(bucket, "a", bucket, "b")
        entries = [entry async for entry in bucket.history()]
        assert [(entry.key, entry.revision) for entry in entries] == [("b", 2), ("a", 3)]
        assert [entry.headers for entry in entries] == [{}, {"KV-Operation": "DEL"}]
        assert len(_batches(entries)) == 1


def _batches(entries: list[kvctl.Entry]) -> set[bytes]:
    """Return the batches that the entries were written in; each was written in one."""
    found = {header_value(entry.header, b"Nats-Batch-Id") for entry in entries}
    assert None not in found
    return {batch for batch in found if batch is not None}


class TestAKeyThatChangesMeanwhile:
    async def test_keeps_its_new_value(self, client, bucket, monkeypatch):
        await bucket.put("a", b"1")
        theirs = client.bucket(bucket.name)
        get = Bucket.get

        async def overtaken(self: Bucket, key: str, **options: bool) -> kvctl.Entry:
            entry = await get(self, key, **options)
            await theirs.put("a", b"theirs")
            return entry

        monkeypatch.setattr(Bucket, "get", overtaken)
        with pytest.raises(WrongRevision, match="changed while it was being renamed"):
            await rename(bucket, "a", bucket, "b")
        assert (await contents(bucket))["a"] == b"theirs"

    async def test_concurrent_write_to_the_new_name_is_not_overwritten(self, client, bucket_name, monkeypatch):
        bucket = await client.create_bucket(bucket_name, atomic=True)
        await bucket.put("a", b"1")
        publish = execution.publish_batch

        async def overtaken(*arguments: object) -> int:
            await client.bucket(bucket_name).put("b", b"theirs")
            return await publish(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(execution, "publish_batch", overtaken)
        with pytest.raises(WrongRevision, match="nothing was changed"):
            await rename(bucket, "a", bucket, "b")
        assert await contents(bucket) == {"a": b"1", "b": b"theirs"}


class Interrupted(Exception):
    """Stands for the end of our process."""


class TestInterrupted:
    @pytest.mark.guarantee("writing-10", by="kill")
    @pytest.mark.parametrize("after", [0, 1, 2])
    async def test_one_of_the_names_has_the_value(self, bucket, monkeypatch, after):
        """Killed after so many of its writes."""
        await bucket.put("a", b"1")
        writes = 0

        def counted(original: Callable[..., object]) -> Callable[..., object]:
            async def write(*arguments: object, **options: object) -> object:
                nonlocal writes
                if writes == after:
                    raise Interrupted
                writes += 1
                return await original(*arguments, **options)  # type: ignore[misc]

            return write

        monkeypatch.setattr(conditional_write, "write", counted(conditional_write.write))
        monkeypatch.setattr(execution, "publish_batch", counted(execution.publish_batch))
        at_once = (await bucket.locate()).info["config"].get("allow_atomic")  # type: ignore[index]
        if after < (1 if at_once else 2):
            with pytest.raises(Interrupted):
                await rename(bucket, "a", bucket, "b")
        else:
            await rename(bucket, "a", bucket, "b")
        expected = {0: {"a"}, 1: {"b"} if at_once else {"a", "b"}, 2: {"b"}}[after]
        assert set(await contents(bucket)) == expected
        assert set((await contents(bucket)).values()) == {b"1"}

    @pytest.mark.parametrize("stored", [True, False])
    async def test_a_lost_answer_to_a_batch_is_resolved(self, client, bucket_name, monkeypatch, stored):
        bucket = await client.create_bucket(bucket_name, atomic=True)
        await bucket.put("a", b"1")
        publish = execution.publish_batch
        calls = 0

        async def lossy(*arguments: object) -> int:
            nonlocal calls
            calls += 1
            if calls > 1:
                return await publish(*arguments)  # type: ignore[arg-type]
            if stored:
                await publish(*arguments)  # type: ignore[arg-type]
            raise ConnectionLost("no answer")

        monkeypatch.setattr(execution, "publish_batch", lossy)
        assert await rename(bucket, "a", bucket, "b") == 2
        assert await contents(bucket) == {"b": b"1"}
        assert (await bucket.status()).last_revision == 3

    async def test_rename_without_any_answer_has_an_unknown_outcome(self, own_server, monkeypatch):
        publish = execution.publish_batch

        async def unheard(*arguments: object) -> int:
            own_server.pause()
            return await publish(*arguments)  # type: ignore[arg-type]

        async with kvctl.connect(own_server.url) as client:
            bucket = await client.create_bucket("B", atomic=True)
            await bucket.put("a", b"1")
            client.connection.timeout = 0.5
            monkeypatch.setattr(execution, "publish_batch", unheard)
            begun = time.monotonic()
            with pytest.raises(OutcomeUnknown, match="if `a` was renamed to `b`") as caught:
                await rename(bucket, "a", bucket, "b")
            assert time.monotonic() - begun < 60
            assert caught.value.exit_code == 6
            own_server.resume()

    @pytest.mark.guarantee("writing-10", by="kill")
    async def test_rename_on_a_cluster_whose_leader_dies(self, own_cluster):
        urls = ",".join(server.url for server in own_cluster.servers.values())
        async with kvctl.connect(urls) as client:
            bucket = await client.create_bucket("B", replicas=3, atomic=True, history=5)
            await bucket.put("k.0", b"1")
            info = (await bucket.locate(fresh=True)).info
            number, deadline = 0, time.monotonic() + 120
            killed = False
            while number < 12:
                assert time.monotonic() < deadline
                if number == 4 and not killed:
                    own_cluster.servers[info["cluster"]["leader"]].kill()
                    killed = True
                try:
                    await rename(bucket, f"k.{number}", bucket, f"k.{number + 1}")
                    number += 1
                except KvctlError:
                    await asyncio.sleep(0.2)
                    with_value = [name for name, value in (await _settled(bucket)).items() if value == b"1"]
                    assert len(with_value) == 1  # never neither, never both: it is one batch
                    number = int(with_value[0].removeprefix("k."))
            assert await contents(bucket) == {"k.12": b"1"}


async def _settled(bucket: Bucket) -> dict[str, bytes]:
    deadline = time.monotonic() + 60
    while True:
        try:
            return await contents(bucket)
        except KvctlError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)


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
    assert (await with_ttls.status()).last_revision == 1 + copy_key.ATTEMPTS
