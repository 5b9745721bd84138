"""Copies of buckets: configuration, current values, history with its operations and order."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import kvctl
from kvctl.errors import BucketExists, BucketNotFound, ConflictError, KvctlError, RefusedError, ServerError, UsageError
from kvctl.kv import catalog
from kvctl.kv.config import BucketConfig, Kind
from kvctl.kv.maintenance import copy_bucket
from kvctl.kv.maintenance.copy_bucket import HISTORY, LATEST, KeyDifference, compare, copied_config
from kvctl.kv.stream_kind import UNFINISHED
from tests.support.raw import RawClient
from tests.support.waiting import until_async

MINUTE = timedelta(minutes=1)


async def history_of(bucket: kvctl.Bucket) -> list[tuple[str, bytes, str]]:
    """Key, value and operation of every entry, in order."""
    return [(entry.key, entry.value, str(entry.operation)) async for entry in bucket.history()]


async def eventful(client: kvctl.Client, name: str, **settings: Any) -> kvctl.Bucket:
    """A bucket with every kind of entry in its history."""
    bucket = await client.create_bucket(name, history=5, **settings)
    for number in range(7):
        await bucket.put_many([("often", b"%d" % number), (f"once.{number}", b"")])
    await bucket.delete("once.1")
    await bucket.create("once.1", b"again")
    await bucket.purge("once.2")
    await bucket.delete("once.3")
    return bucket


async def test_history_is_copied_with_operations_in_order(client, unique):
    source = await eventful(client, unique())
    name = unique()
    copied = await copy_bucket.copy(source, client.api, name, data=HISTORY)
    expected = await history_of(source)
    assert await history_of(client.bucket(name)) == expected
    assert (copied.created, copied.entries) == (True, len(expected))
    assert {operation for _, _, operation in expected} == {"PUT", "DEL", "PURGE"}


async def test_latest_copies_the_living_keys(client, unique):
    source = await eventful(client, unique())
    name = unique()
    await copy_bucket.copy(source, client.api, name, data=LATEST)
    living = [(entry.key, entry.value, "PUT") async for entry in source.entries()]
    assert await history_of(client.bucket(name)) == living
    assert "once.3" not in [key for key, _, _ in living]


async def test_the_configuration_goes_along(client, raw, unique):
    source, name = unique(), unique()
    raw.create_bucket(
        source,
        max_msgs_per_subject=7,
        max_age=3600 * 10**9,
        allow_direct=False,
        allow_atomic=True,
        description="d",
        metadata={"owner": "a"},
        republish={"src": f"$KV.{source}.>", "dest": f"copies.{name}.>"},
    )
    copied = await copy_bucket.copy(client.bucket(source), client.api, name)
    found = copied.info["config"]
    assert (found["name"], found["subjects"]) == (f"KV_{name}", [f"$KV.{name}.>"])
    assert found["republish"] == {"src": f"$KV.{name}.>", "dest": f"copies.{name}.>"}
    assert (found["max_msgs_per_subject"], found["max_age"], found["allow_direct"]) == (7, 3600 * 10**9, False)
    assert (found["allow_atomic"], found["description"], found["metadata"]["owner"]) == (True, "d", "a")
    assert copied.info["state"]["messages"] == 0


async def test_an_aggregate_is_copied_to_an_ordinary_bucket(client, raw, unique):
    origin, aggregate, mirror = unique("O"), unique("A"), unique("M")
    await eventful(client, origin)
    transforms = [{"src": f"$KV.{origin}.>", "dest": f"$KV.{aggregate}.x.>"}]
    sources = [{"name": f"KV_{origin}", "subject_transforms": transforms}]
    raw.create_bucket(aggregate, subjects=[], sources=sources, duplicate_window=0, max_msgs_per_subject=5)
    raw.create_stream(mirror, mirror={"name": f"KV_{origin}"}, max_msgs_per_subject=5)
    for name in (aggregate, mirror):
        source = client.bucket(name)
        await _until_steady(source)
        copied = await copy_bucket.copy(source, client.api, f"{name}-copy", data=HISTORY)
        target = client.bucket(f"{name}-copy")
        assert (await target.status()).kind is Kind.BUCKET
        assert not copied.info["config"].keys() & {"sources", "mirror"}
        assert await history_of(target) == await history_of(source)
        assert await target.put("k", b"writable")


async def test_keys_take_along_what_is_left_of_their_ttl(client, unique):
    source = await client.create_bucket(unique(), marker_ttl=MINUTE)
    await source.create("k", b"v", ttl=timedelta(seconds=1000))
    await asyncio.sleep(1.1)
    name = unique()
    await copy_bucket.copy(source, client.api, name, data=HISTORY)
    ttl = (await client.bucket(name).get("k")).ttl
    assert ttl is not None
    assert timedelta(seconds=900) < ttl < timedelta(seconds=1000)


async def test_markers_of_expired_keys_stay_markers(client, unique):
    source = await client.create_bucket(unique(), marker_ttl=MINUTE)
    await source.create("gone", b"v", ttl=timedelta(seconds=1))
    await _until(lambda: _operation(source, "gone"), "PURGE")
    name = unique()
    await copy_bucket.copy(source, client.api, name, data=HISTORY)
    marker = await client.bucket(name).last_entry("gone")
    assert (marker.operation, marker.reason) == ("PURGE", "MaxAge")


async def test_writers_headers_go_along_and_the_server_s_do_not(client, raw, unique):
    source = unique()
    raw.create_bucket(source)
    for key in "ab":
        raw.put(source, key, b"1", {"Trace": "7", "Nats-Msg-Id": f"same-{key}", "Nats-Expected-Stream": f"KV_{source}"})
    name = unique()
    await copy_bucket.copy(client.bucket(source), client.api, name, data=LATEST)
    stored = raw.api(f"STREAM.MSG.GET.KV_{name}", {"seq": 1})["message"]
    assert base64.b64decode(stored["hdrs"]) == b"NATS/1.0\r\nTrace: 7\r\n\r\n"


async def test_nonconforming_keys_are_copied_without_harm_to_others(client, raw, unique):
    """A purge marker on the literal key `star.*`, copied with its rollup, would erase `star.a`."""
    source = unique()
    raw.create_bucket(source, {"star.a": b"kept", "日本": b"kept"}, max_msgs_per_subject=5)
    with RawClient(f"nats://127.0.0.1:{raw._socket.getpeername()[1]}") as other:
        other.publish(f"$KV.{source}.star.*", b"", {"KV-Operation": "PURGE"})
        other.flush()
    name = unique()
    expected = await history_of(client.bucket(source))
    assert ("star.*", b"", "PURGE") in expected
    await copy_bucket.copy(client.bucket(source), client.api, name, data=HISTORY)
    assert await history_of(client.bucket(name)) == expected


async def test_many_entries_keep_their_order(client, unique):
    source = await client.create_bucket(unique(), history=3)
    await source.put_many((f"k{number % 5000}", b"%d" % number) for number in range(12_000))
    name = unique()
    counts: list[int] = []
    await copy_bucket.copy(source, client.api, name, data=HISTORY, advance=counts.append)
    assert await history_of(client.bucket(name)) == await history_of(source)
    assert sum(counts) == 12_000


async def test_copies_cross_contexts(client, leaf, unique):
    source = await eventful(client, unique())
    for context in ("hub", "hub-via-leaf"):
        name = unique()
        async with kvctl.connect(leaf.contexts[context]) as there:
            await copy_bucket.copy(source, there.api, name, data=HISTORY)
            assert await history_of(there.bucket(name)) == await history_of(source)


async def test_the_same_name_elsewhere_is_another_bucket(client, own_server, bucket_name):
    source = await eventful(client, bucket_name)
    async with kvctl.connect(own_server.url) as there:
        await copy_bucket.copy(source, there.api, bucket_name, data=LATEST)
        assert await there.bucket_names() == [bucket_name]
    with pytest.raises(UsageError, match="is the source bucket"):
        await copy_bucket.copy(source, client.api, bucket_name)


async def test_a_target_that_exists_is_used_when_it_is_like_it_and_empty(client, unique):
    source = await eventful(client, unique(), metadata={"a": "1"})
    name = unique()
    await copy_bucket.copy(source, client.api, name)
    created = (await client.bucket(name).status()).created_ns
    copied = await copy_bucket.copy(source, client.api, name, data=LATEST)
    status = await client.bucket(name).status()
    assert (copied.created, status.created_ns, status.kind) == (False, created, Kind.BUCKET)
    assert UNFINISHED not in status.config["metadata"]
    with pytest.raises(BucketExists, match="is not empty"):
        await copy_bucket.copy(source, client.api, name, data=LATEST)
    assert not (await copy_bucket.copy(source, client.api, name)).created


async def test_a_target_with_another_configuration_is_a_conflict(client, unique):
    source = await eventful(client, unique())
    target = await client.create_bucket(unique(), history=2)
    for data in (None, LATEST):
        with pytest.raises(BucketExists, match="history: 2 -> 5"):
            await copy_bucket.copy(source, client.api, target.name, data=data)


async def test_a_copy_that_fails_is_removed(client, unique):
    source = await client.create_bucket(unique())
    await source.put_many((f"k{number}", b"x" * 100) for number in range(1000))
    name = unique()
    with pytest.raises(ServerError, match="could not be copied"):
        await copy_bucket.copy(source, client.api, name, data=LATEST, changes={"max_msg_size": 50})
    assert name not in await client.bucket_names()


async def test_a_copy_that_fails_leaves_a_target_of_others_empty(client, unique):
    source = await client.create_bucket(unique())
    await source.put_many([("small", b"x"), ("large", b"x" * 100)])
    target = await client.create_bucket(unique(), max_value_size=50)
    with pytest.raises(ServerError):
        await copy_bucket.copy(source, client.api, target.name, data=LATEST, changes={"max_msg_size": 50})
    status = await target.status()
    assert (status.values, status.kind) == (0, Kind.BUCKET)


async def test_an_interrupted_copy_is_removed(client, unique):
    source = await client.create_bucket(unique())
    await source.put_many((f"k{number}", b"x" * 1000) for number in range(20_000))
    name = unique()
    task = asyncio.create_task(
        copy_bucket.copy(source, client.api, name, data=LATEST, advance=lambda _: task.cancel() and None)
    )
    with pytest.raises(asyncio.CancelledError):
        await task
    assert name not in [status.bucket for status in (await catalog.listing(client.api)).statuses]


async def test_a_copy_interrupted_without_a_server_ends_and_can_be_run_again(own_server):
    async with kvctl.connect(own_server.url) as client:
        source = await client.create_bucket("SOURCE")
        await source.put_many((f"k{number}", b"x" * 1000) for number in range(20_000))
        under_way = asyncio.Event()

        def lose(_: int) -> None:
            if not under_way.is_set():
                own_server.kill()
                under_way.set()

        copy = partial(copy_bucket.copy, source, client.api, "COPY", data=LATEST)
        task = asyncio.create_task(copy(advance=lose))
        await under_way.wait()
        await until_async(lambda: not client.connection.online, what="the connection to be lost")
        task.cancel()
        await asyncio.wait([task], timeout=5)  # cleaning up takes longer
        assert task.cancelled()
        own_server.start()
        await client.connection.wait_online(60)
        await copy()
        assert await compare(source, client.bucket("COPY")) == []


async def test_leftovers_of_a_killed_copy_are_recognised_and_replaced(client, raw, unique):
    source, name = await eventful(client, unique()), unique()
    raw.create_bucket(name, {"half": b"x"}, metadata={UNFINISHED: "of a killed copy"})
    assert (await client.bucket(name).status()).kind is Kind.INCOMPLETE
    await copy_bucket.copy(source, client.api, name, data=HISTORY)
    assert await history_of(client.bucket(name)) == await history_of(source)


async def test_a_copy_under_way_is_not_taken_over(client, raw, unique):
    source, name = await eventful(client, unique()), unique()
    raw.create_bucket(name, metadata={UNFINISHED: "of a copy at work"})
    copy = asyncio.create_task(copy_bucket.copy(source, client.api, name, data=HISTORY))
    while not copy.done():
        raw.put(name, "busy", b"x")
        await asyncio.sleep(0.05)
    with pytest.raises(ConflictError, match="by another process"):
        await copy
    assert (await client.bucket(name).status()).values == 1


async def test_a_source_that_is_not_there_makes_nothing(client, unique):
    name = unique()
    with pytest.raises(BucketNotFound):
        await copy_bucket.copy(client.bucket(unique()), client.api, name, data=LATEST)
    assert name not in await client.bucket_names()


async def test_incomplete_bucket_and_other_streams_are_not_copied(client, raw, unique):
    half, other, name = unique(), unique(), unique()
    raw.create_bucket(half, metadata={UNFINISHED: "x"})
    raw.create_bucket(other, subjects=[f"{other}.>"])
    for source, message in ((half, "is incomplete"), (other, "not a bucket")):
        with pytest.raises(RefusedError, match=message):
            await copy_bucket.copy(client.bucket(source), client.api, name, data=HISTORY)
    assert name not in await client.bucket_names()


def test_newer_fields_survive():
    stream = BucketConfig("A").to_stream() | {"allow_flying": True, "mirror_direct": False, "sealed": True}
    copied = copied_config(stream, "B")
    assert copied["allow_flying"] is True
    assert not copied.keys() & {"sealed", "mirror_direct"}


async def _operation(bucket: kvctl.Bucket, key: str) -> str | None:
    entry = await bucket.last_entry(key)
    return entry and str(entry.operation)


async def _until_steady(bucket: kvctl.Bucket) -> None:
    await _until(lambda: _values(bucket), 15)


async def _values(bucket: kvctl.Bucket) -> int:
    with_all = 5 + 6 + 1 + 2 + 1  # often, once.N, and what the deletions added
    try:
        return min((await bucket.status()).values, with_all)
    except KvctlError:
        return 0


async def _until(ask: Callable[[], Any], wanted: Any) -> None:
    async with asyncio.timeout(60):
        while await ask() != wanted:
            await asyncio.sleep(0.05)


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
        await bucket.put_many([("a", b"1"), ("b", b"1")])
    await first.delete("a")
    await second.purge("b")
    assert {item.key: str(item.difference) for item in await compare(first, second)} == {"a": "extra", "b": "missing"}


async def test_a_mirror_is_compared_under_its_origin_s_keys(client, raw, unique):
    origin, mirror = await client.create_bucket(unique("O")), unique("M")
    await origin.put_many([("a", b"1"), ("b", b"2")])
    raw.create_stream(mirror, mirror={"name": f"KV_{origin.name}"}, storage="memory")
    async with asyncio.timeout(60):
        while await compare(origin, client.bucket(mirror)):
            await asyncio.sleep(0.05)
    raw.api(f"STREAM.PURGE.KV_{origin.name}", {"filter": f"$KV.{origin.name}.a"})
    assert await compare(origin, client.bucket(mirror)) == [KeyDifference("a", "extra", None, 1)]  # type: ignore[arg-type]


async def test_a_bucket_that_is_not_there_is_an_error(client, unique):
    first = await client.create_bucket(unique())
    with pytest.raises(BucketNotFound):
        await compare(first, client.bucket(unique()))
