"""Buckets created, changed, listed and deleted on a real server."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import kvctl
from kvctl.errors import (
    BucketExists,
    BucketNotFound,
    BucketSealed,
    KvctlError,
    OutcomeUnknown,
    ReadOnly,
    RefusedError,
    UsageError,
)
from kvctl.kv import catalog
from kvctl.kv.config import SETTINGS, BucketConfig, Kind, Republish
from kvctl.kv.transaction.transaction import Transaction
from kvctl.server import Server
from kvctl.topology.model.origins import Mirror, Origin
from tests.support.raw import RawClient

MINUTE = timedelta(minutes=1)


def config_of(raw: RawClient, stream: str) -> dict[str, Any]:
    """The stream's configuration, without what the server says of itself."""
    config: dict[str, Any] = raw.api(f"STREAM.INFO.{stream}")["config"]
    metadata = {name: text for name, text in config.pop("metadata", {}).items() if not name.startswith("_nats.")}
    return config | ({"metadata": metadata} if metadata else {})


def stop(server: Server) -> None:
    """Pause the server, and wait until it stands still."""
    server.pause()
    while Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


# -- creating ----------------------------------------------------------------------------------------------


@pytest.mark.guarantee("buckets-7")
async def test_a_new_bucket_is_the_adr_s_stream(client, raw, bucket_name):
    wanted = BucketConfig(bucket_name)
    made = await catalog.create(client.api, wanted)
    assert made.created
    found = config_of(raw, f"KV_{bucket_name}")
    assert {name: found[name] for name in wanted.to_stream()} == wanted.to_stream()
    assert not any(found[name] for name in ("mirror_direct", "sealed", "deny_purge", "allow_msg_ttl"))


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_every_setting_arrives_and_is_cleared(client, raw, bucket_name, storage):
    wanted = BucketConfig(
        bucket_name,
        description="d",
        history=3,
        ttl=MINUTE,
        marker_ttl=MINUTE,
        storage=storage,
        max_value_size=100,
        max_bytes=1000,
        compress=True,
        republish=Republish(f"$KV.{bucket_name}.>", f"copies.{bucket_name}.>"),
        metadata={"owner": "a"},
        atomic=True,
        tags=(),
    )
    await client.create_bucket(wanted)
    status = await client.bucket(bucket_name).status()
    assert BucketConfig.from_stream(status.config) == replace(wanted, compress=status.is_compressed)
    assert (status.history, status.ttl) == (3, MINUTE)
    clearable = [name for name, row in SETTINGS.items() if row.clearable and name != "storage"]
    await catalog.apply_edit(client.api, await catalog.plan_edit(client.api, bucket_name, {}, clearable))
    plain = BucketConfig(bucket_name, storage=storage).to_stream()
    found = config_of(raw, f"KV_{bucket_name}")
    assert {name: found[name] for name in plain} == plain
    assert "metadata" not in found
    assert found["compression"] == "none"


@pytest.mark.guarantee("buckets-2")
async def test_creating_an_equal_bucket_again_succeeds_without_change(client, bucket_name):
    config = BucketConfig(bucket_name, history=2, metadata={"a": "1"})
    first = await catalog.create(client.api, config)
    await client.bucket(bucket_name).put("k", b"v")
    again = await catalog.create(client.api, config)
    assert (first.created, again.created) == (True, False)
    assert again.info["created"] == first.info["created"]
    assert again.info["state"]["messages"] == 1


async def test_a_field_of_the_stream_is_changed_by_a_command_that_can(client, raw, bucket_name):
    stream = {**BucketConfig(bucket_name).to_stream(), "discard": "old", "allow_direct": False}
    raw.create_stream(**stream)
    with pytest.raises(BucketExists, match="allow_direct: none -> yes") as exists:
        await client.create_bucket(bucket_name)
    command = f"kvctl stream edit KV_{bucket_name} --set discard=new --set allow_direct=true"
    assert f"change it with `{command}`" in (exists.value.hint or "")


@pytest.mark.guarantee("buckets-6", by="race")
async def test_a_recreated_bucket_holds_nothing_of_the_deleted_one(own_server):
    """Servers may read the files of the deleted stream into the new one (in about one of twenty rounds)."""
    async with kvctl.connect(own_server.url) as client:
        for number in range(60):
            bucket = await client.create_bucket("B", history=5)
            assert (await bucket.status()).values == 0, f"round {number}"
            await asyncio.gather(*(bucket.put(f"k.{key}", b"v") for key in range(5)))
            await client.delete_bucket("B")


@pytest.mark.guarantee("buckets-2")
async def test_another_configuration_is_a_conflict_that_shows_each_field(client, bucket_name):
    await client.create_bucket(bucket_name, history=5)
    with pytest.raises(BucketExists) as conflict:
        await client.create_bucket(bucket_name, ttl=MINUTE)
    assert conflict.value.message.splitlines()[1:] == [
        "  history: 5 -> 1",
        "  duplicate_window: 2m -> 1m",
        "  ttl: none -> 1m",
    ]


async def test_a_mirror_stream_of_the_name_is_a_conflict(client, raw, unique):
    origin, mirror = unique("O"), unique("M")
    raw.create_bucket(origin)
    raw.create_stream(mirror, mirror={"name": f"KV_{origin}"}, storage="memory")
    with pytest.raises(BucketExists, match=f"`{mirror}` is a mirror of `{origin}`"):
        await client.create_bucket(mirror)
    assert f"KV_{mirror}" not in raw.api("STREAM.NAMES")["streams"]


async def test_stream_that_is_not_a_bucket_is_a_conflict(client, raw, bucket_name):
    raw.create_stream(f"KV_{bucket_name}", subjects=[f"{bucket_name}.>"])
    with pytest.raises(BucketExists, match="is not a bucket"):
        await client.create_bucket(bucket_name)


async def test_racing_creators_agree(client, bucket_name):
    made = await asyncio.gather(*(catalog.create(client.api, BucketConfig(bucket_name)) for _ in range(10)))
    assert len({creation.info["created"] for creation in made}) == 1


async def test_a_creation_without_an_answer_is_read_back(own_server):
    async with kvctl.connect(own_server.url) as client:
        await client.connection.require_replies()  # as an earlier write did: the next one is sent
        wanted = BucketConfig("B").to_stream()
        found = await over_silence(own_server, client, catalog.create_stream(client.api, wanted))
        assert found["config"]["name"] == "KV_B"


async def test_a_creation_that_nobody_can_tell_of_is_an_open_outcome(own_server):
    async with kvctl.connect(own_server.url) as client:
        await client.connection.require_replies()
        client.connection.timeout = 0.5
        stop(own_server)
        with pytest.raises(OutcomeUnknown, match="Could not find out if `B` was created"):
            await catalog.create_stream(client.api, BucketConfig("B").to_stream())
        own_server.resume()


async def test_a_read_only_connection_creates_nothing(server, raw, bucket_name):
    async with kvctl.connect(server.url, read_only=True) as client:
        with pytest.raises(ReadOnly):
            await catalog.create(client.api, BucketConfig(bucket_name))
    assert raw.api(f"STREAM.INFO.KV_{bucket_name}")["error"]["err_code"] == 10059


# -- changing ----------------------------------------------------------------------------------------------


@pytest.mark.guarantee("buckets-3")
async def test_an_edit_leaves_everything_else_as_it_is(client, raw, bucket_name):
    raw.create_bucket(
        bucket_name,
        allow_direct=False,
        allow_atomic=True,
        consumer_limits={"max_ack_pending": 7},
        subject_transform={"src": f"$KV.{bucket_name}.a.>", "dest": f"$KV.{bucket_name}.b.>"},
        duplicate_window=30 * 10**9,
        metadata={"owner": "a"},
    )
    before = config_of(raw, f"KV_{bucket_name}")
    edit = await catalog.plan_edit(client.api, bucket_name, {"history": 4, "metadata": {"team": "b"}})
    assert [str(item) for item in edit.differences] == ["history: 1 -> 4", "metadata.team: none -> b"]
    assert config_of(raw, f"KV_{bucket_name}") == before
    await catalog.apply_edit(client.api, edit)
    metadata = {"owner": "a", "team": "b"}
    assert config_of(raw, f"KV_{bucket_name}") == before | {"max_msgs_per_subject": 4, "metadata": metadata}


async def test_a_read_only_aggregate_stays_one(client, raw, unique):
    origin, name = unique("O"), unique("A")
    raw.create_bucket(origin)
    transforms = [{"src": f"$KV.{origin}.>", "dest": f"$KV.{name}.>"}]
    sources = [{"name": f"KV_{origin}", "opt_start_seq": 1, "subject_transforms": transforms}]
    raw.create_bucket(name, subjects=[], sources=sources, duplicate_window=0)
    edit = await catalog.plan_edit(client.api, name, {"history": 5, "ttl": timedelta(seconds=90)})
    info = await catalog.apply_edit(client.api, edit)
    assert "subjects" not in info["config"]
    assert info["config"]["sources"] == sources
    with pytest.raises(ReadOnly):
        await client.bucket(name).put("k", b"v")


async def test_storage_cannot_be_changed(client, bucket_name):
    await client.create_bucket(bucket_name)
    with pytest.raises(RefusedError, match="storage"):
        await catalog.plan_edit(client.api, bucket_name, {"storage": "memory"})


async def test_a_bucket_that_is_not_there_cannot_be_changed(client, bucket_name):
    await client.create_bucket(f"{bucket_name}-payments")
    with pytest.raises(BucketNotFound) as missing:
        await catalog.plan_edit(client.api, f"{bucket_name}-payment", {"history": 2})
    assert f"Did you mean `{bucket_name}-payments`?" in str(missing.value.hint)


async def test_update_gives_all_of_the_configuration(client, raw, bucket_name):
    raw.create_bucket(bucket_name, metadata={"old": "1"}, description="old", allow_direct=False)
    await client.update_bucket(BucketConfig(bucket_name, history=3, metadata={"new": "2"}))
    found = config_of(raw, f"KV_{bucket_name}")
    assert (found["max_msgs_per_subject"], found["metadata"], "description" in found) == (3, {"new": "2"}, False)
    assert found["allow_direct"] is False
    with pytest.raises(BucketNotFound):
        await client.update_bucket(BucketConfig(f"{bucket_name}-none"))


async def test_create_or_update_does_either(client, bucket_name):
    for history in (2, 5):
        bucket = await client.create_or_update_bucket(bucket_name, history=history)
        assert (await bucket.status()).history == history


async def test_an_edit_without_an_answer_is_read_back(own_server):
    async with kvctl.connect(own_server.url) as client:
        await client.create_bucket("B")
        edit = await catalog.plan_edit(client.api, "B", {"history": 7})
        found = await over_silence(own_server, client, catalog.apply_edit(client.api, edit))
        assert found["config"]["max_msgs_per_subject"] == 7


# -- listing and deleting ----------------------------------------------------------------------------------


@pytest.mark.guarantee("buckets-10")
async def test_the_listing_tells_kinds_apart_through_all_pages(own_server):
    with RawClient(own_server.url) as raw:
        plain = {"storage": "memory"}
        for number in range(270):
            raw.create_stream(f"S{number}", **plain)
        for name in ("A1", "ORDERS", "zulu"):
            raw.create_bucket(name, storage="memory")
        sources = [{"name": "KV_ORDERS", "subject_transforms": [{"src": "$KV.ORDERS.>", "dest": "$KV.AGG.>"}]}]
        raw.create_bucket("AGG", subjects=[], sources=sources, duplicate_window=0)
        raw.create_stream("COPY", mirror={"name": "KV_ORDERS"}, **plain)
        raw.create_stream("COPY2", mirror={"name": "COPY"}, **plain)
        raw.create_stream("KV_COPY3", mirror={"name": "KV_ORDERS"}, **plain)
        raw.create_stream("KV_LOGS", subjects=["logs.>"], **plain)
    async with kvctl.connect(own_server.url) as client:
        found = await catalog.listing(client.api)
        assert [(status.bucket, status.kind) for status in found.statuses] == [
            ("A1", Kind.BUCKET),
            ("AGG", Kind.AGGREGATE),
            ("COPY", Kind.MIRROR),
            ("COPY2", Kind.MIRROR),
            ("COPY3", Kind.MIRROR),
            ("KV_LOGS", Kind.STREAM),
            ("ORDERS", Kind.BUCKET),
            ("zulu", Kind.BUCKET),
        ]
        assert found.unreachable == []
        assert await client.bucket_names() == ["A1", "AGG", "COPY", "COPY2", "COPY3", "ORDERS", "zulu"]


@pytest.mark.guarantee("buckets-10")
async def test_buckets_of_a_dead_server_are_listed_as_offline(own_cluster):
    async with kvctl.connect(own_cluster.contexts["cluster"]) as client:
        for name, replicas in (("ONE", 1), ("THREE", 3)):
            await client.create_bucket(name, replicas=replicas)
        home = (await client.bucket("ONE").status()).info["cluster"]["leader"]
        own_cluster.servers[home].kill()
        await _until_led(client)
        client.connection.timeout = 4
        found = await catalog.listing(client.api)
        assert found.unreachable == ["KV_ONE"]
        assert [status.bucket for status in found.statuses] == ["THREE"]


async def test_deleting_removes_the_stream(client, raw, bucket_name):
    await client.create_bucket(bucket_name)
    await catalog.delete(client.api, f"KV_{bucket_name}")
    assert raw.api(f"STREAM.INFO.KV_{bucket_name}")["error"]["err_code"] == 10059
    with pytest.raises(BucketNotFound):
        await catalog.delete(client.api, f"KV_{bucket_name}")


async def test_a_deletion_without_an_answer_is_read_back(own_server):
    async with kvctl.connect(own_server.url) as client:
        await client.create_bucket("B")
        await over_silence(own_server, client, catalog.delete(client.api, "KV_B"))
        assert await client.bucket_names() == []


@pytest.mark.parametrize("name", ["", "a.b", ">", "*"])
async def test_names_are_checked_before_anything_is_sent(client, name):
    with pytest.raises(UsageError):
        await catalog.plan_edit(client.api, name, {"history": 2})


async def over_silence(server: Server, client: kvctl.Client, change: Coroutine[Any, Any, Any]) -> Any:
    """Result of the change when the server is paused for longer than the first request waits, which is a second."""
    stop(server)
    client.connection.timeout = 1
    changing = asyncio.create_task(change)
    await asyncio.sleep(0.5)
    client.connection.timeout = 60
    await asyncio.sleep(0.8)
    waits = not changing.done()
    server.resume()
    assert waits
    return await changing


async def _until_led(client: kvctl.Client) -> None:
    """Until the cluster has a leader again, for itself and for bucket THREE."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.api.account_info()
                if (await client.bucket("THREE").status()).info["cluster"].get("leader"):
                    return
            except kvctl.errors.KvctlError:
                await asyncio.sleep(0.2)


# -- sealing -----------------------------------------------------------------------------------------------


async def test_sealed_bucket_is_read_and_takes_no_write(client, bucket_name):
    bucket = await client.create_bucket(bucket_name, history=2, ttl=MINUTE, marker_ttl=MINUTE, atomic=True)
    await bucket.put("k", b"1")
    assert await client.seal_bucket(bucket_name) is True
    assert await client.seal_bucket(bucket_name) is False
    assert (await bucket.get("k")).value == b"1"
    assert [entry.value async for entry in bucket.history("k")] == [b"1"]
    batch = Transaction().put("k", b"2").put("l", b"2")
    writes: list[Coroutine[Any, Any, Any]] = [
        bucket.put("k", b"2"),
        bucket.create("l", b"2"),
        bucket.update("k", b"2", 1),
        bucket.delete("k"),
        bucket.purge("k"),
        bucket.commit(batch),
    ]
    for write in writes:
        with pytest.raises(BucketSealed, match=f"^Bucket `{bucket_name}` is sealed: it is permanently read-only$"):
            await write
    with pytest.raises(KvctlError):
        await catalog.apply_edit(client.api, await catalog.plan_edit(client.api, bucket_name, {"ttl": MINUTE}))
    assert (await bucket.get("k")).revision == 1
    await client.delete_bucket(bucket_name)


async def test_only_buckets_can_be_sealed(client, unique):
    origin, mirror = unique("O"), unique("M")
    await client.create_bucket(origin)
    await kvctl.create_mirror(client, Mirror(mirror, Origin(origin)))
    with pytest.raises(RefusedError, match=f"`{mirror}` is a mirror, not a bucket"):
        await client.seal_bucket(mirror)
    with pytest.raises(BucketNotFound):
        await client.seal_bucket(origin + "x")
    async with kvctl.connect(client.connection.context, read_only=True) as reader:
        with pytest.raises(ReadOnly):
            await reader.seal_bucket(origin)


async def test_creation_that_fails_for_files_in_the_way_is_tried_again(own_server):
    """The first attempt of the server fails (10049) and clears the place."""
    streams = Path(own_server.store, "jetstream", "$G", "streams")
    streams.mkdir(parents=True)
    (streams / "KV_B").touch()
    async with kvctl.connect(own_server.url) as client:
        bucket = await client.create_bucket("B")
        assert await bucket.put("k", b"v") == 1
