"""Concurrent edits of one stream: no change is lost, and no false change is reported."""

import asyncio
from datetime import timedelta

import pytest

import kvctl
from kvctl.errors import ConflictError
from kvctl.jetstream import edits, streams
from kvctl.jetstream.consumers import admin
from kvctl.kv import catalog
from kvctl.topology.apply import builders
from kvctl.topology.health import arrival
from kvctl.topology.model.origins import Aggregate, Origin
from tests.topology.conftest import Replicas

EDITORS = 4


@pytest.mark.guarantee("buckets-4", by="race")
async def test_origins_added_concurrently_are_all_kept(server, raw, unique):
    first, target = unique(), unique("A")
    others = [unique() for _ in range(EDITORS)]
    for name in (first, *others):
        raw.create_bucket(name, {"k": b"v"})
    async with kvctl.connect(server.url) as client:
        await builders.create_aggregate(client, Aggregate(target, (Origin(first, prefix=first),)))

    async def add(name: str) -> None:
        async with kvctl.connect(server.url) as client:
            await builders.add_aggregate_origin(client, target, Origin(name, prefix=name))

    await asyncio.gather(*(add(name) for name in others))
    config = raw.api(f"STREAM.INFO.KV_{target}")["config"]
    assert {source["name"] for source in config["sources"]} == {f"KV_{name}" for name in (first, *others)}
    subjects = Replicas(raw).subjects(f"KV_{target}")
    assert set(subjects) == {f"$KV.{target}.{name}.k" for name in (first, *others)}


@pytest.mark.guarantee("buckets-4", by="race")
async def test_concurrent_edits_of_different_fields_are_all_kept(server, raw, unique):
    bucket = unique()
    raw.create_bucket(bucket)
    changes = [{"history": 5}, {"ttl": timedelta(hours=1)}, {"description": "d"}, {"metadata": {"a": "b"}}]

    async def edit(change: dict[str, object]) -> None:
        async with kvctl.connect(server.url) as client:
            await catalog.apply_edit(client.api, await catalog.plan_edit(client.api, bucket, change))

    await asyncio.gather(*(edit(change) for change in changes))
    config = raw.api(f"STREAM.INFO.KV_{bucket}")["config"]
    assert (config["max_msgs_per_subject"], config["max_age"], config["description"], config["metadata"]["a"]) == (
        5,
        3600 * 10**9,
        "d",
        "b",
    )
    assert raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["consumer_count"] == 0


@pytest.mark.guarantee("buckets-4")
async def test_change_made_between_plan_and_edit_survives(client, raw, unique):
    bucket = unique()
    raw.create_bucket(bucket)
    edit = await catalog.plan_edit(client.api, bucket, {"description": "ours"})
    config = raw.api(f"STREAM.INFO.KV_{bucket}")["config"]
    raw.api(f"STREAM.UPDATE.KV_{bucket}", {**config, "max_msgs_per_subject": 7})
    info = await catalog.apply_edit(client.api, edit)
    assert (info["config"]["description"], info["config"]["max_msgs_per_subject"]) == ("ours", 7)


@pytest.mark.guarantee("buckets-4")
async def test_field_changed_between_plan_and_edit_is_a_conflict(client, raw, unique):
    bucket = unique()
    raw.create_bucket(bucket)
    edit = await catalog.plan_edit(client.api, bucket, {"history": 3})
    config = raw.api(f"STREAM.INFO.KV_{bucket}")["config"]
    raw.api(f"STREAM.UPDATE.KV_{bucket}", {**config, "max_msgs_per_subject": 7})
    with pytest.raises(ConflictError, match="max_msgs_per_subject"):
        await catalog.apply_edit(client.api, edit)
    assert raw.api(f"STREAM.INFO.KV_{bucket}")["config"]["max_msgs_per_subject"] == 7


async def test_bucket_recreated_between_plan_and_edit_is_a_conflict(client, raw, unique):
    bucket = unique()
    raw.create_bucket(bucket)
    edit = await catalog.plan_edit(client.api, bucket, {"history": 3})
    raw.api(f"STREAM.DELETE.KV_{bucket}")
    raw.create_bucket(bucket)
    with pytest.raises(ConflictError, match="was recreated"):
        await catalog.apply_edit(client.api, edit)


async def test_change_that_another_tool_overwrites_is_made_again(client, raw, unique, monkeypatch):
    """Another tool takes no lock: its write falls between kvctl's write and its read back."""
    bucket = unique()
    raw.create_bucket(bucket)
    before = raw.api(f"STREAM.INFO.KV_{bucket}")["config"]
    edit = await catalog.plan_edit(client.api, bucket, {"description": "ours"})
    update, left = streams.update, [2]

    async def overwritten(api: object, config: dict[str, object]) -> dict[str, object]:
        reply = await update(client.api, config)
        if left[0]:
            left[0] -= 1
            raw.api(f"STREAM.UPDATE.KV_{bucket}", {**before, "max_msgs_per_subject": 9 - left[0]})
        return reply

    monkeypatch.setattr(streams, "update", overwritten)
    info = await catalog.apply_edit(client.api, edit)
    assert (info["config"]["description"], info["config"]["max_msgs_per_subject"]) == ("ours", 9)
    left[0] = 100
    edit = await catalog.plan_edit(client.api, bucket, {"ttl": timedelta(hours=2)})
    with pytest.raises(ConflictError, match="being edited concurrently"):
        await catalog.apply_edit(client.api, edit)


async def test_origin_taken_out_while_waited_for_is_a_conflict(client, raw, unique):
    first, second, target = unique(), unique(), unique("A")
    for name in (first, second):
        raw.create_bucket(name)
    await builders.create_aggregate(client, Aggregate(target, (Origin(first, prefix="a"),)))
    plan = await builders.plan_origin(client.api, target, Origin(second, prefix="b"))
    before = raw.api(f"STREAM.INFO.KV_{target}")["config"]
    await builders.apply(client.api, plan)
    raw.api(f"STREAM.UPDATE.KV_{target}", before)
    with pytest.raises(ConflictError, match=f"no longer replicates `{second}`"):
        await arrival.until_filled(client.api, f"KV_{target}", plan.goals)


@pytest.mark.guarantee("buckets-4", by="kill")
async def test_editor_that_was_killed_blocks_others_only_for_its_lease(client, raw, unique):
    bucket = unique()
    raw.create_bucket(bucket)
    assert await edits._take_lock(client.api, f"KV_{bucket}") is not None
    begun = asyncio.get_running_loop().time()
    edit = await catalog.plan_edit(client.api, bucket, {"history": 3})
    await catalog.apply_edit(client.api, edit)
    assert edits.LEASE_S - 0.5 < asyncio.get_running_loop().time() - begun < edits.LEASE_S + 4
    assert await admin.names(client.api, f"KV_{bucket}") == []
