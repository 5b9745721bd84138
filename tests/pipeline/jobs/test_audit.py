"""Audits on Spark have the same result as audits without it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta

import pytest

import kvctl
from kvctl.errors import BucketNotFound
from kvctl.pipeline.jobs import audit as job
from kvctl.pipeline.jobs.audit import audit
from kvctl.pipeline.jobs.export import export, of_bucket
from kvctl.pipeline.options import parse
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.audit import confirmation
from kvctl.topology.audit.verdict import AuditDifference, AuditOutcome
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from tests.topology.audited import audited, said

SHORTLY = timedelta(seconds=2)


@pytest.fixture
def on_spark(engine, server):
    """Audit an origin and its replicas; in a thread, as commands do."""

    async def run(
        origin: str, *names: str, report: Callable[[AuditDifference], None] = lambda _: None
    ) -> list[AuditOutcome]:
        options = parse({"bucket": origin, "url": server.url})
        return await asyncio.to_thread(audit, engine, options, names, SHORTLY, report=report)

    return run


async def same(client: kvctl.Client, found: Sequence[AuditOutcome], replica: str) -> None:
    """Check that an audit without Spark has the same result."""
    expected = [item for item in await audited(client, replica) if item.origin == found[0].origin]
    assert [asdict(item) for item in found] == [asdict(item) for item in expected]


async def test_audit_of_an_equal_mirror_and_one_that_lost_keys(client, raw, unique, on_spark):
    bucket, whole, short = unique("ORIGIN"), unique("M"), unique("M")
    raw.create_bucket(bucket, {f"k.{number}": b"\xff" for number in range(20)})
    await client.bucket(bucket).delete("k.3")
    await create_mirror(client, Mirror(whole, Origin(bucket)))
    raw.create_stream(short, mirror={"name": f"KV_{bucket}"}, storage="memory")
    await audited(client, short)
    raw.api(f"STREAM.MSG.DELETE.{short}", {"seq": 3})
    found = await on_spark(bucket, whole, short)
    assert [item.error for item in found] == [None, None]
    assert [(item.replica, item.keys, item.consistent) for item in found] == [(whole, 19, True), (short, 19, False)]
    assert said(found) == [("missing", "k.2", None)]
    for item in found:
        await same(client, [item], item.replica)


async def test_audit_of_an_aggregate_with_transforms_and_own_keys(client, raw, unique, on_spark):
    one, two, both = unique("ONE"), unique("TWO"), unique("BOTH")
    for bucket in (one, two):
        raw.create_bucket(bucket)
        for number in range(10):
            raw.put(bucket, f"NEW.{number}", b"%d" % number)
            raw.put(bucket, f"OLD.{number}", b"x")
    origins = (Origin(one, keys=("NEW.>",), prefix="a"), Origin(two, keys=("NEW.*",), prefix="b"))
    await create_aggregate(client, Aggregate(both, origins, writable=True))
    await client.bucket(both).put_many([("own", b"1"), ("a.3", b"overwritten")])
    await client.bucket(one).delete("NEW.5")
    found = await on_spark(one, both)
    assert (found[0].keys, found[0].local) == (9, 1)
    assert [(str(item.kind), item.key) for item in found[0].samples] == [("differing", "a.3")]
    await same(client, found, both)


async def test_audit_of_unrelated_buckets_compares_key_by_key(client, raw, unique, on_spark):
    one, two = unique("ONE"), unique("TWO")
    for bucket, entries in (
        (one, {"same": b"1", "changed": b"1", "gone": b"1", "\x7f": b"1"}),
        (two, {"same": b"1", "changed": b"2", "new": b"1", "\x7f": b"2"}),
    ):
        raw.create_bucket(bucket)
        for key, value in entries.items():
            raw.put(bucket, key, value)
    listed: list[AuditDifference] = []
    found = await on_spark(one, two, report=listed.append)
    differing = [("differing", "changed", None), ("differing", "\x7f", None)]
    assert said(found) == [("missing", "gone", None), ("extra", "new", None), *differing]
    assert {item.key for item in listed} == {"gone", "new", "changed", "\x7f"}
    assert (await on_spark(one, one))[0].consistent is True


async def test_audit_of_an_export_follows_the_transforms_of_an_aggregate(client, raw, unique, engine, server, tmp_path):
    one, two, both = unique("ONE"), unique("TWO"), unique("BOTH")
    for bucket in (one, two):
        raw.create_bucket(bucket, {f"NEW.{number}": b"%d" % number for number in range(6)} | {"OLD.1": b"x"})
    origins = (Origin(one, keys=("NEW.>",), prefix="a"), Origin(two, keys=("NEW.*",), prefix="b"))
    await create_aggregate(client, Aggregate(both, origins, writable=True))
    options = parse({"bucket": one, "url": server.url})
    place = TablePlace(str(tmp_path / "out"))
    table = (await asyncio.to_thread(export, engine, lambda: of_bucket(options), place)).table
    await audited(client, both)
    await client.bucket(both).put_many([("own", b"1"), ("a.3", b"overwritten")])
    await client.bucket(one).put("NEW.new", b"1")
    await audited(client, both)
    (found,) = await asyncio.to_thread(audit, engine, options, [both], SHORTLY, table=table)
    assert (found.error, found.keys) == (None, 6)
    assert sorted((str(item.kind), item.key) for item in found.samples) == [("differing", "a.3"), ("extra", "a.new")]


async def test_audit_of_an_export_compares_its_files_with_buckets(client, raw, unique, engine, server, tmp_path):
    bucket = unique()
    entries = {f"k.{number}": b"%d" % number for number in range(7)} | {"k.\udcff": b"not UTF-8", "k.\x7f": b"1"}
    entries |= {"k.7": b"7", "k.\udcfd": b"1"}
    raw.create_bucket(bucket, entries, max_msgs_per_subject=3)
    options = parse({"bucket": bucket, "url": server.url})
    place = TablePlace(str(tmp_path / "out"))
    table = (await asyncio.to_thread(export, engine, lambda: of_bucket(options), place)).table

    async def audited_table() -> list[AuditOutcome]:
        return await asyncio.to_thread(audit, engine, options, [bucket], SHORTLY, table=table)

    [same] = await audited_table()
    assert (same.origin, same.replica, same.keys, same.consistent) == (str(place), bucket, 11, True)
    handle = client.bucket(bucket)
    await handle.put("k.3", b"changed")
    await handle.delete("k.5")
    await handle.put("new", b"1")
    await handle.put("k.7", b"7")
    for key in ("k.\udcff", "k.\udcfe", "k.\x7f", "k.\x7fnew"):
        raw.put(bucket, key, b"2")
    found = await audited_table()
    extra = [("extra", key, None) for key in (r"k.\xfe", "k.\x7fnew", "new")]
    differing = [("differing", key, None) for key in ("k.3", r"k.\xff", "k.\x7f")]
    assert sorted(said(found)) == sorted([("missing", "k.5", None), *extra, *differing])


async def test_keys_that_differ_are_decided_about_in_blocks(client, raw, unique, on_spark, monkeypatch):
    """Only one block is held; all differences are found, in a replica and in an unrelated bucket."""
    monkeypatch.setattr(confirmation, "BLOCK_KEYS", 3)
    monkeypatch.setattr(job, "BLOCK_KEYS", 3)
    origin, mirror, other = unique("ORIGIN"), unique("M"), unique("OTHER")
    for bucket in (origin, other):
        raw.create_bucket(bucket)
    for number in range(20):
        raw.put(origin, f"k.{number}", b"v")
        raw.put(other, f"k.{number}", b"v" if number < 5 else b"w")
    raw.put(other, "more", b"v")
    raw.create_stream(mirror, mirror={"name": f"KV_{origin}"}, storage="memory")
    await audited(client, mirror)
    for number in range(10):
        raw.api(f"STREAM.MSG.DELETE.{mirror}", {"seq": number + 1})
    listed: list[AuditDifference] = []
    found = await on_spark(origin, mirror, other, report=listed.append)
    assert [dict(item.counts) for item in found] == [{"missing": 10}, {"differing": 15, "extra": 1}]
    assert {item.key for item in listed if item.replica == mirror} == {f"k.{number}" for number in range(10)}
    assert len(listed) == 26
    await same(client, found[:1], mirror)


async def test_a_key_that_looks_like_an_escaped_byte_is_compared(raw, unique, on_spark):
    """The data source shows a byte that is not UTF-8 as text, which other clients may write into a key as well."""
    one, two = unique("ONE"), unique("TWO")
    keys = [r"k.\x41", r"k.\xff", "k.\udcff", r"k.\xfe", "k.\udcfe", r"k.\xc3\xa9", "k.\u00e9", "k.\\"]
    for bucket in (one, two):
        raw.create_bucket(bucket, dict.fromkeys(keys, b"1"))
    differing = [r"k.\x41", r"k.\xff", "k.\udcfe", r"k.\xc3\xa9", "k.\\"]
    for key in differing:
        raw.put(two, key, b"2")
    assert sorted(said(await on_spark(one, two))) == sorted(("differing", key, None) for key in differing)
    gone = raw.api(f"STREAM.PURGE.KV_{two}", {"filter": rf"$KV.{two}.k.\xc3\xa9"})
    assert gone["purged"] == 1
    assert ("missing", r"k.\xc3\xa9", None) in said(await on_spark(one, two))


async def test_audit_reports_missing_buckets(unique, raw, on_spark):
    bucket = unique("ORIGIN")
    raw.create_bucket(bucket)
    with pytest.raises(BucketNotFound):
        await on_spark(bucket, unique("NONE"))
    with pytest.raises(BucketNotFound):
        await on_spark(unique("NONE"), bucket)


async def test_audit_of_an_origin_in_another_domain(engine, leaf, unique):
    bucket, mirror = unique("ORIGIN"), unique("M")
    async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["leaf"]) as edge:
        origin = await hub.create_bucket(bucket)
        await origin.put_many((f"k.{number}", b"v") for number in range(5))
        await create_mirror(edge, Mirror(mirror, Origin(bucket, external=External.of_domain("hub"))))
        context = leaf.contexts["leaf"]
        options = parse({"bucket": bucket, "url": context.url} | ({"domain": context.domain} if context.domain else {}))
        found = await asyncio.to_thread(audit, engine, options, [mirror], SHORTLY)
    assert [(item.where, item.keys, item.consistent) for item in found] == [("hub", 5, True)]
