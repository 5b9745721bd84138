"""Buckets edited, compacted, and made of mirrors whose origins are lost."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl.errors import BucketExists, BucketNotFound, HazardRefused, PermissionDenied, RefusedError, UsageError
from kvctl.kv.config import Kind
from kvctl.topology.apply import edit
from kvctl.topology.apply.builders import create_mirror
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.health import arrival, overview
from kvctl.topology.model.origins import Mirror, Origin
from tests.support.raw import RawClient
from tests.support.restricted import restricted
from tests.support.waiting import until
from tests.topology.survey.test_graph import mirror_of

NOTHING = timedelta()


async def filled(client: kvctl.Client, name: str, **settings: Any) -> kvctl.Bucket:
    """Create a bucket of two keys with 4 revisions and one with 1: 9 entries of 10 bytes."""
    bucket = await client.create_bucket(name, history=5, **settings)
    await bucket.put_many((key, b"0123456789") for key in ["a", "b"] * 4 + ["c"])
    return bucket


async def evidence(client: kvctl.Client, name: str, **changes: Any) -> list[str]:
    """Return the hazards of an edit."""
    _, found = await edit.plan_edit(client.api, name, changes)
    return [hazard.evidence for hazard in found]


async def test_a_description_holds_bucket_origins_and_dependents(client, raw, unique):
    origin, mirror = unique("O"), unique("M")
    raw.create_bucket(origin)
    mirror_of(raw, f"KV_{origin}", mirror)
    status, place = await overview.describe(client.api, origin)
    assert status.kind == Kind.BUCKET
    assert place is not None
    assert [item.node.name for item in place.dependents(status.stream)] == [mirror]
    reverse, _ = await overview.describe(client.api, mirror)
    assert reverse.kind == Kind.MIRROR
    assert place.dependents(reverse.stream) == []


async def test_mirror_of_a_mirror_is_described_as_mirror(client, raw, unique):
    origin, mirror = unique("O"), unique("M")
    raw.create_bucket(origin)
    mirror_of(raw, f"KV_{origin}", mirror)
    mirror_of(raw, mirror, f"{mirror}-2")
    status, _ = await overview.describe(client.api, f"{mirror}-2")
    assert (status.bucket, status.kind) == (f"{mirror}-2", Kind.MIRROR)


async def test_a_bucket_is_described_where_streams_cannot_be_listed():
    with restricted('publish: {deny: "$JS.API.STREAM.LIST"}') as users:
        async with kvctl.connect(users.everything) as admin, kvctl.connect(users.some) as client:
            await admin.create_bucket("B")
            status, place = await overview.describe(client.api, "B")
            assert (status.bucket, place) == ("B", None)
            with pytest.raises(PermissionDenied):
                await client.buckets()


async def test_edit_to_shorter_history_counts_revisions(client, bucket_name):
    await filled(client, bucket_name)
    assert await evidence(client, bucket_name, history=3) == ["history 5 -> 3 removes 2 revisions of 2 keys"]
    assert await evidence(client, bucket_name, history=1) == ["history 5 -> 1 removes 6 revisions of 2 keys"]
    assert await evidence(client, bucket_name, history=4) == []


async def test_edit_to_shorter_ttl_counts_revisions_by_age(client, bucket_name):
    bucket = await filled(client, bucket_name)
    await asyncio.sleep(4.2)
    await bucket.put("young", b"")
    assert await evidence(client, bucket_name, ttl=timedelta(seconds=4)) == [
        "ttl none -> 4s removes 9 revisions immediately and 1 more at that age"
    ]
    assert await evidence(client, bucket_name, ttl=timedelta(hours=1)) == [
        "ttl none -> 1h removes 10 revisions at that age"
    ]


async def test_edit_to_smaller_sizes_counts_revisions(client, bucket_name):
    bucket = await filled(client, bucket_name)
    used = (await bucket.status()).bytes
    assert await evidence(client, bucket_name, max_value_size=9) == [
        "max_value_size 9 is below 9 revisions, which could not be rewritten"
    ]
    assert await evidence(client, bucket_name, max_value_size=10) == []
    assert len(await evidence(client, bucket_name, max_bytes=used - 1)) == 1
    assert await evidence(client, bucket_name, max_bytes=used) == []


async def test_edit_of_empty_bucket_loses_nothing(client, bucket_name):
    await client.create_bucket(bucket_name, history=64)
    changes = {"history": 1, "ttl": timedelta(seconds=1), "max_bytes": 1, "max_value_size": 1}
    assert await evidence(client, bucket_name, **changes) == []


async def test_harmless_edits_do_not_read_the_data(client, bucket_name):
    await filled(client, bucket_name, ttl=timedelta(hours=1))
    asked: list[str] = []
    client.connection.trace = lambda subject, seconds, note: asked.append(subject)
    changes = {"history": 9, "ttl": NOTHING, "description": "x", "metadata": {"a": "b"}, "compress": True}
    assert await evidence(client, bucket_name, **changes) == []
    info = f"$JS.API.STREAM.INFO.KV_{bucket_name}"
    assert (asked[0], set(asked[1:])) == (
        info,
        {"$JS.API.INFO", "$JS.API.STREAM.LIST"},
    )  # who reads from it may be harmed
    asked.clear()
    assert await evidence(client, bucket_name, description="x", metadata={"a": "b"}) == []
    assert asked == [info]


async def test_planned_edit_leaves_no_consumer_behind(client, raw, bucket_name):
    await filled(client, bucket_name)
    await evidence(client, bucket_name, ttl=timedelta(seconds=1), max_value_size=1)
    until(lambda: raw.api(f"CONSUMER.NAMES.KV_{bucket_name}")["total"] == 0, within=25)


async def test_compaction_before_replicas_received_deletions_is_a_hazard(client, raw, unique):
    """A mirror that never receives a marker keeps the key permanently: a purge is not replicated."""
    bucket = await filled(client, unique("O"))
    await bucket.delete("a")
    assert await _hazards(client, bucket) == []
    mirror = unique("M")
    mirror_of(raw, f"KV_{bucket.name}", mirror)
    mirror_of(raw, mirror, unique("MM"))
    late = await _hazards(client, bucket)
    assert {hazard.name for hazard in late} <= {"lagging-replica"}
    async with asyncio.timeout(60):
        while await _hazards(client, bucket):
            await asyncio.sleep(0.05)
    stuck = await _stuck(client, raw, bucket, unique("A"))
    held_back = await _hazards(client, bucket)
    assert [hazard.name for hazard in held_back] == ["lagging-replica"]
    assert f"aggregate `{stuck}` has a lag of " in held_back[0].evidence


async def test_compaction_is_a_hazard_for_a_replica_that_lacks_the_deletion_with_a_lag_of_0(client, raw, unique):
    """The only entry that an aggregate lacks is the deletion, too large for it; servers then report a lag of 0."""
    bucket, aggregate = await client.create_bucket(unique("O")), unique("A")
    await bucket.put("a", b"x")
    raw.create_bucket(aggregate, subjects=[], sources=[{"name": f"KV_{bucket.name}"}], max_msg_size=150)
    until(lambda: raw.api(f"STREAM.INFO.KV_{aggregate}")["state"]["messages"] == 1)
    raw.put(bucket.name, "a", b"", {"KV-Operation": "DEL", "Reason": "r" * 150})
    text = f"aggregate `{aggregate}` has not received the last deletions: it would keep the deleted keys permanently"
    assert [(hazard.name, hazard.evidence) for hazard in await _hazards(client, bucket)] == [("lagging-replica", text)]


async def test_compaction_without_tombstones_has_no_hazard(client, raw, unique):
    bucket = await filled(client, unique("O"))
    await _stuck(client, raw, bucket, unique("A"))
    assert await _hazards(client, bucket) == []


async def _stuck(client: kvctl.Client, raw: RawClient, bucket: kvctl.Bucket, name: str) -> str:
    """Create an aggregate that is stuck at a value larger than its limit."""
    await bucket.put("large", b"x" * 100)
    raw.create_bucket(name, subjects=[], sources=[{"name": f"KV_{bucket.name}"}], duplicate_window=0, max_msg_size=50)
    async with asyncio.timeout(60):
        while not raw.api(f"STREAM.INFO.KV_{name}")["sources"][0]["lag"]:
            await asyncio.sleep(0.02)
    return name


async def _hazards(client: kvctl.Client, bucket: kvctl.Bucket) -> list[Hazard]:
    return (await edit.plan_compaction(bucket, client.api, NOTHING))[1]


Names = Callable[..., str]


async def mirrored(
    client: kvctl.Client, raw: RawClient, unique: Names
) -> tuple[str, str, list[tuple[str, str, bytes]]]:
    """Return a lost bucket, its mirror, and the bucket's complete history."""
    bucket, mirror = await client.create_bucket(unique(), history=5), unique("M")
    for number in range(3):
        await bucket.put_many([("a", b"%d" % number), (f"b.{number}", b"x")])
    await bucket.delete("b.1")
    await bucket.purge("b.2")
    await create_mirror(client, Mirror(mirror, Origin(bucket.name)))
    entries = await history_of(client, bucket.name)
    raw.api(f"STREAM.DELETE.KV_{bucket.name}")
    return bucket.name, mirror, entries


async def history_of(client: kvctl.Client, bucket: str) -> list[tuple[str, str, bytes]]:
    return [(entry.key, str(entry.operation), entry.value) async for entry in client.bucket(bucket).history()]


async def test_promoted_bucket_equals_the_mirror(client, raw, unique):
    _, mirror, entries = await mirrored(client, raw, unique)
    name = unique("RESCUED")
    found = await edit.plan_promotion(client.api, mirror, name)
    assert await edit.promote(client, found) == len(entries)
    assert await history_of(client, name) == entries
    status = await client.bucket(name).status()
    assert (status.kind, status.history) == (Kind.BUCKET, 5)
    assert await client.bucket(name).put("k", b"v")
    assert (await client.bucket(mirror).status()).kind is Kind.MIRROR


async def test_promotion_under_the_origin_s_name_requires_deleting_the_mirror(client, raw, unique):
    bucket, mirror, entries = await mirrored(client, raw, unique)
    with pytest.raises(HazardRefused) as caught:
        await edit.promote(client, await edit.plan_promotion(client.api, mirror, bucket))
    assert caught.value.name == "recreated-origin"
    found = await edit.plan_promotion(client.api, mirror, bucket, delete_mirror=True)
    await edit.promote(client, found, delete_mirror=True)
    assert await history_of(client, bucket) == entries
    assert "error" in raw.api(f"STREAM.INFO.{mirror}")


async def test_promotion_of_a_mirror_that_lacks_entries_needs_force(client, raw, unique, monkeypatch):
    monkeypatch.setattr(arrival, "BRIEFLY", timedelta(seconds=0.5))
    bucket, mirror = await filled(client, unique("O")), unique("M")
    raw.create_stream(mirror, mirror={"name": f"KV_{bucket.name}"}, max_msgs=1, discard="new")
    until(lambda: raw.api(f"STREAM.INFO.{mirror}")["state"]["messages"] == 1)
    planned = await edit.plan_promotion(client.api, mirror, name := unique())
    with pytest.raises(HazardRefused) as caught:
        await edit.promote(client, planned)
    assert caught.value.name == "lagging-replica"
    assert await edit.promote(client, planned, force=["lagging-replica"]) == 1
    assert len(await history_of(client, name)) == 1


async def test_invalid_promotion_is_refused(client, raw, unique):
    _, mirror, _ = await mirrored(client, raw, unique)
    other = await client.create_bucket(unique())
    with pytest.raises(BucketExists):
        await edit.plan_promotion(client.api, mirror, other.name)
    with pytest.raises(RefusedError):
        await edit.plan_promotion(client.api, other.name, unique())
    with pytest.raises(BucketNotFound):
        await edit.plan_promotion(client.api, unique("NONE"), unique())
    with pytest.raises(UsageError):
        await edit.plan_promotion(client.api, mirror, "a b")
