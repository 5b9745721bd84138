"""Plans applied on one server, across domains and accounts, killed midway, stale, or refused midway."""

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta

import pytest

import kvctl
from kvctl.documents import parser
from kvctl.errors import BucketExists, ConflictError, PartlyDone, ServerError, WaitExpired
from kvctl.jetstream.api import Api
from kvctl.kv import catalog
from kvctl.kv.stream_kind import LEAVING
from kvctl.topology.apply import applier
from kvctl.topology.apply.applier import ApplyOutcome, ReplicaFilling, Report, Verb
from kvctl.topology.model.file import read_topology
from kvctl.topology.plan import planner
from kvctl.topology.plan.change import TopologyPlan
from kvctl.topology.plan.saved import SavedPlan, renewed
from tests.topology.conftest import keys_of
from tests.topology.plain import read

PATIENCE = timedelta(seconds=120)


async def apply(
    apis: Api | Mapping[str, Api], text: str, *, prune: bool = False, wait_for: timedelta | None = PATIENCE
) -> tuple[TopologyPlan, Report]:
    """Plan, apply, wait, verify."""
    apis = {"": apis} if isinstance(apis, Api) else apis
    topology = read(text)
    plan = await planner.plan(topology, apis, prune=prune)
    filling = ReplicaFilling(wait_for)
    report = await applier.apply(apis, plan, filling)
    if report.error is None:
        await applier.fill(report, filling)
    if report.error is None:
        report.error = await applier.verify(
            lambda: planner.plan(topology, apis, prune=prune), 60, 60 if applier.moves(plan.changes) else 0
        )
    return plan, report


async def planned(client: kvctl.Client, text: str) -> tuple[TopologyPlan, SavedPlan]:
    apis, document = {"": client.api}, parser.parse(f"version: 1\n{text}".encode(), "t.yaml")
    plan = await planner.plan(read_topology(document), apis)
    return plan, SavedPlan.of(document, plan, apis)


def names(plan: TopologyPlan) -> list[str]:
    return [change.name for change in plan.changes]


@pytest.mark.guarantee("topology-1")
async def test_second_apply_has_no_changes(client, unique):
    bucket, mirror, aggregate = unique(), unique("M"), unique("A")
    text = (
        f"buckets: {{{bucket}: {{history: 2, ttl: 1h, marker_ttl: 1m, metadata: {{a: b}}, compress: true, "
        f"atomic: true, republish: 'a.{bucket}.>=b.>', max_value_size: 1KiB, description: d}}}}\n"
        f"mirrors: {{{mirror}: {{origin: {bucket}, deny_purge: true}}}}\n"
        f"aggregates: {{{aggregate}: {{writable: true, origins: [{{bucket: {mirror}, keys: 'a.>', prefix: p}}]}}}}"
    )
    plan, report = await apply(client.api, text)
    assert (report.error, report.written) == (None, 3)
    assert [report.outcome(change) for change in plan.changes] == [ApplyOutcome.DONE] * 3
    plan, report = await apply(client.api, text)
    assert (plan.changes, report.written) == ([], 0)


@pytest.mark.guarantee("topology-2")
async def test_apply_ends_after_all_entries_have_arrived(client, unique):
    bucket, mirror, aggregate = await client.create_bucket(unique()), unique("M"), unique("A")
    await bucket.put_many((f"k.{number}", b"v") for number in range(300))
    text = f"mirrors: {{{mirror}: {{origin: {bucket.name}}}}}\naggregates: {{{aggregate}: {{origins: [{mirror}]}}}}"
    _, report = await apply(client.api, text)
    assert report.error is None
    assert len(await keys_of(client, aggregate)) == 300


async def test_recreated_replicas_have_only_new_entries(client, unique):
    bucket, other, mirror, aggregate = unique(), unique(), unique("M"), unique("A")
    text = (
        f"buckets: {{{bucket}: {{}}, {other}: {{}}}}\nmirrors: {{{mirror}: {{origin: {bucket}}}}}\n"
        f"aggregates: {{{aggregate}: {{origins: [{{bucket: {mirror}, prefix: p}}, {{bucket: {other}, prefix: q}}]}}}}"
    )
    await apply(client.api, text)
    await client.bucket(bucket).put("old", b"v")
    await client.bucket(other).put("k", b"v")
    _, report = await apply(client.api, text.replace(f"{bucket}: {{}}", f"{bucket}: {{storage: memory}}"))
    assert report.error is None
    await client.bucket(bucket).put("new", b"v")
    for _ in range(200):
        if (found := await keys_of(client, aggregate)) == ["p.new", "q.k"]:
            break
        await asyncio.sleep(0.02)
    assert found == ["p.new", "q.k"]
    _, report = await apply(client.api, text.replace(f", {{bucket: {other}, prefix: q}}", ""))
    assert report.error is None
    assert await keys_of(client, aggregate) == ["p.new"]


async def test_removed_origin_takes_its_keys_and_leaves_others(client, raw, unique):
    one, other, aggregate, reader = unique(), unique(), unique("A"), unique("A")
    for name in (one, other):
        raw.create_bucket(name, {"k": b"v"})
    text = (
        f"aggregates: {{{aggregate}: {{writable: true, origins: [{{bucket: {one}, prefix: p}}, {{bucket: {other}, "
        f"prefix: q}}]}}, {reader}: {{origins: [{aggregate}]}}}}"
    )
    await apply(client.api, text)
    await client.bucket(aggregate).put("own", b"v")
    _, report = await apply(client.api, text.replace(f", {{bucket: {other}, prefix: q}}", ""))
    assert report.error is None
    assert await keys_of(client, aggregate) == await keys_of(client, reader) == ["own", "p.k"]
    assert LEAVING not in raw.api(f"STREAM.INFO.KV_{aggregate}")["config"]["metadata"]
    plan, report = await apply(client.api, text)
    assert (report.error, [str(change.action) for change in plan.changes]) == (None, ["change"])
    assert await keys_of(client, aggregate) == ["own", "p.k", "q.k"]


async def test_origin_added_again_before_its_keys_are_removed_recreates_the_aggregate(client, raw, unique):
    one, other, aggregate = unique(), unique(), unique("A")
    for name in (one, other):
        raw.create_bucket(name, {"k": b"v"})
    text = f"aggregates: {{{aggregate}: {{origins: [{{bucket: {one}, prefix: p}}, {{bucket: {other}, prefix: q}}]}}}}"
    await apply(client.api, text)
    config = raw.api(f"STREAM.INFO.KV_{aggregate}")["config"]
    sources = config["sources"]
    marked = {**config, "sources": sources[:1], "metadata": {LEAVING: json.dumps(sources[1:])}}
    raw.api(f"STREAM.UPDATE.KV_{aggregate}", marked)
    plan, report = await apply(client.api, text)
    assert (report.error, [str(change.action) for change in plan.changes]) == (None, ["recreate"])
    assert await keys_of(client, aggregate) == ["p.k", "q.k"]


async def test_replicas_are_deleted_before_their_origin_and_created_after_it(client, unique):
    bucket, mirror, aggregate = unique(), unique("M"), unique("A")
    text = (
        f"name: {unique('t')}\nbuckets: {{{bucket}: {{}}}}\nmirrors: {{{mirror}: {{origin: {bucket}}}}}\n"
        f"aggregates: {{{aggregate}: {{origins: [{mirror}]}}}}"
    )
    await apply(client.api, text)
    plan = await planner.plan(read(text.replace("{}", "{storage: memory}")), {"": client.api})
    assert [(write.verb, write.change.name) for write in applier.writes(plan.changes)] == [
        *((Verb.DELETE, name) for name in (aggregate, mirror, bucket)),
        *((Verb.CREATE, name) for name in (bucket, mirror, aggregate)),
    ]
    plan, report = await apply(client.api, text.partition("\n")[0], prune=True)
    assert [change.name for change in plan.changes] == [aggregate, mirror, bucket]
    assert report.error is None


async def test_deletion_that_another_apply_made_first_is_done(client, raw, unique, monkeypatch):
    kept, pruned = unique(), unique()
    await apply(client.api, f"name: {kept}\nbuckets: {{{kept}: , {pruned}: }}")
    deletes = catalog.delete

    async def late(api: Api, stream: str) -> None:
        raw.api(f"STREAM.DELETE.{stream}")
        await deletes(api, stream)

    monkeypatch.setattr(catalog, "delete", late)
    _, report = await apply(client.api, f"name: {kept}\nbuckets: {{{kept}: }}", prune=True)
    assert (report.error, list(report.outcomes.values())) == (None, [ApplyOutcome.DONE])


# -- what changes under it ---------------------------------------------------------------------------------


@pytest.mark.guarantee("topology-6")
async def test_plan_is_stale_after_concurrent_changes(client, raw, unique):
    changed, anew, gone, made, origin = (unique() for _ in range(5))
    mirror = unique("M")
    for name in (changed, anew, gone, origin):
        await client.create_bucket(name)
    buckets = ", ".join(f"{name}: {{history: 2}}" for name in (changed, anew, gone, made))
    text = f"buckets: {{{buckets}}}\nmirrors: {{{mirror}: {{origin: {origin}}}}}"
    plan, saved = await planned(client, text)
    assert names(await renewed(saved, {"": client.api})) == names(plan)
    for name in (changed, origin):
        config = raw.api(f"STREAM.INFO.KV_{name}")["config"]
        raw.api(f"STREAM.UPDATE.KV_{name}", {**config, "description": "x"})
    for name in (anew, gone):
        raw.api(f"STREAM.DELETE.KV_{name}")
    raw.create_bucket(anew)
    raw.create_bucket(made)
    with pytest.raises(ConflictError) as caught:
        await renewed(saved, {"": client.api})
    for line in (
        f"`{changed}` was changed",
        f"`{anew}` was recreated",
        f"`{gone}` was deleted",
        f"`{made}` was created",
        f"`{origin}` was changed",
    ):
        assert f"  {line}" in caught.value.message.splitlines()
    report = await applier.apply({"": client.api}, plan, ReplicaFilling(None))
    assert isinstance(report.error, ConflictError)
    assert report.written == 0


async def test_completed_changes_are_not_repeated(client, unique):
    first, second = unique(), unique()
    plan, saved = await planned(client, f"buckets: {{{first}: {{}}, {second}: {{}}}}")
    assert (await apply(client.api, f"buckets: {{{first}: }}"))[1].error is None
    assert names(await renewed(saved, {"": client.api})) == [second]
    report = await applier.apply({"": client.api}, plan, ReplicaFilling(None))
    assert (report.error, report.written) == (None, 1)


async def test_failed_step_ends_the_apply_and_the_next_completes_it(client, raw, unique):
    first, second, third = unique(), unique(), unique()
    raw.create_stream(f"T{second}", subjects=[f"$KV.{second}.x"], storage="file")
    text = f"buckets: {{{first}: {{}}, {second}: {{}}, {third}: {{}}}}"
    plan, report = await apply(client.api, text)
    assert isinstance(report.error, PartlyDone)
    assert [report.outcome(change) for change in plan.changes] == [
        ApplyOutcome.DONE,
        ApplyOutcome.FAILED,
        ApplyOutcome.NOT_TRIED,
    ]
    for line in (f"done: bucket `{first}`", f"failed: bucket `{second}`", f"not tried: bucket `{third}`"):
        assert f"  {line}" in report.error.message.splitlines()
    _, report = await apply(client.api, text.replace(f"{first}: {{}}, ", ""))
    assert isinstance(report.error, ServerError)  # nothing had been done yet
    raw.api(f"STREAM.DELETE.T{second}")
    plan, report = await apply(client.api, text)
    assert (report.error, [change.name for change in plan.changes]) == (None, [second, third])


async def test_replica_that_does_not_fill_in_time_is_reported(client, raw, unique):
    bucket, aggregate = unique(), unique("A")
    raw.create_bucket(bucket, {"k": b"x" * 5000})
    text = f"aggregates: {{{aggregate}: {{origins: [{bucket}], max_value_size: 1KiB}}}}"
    _, report = await apply(client.api, text, wait_for=timedelta(seconds=1))
    assert isinstance(report.error, WaitExpired)
    assert f"`{bucket}`: at revision 0 of 1" in report.error.message
    _, report = await apply(client.api, text.replace(aggregate, unique("A")), wait_for=None)
    assert report.error is None


async def test_name_taken_concurrently_is_reported(client, raw, unique):
    bucket = unique()
    plan = await planner.plan(read(f"buckets: {{{bucket}: {{}}}}"), {"": client.api})
    raw.create_bucket(bucket, max_msgs_per_subject=9)
    report = await applier.apply({"": client.api}, plan, ReplicaFilling(None))
    assert isinstance(report.error, ConflictError)
    assert not isinstance(report.error, BucketExists)
    assert raw.api(f"STREAM.INFO.KV_{bucket}")["config"]["max_msgs_per_subject"] == 9
