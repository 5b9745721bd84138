"""Loads: what is dumped comes out the same elsewhere, rows are written on their conditions, none is lost or doubled."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import random
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvctl
from kvctl.errors import (
    BucketNotFound,
    ConflictError,
    HazardRefused,
    OutcomeUnknown,
    PartlyDone,
    ReadOnly,
    ServerError,
    StreamReplaced,
    UsageError,
)
from kvctl.kv import catalog
from kvctl.kv.bulk import checkpoint, dump_file, loader
from kvctl.kv.bulk.bulk_writer import WINDOW_ROWS, RowCounts, target_of
from kvctl.kv.bulk.checkpoint import Position
from kvctl.kv.bulk.input_file import RowBatch, open_input
from kvctl.kv.bulk.leader_state import Current
from kvctl.kv.bulk.loader import Loader, LoadOptions
from kvctl.kv.bulk.rows import BadRow, Mode, Row
from kvctl.kv.config import BucketConfig
from kvctl.kv.identity import Series
from kvctl.server import run_server
from tests.kv.test_nonconforming_keys import BESIDE, FOREIGN
from tests.support.differences import differences
from tests.support.patience import quickest
from tests.support.proxy import Proxy, Swallow

Rows = list[dict[str, Any]]


async def load(bucket: kvctl.Bucket, content: bytes | Rows, name: str = "rows.ndjson", **options: Any) -> RowCounts:
    """Load bytes, or rows as ndjson."""
    if isinstance(content, list):
        content = b"".join(json.dumps(row).encode() + b"\n" for row in content)
    return await loader.load(bucket, open_input(name, io.BytesIO(content)), LoadOptions(**options))


async def dump(bucket: kvctl.Bucket, *, history: bool = False) -> bytes:
    file = io.BytesIO()
    await dump_file.dump(bucket, file, history=history)
    return file.getvalue()


def content(dumped: bytes) -> Rows:
    """The entries of a dump, without what is the bucket's own."""
    rows = [json.loads(line) for line in dumped.splitlines()[1:-1]]
    return [{name: row[name] for name in row if name not in ("bucket", "revision", "created", "ttl")} for row in rows]


async def history(bucket: kvctl.Bucket) -> list[tuple[str, bytes]]:
    return [(entry.key, entry.value) async for entry in bucket.history()]


def by_key(entries: Iterable[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    """The values of each key, in their order: between keys none is promised where a connection is lost."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for key, value in entries:
        found[key].append(value)
    return found


# -- dump and load ------------------------------------------------------------------------------------------

_KEYS = st.sampled_from([*BESIDE, *FOREIGN, "k", "k.1"])
_VALUES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20).map(str.encode),
    st.just(b""),
    st.just(b"x" * 70_000),
    st.sampled_from([b'{"key": "k"}\n', b"\xe2\x80\xa8\x85\r\n", b"\x00", "\U0001f600".encode()]),
)
_HEADERS = st.sampled_from(
    [
        {},
        {},
        {"KV-Operation": "DEL"},
        {"KV-Operation": "PURGE", "Nats-Rollup": "sub"},
        {"KV-Operation": "PURGE"},
        {"Nats-Marker-Reason": "MaxAge"},
        {"KV-Operation": "MOVED"},
        {"X-Own": "a, b"},
        {"Nats-TTL": "100"},
    ]
)


@pytest.mark.guarantee("commands-5")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=st.lists(st.tuples(_KEYS, _VALUES, _HEADERS), max_size=40), whole=st.booleans())
async def test_a_dump_loaded_elsewhere_is_the_same(server, raw, unique, writes, whole):
    """Values, operations, headers and order, also of foreign keys."""
    first, second = unique("FROM"), unique("TO")
    for name in (first, second):
        raw.create_bucket(name, max_msgs_per_subject=4, allow_msg_ttl=True, storage="memory")
    for key, value, headers in writes:
        if headers.get("Nats-Rollup") and key in FOREIGN:
            headers = {"KV-Operation": "PURGE"}
        raw.put(first, key, value, headers or None)
    async with kvctl.connect(server.url) as client:
        dumped = await dump(client.bucket(first), history=whole)
        loaded = await load(client.bucket(second), dumped)
        again = await dump(client.bucket(second), history=whole)
        assert content(again) == content(dumped)
        assert (loaded.written, loaded.rejected) == (len(content(dumped)), 0)
        await client.delete_bucket(first)
        await client.delete_bucket(second)


async def test_history_needs_a_bucket_that_keeps_as_much(client, unique):
    deep, shallow = await client.create_bucket(unique(), history=5), await client.create_bucket(unique(), history=2)
    await deep.put_many(("k", b"%d" % number) for number in range(4))
    dumped = await dump(deep, history=True)
    with pytest.raises(HazardRefused, match="up to 5 entries"):
        await load(shallow, dumped)
    assert (await shallow.status()).last_revision == 0
    await load(shallow, dumped, shorter_history=True)
    assert await history(shallow) == [("k", b"2"), ("k", b"3")]
    await load(await client.create_bucket(unique(), history=1), await dump(deep))
    for mode in (Mode.CREATE_ONLY, Mode.IF_DIFFERENT):
        with pytest.raises(UsageError, match="dump of live keys"):
            await load(deep, dumped, mode=mode)


async def test_a_damaged_dump_is_refused_and_can_be_forced(client, unique):
    source, target = await client.create_bucket(unique()), await client.create_bucket(unique())
    await source.put_many((f"k.{number}", b"v") for number in range(10))
    dumped = await dump(source)
    for damaged in (dumped[:-30], dumped.replace(b'"v"', b'"w"', 1), dumped[:500]):
        with pytest.raises(ConflictError, match="damaged"):
            await load(target, damaged)
    assert (await target.status()).last_revision == 0
    cut = dumped[: dumped.index(b'"k.6"') + 3]
    found = open_input("x", io.BytesIO(cut), forced=True)
    bad: list[BadRow] = []
    loaded = await loader.load(target, found, LoadOptions(rejected=bad.append))
    assert (loaded.written, [row.line for row in bad]) == (6, [8])


# -- rows ---------------------------------------------------------------------------------------------------


async def test_rows_are_written_in_order_and_bad_ones_named(client, unique):
    bucket = await client.create_bucket(unique(), history=5)
    lines = [
        b'{"key": "a", "value": "1"}',
        b'{"key": "a b", "value": ""}',
        b"",
        b'{"value": "x"}',
        b"[1]",
        b"\xff{",
        b'{"key": "a", "value": "Mg==", "encoding": "base64", "more": 1}',
        b'{"key": "n", "value": 1}',
        b'{"key": "_kv.x", "value": ""}',
        b'{"key": "e", "value": "", "encoding": "latin-1"}',
        b'{"key": "b", "value": "!", "encoding": "base64"}',
        b'{"key": "t", "value": "", "ttl": 30}',
        b'{"key": "s", "value": "\\udc80"}',
        b'{"key": "a", "operation": "DEL"}',
        b'{"key": "o", "operation": "X"}',
        b'{"key": "h", "value": "", "headers": {"A": "b\\nc"}}',
        b'{"key": "two", "value": ""}{"key": "x"}',
        b'{"key": "r", "value": "", "headers": {"Nats-Rollup": "all", "X": "y"}}',
    ]
    bad: list[BadRow] = []
    loaded = await load(bucket, b"\xef\xbb\xbf" + b"\r\n".join(lines), rejected=bad.append)
    assert sorted(entry.line for entry in bad) == [2, 4, 5, 6, 8, 9, 10, 11, 12, 13, 15, 16, 17]
    assert all(entry.reason for entry in bad)
    assert (loaded.written, loaded.rejected) == (4, 13)
    assert await history(bucket) == [("a", b"1"), ("a", b"2"), ("a", b""), ("r", b"")]
    assert (await bucket.last_entry("r")).headers == {"X": "y"}  # type: ignore[union-attr]


async def test_strict_writes_nothing_when_a_row_is_bad(client, unique):
    bucket = await client.create_bucket(unique(), max_value_size=10)
    rows = [{"key": f"k.{number}", "value": "v"} for number in range(10)]
    for bad in ({"key": "k..", "value": ""}, {"key": "k", "value": "x" * 11}, {"key": "k", "value": "", "ttl": 10}):
        found: list[BadRow] = []
        with pytest.raises(UsageError, match="1 row is invalid: nothing was written"):
            await load(bucket, [*rows, bad], strict=True, rejected=found.append)
        assert [row.line for row in found] == [11]
    assert (await bucket.status()).last_revision == 0
    assert await load(bucket, rows, strict=True) == RowCounts(written=10)


@pytest.mark.parametrize("options", [{"strict": True}, {"dry_run": True}, {}])
async def test_a_value_without_room_for_the_condition_of_a_creation_is_invalid(client, unique, options):
    bucket = await client.create_bucket(unique(), max_value_size=200)
    rows = [{"key": "fits", "value": "v" * 120}, {"key": "k", "value": "v" * 200}]
    found: list[BadRow] = []
    loading = load(bucket, rows, mode=Mode.CREATE_ONLY, rejected=found.append, **options)
    if "strict" in options:
        with pytest.raises(UsageError, match="1 row is invalid: nothing was written"):
            await loading
    else:
        assert await loading == RowCounts(written=1, rejected=1)
    reason = "The row takes 252 bytes with the condition that its key does not exist, the bucket's limit is 200"
    assert found == [BadRow(2, reason)]
    assert [entry.key async for entry in bucket.entries()] == ([] if options else ["fits"])


async def test_ttl_goes_along_where_the_bucket_allows_it(client, unique):
    bucket = await client.create_bucket(unique(), marker_ttl=timedelta(seconds=1))
    rows = [{"key": "n", "value": "", "ttl": 90}, {"key": "d", "value": "", "ttl": "2h"}]
    assert await load(bucket, [*rows, {"key": "x", "value": "", "ttl": 0.5}]) == RowCounts(written=2, rejected=1)
    assert (await bucket.get("n")).ttl == timedelta(seconds=90)
    assert (await bucket.get("d")).ttl == timedelta(hours=2)


async def test_binary_headers_survive_dump_and_load(client, raw, unique):
    bucket, copy = await client.create_bucket(unique()), await client.create_bucket(unique())
    raw.publish(f"$KV.{bucket.name}.k", b"", {"X-Name": "caf\udce9"})
    raw.flush()
    assert await load(copy, await dump(bucket), "dump") == RowCounts(written=1)
    entry = await copy.get("k")
    assert b"caf\xe9" in entry.header
    assert entry.headers == {"X-Name": "caf\udce9"}


async def test_create_only_leaves_living_keys_alone(client, unique):
    bucket = await client.create_bucket(unique(), history=5)
    await bucket.put_many([("lives", b"old"), ("deleted", b"old")])
    await bucket.delete("deleted")
    rows = [{"key": key, "value": "new"} for key in ("lives", "deleted", "fresh", "fresh")]
    for dry_run in (True, False, False):
        loaded = await load(bucket, rows, mode=Mode.CREATE_ONLY, dry_run=dry_run)
        if dry_run:
            assert loaded == RowCounts(written=3, unchanged=1)  # it cannot know of rows that it did not write
            assert (await bucket.status()).last_revision == 3
        else:
            assert loaded.written + loaded.unchanged == 4
    assert {entry.key: entry.value async for entry in bucket.entries()} == {
        "lives": b"old",
        "deleted": b"new",
        "fresh": b"new",
    }
    assert (await bucket.status()).last_revision == 5


async def test_if_different_writes_what_differs(client, unique):
    bucket = await client.create_bucket(unique(), history=5)
    await bucket.put_many((f"k.{number}", b"%d" % number) for number in range(2500))
    await bucket.delete("k.3")
    rows = [{"key": f"k.{number}", "value": str(number)} for number in range(2500)]
    rows += [{"key": "k.5", "value": "five"}, {"key": "k.5", "value": "5"}, {"key": "k.9", "operation": "DEL"}]
    rows += [{"key": "gone", "operation": "DEL"}]
    assert await load(bucket, rows, mode=Mode.IF_DIFFERENT, dry_run=True) == RowCounts(written=3, unchanged=2501)
    assert await load(bucket, rows, mode=Mode.IF_DIFFERENT) == RowCounts(written=4, unchanged=2500)
    assert (await bucket.get("k.5")).value == b"5"
    assert (await bucket.get("k.3")).value == b"3"
    assert (await bucket.status()).last_revision == 2505


async def test_a_dry_run_writes_nothing(client, unique, tmp_path):
    bucket = await client.create_bucket(unique())
    rows = [{"key": "a", "value": ""}, {"key": "", "value": ""}]
    progress = tmp_path / "p"
    assert await load(bucket, rows, dry_run=True, progress=progress) == RowCounts(written=1, rejected=1)
    assert (await bucket.status()).last_revision == 0
    assert not progress.exists()


async def test_target_without_writes_is_refused(client, raw, unique):
    origin, aggregate = unique("O"), unique("A")
    raw.create_bucket(origin)
    raw.create_bucket(aggregate, subjects=[], sources=[{"name": f"KV_{origin}"}], duplicate_window=0)
    with pytest.raises(ReadOnly, match=origin):
        await load(client.bucket(aggregate), [{"key": "a", "value": ""}])
    with pytest.raises(BucketNotFound):
        await load(client.bucket(unique()), [{"key": "a", "value": ""}])
    with pytest.raises(ReadOnly):
        await load(client.bucket(origin, read_only=True), [{"key": "a", "value": ""}])


async def test_load_into_a_mirror_writes_to_its_origin(client, raw, unique):
    origin, mirror = unique("O"), unique("M")
    raw.create_bucket(origin)
    raw.create_stream(mirror, mirror={"name": f"KV_{origin}"})
    bucket = client.bucket(mirror)
    assert await load(bucket, [{"key": "a", "value": "1"}], mode=Mode.IF_DIFFERENT) == RowCounts(written=1)
    assert (await client.bucket(origin).get("a")).value == b"1"
    assert (await bucket.get("a")).value == b"1"  # as a session that reads what it has written


@pytest.mark.parametrize("largest", [None, 110])  # the latter leaves no room for an identity
async def test_a_full_bucket_ends_it_with_the_count(client, unique, largest):
    bucket = await client.create_bucket(unique(), max_bytes=20_000, max_value_size=largest)
    rows = [{"key": f"k.{number}", "value": "v" * 100} for number in range(1000)]
    with pytest.raises(
        PartlyDone, match=r"(\d+) rows were written, then line \d+ failed: The bucket is full"
    ) as stopped:
        await load(bucket, rows)
    assert f"{(await bucket.status()).values} rows" in stopped.value.message
    assert "--max-bytes" in (stopped.value.hint or "")
    with pytest.raises(ServerError) as refused:
        await load(bucket, [{"key": "new", "value": "v" * 110}] * 9)
    assert refused.value.message.startswith("Line 1: The bucket is full")


async def test_a_server_whose_storage_is_full_is_not_taken_for_a_full_bucket(tmp_path):
    config = 'server_name: @name@, port: @client@, jetstream {store_dir: "@store@", max_file_store: 1MB}'
    with run_server(name="small", config=config) as small:
        async with kvctl.connect(small.url) as client:
            bucket = await client.create_bucket("B")
            rows = [{"key": f"k.{number}", "value": "v" * 10_000} for number in range(200)]
            with pytest.raises(PartlyDone, match="The server's storage is full") as stopped:
                await load(bucket, rows)
            assert "limit of the server" in (stopped.value.hint or "")


async def test_deleting_the_bucket_ends_the_load(client, unique):
    bucket = await client.create_bucket(unique())

    async def batches() -> AsyncIterator[RowBatch]:
        yield RowBatch([Row(1, "a", b"")], [], 1, 1)
        await client.delete_bucket(bucket.name)
        yield RowBatch([Row(2, "b", b"")], [], 2, 1)

    with pytest.raises(PartlyDone, match=r"1 rows were written, then line 2 failed: [Ss]tream not found"):
        async with asyncio.timeout(60):
            await Loader(bucket, await target_of(bucket), Series(1 << 20), LoadOptions()).run(batches())


@pytest.fixture
def small_batches(monkeypatch):
    """Inputs come about a hundred rows at a time, and the position is saved as much more often."""
    monkeypatch.setattr("kvctl.kv.bulk.input_file.BLOCK", 4000)
    monkeypatch.setattr("kvctl.kv.bulk.checkpoint.SAVE_ROWS", 2000)


# -- lost acknowledgements ----------------------------------------------------------------------------------


@pytest.mark.guarantee("commands-6", by="fault")
@pytest.mark.parametrize("mode", [Mode.PUT, Mode.CREATE_ONLY, Mode.IF_DIFFERENT])
async def test_over_lost_connections_each_row_is_stored_once_and_in_order(client, unique, small_batches, mode):
    bucket = await client.create_bucket(unique(), history=64)
    keys = 1000 if mode is Mode.CREATE_ONLY else 100
    rows = [{"key": f"k.{number % keys}", "value": str(number)} for number in range(1000 if keys > 100 else 3000)]
    chance = random.Random(7)

    def cut(_: int) -> None:
        if chance.random() < 0.1:
            client.connection._client.cut()

    loaded = await load(bucket, rows, mode=mode, advance=cut)
    assert loaded == RowCounts(written=len(rows))
    assert client.connection.epoch
    assert differences(by_key(await history(bucket)), by_key((row["key"], row["value"].encode()) for row in rows)) == []


async def test_over_a_restart_of_the_server(own_server, small_batches):
    async with kvctl.connect(own_server.url) as client:
        bucket = await client.create_bucket("B", history=64)
        rows = [{"key": f"k.{number % 600}", "value": str(number)} for number in range(6000)]
        batches = itertools.count()

        def restart(_: int) -> None:
            if next(batches) == 20:
                own_server.stop()
                own_server.start()

        assert await load(bucket, rows, advance=restart) == RowCounts(written=6000)
        assert client.connection.epoch
        expected = by_key((row["key"], row["value"].encode()) for row in rows)
        assert differences(by_key(await history(bucket)), expected) == []


async def test_lost_server_is_reported_with_the_row_count(own_server, small_batches, monkeypatch):
    async with kvctl.connect(own_server.url) as client:
        bucket = await client.create_bucket("B")
        client.connection.timeout = 1
        rows = [{"key": f"k.{number}", "value": ""} for number in range(3000)]
        monkeypatch.setattr("kvctl.kv.bulk.leader_state.LEADER_DEADLINE_S", 0.5)
        with pytest.raises(PartlyDone, match=r"^[1-9]\d* rows were written, then: ") as caught:
            await load(bucket, rows, mode=Mode.IF_DIFFERENT, advance=lambda _: own_server.kill())
        assert "--if-different" in str(caught.value.hint)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_over_leaders_that_die_every_row_is_stored_once_and_in_order_or_named(own_cluster, small_batches, fault):
    async with kvctl.connect(own_cluster.contexts["cluster"]) as client:
        bucket = await client.create_bucket("B", history=64, replicas=3)
        rows = [{"key": f"k.{number % 1000}", "value": str(number)} for number in range(40_000)]
        batches = itertools.count()
        faults: list[asyncio.Task[None]] = []

        async def strike() -> None:
            info = (await bucket.status()).info
            victim = own_cluster.servers[info["cluster"]["leader"]]
            getattr(victim, fault)()
            await asyncio.sleep(2)
            victim.start() if fault == "kill" else victim.resume()

        def advance(_: int) -> None:
            if next(batches) in (25, 200):
                faults.append(asyncio.create_task(strike()))

        bad: list[BadRow] = []
        loaded = await load(bucket, rows, advance=advance, rejected=bad.append)
        await asyncio.gather(*faults)
        assert loaded == RowCounts(written=len(rows) - len(bad), rejected=len(bad))
        named = {row.line - 1 for row in bad}
        stored: dict[str, list[int]] = defaultdict(list)
        for key, value in await history(bucket):
            stored[key].append(int(value))
        for key, numbers in stored.items():
            assert numbers == [number for number in range(int(key[2:]), 40_000, 1000) if number not in named]
        assert len(bad) < 100


async def test_unknown_outcome_is_reported_and_can_be_resumed(own_server, tmp_path, small_batches, monkeypatch):
    for module in ("leader_state", "bulk_writer"):
        monkeypatch.setattr(f"kvctl.kv.bulk.{module}.LEADER_DEADLINE_S", 0.5)
    file = tmp_path / "rows.ndjson"
    file.write_text("".join(f'{{"key": "k.{n}", "value": "{n}"}}\n' for n in range(5000)))
    async with kvctl.connect(own_server.url) as client:
        bucket = await client.create_bucket("B", history=5)
        client.connection.timeout = 1
        with pytest.raises(OutcomeUnknown, match=r"Could not find out if \d+ rows? from line"):
            await _load_file(bucket, file, advance=lambda _: own_server.pause())
        own_server.resume()
    async with kvctl.connect(own_server.url) as client:
        bucket = client.bucket("B")
        assert await _load_file(bucket, file, resume=True) == RowCounts(written=5000)
        assert differences(by_key(await history(bucket)), {f"k.{n}": [b"%d" % n] for n in range(5000)}) == []


@pytest.mark.parametrize("mode", [Mode.PUT, Mode.CREATE_ONLY])
async def test_a_server_that_acknowledges_nothing_ends_it_after_twice_the_timeout(server, unique, mode):
    with Proxy(server.url) as proxy:
        async with kvctl.connect(proxy.url) as client:
            bucket = await client.create_bucket(unique())
            client.connection.timeout = 1
            proxy.on(re.compile(rb"^H?PUB \$KV\."), Swallow(), times=None)

            async def unanswered() -> float:
                begun = time.monotonic()
                with pytest.raises(OutcomeUnknown, match=r"Could not find out if \d+ rows from line 1 on"):
                    await load(bucket, [{"key": f"k.{number}", "value": "v"} for number in range(3000)], mode=mode)
                return time.monotonic() - begun

            assert await quickest(unanswered, 5) < 5


# -- going on -----------------------------------------------------------------------------------------------


async def _load_file(bucket: kvctl.Bucket, file: Path, **options: Any) -> RowCounts:
    with file.open("rb") as opened:
        source = open_input(str(file), opened)
        return await loader.load(bucket, source, LoadOptions(progress=checkpoint.path_for(str(file)), **options))


@pytest.fixture
def rows_file(tmp_path, small_batches):
    """6,000 rows in about 40 batches, each of 200 keys every so often, some of them bad."""
    file = tmp_path / "rows.ndjson"
    lines = (f'{{"key": "k.{n % 200}", "value": "{n}"}}' if n % 1400 else "bad" for n in range(1, 6001))
    file.write_text("\n".join(lines))
    return file


def noted(file: Path) -> list[Path]:
    return checkpoint.noted(checkpoint.path_for(str(file)))


class Killed(BaseException):
    """Ends a load without letting it tidy up."""


@pytest.mark.guarantee("commands-6", by="fault")
async def test_rows_that_a_cluster_without_majority_stores_after_the_kill_are_not_written_twice(
    own_cluster, tmp_path, small_batches, monkeypatch
):
    file = tmp_path / "rows.ndjson"
    _write_rows(file, [(f"k.{number % 300}", str(number)) for number in range(6000)])
    async with kvctl.connect(own_cluster.contexts["cluster"]) as client:
        bucket = await client.create_bucket("B", history=64, replicas=3)
        leader = (await bucket.status()).info["cluster"]["leader"]
    followers = [server for name, server in own_cluster.servers.items() if name != leader]

    def pause(_: int) -> None:
        for server in followers:
            server.pause()

    async with kvctl.connect(own_cluster.servers[leader].url) as client:
        bucket = client.bucket("B")
        killed = asyncio.create_task(_load_file(bucket, file, advance=pause))
        await asyncio.sleep(1)
        with monkeypatch.context() as patched:
            patched.setattr(Loader, "_save", lambda self: None)
            killed.cancel()
            assert isinstance((await asyncio.gather(killed, return_exceptions=True))[0], asyncio.CancelledError)
        resumed = asyncio.create_task(_load_file(bucket, file, resume=True))
        await asyncio.sleep(1)
        for server in followers:
            server.resume()
        assert await resumed == RowCounts(written=6000)
        stored = by_key(await history(bucket))
        assert stored == {f"k.{n}": [b"%d" % m for m in range(n, 6000, 300)] for n in range(300)}


@pytest.mark.parametrize("kills", [[1], [10, 1, 1, 8], [25, 3], [40]])
async def test_a_killed_load_goes_on_without_writing_anything_twice(client, unique, rows_file, kills):
    bucket = await client.create_bucket(unique(), history=64)
    for times, after in enumerate(kills):
        await _load_and_kill(bucket, rows_file, after, resume=times > 0)
    assert noted(rows_file)
    assert await _load_file(bucket, rows_file, resume=True) == RowCounts(written=5996, rejected=4)
    expected = [(f"k.{n % 200}", b"%d" % n) for n in range(1, 6001) if n % 1400]
    assert differences(await history(bucket), expected) == []
    assert not noted(rows_file)


async def _load_and_kill(bucket: kvctl.Bucket, file: Path, after: int, *, resume: bool, **options: Any) -> None:
    """Load so many batches; whatever was on its way is lost to the one that loaded it."""
    seen = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:

        def kill(_: int) -> None:
            if next(seen) == after:
                patch.setattr(Loader, "_save", lambda self: None)
                raise Killed

        with pytest.raises(Killed):
            await _load_file(bucket, file, resume=resume, advance=kill, **options)


@pytest.mark.guarantee("commands-6", by="fault")
async def test_killed_load_of_a_dump_with_non_conforming_keys_goes_on(client, raw, unique, tmp_path, small_batches):
    bucket, copy = await client.create_bucket(unique(), history=5), await client.create_bucket(unique(), history=5)
    for number in range(300):
        raw.put(bucket.name, "star.*" if number % 100 == 0 else f"k.{number % 50}", b"%d" % number)
    file = tmp_path / "dump.ndjson"
    file.write_bytes(await dump(bucket, history=True))
    count = len(content(file.read_bytes()))
    await _load_and_kill(copy, file, 1, resume=False)
    assert await _load_file(copy, file, resume=True) == RowCounts(written=count)
    assert content(await dump(copy, history=True)) == content(file.read_bytes())


async def test_row_without_room_for_an_identity_is_named_after_a_kill_if_it_is_stored(client, unique, tmp_path):
    bucket, file = await client.create_bucket(unique(), max_value_size=200), tmp_path / "rows.ndjson"
    values = {f"k.{number}": "v" * (200 if number % 2 else 90) for number in range(10)}
    _write_rows(file, values.items())
    await _load_and_kill(bucket, file, 1, resume=False)
    bad: list[BadRow] = []
    assert await _load_file(bucket, file, resume=True, rejected=bad.append) == RowCounts(written=5, rejected=5)
    assert bad[0] == BadRow(2, "A write of `k.1` has no room for an identity; the row may already be stored")
    assert [row.line for row in bad] == [2, 4, 6, 8, 10]
    assert {entry.key: entry.value.decode() async for entry in bucket.entries()} == values


async def test_equal_rows_without_room_for_an_identity_are_not_written_twice_after_a_kill(client, unique, tmp_path):
    """Without history the one that is stored may be either."""
    bucket, file = await client.create_bucket(unique(), max_value_size=200), tmp_path / "rows.ndjson"
    _write_rows(file, [("k", "v" * 200), ("k", "v" * 200)])
    await _load_and_kill(bucket, file, 1, resume=False)
    bad: list[BadRow] = []
    assert await _load_file(bucket, file, resume=True, rejected=bad.append) == RowCounts(rejected=2)
    assert [(row.line, "the row may already be stored" in row.reason) for row in bad] == [(1, True), (2, True)]
    assert (await bucket.status()).last_revision == 2


async def test_resume_after_a_full_bucket_writes_rows_that_were_never_sent(client, unique, tmp_path):
    """Values near the limit have no room for an identity: of a row that may have been sent it would be unknown."""
    bucket, file = await client.create_bucket(unique(), max_value_size=200, max_bytes=3000), tmp_path / "rows.ndjson"
    rows = [(f"k.{number % 5}", f"{number:0200}") for number in range(20)]
    _write_rows(file, [*rows[:5], *((f"more.{number}", "v" * 200) for number in range(20)), *rows])
    with pytest.raises(PartlyDone, match="The bucket is full"):
        await _load_file(bucket, file, mode=Mode.IF_DIFFERENT)
    await catalog.update(client.api, BucketConfig(bucket.name, max_value_size=200, max_bytes=100_000))
    bad: list[BadRow] = []
    await _load_file(bucket, file, mode=Mode.IF_DIFFERENT, resume=True, rejected=bad.append)
    assert [row for row in bad if row.line > 25] == []
    assert {entry.key: entry.value.decode() async for entry in bucket.entries("k.*")} == dict(rows)


@pytest.mark.parametrize("recreated", [True, False])
async def test_a_load_into_a_stream_that_is_deleted_in_the_meantime_fails(
    client, raw, unique, small_batches, recreated
):
    bucket = await client.create_bucket(unique())

    def replace_stream(_: object) -> None:
        nonlocal replaced
        # Rows that are stored beyond the window follow others that are acknowledged, which are not sent again.
        if not replaced and raw.state(bucket.name)["messages"] > WINDOW_ROWS:
            replaced = True
            raw.api(f"STREAM.DELETE.KV_{bucket.name}")
            raw.create_bucket(bucket.name)

    replaced = False
    rows: Rows = [{"key": f"k.{number}", "value": "v"} for number in range(2 * WINDOW_ROWS)]
    if recreated:
        with pytest.raises(StreamReplaced, match="recreated during the load: rows written before are lost"):
            await load(bucket, rows, advance=replace_stream)
        assert replaced
        assert len([key async for key in bucket.keys()]) < len(rows)
    else:
        assert (await load(bucket, rows)).written == len(rows)


@pytest.mark.parametrize("limit", [{"max_msgs": 10}, {"max_bytes": 600}], ids=str)
async def test_what_a_full_bucket_evicts_during_bulk_writes_is_reported(client, raw, unique, limit):
    """Oracle: the keys that are stored in the end."""
    for distinct in (5, 50):
        name = unique()
        raw.create_bucket(name, discard="old", **limit)
        bucket = client.bucket(name)
        keys = [f"k.{number % distinct}" for number in range(50)]
        for write in ("put_many", "load"):
            if write == "load":
                done: Any = await load(bucket, [{"key": key, "value": "v"} for key in keys])
            else:
                done = await bucket.put_many([(key, b"v") for key in keys])
            stored = {key async for key in bucket.keys()}
            state = raw.api(f"STREAM.INFO.KV_{name}")["state"]
            assert (done.written, done.evicted) == (50, len({*keys} - stored))
            assert done.evicted_below == (state["first_seq"] if distinct == 50 else 0)


async def test_row_without_room_for_an_identity_is_created_where_its_key_was_deleted(client, unique):
    bucket = await client.create_bucket(unique(), max_value_size=200)
    await bucket.put("k", b"old")
    await bucket.delete("k")
    value = "v" * 130
    assert await load(bucket, [{"key": "k", "value": value}], mode=Mode.CREATE_ONLY) == RowCounts(written=1)
    assert (await bucket.get("k")).value == value.encode()


def _write_rows(file: Path, rows: Iterable[tuple[str, str]]) -> None:
    file.write_text("".join(json.dumps({"key": key, "value": value}) + "\n" for key, value in rows))


async def test_a_row_that_a_full_bucket_refused_between_stored_ones_of_its_key_is_named_after_a_resume(
    client, unique, tmp_path
):
    bucket, file = await client.create_bucket(unique(), history=2, max_bytes=2000), tmp_path / "rows.ndjson"
    _write_rows(file, [("k", "first"), ("k", "x" * 3000), ("k", "last"), ("other", "x" * 3000)])
    with pytest.raises(PartlyDone, match="line 4 failed: The bucket is full"):
        await _load_file(bucket, file)
    await catalog.update(client.api, BucketConfig(bucket.name, history=2, max_bytes=100_000))
    bad: list[BadRow] = []
    assert await _load_file(bucket, file, resume=True, rejected=bad.append) == RowCounts(written=3, rejected=1)
    assert bad == [BadRow(2, "A later write of `k` was stored before it")]
    assert by_key(await history(bucket))["k"] == [b"first", b"last"]


@pytest.mark.parametrize(("depth", "presumed"), [(5, 0), (1, 1)])
async def test_a_resumed_load_of_differences_writes_nothing_below_what_it_wrote(
    client, unique, tmp_path, small_batches, depth, presumed
):
    bucket, file = await client.create_bucket(unique(), history=depth), tmp_path / "rows.ndjson"
    await bucket.put("k", b"1")
    _write_rows(file, [("k", "1"), ("k", "2"), *((f"more.{number}", "") for number in range(200))])
    await _load_and_kill(bucket, file, 1, resume=False, mode=Mode.IF_DIFFERENT)
    loaded = await _load_file(bucket, file, resume=True, mode=Mode.IF_DIFFERENT)
    assert loaded == RowCounts(written=201 + presumed, unchanged=1 - presumed, presumed=presumed)
    assert by_key(await history(bucket))["k"] == [b"1", b"2"][-depth:]


async def test_a_position_of_an_earlier_version_is_refused(client, unique, rows_file):
    bucket = await client.create_bucket(unique())
    await _interrupt(bucket, rows_file)
    (saved,) = noted(rows_file)
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {"version": 2}))
    with pytest.raises(ConflictError, match="has version 2; this kvctl supports version 3") as caught:
        await _load_file(bucket, rows_file, resume=True)
    assert "Load without `--resume`" in str(caught.value.hint)


async def test_a_cancelled_load_notes_where_it_stood(client, unique, rows_file):
    bucket = await client.create_bucket(unique(), history=64)
    seen: list[int] = []
    task = asyncio.create_task(_load_file(bucket, rows_file, advance=seen.append))
    while not seen:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await _load_file(bucket, rows_file, resume=True) == RowCounts(written=5996, rejected=4)
    assert len(await history(bucket)) == 5996


async def _interrupt(bucket: kvctl.Bucket, file: Path, **options: Any) -> None:
    """Load a part, and note how far it came."""

    def stop(_: int) -> None:
        raise UsageError("stop")

    with pytest.raises(UsageError, match="stop"):
        await _load_file(bucket, file, advance=stop, **options)


async def test_a_conditional_load_that_is_stopped_within_a_chunk_loses_no_row_and_counts_none_twice(
    client, unique, tmp_path, monkeypatch
):
    deleted = {"a", "c"}
    for mode, keys, method, calls, expected in (
        (Mode.CREATE_ONLY, "abcd", "living", 1, RowCounts(written=4)),
        (Mode.IF_DIFFERENT, "aaaa", "unchanged", 4, RowCounts(written=1, unchanged=3)),
    ):
        bucket = await client.create_bucket(unique())
        for key in deleted:
            await bucket.put(key, b"v")
            await bucket.delete(key)
        file = tmp_path / f"{mode}.ndjson"
        file.write_text("".join(f'{{"key": "{key}", "value": "w"}}\n' for key in keys))
        with monkeypatch.context() as patched:
            _stop_at_call(patched, method, calls)
            with pytest.raises(UsageError, match="stop"):
                await _load_file(bucket, file, mode=mode)
        assert await _load_file(bucket, file, mode=mode, resume=True) == expected
        assert {key async for key in bucket.keys()} == set(keys)


def _stop_at_call(patched: pytest.MonkeyPatch, method: str, number: int) -> None:
    """End a load when it looks at the stored state for this time."""
    calls, original = itertools.count(1), getattr(Current, method)

    async def stopping(self: Current, rows: list[Row]) -> set[int]:
        if next(calls) == number:
            raise UsageError("stop")
        found: set[int] = await original(self, rows)
        return found

    patched.setattr(Current, method, stopping)


@pytest.mark.guarantee("commands-13")
async def test_resume_goes_on_only_with_the_same_file_stream_and_options(client, unique, rows_file):
    bucket, other = await client.create_bucket(unique()), await client.create_bucket(unique())
    await _interrupt(bucket, rows_file)
    for target, options, reason in (
        (other, {}, f"into bucket `{bucket.name}`"),
        (bucket, {"mode": Mode.CREATE_ONLY}, "other options: put"),
    ):
        with pytest.raises(ConflictError, match=reason):
            await _load_file(target, rows_file, resume=True, **options)
    for path in noted(rows_file):
        path.write_text("{")
    with pytest.raises(ConflictError, match="cannot be read"):
        await _load_file(bucket, rows_file, resume=True)
    await _interrupt(bucket, rows_file)
    await client.delete_bucket(bucket.name)
    await client.create_bucket(bucket.name)
    with pytest.raises(ConflictError, match=r"was into a bucket `.*` that was deleted since"):
        await _load_file(bucket, rows_file, resume=True)
    await _interrupt(bucket, rows_file)
    text = rows_file.read_text()
    rows_file.write_text(f"{text[:15_000]}x{text[15_001:]}")  # as long as before, its beginning and end the same
    with pytest.raises(ConflictError, match="another file, or the file has changed"):
        await _load_file(bucket, rows_file, resume=True)
    assert (await bucket.status()).last_revision > 0
    assert (await _load_file(bucket, rows_file)).rejected


@pytest.mark.guarantee("commands-13")
async def test_resume_is_refused_after_the_stream_lost_rows(client, unique, rows_file):
    bucket = await client.create_bucket(unique())
    await _interrupt(bucket, rows_file)
    (path,) = noted(rows_file)
    document = json.loads(path.read_text())
    reached = document["position"]["revision"] = (await bucket.status()).last_revision + 1
    path.write_text(json.dumps(document))
    with pytest.raises(
        ConflictError, match=f"had reached revision {reached} of bucket `{bucket.name}`, which has lost"
    ):
        await _load_file(bucket, rows_file, resume=True)
    assert path.exists()


async def test_resume_without_a_recorded_position_is_refused(client, unique, rows_file):
    bucket = await client.create_bucket(unique())
    with pytest.raises(ConflictError, match=f"No interrupted load of this file into bucket `{bucket.name}`"):
        await _load_file(bucket, rows_file, resume=True)
    assert os.listdir(rows_file.parent) == [rows_file.name]
    await _load_file(bucket, rows_file)
    await bucket.put("k.1", b"newer")
    with pytest.raises(ConflictError, match="No interrupted load"):
        await _load_file(bucket, rows_file, resume=True)
    with pytest.raises(UsageError, match="Only the load of a file"):
        await load(bucket, [], resume=True)
    assert (await bucket.get("k.1")).value == b"newer"
    assert os.listdir(rows_file.parent) == [rows_file.name]


async def test_resume_after_the_file_was_loaded_elsewhere_goes_on(client, unique, rows_file):
    production, staging = [await client.create_bucket(unique(), history=64) for _ in range(2)]
    await _load_and_kill(production, rows_file, 12, resume=False)
    stopped = (await production.status()).last_revision
    assert 0 < stopped < 5996
    assert await _load_file(staging, rows_file) == RowCounts(written=5996, rejected=4)
    newer = await production.put("k.1", b"newer")
    assert await _load_file(production, rows_file, resume=True) == RowCounts(written=5996, rejected=4)
    entries = await history(production)
    written = [(f"k.{n % 200}", b"%d" % n) for n in range(1, 6001) if n % 1400]
    assert sorted(entries) == sorted([*written, ("k.1", b"newer")])
    assert entries[newer - 1] == ("k.1", b"newer")


@pytest.mark.guarantee("commands-7")
@pytest.mark.parametrize("depth", [1, 3])
async def test_resume_overwrites_nothing_that_somebody_else_wrote_over_a_row(
    client, unique, tmp_path, small_batches, depth
):
    file = tmp_path / "rows.ndjson"
    file.write_text("".join(f'{{"key": "k.{n}", "value": "{n}"}}\n' for n in range(6000)))
    bucket = await client.create_bucket(unique(), history=depth)
    await _load_and_kill(bucket, file, 1, resume=False)  # rows are stored, and the position does not say which
    written = [0, 1, 40, 2200, 5800]
    await bucket.put_many((f"k.{number}", b"newer") for number in written)
    rejected: list[BadRow] = []
    loaded = await _load_file(bucket, file, resume=True, rejected=rejected.append)
    values = dict(await history(bucket))
    newer = {number for number in range(6000) if values[f"k.{number}"] == b"newer"}
    assert newer == {0, 1, 40}
    assert loaded.written == 6000 - len(rejected)
    assert [bad.reason for bad in rejected] == [
        f"`k.{number}` was written by another client after the interruption; the row may already be stored"
        for number in ([] if depth > 1 else written[:3])
    ]


async def test_loads_of_one_file_into_two_buckets_keep_a_position_each(client, unique, rows_file):
    first, second = [await client.create_bucket(unique(), history=64) for _ in range(2)]
    await asyncio.gather(_interrupt(first, rows_file), _interrupt(second, rows_file))
    assert len(noted(rows_file)) == 2
    for bucket in (second, first):
        assert await _load_file(bucket, rows_file, resume=True) == RowCounts(written=5996, rejected=4)
        assert len(await history(bucket)) == 5996
    assert not noted(rows_file)


@pytest.mark.parametrize("resume", [False, True])
async def test_a_second_load_of_one_file_into_one_bucket_is_refused(client, unique, rows_file, resume):
    bucket = await client.create_bucket(unique(), history=64)
    seen: list[int] = []
    first = asyncio.create_task(_load_file(bucket, rows_file, advance=seen.append))
    while not seen:
        await asyncio.sleep(0)
    with pytest.raises(ConflictError, match="Another process is loading"):
        await _load_file(bucket, rows_file, resume=resume)
    assert await first == RowCounts(written=5996, rejected=4)
    assert len(await history(bucket)) == 5996


def _task(**changes: str) -> checkpoint.Task:
    return checkpoint.Task(
        **{"input": "1", "bucket": "B", "stream": "KV_B", "server": "", "created": "c", "mode": "m"} | changes
    )


def test_a_load_follows_no_link_to_note_its_position(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    base = tmp_path / "p"
    progress = checkpoint.ProgressFile(base, _task())
    for name in (progress.path, progress.path.with_name(f"{progress.path.name}.part"), base):
        name.symlink_to(victim)
    with pytest.raises(UsageError, match="is a symbolic link"), progress:
        progress.save(Position())
    progress.path.unlink()
    with progress:
        progress.save(Position())
    assert victim.read_text() == "precious"


def test_two_processes_never_hold_one_position(tmp_path):
    """Also where one of them saves or ends in the meantime."""
    one, other = [checkpoint.ProgressFile(tmp_path / "p", _task()) for _ in range(2)]
    with one:
        for number in range(3):
            one.save(Position(line=number))
            with pytest.raises(ConflictError, match="Another process"), other:
                pass
    with other:
        assert other.load(0) == Position(line=2)
        other.remove()
        other.save(Position(line=3))
        with pytest.raises(ConflictError, match="Another process"), one:
            pass
    with one, checkpoint.ProgressFile(tmp_path / "p", _task(server="elsewhere")):
        assert one.load(3) == Position(line=3)


async def test_load_works_without_a_writable_checkpoint(client, unique, tmp_path):
    bucket = await client.create_bucket(unique())
    nowhere = tmp_path / "no" / "such" / "directory"
    assert await load(bucket, [{"key": "a", "value": ""}], progress=nowhere) == RowCounts(written=1)


def test_the_position_outlives_a_kill_and_power_loss_at_worst_costs_it(tmp_path):
    progress = checkpoint.ProgressFile(tmp_path / "p", _task())
    with progress:
        with pytest.raises(ConflictError):
            progress.load(9)
        progress.save(Position(line=7, revision=9, written=5, unchanged=1, rejected=1))
    (tmp_path / f".{progress.path.name}.0badcafe.part").touch()  # of a save that was killed
    with progress:
        assert progress.load(9) == Position(line=7, revision=9, written=5, unchanged=1, rejected=1)
        assert os.listdir(tmp_path) == [progress.path.name]
