"""Listings: every key that lives through one, once, whatever happens meanwhile; and an end, always."""

from __future__ import annotations

import asyncio
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest

import kvctl
from kvctl import Bucket, Client, Operation
from kvctl.errors import KeyNotFound, KvctlError, StreamReplaced, UsageError
from kvctl.jetstream.consumers import ordered_consumer, server_consumer
from kvctl.kv.read import bulk_get, listing
from kvctl.kv.read.listing import SubjectHashes
from kvctl.server import Server
from tests.support.differences import differences
from tests.support.proxy import DOWN, Cut, Proxy


@pytest.fixture
async def bucket(client, bucket_name):
    return await client.create_bucket(bucket_name, history=5)


@pytest.fixture
def small_pulls(monkeypatch):
    """Two pulls of 500 under way, so that a listing of thousands is in its middle for a while."""
    monkeypatch.setattr(server_consumer, "BATCH_MESSAGES", 500)


async def keys_of(bucket: Bucket, *filters: str, deleted: bool = False) -> list[str]:
    return [key async for key in bucket.keys(*filters, deleted=deleted)]


class TestWhatIsListed:
    async def test_living_keys_in_the_order_of_their_last_writes(self, bucket):
        await bucket.put_many((key, b"x") for key in ("a", "b.c", "d", "a"))
        await bucket.delete("d")
        assert await keys_of(bucket) == ["b.c", "a"]
        assert await keys_of(bucket, deleted=True) == ["b.c", "a", "d"]

    async def test_a_key_with_a_marker_in_the_text_of_a_header_lives(self, bucket, raw):
        raw.put(bucket.name, "a", b"x", {"X-Told": "KV-Operation: DEL", "X-KV-Operation": "DEL"})
        raw.put(bucket.name, "b", b"x", {"X-Told": "Nats-Marker-Reason: Purge"})
        raw.put(bucket.name, "c", b"", {"KV-Operation": "DEL"})
        assert await keys_of(bucket) == ["a", "b"]

    async def test_entries_are_the_latest(self, bucket):
        await bucket.put_many([("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4")])
        await bucket.purge("c")
        entries = [entry async for entry in bucket.entries()]
        assert [(entry.key, entry.value, entry.revision) for entry in entries] == [("b", b"2", 2), ("a", b"3", 3)]
        every = [entry async for entry in bucket.entries(deleted=True)]
        assert [(entry.key, entry.operation) for entry in every][-1] == ("c", Operation.PURGE)

    async def test_listing_without_values_has_their_sizes(self, bucket):
        await bucket.put_many([("a", b"x" * 100), ("b", b"")])
        entries = [entry async for batch in bucket.entry_batches(values=False) for entry in batch]
        assert [(entry.key, entry.value, entry.size) for entry in entries] == [("a", b"", 100), ("b", b"", 0)]

    async def test_history_is_every_entry_held_oldest_first(self, bucket):
        await bucket.put_many((f"k{number % 2}", b"%d" % number) for number in range(14))
        await bucket.delete("k1")
        entries = [entry async for entry in bucket.history()]
        assert [entry.revision for entry in entries] == [5, *range(7, 16)]
        assert [entry.value async for entry in bucket.history("k1")] == [b"7", b"9", b"11", b"13", b""]

    @pytest.mark.parametrize("history", [1, 5])
    async def test_an_empty_bucket_and_filters_that_match_nothing(self, client, unique, history):
        bucket = await client.create_bucket(unique(), history=history)
        for _ in range(2):
            for reading in (
                bucket.keys(),
                bucket.entries(),
                bucket.history(),
                bucket.keys("no.*"),
                bucket.history("no.>"),
            ):
                begun = time.monotonic()
                assert [item async for item in reading if getattr(item, "key", item) != "k"] == []
                assert time.monotonic() - begun < 25  # a pull that finds nothing waits for 30
            await bucket.put("k", b"")

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            (("a.*",), ["a.a", "a.b"]),
            (("a.a", "b.b"), ["a.a", "b.b"]),
            (("a.a", "a.a", "a.*"), ["a.a", "a.b"]),
            (("a.*", "*.b"), ["a.a", "a.b", "b.b"]),
            (("*.b", "b.>", "c"), ["a.b", "b.a", "b.b", "b.c.d", "c"]),
            (("a.>", ">"), ["a.a", "a.b", "b.a", "b.b", "b.c.d", "c"]),
        ],
    )
    async def test_several_and_overlapping_filters_list_each_key_once(self, bucket, filters, expected):
        keys = ["a.a", "a.b", "b.a", "b.b", "b.c.d", "c"]
        await bucket.put_many((key, key.encode()) for key in keys)
        assert await keys_of(bucket, *filters) == expected
        assert [entry.value.decode() async for entry in bucket.entries(*filters)] == expected
        assert [entry.key async for entry in bucket.history(*filters)] == expected
        assert [entry.key async for batch in bucket.get_matching(*filters) for entry in batch] == expected

    async def test_invalid_filter_is_refused(self, bucket):
        for reading in (bucket.keys("a*"), bucket.entries(""), bucket.history("a..b")):
            with pytest.raises(UsageError):
                await anext(reading)

    async def test_nothing_is_left_on_the_server(self, raw, bucket):
        await bucket.put_many((f"k.{number}", b"") for number in range(2000))
        await keys_of(bucket)
        async for _ in bucket.keys():  # and one that is left early
            break
        async for _ in bucket.entries("k.*"):
            break
        deadline = time.monotonic() + 60
        while raw.api(f"STREAM.INFO.KV_{bucket.name}")["state"]["consumer_count"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


@asynccontextmanager
async def meanwhile(*works: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """Run all of them while the block runs."""
    tasks = [asyncio.ensure_future(work()) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [result for result in results if result is not None and not isinstance(result, asyncio.CancelledError)]


@pytest.mark.parametrize("history", [1, 5])
class TestUnderWriters:
    STABLE, ROUNDS = 1500, 6

    def stable(self) -> list[str]:
        return [f"s.{number % 10}.{number}" for number in range(self.STABLE)]

    @asynccontextmanager
    async def busy(self, server: Server, name: str, history: int) -> AsyncIterator[Bucket]:
        """Keys s.*.* live all the time, four writers overwrite them; d.* come and go; x.* have been deleted before."""
        async with kvctl.connect(server.url) as client, kvctl.connect(server.url) as other:
            bucket, theirs = await client.create_bucket(name, history=history), other.bucket(name)
            await bucket.put_many((key, b"0") for key in self.stable())
            await bucket.put_many((f"x.{number}", b"0") for number in range(20))
            for number in range(20):
                await bucket.delete(f"x.{number}")

            async def overwrite() -> None:
                for number in count(1):
                    await theirs.put_many((key, b"%d" % number) for key in random.choices(self.stable(), k=200))

            async def come_and_go() -> None:
                for number in count():
                    await theirs.put(f"d.{number % 50}", b"")
                    with suppress(KeyNotFound):
                        await theirs.delete(f"d.{(number * 7) % 50}")

            async with meanwhile(*(overwrite for _ in range(4)), come_and_go):
                yield bucket

    @pytest.mark.guarantee("reading-6", by="race")
    @pytest.mark.parametrize("late", [50, listing.LATE])
    async def test_no_key_is_missing_or_doubled(self, server, unique, history, late, monkeypatch):
        monkeypatch.setattr(listing, "LATE", late)
        stable = set(self.stable())
        async with self.busy(server, unique(), history) as bucket:
            for _ in range(self.ROUNDS):
                keys = await keys_of(bucket)
                assert len(keys) == len(set(keys))
                assert differences(stable & set(keys), stable) == []
                assert [key for key in keys if key.startswith("x.")] == []
                assert differences(set(await keys_of(bucket, "s.>")), stable) == []

    async def test_no_value_is_older_than_the_listing(self, server, unique, history, monkeypatch):
        monkeypatch.setattr(bulk_get, "LISTED_KEYS", 1)
        async with self.busy(server, unique(), history) as bucket:
            for _ in range(self.ROUNDS):
                acked = await bucket.put("s.7.7", b"mine")
                entries = {entry.key: entry async for entry in bucket.entries("s.>")}
                before = {key: entry.revision for key, entry in entries.items()}
                assert len(entries) == self.STABLE
                assert entries["s.7.7"].revision >= acked
                before["s.7.7"] = await bucket.put("s.7.7", b"mine")
                many = dict(zip(self.stable(), await bucket.get_many(self.stable()), strict=True))
                assert [key for key, entry in many.items() if entry is None or entry.revision < before[key]] == []

    async def test_multi_get_of_few_keys_is_complete(self, server, unique, history):
        async with self.busy(server, unique(), history) as bucket, kvctl.connect(server.url) as client:
            reader = client.bucket(bucket.name)
            for _ in range(self.ROUNDS):
                found = [entry.key async for batch in reader.get_matching("s.3.*") for entry in batch]
                assert sorted(found) == sorted(key for key in self.stable() if key.startswith("s.3."))
                assert all(await reader.get_many(self.stable()[::3]))


WRITER = r"""
import asyncio, random, sys, kvctl
async def main(url, name, keys):
    async with kvctl.connect(url) as client:
        bucket = client.bucket(name)
        async def overwrite():
            while True:
                await bucket.put_many((f"k.{random.randrange(int(keys))}", b"") for _ in range(500))
        await asyncio.gather(*(overwrite() for _ in range(4)))
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("history", [2, 5])
async def test_a_writer_as_hard_as_can_be_does_not_hold_a_listing_up(client, server, bucket_name, history):
    keys = 2000
    bucket = await client.create_bucket(bucket_name, history=history)
    await bucket.put_many((f"k.{number}", b"0") for number in range(keys))
    writer = subprocess.Popen([sys.executable, "-c", WRITER, server.url, bucket_name, str(keys)])
    try:
        while (await bucket.get("k.0")).revision <= keys:
            await asyncio.sleep(0.02)
        for _ in range(3):
            async with asyncio.timeout(120):
                names = await keys_of(bucket)
                entries = [entry.key async for entry in bucket.entries()]
            for found in (names, entries):
                assert len(found) == len(set(found)) == keys
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.usefixtures("small_pulls")
class TestUnderFailures:
    KEYS = 6000

    async def filled(self, client: Client, **config: Any) -> Bucket:
        bucket = await client.create_bucket("B", **config)
        assert (await bucket.put_many((f"k.{number}", b"x" * 50) for number in range(self.KEYS))).failed == []
        return bucket

    async def in_the_middle(self, bucket: Bucket, act: Callable[[], Any]) -> list[str]:
        """The keys of a listing during which something happens, when a part has been read."""
        keys: list[str] = []
        async for batch in bucket.key_batches():
            if not keys:
                outcome = act()
                if isinstance(outcome, Awaitable):
                    await outcome
            keys += [key.decode() for key in batch]
        return keys

    @pytest.mark.guarantee("reading-6", by="kill")
    @pytest.mark.parametrize(("end", "down"), [("kill", 0.0), ("kill", 1.5), ("stop", 0.3)])
    async def test_listing_is_complete_across_a_restart(self, own_server, end, down):
        async with kvctl.connect(own_server.url) as client:
            bucket = await self.filled(client)

            async def restart() -> None:
                getattr(own_server, end)()
                await asyncio.sleep(down)
                await asyncio.to_thread(own_server.start)

            keys = await asyncio.wait_for(self.in_the_middle(bucket, restart), 120)
            assert differences(sorted(keys), sorted(f"k.{number}" for number in range(self.KEYS))) == []

    @pytest.mark.guarantee("reading-9", by="kill")
    async def test_history_is_complete_across_a_restart(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            bucket = await self.filled(client, history=2)
            revisions: list[int] = []
            async for batch in bucket.history_batches():
                if not revisions:
                    own_server.kill()
                    await asyncio.to_thread(own_server.start)
                revisions += [entry.revision for entry in batch]
            assert differences(revisions, range(1, self.KEYS + 1)) == []

    async def test_a_restart_that_loses_memory_is_an_error(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            bucket = await self.filled(client, storage="memory")
            with pytest.raises(StreamReplaced) as caught:
                await asyncio.wait_for(self.in_the_middle(bucket, own_server.restart), 120)
            assert caught.value.exit_code == 1

    async def test_a_server_that_stays_away_is_an_error(self, own_server, monkeypatch):
        async with kvctl.connect(own_server.url) as client:
            bucket = await self.filled(client)
            monkeypatch.setattr(client.connection, "timeout", 0.5)
            original = ordered_consumer.OrderedConsumer.__init__

            def impatient(self: Any, *arguments: Any, **options: Any) -> None:
                original(self, *arguments, **options)
                self._patience = 1.0

            monkeypatch.setattr(ordered_consumer.OrderedConsumer, "__init__", impatient)
            with pytest.raises(KvctlError) as caught:
                await asyncio.wait_for(self.in_the_middle(bucket, own_server.kill), 120)
            assert caught.value.exit_code == 5

    @pytest.mark.guarantee("reading-16", by="fault")
    @pytest.mark.parametrize("recreated", [False, True])
    async def test_a_bucket_deleted_under_it_is_an_error_at_once(self, client, bucket_name, recreated):
        bucket = await client.create_bucket(bucket_name)
        await bucket.put_many((f"k.{number}", b"") for number in range(self.KEYS))

        async def end() -> None:
            await bucket.destroy()
            if recreated:
                await client.create_bucket(bucket_name)

        begun = time.monotonic()
        with pytest.raises(StreamReplaced, match="was deleted" if recreated else "was deleted while it was being read"):
            await self.in_the_middle(bucket, end)
        assert time.monotonic() - begun < 10  # its patience is 15

    async def test_consumer_deleted_during_a_listing_is_recreated(self, raw, client, bucket_name):
        bucket = await client.create_bucket(bucket_name)
        await bucket.put_many((f"k.{number}", b"") for number in range(self.KEYS))

        def delete() -> None:
            for name in raw.api(f"CONSUMER.NAMES.KV_{bucket_name}")["consumers"]:
                assert raw.api(f"CONSUMER.DELETE.KV_{bucket_name}.{name}")["success"]

        keys = await self.in_the_middle(bucket, delete)
        assert differences(sorted(keys), sorted(f"k.{number}" for number in range(self.KEYS))) == []


@pytest.mark.guarantee("reading-17")
@pytest.mark.slow
async def test_memory_does_not_grow_with_the_keys(own_server):
    peaks = []
    async with kvctl.connect(own_server.url) as client:
        for name, keys in (("SMALL", 10_000), ("LARGE", 1_000_000)):
            bucket = await client.create_bucket(name)
            assert (await bucket.put_many((f"{number:020d}", b"") for number in range(keys))).written == keys
            peaks.append(await asyncio.to_thread(_peak_of_listing, own_server.url, name, keys))
    assert peaks[1] - peaks[0] < 24 << 20, peaks


LISTING = r"""
import asyncio, re, sys, kvctl
async def main(url, name):
    async with kvctl.connect(url) as client:
        count = sum([len(batch) async for batch in client.bucket(name).key_batches()])
    print(count, re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
asyncio.run(main(*sys.argv[1:]))
"""


def _peak_of_listing(url: str, name: str, keys: int) -> int:
    """Bytes that a process listing the bucket took at most."""
    command = [sys.executable, "-c", LISTING, url, name]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    count, peak = map(int, finished.stdout.split())
    assert count == keys
    return peak * 1024


@pytest.mark.parametrize("at", [0, 20])
async def test_selected_keys_are_read_again_after_a_lost_connection(server, client, bucket_name, at):
    bucket = await client.create_bucket(bucket_name)
    await bucket.put_many((key, b"v") for key in ("a", "b", "c"))
    with Proxy(server.url) as proxy:
        proxy.on(b"Nats-Num-Pending: 1", Cut(at=at), way=DOWN)
        async with kvctl.connect(proxy.url) as other:
            found = [entry.key async for batch in other.bucket(bucket_name).get_matching(">") for entry in batch]
    assert sorted(found) == ["a", "b", "c"]


@pytest.mark.usefixtures("small_pulls")
async def test_nothing_is_doubled_in_a_bucket_recreated_since_the_handle_read_it(raw, client, bucket_name):
    """The revisions that the handle knows are those of the bucket before."""
    bucket = await client.create_bucket(bucket_name)
    await bucket.put_many((f"k.{number}", b"") for number in range(9000))
    assert len(await keys_of(bucket)) == 9000
    raw.api(f"STREAM.DELETE.KV_{bucket_name}")
    raw.create_bucket(bucket_name)
    await bucket.put_many((f"k.{number}", b"") for number in range(3000))
    keys: list[str] = []
    async for batch in bucket.get_matching(">"):
        if not keys:
            await bucket.put_many((f"k.{number}", b"new") for number in range(3000))
        keys += [entry.key for entry in batch]
    assert differences(sorted(keys), sorted(f"k.{number}" for number in range(3000))) == []


@pytest.mark.parametrize("held", [1, 3, 7, 1000])
def test_hashes_are_counted_wherever_they_are(held, monkeypatch):
    monkeypatch.setattr(listing, "HELD", held)
    batches = [[b"$KV.B.%d" % (number * step % 11) for number in range(5)] for step in range(1, 8)]
    hashes, added = SubjectHashes(), list[bytes]()
    assert not hashes.among({hash(b"$KV.B.0")})
    for batch in batches:
        hashes.add(iter(batch))
        added += batch
        wanted = {hash(b"$KV.B.%d" % number) for number in (0, 1, 7, 99)}
        assert hashes.among(wanted) == Counter(hash(subject) for subject in added if hash(subject) in wanted)
        assert len(hashes) == len(added)


@pytest.mark.parametrize("bytes_allowed", [0, 20, 64])
def test_hashes_stay_in_memory_where_no_file_can_be_written(bytes_allowed, monkeypatch):
    monkeypatch.setattr(listing, "HELD", 4)
    hashes, added = SubjectHashes(), list[bytes]()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_allowed, hard))
    try:
        for number in range(20):
            added.append(b"$KV.B.%d" % (number % 7))
            hashes.add(added[-1:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert hashes.among(set(map(hash, added))) == Counter(map(hash, added))
    assert len(hashes) == 20


def test_hashes_stay_in_memory_where_there_is_no_temporary_folder(monkeypatch):
    monkeypatch.setattr(listing, "HELD", 1)
    monkeypatch.setattr("tempfile.tempdir", "/dev/null/missing")
    hashes = SubjectHashes()
    for subject in (b"a", b"b", b"a"):
        hashes.add([subject])
    assert hashes.among({hash(b"a"), hash(b"c")}) == {hash(b"a"): 2}
