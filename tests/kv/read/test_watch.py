"""Watching: what was there, a marker, then every change: ordered, unique, complete, whatever happens to the server."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import kvctl
from kvctl import CURRENT, Bucket, Entry, Operation
from kvctl.errors import KvctlError, NoServer, RevisionNotFound, StreamReplaced, UsageError
from kvctl.jetstream.consumers import server_consumer
from kvctl.jetstream.server_snapshot import RestoreSession, taking
from kvctl.server import Server
from tests.support.differences import differences
from tests.support.patience import quickest
from tests.support.proxy import Proxy
from tests.support.raw import RawClient
from tests.support.waiting import until_async

LIMIT = 120.0
"""Seconds after which a test that waits has failed."""


@pytest.fixture
async def bucket(client, bucket_name):
    return await client.create_bucket(bucket_name, history=5)


def brief(item: Any) -> Any:
    """`key=value` of an entry, `key!` of a deletion, CURRENT."""
    if item is CURRENT:
        return CURRENT
    return f"{item.key}={item.value.decode()}" if item.operation is Operation.PUT else f"{item.key}!"


async def initial(bucket: Bucket, *filters: str, **options: Any) -> list[Any]:
    """What a watch yields up to its marker, that included."""
    async with asyncio.timeout(LIMIT):
        async with await bucket.watch(*filters, **options) as watcher:
            seen = []
            async for item in watcher:
                seen.append(brief(item))
                if item is CURRENT:
                    return seen
    raise AssertionError("no marker")


class TestInitialData:
    @pytest.fixture
    async def filled(self, bucket):
        """a=1 b=2 a=3 c! as revisions 1 2 3 5."""
        await bucket.put_many([("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4")])
        await bucket.delete("c")
        return bucket

    @pytest.mark.guarantee("reading-15")
    @pytest.mark.parametrize(
        ("filters", "options", "expected"),
        [
            ((), {}, ["b=2", "a=3", "c!", CURRENT]),
            ((), {"ignore_deletes": True}, ["b=2", "a=3", CURRENT]),
            ((), {"history": True}, ["a=1", "b=2", "a=3", "c=4", "c!", CURRENT]),
            ((), {"history": True, "ignore_deletes": True}, ["a=1", "b=2", "a=3", "c=4", CURRENT]),
            ((), {"meta_only": True}, ["b=", "a=", "c!", CURRENT]),
            ((), {"updates_only": True}, [CURRENT]),
            ((), {"from_revision": 1}, ["a=1", "b=2", "a=3", "c=4", "c!", CURRENT]),
            ((), {"from_revision": 3}, ["a=3", "c=4", "c!", CURRENT]),
            ((), {"from_revision": 6}, [CURRENT]),
            (("a",), {}, ["a=3", CURRENT]),
            (("a",), {"from_revision": 4}, [CURRENT]),
            (("c",), {"ignore_deletes": True}, [CURRENT]),
            (("none",), {}, [CURRENT]),
            (("none",), {"history": True}, [CURRENT]),
            (("a", "c"), {}, ["a=3", "c!", CURRENT]),
            (("a", "*"), {}, ["b=2", "a=3", "c!", CURRENT]),
        ],
    )
    async def test_initial_data_follows_the_options_and_ends_with_the_marker(self, filled, filters, options, expected):
        begun = time.monotonic()
        assert await initial(filled, *filters, **options) == expected
        assert await initial(filled, *filters, **options, follow=False) == expected
        assert time.monotonic() - begun < server_consumer.EXPIRES_S

    @pytest.mark.guarantee("reading-18")
    @pytest.mark.parametrize("options", [{}, {"history": True}, {"updates_only": True}, {"from_revision": 1}])
    async def test_initial_data_of_an_empty_bucket_is_the_marker(self, bucket, options):
        assert await initial(bucket, **options) == [CURRENT]
        assert await initial(bucket, "a.*", **options) == [CURRENT]

    async def test_watch_without_values_has_their_sizes(self, filled):
        async with await filled.watch("b", meta_only=True, follow=False) as watcher:
            assert [item.size async for item in watcher if item is not CURRENT] == [1]

    async def test_delta_counts_what_is_still_to_come(self, filled):
        async with await filled.watch(history=True, follow=False) as watcher:
            assert [item.delta async for item in watcher if item is not CURRENT] == [4, 3, 2, 1, 0]

    @pytest.mark.parametrize("other", [{"history": True}, {"from_revision": 1}])
    async def test_updates_only_cannot_be_combined_with_initial_data(self, bucket, other):
        with pytest.raises(UsageError, match="cannot be combined"):
            await bucket.watch(updates_only=True, **other)

    async def test_large_initial_data_is_complete(self, bucket):
        await bucket.put_many((f"k.{number}", b"x" * 100) for number in range(25_000))
        seen = await initial(bucket)
        assert (len(seen), len(set(seen)), seen[-1]) == (25_001, 25_001, CURRENT)


class TestUpdates:
    async def test_follow_the_marker_in_order(self, bucket):
        await bucket.put("a", b"0")
        seen: list[Any] = []
        async with asyncio.timeout(LIMIT), await bucket.watch("a", "b.>") as watcher:
            async for item in watcher:
                seen.append(brief(item))
                if item is CURRENT:
                    for key, value in (("a", b"1"), ("other", b"x"), ("b.c", b"2"), ("a", b"3")):
                        await bucket.put(key, value)
                    await bucket.delete("a")
                    await bucket.purge("b.c")
                if len(seen) == 7:
                    break
        assert seen == ["a=0", CURRENT, "a=1", "b.c=2", "a=3", "a!", "b.c!"]

    async def test_an_expired_key_is_a_deletion_with_its_reason(self, client, bucket_name):
        second = kvctl.BucketConfig("X").ttl.resolution * 1_000_000
        bucket = await client.create_bucket(bucket_name, marker_ttl=60 * second)
        async with asyncio.timeout(LIMIT), await bucket.watch(updates_only=True) as watcher:
            async for item in watcher:
                if item is CURRENT:
                    await bucket.create("k", b"x", ttl=second)
                elif item.operation is not Operation.PUT:
                    assert (item.key, item.operation, item.reason) == ("k", Operation.PURGE, "MaxAge")
                    break

    async def test_those_of_overlapping_filters_come_once(self, bucket):
        seen: list[Any] = []
        async with asyncio.timeout(LIMIT), await bucket.watch("a.*", "*.b", updates_only=True) as watcher:
            async for item in watcher:
                if item is CURRENT:
                    await bucket.put_many((key, b"") for key in ("a.b", "x.y", "c.b", "a.a"))
                else:
                    seen.append(item.key)
                if len(seen) == 3:
                    break
        assert seen == ["a.b", "c.b", "a.a"]

    async def test_a_watch_that_is_left_leaves_nothing_on_the_server(self, raw, bucket):
        await initial(bucket)
        await until_async(lambda: raw.api(f"STREAM.INFO.KV_{bucket.name}")["state"]["consumer_count"] == 0)


class Writer:
    """Puts numbers, one after the other, and knows which were acknowledged."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.acked: list[int] = []
        self.times: list[float] = []

    async def run(self) -> None:
        number = 0
        while True:
            with suppress(KvctlError):  # not known whether it was stored: then it may be seen or not
                self.acked.append(await self.bucket.put(f"k.{number % 7}", b"%d" % number))
                self.times.append(time.monotonic())
            number += 1
            await asyncio.sleep(0.002)


@asynccontextmanager
async def writing(server: Server, name: str) -> AsyncIterator[Writer]:
    async with kvctl.connect(server.url) as client:
        writer = Writer(client.bucket(name))
        task = asyncio.create_task(writer.run())
        try:
            yield writer
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class Watched:
    """What a watch has seen, and when."""

    def __init__(self) -> None:
        self.revisions: list[int] = []
        self.times: list[float] = []
        self.current = False

    async def run(self, bucket: Bucket, **options: Any) -> None:
        async with await bucket.watch(**options) as watcher:
            async for item in watcher:
                if item is CURRENT:
                    self.current = True
                    continue
                self.revisions.append(item.revision)
                self.times.append(time.monotonic())


@pytest.fixture
def no_sign_of_life(monkeypatch):
    """Silence is not noticed for minutes."""
    monkeypatch.setattr(server_consumer, "EXPIRES_S", 600.0)
    monkeypatch.setattr(server_consumer, "HEARTBEAT_S", 200.0)


class TestOverRestarts:
    @pytest.mark.guarantee("reading-9", "reading-13", by="kill")
    @pytest.mark.usefixtures("no_sign_of_life")
    @pytest.mark.parametrize("end", ["kill", "stop"])
    @pytest.mark.parametrize("down", [0.3, 3.0])
    async def test_nothing_is_lost_doubled_or_out_of_order(self, own_server, end, down):
        async with kvctl.connect(own_server.url) as client, writing(own_server, "B") as writer:
            bucket = await client.create_bucket("B", history=64)
            seen = Watched()
            watch = asyncio.create_task(seen.run(bucket, history=True))
            await until_async(lambda: len(seen.revisions) > 20)

            async def restarted() -> float:
                getattr(own_server, end)()
                await asyncio.sleep(down)
                await asyncio.to_thread(own_server.start)
                back = time.monotonic()
                with RawClient(own_server.url) as raw:
                    raw.put("B", "after", b"")
                await until_async(lambda: seen.times[-1] > back)
                first = next(at for at in seen.times if at > back)
                await until_async(lambda: len([at for at in writer.times if at > back]) > 20)
                return first - back

            assert await quickest(restarted, 2) < 2
            last = writer.acked[-1]
            await until_async(lambda: seen.revisions[-1] >= last)
            watch.cancel()
            revisions = range(1, seen.revisions[-1] + 1)  # history is never full: none is skipped
            assert differences(seen.revisions, revisions) == []
            assert set(writer.acked[: writer.acked.index(last) + 1]) - set(revisions) == set()

    async def test_the_marker_comes_though_the_server_restarts_before_it(self, own_server, monkeypatch):
        monkeypatch.setattr(server_consumer, "BATCH_MESSAGES", 200)
        async with kvctl.connect(own_server.url) as client:
            bucket = await client.create_bucket("B")
            await bucket.put_many((f"k.{number}", b"x" * 100) for number in range(5000))
            seen: list[Any] = []
            async with asyncio.timeout(LIMIT), await bucket.watch() as watcher:
                async for item in watcher:
                    if not seen:
                        own_server.kill()
                        await asyncio.to_thread(own_server.start)
                    if item is CURRENT:
                        break
                    seen.append(item.revision)
            assert differences(seen, range(1, 5001)) == []

    async def test_updates_only_loses_nothing_that_came_while_it_was_away(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            bucket = await client.create_bucket("B", history=64)
            await bucket.put("k", b"before")
            seen = Watched()
            watch = asyncio.create_task(seen.run(bucket, updates_only=True))
            await until_async(lambda: seen.current)
            own_server.kill()
            await asyncio.to_thread(own_server.start)
            with RawClient(own_server.url) as raw:
                revisions = [raw.put("B", "k", b"%d" % number) for number in range(20)]
            await until_async(lambda: len(seen.revisions) >= 20)
            watch.cancel()
            assert seen.revisions == revisions

    async def test_closing_the_connection_ends_it(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            bucket = await client.create_bucket("B")
            seen = Watched()
            watch = asyncio.create_task(seen.run(bucket))
            await until_async(lambda: seen.current)
            own_server.kill()
            await until_async(lambda: not client.connection.online)
            await client.close()
            with pytest.raises(NoServer):
                await asyncio.wait_for(watch, LIMIT)


class TestEnds:
    async def watch_while(self, bucket: Bucket, act: Callable[[], Any]) -> None:
        async with asyncio.timeout(LIMIT), await bucket.watch() as watcher:
            async for item in watcher:
                if item is CURRENT:
                    await act()

    @pytest.mark.guarantee("reading-16", by="fault")
    @pytest.mark.usefixtures("no_sign_of_life")
    @pytest.mark.parametrize("recreated", [False, True])
    async def test_deleting_the_bucket_ends_the_watch(self, client, bucket, recreated):
        async def end() -> None:
            await bucket.destroy()
            if recreated:
                await client.create_bucket(bucket.name)

        await bucket.put("k", b"x")
        said = "was deleted" if recreated else f"bucket `{bucket.name}` was deleted while it was being watched"
        with pytest.raises(StreamReplaced, match=said):
            await self.watch_while(bucket, end)

    @pytest.mark.guarantee("reading-16", by="fault")
    async def test_recreating_the_bucket_during_an_outage_ends_the_watch(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            bucket = await client.create_bucket("B")
            await bucket.put("k", b"x")

            async def replaced() -> None:
                own_server.restart()
                with RawClient(own_server.url) as raw:
                    raw.api("STREAM.DELETE.KV_B")
                    raw.create_bucket("B")

            with pytest.raises(StreamReplaced, match=r"was deleted"):
                await self.watch_while(bucket, replaced)

    async def test_restart_that_loses_memory_storage_ends_the_watch(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            bucket = await client.create_bucket("B", storage="memory")
            await bucket.put("k", b"x")

            async def restart() -> None:
                await asyncio.to_thread(own_server.restart)

            with pytest.raises(StreamReplaced):
                await self.watch_while(bucket, restart)

    @pytest.mark.guarantee("reading-16", by="fault")
    async def test_restore_from_a_snapshot_during_an_outage_ends_the_watch(self, server, client, bucket):
        stream = f"KV_{bucket.name}"
        await bucket.put_many((f"k{number}", b"x") for number in range(5))
        async with taking(client.api, stream) as snapshot:
            chunks = [chunk async for chunk in snapshot.chunks]

        async def restored() -> None:
            await bucket.destroy()
            restoring = RestoreSession(client.api, snapshot.config, snapshot.state)
            await restoring.begin()
            for chunk in chunks:
                await restoring.send(chunk)
            await restoring.finish()
            await bucket.put_many((f"other{number}", b"x") for number in range(3))

        async def watch(proxy: Proxy) -> None:
            async with kvctl.connect(proxy.url) as away, await away.bucket(bucket.name).watch() as watcher:
                async for item in watcher:
                    if item is CURRENT:
                        await bucket.put("seen", b"x")
                    elif isinstance(item, Entry) and item.key == "seen":
                        proxy.refuse()
                        proxy.cut()
                        await restored()
                        proxy.refuse(0)

        with Proxy(server.url) as proxy, pytest.raises(StreamReplaced, match="was deleted and recreated"):
            await asyncio.wait_for(watch(proxy), LIMIT)


class TestFromRevision:
    @pytest.mark.guarantee("reading-12")
    async def test_beyond_the_next_revision_is_not_found(self, bucket):
        await bucket.put_many(("k", b"x") for _ in range(10))
        for revision in (12, 1000):
            with pytest.raises(RevisionNotFound, match=f"has no revision {revision}"):
                async with await bucket.watch(from_revision=revision):
                    pass

    @pytest.mark.guarantee("reading-12", by="fault")
    async def test_next_revision_shows_all_that_comes_over_lost_connections(self, server, bucket):
        await bucket.put_many(("k", b"x") for _ in range(10))
        seen: list[int] = []
        with Proxy(server.url) as proxy:
            connecting = kvctl.connect(proxy.url)
            async with asyncio.timeout(LIMIT), connecting as away:
                watching = await away.bucket(bucket.name).watch(from_revision=11)
                async with watching as watcher:
                    async for item in watcher:
                        if isinstance(item, Entry):
                            seen.append(item.revision)
                        if item is CURRENT:
                            proxy.refuse()
                            proxy.cut()
                            await bucket.put_many([("a", b""), ("b", b"")])
                            proxy.refuse(0)
                        if seen == [11, 12]:
                            break


@pytest.mark.guarantee("reading-15")
async def test_marker_comes_once_though_a_watcher_is_iterated_again(bucket):
    await bucket.put("k", b"x")
    seen: list[Any] = []
    async with await bucket.watch() as watcher:
        for number in range(10):
            try:
                async with asyncio.timeout(0.2):
                    async for item in watcher:
                        seen.append(brief(item))
            except TimeoutError:
                await bucket.put(f"k{number}", b"x")
        async with asyncio.timeout(LIMIT):
            async for item in watcher:
                seen.append(brief(item))
                if seen[-1] == "k9=x":
                    break
    assert seen == ["k=x", CURRENT, *(f"k{number}=x" for number in range(10))]


class TestRecovers:
    async def test_from_a_consumer_deleted_on_the_server(self, raw, bucket):
        seen: list[Any] = []
        async with asyncio.timeout(LIMIT), await bucket.watch() as watcher:
            async for item in watcher:
                seen.append(brief(item))
                if len(seen) in (1, 4):
                    for name in raw.api(f"CONSUMER.NAMES.KV_{bucket.name}")["consumers"]:
                        raw.api(f"CONSUMER.DELETE.KV_{bucket.name}.{name}")
                    await bucket.put_many(("k", b"%d" % (len(seen) + number)) for number in range(3))
                if len(seen) == 7:
                    break
        assert seen == [CURRENT, "k=1", "k=2", "k=3", "k=4", "k=5", "k=6"]

    async def test_from_a_reader_away_longer_than_its_pulls_and_its_consumer_live(self, monkeypatch, bucket):
        monkeypatch.setattr(server_consumer, "INACTIVE_S", 0.5)
        for name, value in (("EXPIRES_S", 1.0), ("HEARTBEAT_S", 0.3)):
            monkeypatch.setattr(server_consumer, name, value)
        seen: list[Any] = []
        async with asyncio.timeout(LIMIT), await bucket.watch() as watcher:
            async for item in watcher:
                seen.append(brief(item))
                if item is CURRENT:
                    await bucket.put("k", b"0")
                elif len(seen) == 2:
                    await asyncio.sleep(3)
                    await bucket.put("k", b"1")
                elif len(seen) == 3:
                    break
        assert seen == [CURRENT, "k=0", "k=1"]

    async def test_from_silence(self, monkeypatch, bucket):
        for name, value in (("EXPIRES_S", 1.0), ("HEARTBEAT_S", 0.3)):
            monkeypatch.setattr(server_consumer, name, value)
        seen = Watched()
        watch = asyncio.create_task(seen.run(bucket))
        await asyncio.sleep(2.5)  # pulls expire and are made anew
        revision = await bucket.put("k", b"")
        await until_async(lambda: seen.revisions == [revision])
        watch.cancel()


SLOW_READER = r"""
import asyncio, re, sys, time, kvctl
async def main(url, how):
    async with kvctl.connect(url) as client:
        seen, size = [], 0
        async with await client.bucket("B").watch() as watcher:
            async for item in watcher:
                if item is kvctl.CURRENT:
                    break
                if not seen:
                    print("reading", file=sys.stderr, flush=True)
                    time.sleep(2) if how == "blocked" else await asyncio.sleep(2)
                seen.append(item.revision)
                size += len(item.value)
        assert seen == list(range(1, len(seen) + 1))
        peak = int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) // 1024
        print(len(seen), size, peak)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.guarantee("reading-14", by="fault")
@pytest.mark.parametrize(("history", "how"), [(1, "blocked"), (5, "asleep")])
async def test_a_slow_reader_gets_everything_in_bounded_memory(own_server, how, history):
    count, size = 300, 1_000_000
    async with kvctl.connect(own_server.url) as client:
        bucket = await client.create_bucket("B", history=history)
        value = os.urandom(size)
        assert (await bucket.put_many((f"k.{number}", value) for number in range(count))).written == count
    command = [sys.executable, "-c", SLOW_READER, own_server.url, how]
    finished = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert finished.returncode == 0, finished.stderr
    seen, total, peak = map(int, finished.stdout.split())
    assert (seen, total) == (count, count * size)
    assert peak < 90, f"{peak} MB"
