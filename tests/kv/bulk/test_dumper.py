"""Dumps: their form, the one cut they are of, and the truth about it when writers are faster."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tempfile
from collections.abc import Callable
from typing import Any

import pytest

import kvctl
from kvctl.errors import BucketNotFound, ConflictError, RefusedError
from kvctl.kv.bulk import dump_file
from kvctl.kv.bulk.dump_file import DumpSummary
from kvctl.kv.read import snapshot_reader
from kvctl.kv.stream_kind import UNFINISHED


async def dumped(
    bucket: kvctl.Bucket, *filters: str, history: bool = False
) -> tuple[DumpSummary, list[dict[str, Any]]]:
    """What a dump came to, and its lines."""
    file = io.BytesIO()
    made = await dump_file.dump(bucket, file, filters, history=history)
    *before, last = file.getvalue().splitlines(keepends=True)
    assert json.loads(last) == {"entries": len(before) - 1, "sha256": hashlib.sha256(b"".join(before)).hexdigest()}
    assert made.sha256 == json.loads(last)["sha256"]
    return made, [json.loads(line) for line in before]


async def test_a_dump_is_header_living_entries_and_hash(client, unique):
    bucket = await client.create_bucket(unique(), history=5)
    await bucket.put_many((key, key.encode()) for key in ("a", "b", "c"))
    await bucket.put("a", 'ä\n"\x01'.encode())
    await bucket.delete("b")
    await bucket.put("raw", b"\xff\x00")
    made, (header, *entries) = await dumped(bucket)
    assert (made.entries, made.cut, made.exact, made.lost) == (3, 6, True, [])
    assert list(header)[:6] == ["kvctl", "version", "bucket", "config", "cut", "created"]
    assert (header["kvctl"], header["version"], header["cut"], header["exact"]) == ("dump", 1, 6, True)
    assert header["config"]["max_msgs_per_subject"] == 5
    assert [(row["key"], row["revision"], row["value"], row["encoding"]) for row in entries] == [
        ("c", 3, "c", "utf-8"),
        ("a", 4, 'ä\n"\x01', "utf-8"),
        ("raw", 6, "/wA=", "base64"),
    ]
    assert [row["created"] for row in entries] == [
        kvctl_time((await bucket.get(row["key"])).created_ns) for row in entries
    ]


def kvctl_time(nanoseconds: int) -> str:
    from kvctl.units import format_time

    return format_time(nanoseconds)


async def test_history_has_every_entry_in_order(client, unique):
    bucket = await client.create_bucket(unique(), history=3)
    await bucket.put("a", b"1")
    await bucket.delete("a")
    await bucket.put("b", b"1")
    await bucket.purge("b")
    await bucket.put("a", b"2")
    made, (header, *entries) = await dumped(bucket, history=True)
    assert header["history"] is True
    assert [(row["revision"], row["key"], row["operation"]) for row in entries] == [
        (1, "a", "PUT"),
        (2, "a", "DEL"),
        (4, "b", "PURGE"),
        (5, "a", "PUT"),
    ]
    assert made.exact


async def test_filters_choose_keys(client, unique):
    bucket = await client.create_bucket(unique(), history=2)
    await bucket.put_many((key, b"") for key in ("a.x", "a.y", "b.x", "c"))
    for filters, keys in ((("a.>",), ["a.x", "a.y"]), (("*.x", "a.*"), ["a.x", "a.y", "b.x"]), (("none",), [])):
        made, (header, *entries) = await dumped(bucket, *filters)
        assert [row["key"] for row in entries] == keys
        assert (header["filters"], made.exact) == (list(filters), True)


async def test_headers_are_kept(client, raw, unique):
    name = unique()
    raw.create_bucket(name, max_msgs_per_subject=5, allow_msg_ttl=True)
    raw.put(name, "own", b"v", {"Content-Type": "text/plain", "Nats-Expected-Last-Subject-Sequence": "0"})
    raw.put(name, "ttl", b"v", {"Nats-TTL": "60"})
    raw.put(name, "marker", b"", {"Nats-Marker-Reason": "MaxAge"})
    raw.put(name, "other", b"", {"KV-Operation": "MOVED"})
    raw.put(name, "plain-purge", b"", {"KV-Operation": "PURGE"})
    _, (_, own, ttl, marker, other, purge) = await dumped(client.bucket(name), history=True)
    assert own["headers"] == {"Content-Type": "text/plain"}
    assert 58 <= ttl["ttl"] <= 60
    assert "headers" not in ttl
    assert (marker["operation"], marker["reason"]) == ("PURGE", "MaxAge")
    assert (other["operation"], other["headers"]) == ("DEL", {"KV-Operation": "MOVED"})
    assert (purge["operation"], purge["rollup"], "headers" in purge) == ("PURGE", False, False)


@pytest.mark.guarantee("commands-4")
@pytest.mark.parametrize("history", [False, True])
async def test_entries_after_the_snapshot_revision_are_not_dumped(client, unique, history):
    bucket = await client.create_bucket(unique(), history=64)
    await bucket.put_many((f"k.{number}", b"before") for number in range(500))

    async def write_on() -> None:
        number = 0
        while True:
            await bucket.put(f"k.{number % 600}", b"after")
            number += 1

    writer = asyncio.create_task(write_on())
    try:
        for _ in range(5):
            made, (_, *entries) = await dumped(bucket, history=history)
            assert made.exact
            assert all(row["revision"] <= made.cut for row in entries)
            state: dict[str, str] = {row["key"]: row["value"] for row in entries}
            # every write up to the cut in its place: 500 before, then round and round over 600 keys
            later = made.cut - 500
            expected = {f"k.{n}": "after" if n < later else "before" for n in range(max(500, min(later, 600)))}
            assert state == expected
            assert len(entries) == (made.cut if history else len(expected))
    finally:
        writer.cancel()


@pytest.mark.guarantee("commands-4", by="race")
async def test_entries_overwritten_before_they_are_read_are_reported(client, unique, monkeypatch):
    """Without history: exact where new keys came and what was overwritten had been read, not where it had not."""
    bucket = await client.create_bucket(unique(), history=1)
    await bucket.put_many((f"k.{number}", b"v") for number in range(100))
    await _interfere(monkeypatch, lambda: bucket.put("new", b""))
    made, (header, *entries) = await dumped(bucket)
    assert (made.exact, header["exact"], len(entries)) == (True, True, 100)
    await _interfere(monkeypatch, lambda: bucket.put("k.50", b"w"), lambda: bucket.put("k.51", b"w"))
    made, (header, *entries) = await dumped(bucket)
    assert (made.lost, header["exact"], len(entries)) == (["k.50", "k.51"], False, 99)
    for filters in (("k.*",), ("k.5>", "k.60")[1:]):
        await _interfere(monkeypatch, lambda: bucket.put("k.60", b"w"))
        made, _ = await dumped(bucket, *filters)
        assert made.lost == ["k.60"]


async def test_history_answers_for_what_is_overwritten(client, unique, monkeypatch):
    bucket = await client.create_bucket(unique(), history=3)
    await bucket.put_many((f"k.{number}", b"v%d" % number) for number in range(20))
    await _interfere(monkeypatch, lambda: bucket.put("k.5", b"w"), lambda: bucket.delete("k.6"))
    made, (_, *entries) = await dumped(bucket)
    assert made.exact
    assert {row["key"]: row["value"] for row in entries} == {f"k.{n}": f"v{n}" for n in range(20)}
    await _interfere(monkeypatch, *[lambda: bucket.put("k.7", b"x")] * 3, lambda: bucket.purge("k.8"))
    for history in (False, True):
        made, (header, *entries) = await dumped(bucket, history=history)
        if not history:
            assert (made.lost, header["exact"]) == (["k.7", "k.8"], False)
            assert {row["key"] for row in entries} == {f"k.{n}" for n in range(20) if n not in (6, 7, 8)}
            await _interfere(monkeypatch, lambda: bucket.purge("k.9"))
        else:
            assert (made.lost, header["exact"]) == (["k.9"], False)


async def test_entries_removed_during_the_dump_are_counted(client, raw, unique, monkeypatch):
    bucket = await client.create_bucket(unique(), history=3)
    await bucket.put_many((f"k.{number}", b"") for number in range(10))

    async def remove() -> None:
        raw.api(f"STREAM.PURGE.KV_{bucket.name}", {"filter": f"$KV.{bucket.name}.k.3"})

    await _interfere(monkeypatch, remove)
    made, (header, *_) = await dumped(bucket)
    assert (made.vanished, made.lost, header["exact"]) == (1, [], False)


async def _interfere(monkeypatch: pytest.MonkeyPatch, *writes: Callable[[], Any]) -> None:
    """Have the next dump's reading begin after these writes, which come after its cut."""
    original = snapshot_reader.OrderedConsumer.__aenter__

    async def later(self: Any) -> Any:
        monkeypatch.setattr(snapshot_reader.OrderedConsumer, "__aenter__", original)
        for write in writes:
            await write()
        return await original(self)

    monkeypatch.setattr(snapshot_reader.OrderedConsumer, "__aenter__", later)


async def test_mirrors_and_aggregates_are_dumped_under_their_keys(client, raw, unique):
    origin, mirror = unique("O"), unique("M")
    bucket = await client.create_bucket(origin, history=2)
    await bucket.put_many((f"k.{number}", b"v") for number in range(5))
    raw.create_stream(mirror, mirror={"name": f"KV_{origin}"}, max_msgs_per_subject=2)
    async with asyncio.timeout(60):
        while (await client.bucket(mirror).status()).values < 5:
            await asyncio.sleep(0.02)
    _, (header, *entries) = await dumped(client.bucket(mirror))
    assert (header["bucket"], header["config"]["name"]) == (mirror, mirror)
    assert [row["key"] for row in entries] == [f"k.{n}" for n in range(5)]


async def test_an_empty_bucket_and_none(client, raw, unique):
    made, lines = await dumped(await client.create_bucket(unique()))
    assert (made.entries, made.cut, made.exact, len(lines)) == (0, 0, True, 1)
    with pytest.raises(BucketNotFound):
        await dumped(client.bucket(unique()))
    half = unique()
    raw.create_bucket(half, metadata={UNFINISHED: "x"})
    with pytest.raises(RefusedError):
        await dumped(client.bucket(half))


async def test_a_reading_over_a_lost_connection_has_each_entry_once(client, unique):
    bucket = await client.create_bucket(unique())
    await bucket.put_many((f"k.{number}", b"v" * 100) for number in range(30_000))
    file = io.BytesIO()
    cuts = iter([1000, 12_000])
    due = next(cuts)
    done = 0

    def advance(count: int) -> None:
        nonlocal due, done
        done += count
        if done >= due:
            due = next(cuts, 1 << 60)
            client.connection._client.cut()

    made = await dump_file.dump(bucket, file, advance=advance)
    keys = [json.loads(line)["key"] for line in file.getvalue().splitlines()[1:-1]]
    assert made.exact
    assert keys == [f"k.{number}" for number in range(30_000)]


# -- the file -----------------------------------------------------------------------------------------------


def a_dump(entries: int = 3) -> bytes:
    file = io.BytesIO()
    writer = dump_file.DumpWriter(file, {"bucket": "B", "config": {}, "cut": 9, "created": "now", "history": False})
    for number in range(entries):
        writer.add(b'{"key": "k.%d", "value": "v"}\n' % number, 1)
    writer.finish(exact=True)
    return file.getvalue()


def damage_of(content: bytes) -> str | None:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        return dump_file.inspect(file, "x").damage


@pytest.mark.guarantee("commands-5", by="property")
def test_complete_dump_is_accepted_and_any_other_is_refused():
    whole = a_dump()
    assert damage_of(whole) is None
    assert damage_of(a_dump(0)) is None
    for length in range(len(whole) - 1):
        assert damage_of(whole[:length]), length
    for at in range(len(whole) - 1):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        assert damage_of(damaged), at
        assert dump_file.is_dump(damaged.splitlines()[0]), at


def test_lines_added_moved_or_removed_are_noticed():
    first, *entries, last = a_dump().splitlines(keepends=True)
    for changed in ([*entries, entries[0]], entries[1:], [entries[1], entries[0], entries[2]], []):
        assert damage_of(b"".join([first, *changed, last]))
    assert damage_of(a_dump() + b"more\n")
    assert damage_of(a_dump() + a_dump())


def test_a_newer_version_is_refused_by_name():
    with tempfile.TemporaryFile() as file:
        file.write(a_dump().replace(b'"version": 1', b'"version": 2', 1))
        with pytest.raises(ConflictError, match="`x` has version 2; this kvctl supports version 1"):
            dump_file.inspect(file, "x")


def test_dump_is_recognised_by_its_first_line():
    assert dump_file.is_dump(a_dump().splitlines()[0])
    assert dump_file.is_dump(a_dump()[:40])
    assert not dump_file.is_dump(b'{"key": "kvctl", "value": "dump"}')
    assert not dump_file.is_dump(b'{"kvctl": "backup", "version": 1}')
    assert dump_file.is_dump(b'{"version":2,"kvctl":"dump","cut":1}')
    header = a_dump().splitlines()[0].decode()
    assert not dump_file.is_dump(json.dumps({"key": "k", "value": header}).encode())
    assert not dump_file.is_dump(b"")


def test_inexact_dump_is_marked_in_its_first_line_and_complete():
    with tempfile.TemporaryFile() as file:
        writer = dump_file.DumpWriter(file, {"bucket": "B", "config": {}, "cut": 9})
        writer.add(b'{"key": "k"}\n', 1)
        writer.finish(exact=False)
        file.seek(0)
        assert json.loads(file.readline())["exact"] is False
        assert dump_file.inspect(file, "x").damage is None


async def test_dump_on_a_cluster(cluster, unique):
    async with kvctl.connect(cluster.contexts["cluster"]) as client:
        bucket = await client.create_bucket(unique(), replicas=3, history=2)
        await bucket.put_many((f"k.{number}", b"v") for number in range(300))
        made, (_, *entries) = await dumped(bucket)
        assert (made.exact, len(entries)) == (True, 300)
