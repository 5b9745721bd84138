"""Finite readings are complete: what the stream holds at the end, under limits of the server, through imports."""

import asyncio
import json
import re
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import kvctl
from kvctl import Client
from kvctl.contexts import Context
from kvctl.doctor import examination
from kvctl.errors import NoResponders, RequestTimeout, ServerError
from kvctl.jetstream.consumers import ordered_consumer, server_consumer
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer, read
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.server import Server, run_server
from tests.support.proxy import DOWN, Proxy, Swallow
from tests.support.raw import RawClient

IMPORTED = """
listen: "127.0.0.1:@client@"
server_name: "@name@"
jetstream { store_dir: "@store@" }
accounts {
  OWNER: { jetstream: enabled, users: [{user: owner, password: owner}],
    exports: [{service: "$JS.API.>"RESPONSES}, {service: "$KV.>"}] }
  GUEST: { users: [{user: guest, password: guest}],
    imports: [{service: {account: OWNER, subject: "$JS.API.>"}, to: "owner.>"},
              {service: {account: OWNER, subject: "$KV.>"}, to: "owner.$KV.>"}] }
}
"""


async def subjects_read(client: Client, stream: str, **options: Any) -> list[str]:
    found: list[str] = []
    async with asyncio.timeout(60):
        async for batch in read(client.api, stream, Selection(**{"subjects": (">",), **options})):
            found += [frame[0].decode() for frame in batch]
    return found


class TestLastMessageGone:
    """Servers answer a request for the last message on `>` by the last sequence alone, though it is gone."""

    @pytest.fixture
    def stream(self, raw, unique):
        """Messages 1 to 20, of which the last and two more are deleted."""
        name = unique("GONE")
        raw.create_stream(name, subjects=[f"{name}.>"], max_msgs_per_subject=5)
        for number in range(20):
            raw.request(f"{name}.k{number}", b"x" * 20)
        for sequence in (7, 19, 20):
            raw.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
        return name

    @pytest.mark.guarantee("reading-10")
    @pytest.mark.parametrize("deliver", ["all", "last_per_subject"])
    async def test_reading_of_everything_is_complete(self, client, stream, deliver):
        expected = [f"{stream}.k{number}" for number in range(18) if number != 6]
        for _ in range(30):
            assert await subjects_read(client, stream, deliver=deliver) == expected

    async def test_last_message_on_everything_is_the_last_that_is_there(self, client, stream):
        handle = client.jetstream.stream(stream)
        found = await handle.get_message(last_for=">")
        assert found.sequence == 18
        await handle.purge()
        assert await handle.get_message(last_for=">") is None
        assert await server_consumer.last_matching(client.api, stream, (">",)) == 0

    @pytest.mark.guarantee("reading-10", by="fault")
    async def test_fewer_messages_than_counted_are_read_again(self, client, stream, monkeypatch):
        caught_up, calls = OrderedConsumer._caught_up, 0

        async def early(self: OrderedConsumer, idle: bool) -> bool:
            nonlocal calls
            calls += 1
            return calls == 1 or await caught_up(self, idle)

        monkeypatch.setattr(OrderedConsumer, "_caught_up", early)
        assert len(await subjects_read(client, stream, deliver="all")) == 17

    @pytest.mark.guarantee("reading-10", by="fault")
    @pytest.mark.parametrize("deliver", ["all", "last_per_subject"])
    async def test_reading_that_stays_short_of_the_count_is_an_error(self, client, stream, monkeypatch, deliver):
        async def early(*_: object) -> bool:
            return True

        monkeypatch.setattr(OrderedConsumer, "_caught_up", early)
        with pytest.raises(ServerError, match="delivered 0 of 17 messages"):
            await subjects_read(client, stream, deliver=deliver)


class TestBoundedReading:
    """A reading of a range of sequences ends where the range ends, and requests no message beyond."""

    @pytest.mark.parametrize("gaps", [False, True])
    async def test_messages_beyond_the_range_are_not_sent(self, server, unique, gaps):
        sent: list[bytes] = []
        with Proxy(server.url) as proxy:
            proxy.on(b"MSG ", lambda frame: sent.append(frame), way=DOWN, times=None)
            async with kvctl.connect(server.url) as writer, kvctl.connect(Context(url=proxy.url)) as client:
                bucket = await writer.create_bucket(unique("RANGE"))
                await bucket.put_many((f"k.{number}", b"x") for number in range(2000))
                if gaps:
                    await bucket.put_many((f"k.{number}", b"y") for number in range(0, 2000, 2))
                stream = f"KV_{bucket.name}"
                for first, last in ((1, 100), (501, 900), (1990, 2000), (2001, 2100)):
                    held = [number for number in range(first, last + 1) if not gaps or number % 2 == 0 or number > 2000]
                    held = [number for number in held if gaps or number <= 2000]
                    sent.clear()
                    selection = Selection((f"$KV.{bucket.name}.>",), "by_start_sequence", first, last=last)
                    batches = read(client.api, stream, selection)
                    found = [delivery(frame[1])[0] async for batch in batches for frame in batch]
                    assert found == held
                    messages = sum(1 for frame in sent if b"$JS.ACK." in frame)
                    assert messages == len(held)

    async def test_a_pause_of_the_server_does_not_end_a_range(self, server, unique, monkeypatch):
        """A busy server pauses in the middle; here, every look for messages comes before they do."""
        monkeypatch.setattr(ordered_consumer, "IDLE_S", 0)
        async with kvctl.connect(server.url) as client:
            bucket = await client.create_bucket(unique("RANGE"))
            await bucket.put_many((f"k.{number}", b"x" * 4000) for number in range(3000))
            selection = Selection((f"$KV.{bucket.name}.>",), "by_start_sequence", 1001, last=2500)
            batches = read(client.api, f"KV_{bucket.name}", selection)
            found = [delivery(frame[1])[0] async for batch in batches for frame in batch]
        assert found == list(range(1001, 2501))


class TestLimitedPulls:
    """A server that limits the messages of a pull gives the limit to every consumer that names none."""

    @pytest.fixture(scope="class", params=[500, 7, 1])
    @classmethod
    def limited(cls, request):
        config = (
            'listen: "127.0.0.1:@client@"\nserver_name: "@name@"\n'
            f'jetstream {{ store_dir: "@store@", limits {{ max_request_batch: {request.param} }} }}\n'
        )
        with run_server(name="limited", config=config) as server:
            yield server

    @pytest.mark.guarantee("reading-11")
    @pytest.mark.parametrize("history", [1, 5])
    async def test_everything_is_listed_and_watched(self, limited, unique, history):
        async with asyncio.timeout(60), kvctl.connect(limited.url) as client:
            bucket = await client.create_bucket(unique(), history=history)
            names = [f"k.{number}" for number in range(1200)]
            await bucket.put_many((name, b"x") for name in names)
            await bucket.put_many((name, b"y") for name in names[:100])
            await bucket.delete("k.7")
            living = [*names[100:], *(name for name in names[:100] if name != "k.7")]
            assert [key async for key in bucket.keys()] == living
            assert [entry.key async for entry in bucket.entries("k.>")] == living
            held = [entry.revision async for entry in bucket.history()]
            assert held == (list(range(1, 1302)) if history > 1 else [*range(101, 1208), *range(1209, 1302)])
            seen = []
            async with await bucket.watch() as watcher:
                async for item in watcher:
                    if item is kvctl.CURRENT:
                        await bucket.put_many((f"new.{number}", b"z") for number in range(50))
                    elif item.key == "new.49":
                        break
                    else:
                        seen.append(item.key)
            assert seen == [*living, "k.7", *(f"new.{number}" for number in range(49))]

    async def test_a_list_ends_where_the_server_looked_and_not_by_its_count(self, limited, unique):
        pulls: list[dict[str, object]] = []
        name = unique()
        async with asyncio.timeout(60), kvctl.connect(limited.url) as client:
            bucket = await client.create_bucket(name)
            await bucket.put_many((f"k.{number}", b"x") for number in range(100))
            await client.connection._add(
                f"$JS.API.CONSUMER.MSG.NEXT.KV_{name}.*", lambda frame: pulls.append(json.loads(frame[3])), None
            )
            assert len([key async for key in bucket.keys()]) == 100
        assert pulls
        # A pull that neither waits nor expires is answered by the count of pending messages. One of a single message
        # has no other end.
        assert all("expires" in pull for pull in pulls if pull["batch"] != 1)

    async def test_consuming_by_size_asks_for_no_more_messages_than_it_may(self, limited, unique):
        name = unique("WORK")
        async with asyncio.timeout(60), kvctl.connect(limited.url) as client:
            stream = await client.jetstream.create_stream(name, subjects=[f"{name}.>"])
            for number in range(30):
                await client.connection.request(f"{name}.{number}", b"x" * 100)
            worker = await stream.create_consumer("worker")
            found = []
            async for message in worker.consume(max_bytes=2000, count=30):
                found.append(message.sequence)
                await message.ack()
            assert found == list(range(1, 31))
            other = await stream.create_consumer("other")
            async with other.fetch(max_bytes=4000, no_wait=True) as fetch:
                few = [message.sequence async for message in fetch]
            assert few
            assert few == list(range(1, len(few) + 1))


class TestImportedService:
    """Through a plain service import each request has one answer; with `response_type: stream`, all of them."""

    @pytest.fixture(scope="class", params=["", ", response_type: stream"], ids=["one answer", "all answers"])
    @classmethod
    def imported(cls, request):
        with run_server(name="imported", config=IMPORTED.replace("RESPONSES", request.param)) as server:
            yield server

    @staticmethod
    def connect(server: Server, account: str) -> AbstractAsyncContextManager[Client]:
        context = Context(url=server.url, user=account, password=account)
        return kvctl.connect(replace(context, api_prefix="owner") if account == "guest" else context)

    @pytest.mark.guarantee("reading-11")
    @pytest.mark.parametrize("history", [1, 5])
    async def test_every_reading_is_complete_in_seconds(self, imported, unique, history):
        name = unique()
        async with self.connect(imported, "owner") as owner, self.connect(imported, "guest") as client:
            there = await owner.create_bucket(name, history=history)
            names = [f"k{number}" for number in range(300)]
            await there.put_many((key, b"v") for key in names)
            await there.put("k0", b"again")
            await there.delete("k1")
            living = [*names[2:], "k0"]
            async with asyncio.timeout(15):
                here = client.bucket(name)
                assert [key async for key in here.keys()] == living
                assert [entry.key async for entry in here.entries("*")] == living
                assert len([entry async for entry in here.history()]) == (302 if history > 1 else 300)
                assert [entry.key async for batch in here.get_matching(">") for entry in batch] == living
                found = await here.get_many([*names[:50], "none"])
                assert [entry and entry.key for entry in found] == ["k0", None, *names[2:50], None]
                past = await here.as_of(302)
                assert [entry.key async for entry in past.entries()] == living

    async def test_doctor_names_imports_with_one_answer_for_each_request(self, imported, request):
        whole = "all answers" in request.node.name
        async with self.connect(imported, "owner") as owner, self.connect(imported, "guest") as client:
            await (await owner.create_bucket("LOOKED_AT")).put("k", b"v")
            for api, named in ((owner.api, False), (client.api, not whole)):
                found = [item.severity for item in await examination.examine(api) if item.check == "single-answers"]
                assert found == (["warning"] if named else [])

    @pytest.mark.guarantee("reading-11")
    async def test_watch_shows_each_change_at_once(self, imported, unique):
        name = unique()
        async with self.connect(imported, "owner") as owner, self.connect(imported, "guest") as client:
            there = await owner.create_bucket(name)
            await there.put_many((f"k{number}", b"v") for number in range(5))
            seen: list[int] = []
            async with asyncio.timeout(20), await client.bucket(name).watch() as watcher:
                async for item in watcher:
                    if item is kvctl.CURRENT:
                        assert seen == [1, 2, 3, 4, 5]
                    if isinstance(item, kvctl.Entry):
                        seen.append(item.revision)
                        if item.revision == 5 + 200:
                            break
                    if item is kvctl.CURRENT or 5 < len(seen) < 30:
                        begun = asyncio.get_running_loop().time()
                        await there.put(f"new.{len(seen)}", b"v")
                        assert asyncio.get_running_loop().time() - begun < 5
                    elif len(seen) == 30:
                        await there.put_many((f"n{number}", b"v") for number in range(175))
            assert seen == list(range(1, 206))


async def test_fetch_over_a_plain_import_names_the_setting(unique, monkeypatch):
    monkeypatch.setattr("kvctl.jetstream.consumers.fetch.MARGIN", 0.0)
    name, config = unique("WORK"), IMPORTED.replace("RESPONSES", "")
    with (
        run_server(name="imported", config=config) as server,
        RawClient(server.url, user="owner", password="owner") as raw,
    ):
        raw.create_stream(name, subjects=[f"{name}.>"])
        for number in range(5):
            raw.request(f"{name}.{number}")
        context = Context(
            url=server.url, user="guest", password="guest", api_prefix="owner", timeout=timedelta(seconds=1)
        )
        async with kvctl.connect(context) as client:
            consumer = await client.jetstream.stream(name).create_consumer("c")
            with pytest.raises(RequestTimeout) as caught:
                async with consumer.fetch(5, expires=timedelta(seconds=1)) as fetch:
                    _ = [message async for message in fetch]
            assert "response_type: stream" in (caught.value.hint or "")


async def test_reading_that_begins_behind_the_end_shows_nothing_from_before(client, bucket_name):
    bucket = await client.create_bucket(bucket_name)
    await bucket.put_many((f"k{number}", b"") for number in range(5))
    chosen = Selection(subjects=(f"$KV.{bucket_name}.>",), deliver="by_start_sequence", start=8)
    found: list[int] = []
    async with asyncio.timeout(20), OrderedConsumer(client.api, f"KV_{bucket_name}", chosen, follow=True) as consumer:
        async for batch in consumer.batches():
            found += [delivery(frame[1])[0] for frame in batch]
            if not batch:
                await bucket.put_many((f"n{number}", b"") for number in range(5))
            elif found[-1] == 10:
                break
    assert found == [8, 9, 10]


@pytest.mark.parametrize("deliver", ["all", "last_per_subject"])
async def test_messages_written_after_the_start_are_not_due_before_the_end(server, client, bucket_name, deliver):
    """A consumer that is made again counts them, too."""
    bucket = await client.create_bucket(bucket_name)
    await bucket.put_many((f"k{number}", b"") for number in range(100))
    chosen = Selection(subjects=(f"$KV.{bucket_name}.>",), deliver=deliver)
    found: list[int] = []
    written = False
    with Proxy(server.url) as proxy:
        async with asyncio.timeout(60), kvctl.connect(proxy.url) as away:
            consumer = OrderedConsumer(away.api, f"KV_{bucket_name}", chosen, follow=True)
            async with consumer:
                async for batch in consumer.batches():
                    found += [delivery(frame[1])[0] for frame in batch]
                    if found[-1] == 100 and not written:  # once, though message 100 may be delivered again
                        written = True
                        await bucket.put_many((f"n{number}", b"") for number in range(50))
                        epoch = away.connection.epoch
                        proxy.cut()
                        while away.connection.epoch == epoch:
                            await asyncio.sleep(0.01)
                    if found[-1] == 150:
                        break
    assert sorted(set(found)) == list(range(1, 151))


async def read_keys(bucket: kvctl.Bucket) -> None:
    _ = [key async for key in bucket.keys()]


async def follow_keys(bucket: kvctl.Bucket) -> None:
    async with await bucket.watch() as watcher:
        _ = [entry async for entry in watcher]


@pytest.mark.parametrize("reading", [read_keys, follow_keys])
async def test_reading_whose_pulls_are_not_imported_names_their_subject(reading):
    narrow = IMPORTED.replace("RESPONSES", "").replace('subject: "$JS.API.>"}, to: "owner.>"', "SUBJECT")
    kept = ("STREAM.>", "CONSUMER.CREATE.>")
    imports = [f'{{service: {{account: OWNER, subject: "$JS.API.{name}"}}, to: "owner.{name}"}}' for name in kept]
    config = narrow.replace("{service: {account: OWNER, SUBJECT},", f"{', '.join(imports)},")
    with run_server(name="narrow", config=config) as server:
        owner = Context(url=server.url, user="owner", password="owner")
        async with kvctl.connect(owner) as client:
            await (await client.create_bucket("B")).put("k", b"v")
        guest = Context(url=server.url, user="guest", password="guest", api_prefix="owner")
        async with kvctl.connect(guest) as client, asyncio.timeout(20):
            bucket = client.bucket("B")
            with pytest.raises(NoResponders, match=re.escape("`owner.CONSUMER.MSG.NEXT.KV_B.>`")):
                await reading(bucket)
        async with kvctl.connect(owner) as client:
            assert (await client.api.call("STREAM.INFO.KV_B"))["state"]["consumer_count"] < 50


@pytest.mark.parametrize(
    ("lost", "message"),
    [(True, "does not deliver the messages of"), (False, "has messages of .* that it does not deliver")],
)
async def test_list_that_never_comes_further_ends(client, bucket_name, monkeypatch, lost, message):
    """By starts over if its consumer is lost each time, else by its patience."""
    bucket = await client.create_bucket(bucket_name)
    await bucket.put("k", b"")
    monkeypatch.setattr(ordered_consumer, "RESTARTS", 3)
    monkeypatch.setattr(ordered_consumer, "PATIENCE_S", 15.0 if lost else 1.0)
    client.connection.timeout = 5.0 if lost else 0.3
    original = OrderedConsumer._receive

    async def lossy(self: OrderedConsumer) -> list[Any]:
        await original(self)
        self._consumer.lost = lost
        return []

    monkeypatch.setattr(OrderedConsumer, "_receive", lossy)
    with pytest.raises(ServerError, match=message):
        async with asyncio.timeout(10):
            _ = [key async for key in bucket.keys()]


async def test_consumer_whose_server_just_died_gets_another_name_after_two_seconds(cluster, unique):
    """Its group does not answer; consumers are placed by chance, and the next one elsewhere."""
    name = unique()
    async with kvctl.connect(cluster.contexts["cluster"]) as client:
        bucket = await client.create_bucket(name, replicas=3)
        await bucket.put_many((f"k.{number}", b"v") for number in range(20))
        server = next(iter(cluster.servers.values()))
        with Proxy(server.url) as proxy:
            proxy.on(b".CONSUMER.CREATE.", Swallow())
            begun = time.monotonic()
            async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=60))) as behind:
                found = [key async for key in behind.bucket(name).keys()]
        assert (len(found), 2 <= time.monotonic() - begun < 30) == (20, True)


async def test_silent_server_is_not_asked_beyond_the_timeout(cluster, unique):
    """No other name is tried when the time is over, and positions on several subjects are asked together."""
    name, seen = unique(), list[bytes]()

    def swallow(frame: bytes) -> Swallow:
        seen.append(frame.split()[1])
        return Swallow()

    async with kvctl.connect(cluster.contexts["cluster"]) as client:
        bucket = await client.create_bucket(name, replicas=3)
        await bucket.put("k", b"v")
        server = next(iter(cluster.servers.values()))
        with Proxy(server.url) as proxy:
            proxy.on(re.compile(rb"^H?PUB \$JS.API.(CONSUMER.CREATE|STREAM.MSG.GET)"), swallow, times=None)
            async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=3))) as behind:
                with pytest.raises(RequestTimeout):
                    _ = [entry async for entry in behind.bucket(name).history()]
                assert len(set(seen)) == 1
                seen.clear()
                for last in (server_consumer.last_matching, partial(server_consumer.next_matching, first=1)):
                    with pytest.raises(RequestTimeout):
                        await last(behind.api, f"KV_{name}", ["a", "b", "c"])
                assert len(seen) == 6
