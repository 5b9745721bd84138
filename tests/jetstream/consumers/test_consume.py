"""Consume: buffer and thresholds, every status that ends a pull, disturbances, ends: nothing lost, nothing hangs."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl import Client
from kvctl.connection import connect
from kvctl.contexts import Context
from kvctl.errors import ConsumerNotFound, PermissionDenied, ServerError
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers.consume import REFUSALS, Consumption
from kvctl.jetstream.consumers.context import Consumer
from kvctl.jetstream.consumers.pull import Event, Pull
from tests.jetstream.conftest import publish
from tests.support.differences import differences
from tests.support.patience import quickest
from tests.support.raw import RawClient
from tests.support.restricted import restricted
from tests.support.waiting import until_async

SECOND = timedelta(seconds=1)
AT_ONCE = 25.0
"""Seconds, on a machine that may stand still for some of them; a pull lives for 30 s, and so long silence is borne."""


@asynccontextmanager
async def listening(client: Client, consumer: Consumer) -> AsyncIterator[list[dict[str, Any]]]:
    """The pulls that are sent for the consumer, with the subject that the answers go to."""
    pulls: list[dict[str, Any]] = []

    def note(frame: tuple[bytes, bytes, bytes, bytes]) -> None:
        pulls.append(json.loads(frame[3]) | {"reply": frame[1].decode()})

    sid = await client.connection._add(f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.name}", note, None)
    yield pulls
    await client.connection._remove(sid)


async def take(consumption: Consumption, count: int, *, seconds: float = AT_ONCE) -> list[int]:
    """The sequences of so many messages, each acknowledged."""
    found: list[int] = []
    async with asyncio.timeout(seconds):
        async for message in consumption:
            found.append(message.sequence)
            await message.ack()
            if len(found) == count:
                break
    return found


class TestBuffer:
    @pytest.mark.guarantee("consumers-1")
    async def test_every_message_comes_once_in_order(self, make_stream):
        consumer = await (await make_stream(1200)).create_consumer("c")
        async with consumer.consume() as messages:
            assert differences(await take(messages, 1200), range(1, 1201)) == []

    @pytest.mark.parametrize("options", [{"max_messages": 1}, {"max_messages": 7}, {"max_bytes": 300}])
    async def test_no_buffer_is_too_small(self, make_stream, options):
        consumer = await (await make_stream(50)).create_consumer("c")
        async with consumer.consume(**options) as messages:
            assert await take(messages, 50) == list(range(1, 51))

    async def test_consume_refills_the_buffer_at_the_threshold(self, client, make_stream):
        consumer = await (await make_stream(100)).create_consumer("c")
        async with (
            listening(client, consumer) as pulls,
            consumer.consume(max_messages=10, threshold_messages=3) as messages,
        ):
            assert await take(messages, 20) == list(range(1, 21))
            await until_async(lambda: len(pulls) >= 3, what="third pull")
        assert [pull["batch"] for pull in pulls[:3]] == [10, 7, 7]
        assert {(pull["expires"], pull["idle_heartbeat"]) for pull in pulls} == {(30 * 10**9, 15 * 10**9)}
        assert len({pull["reply"] for pull in pulls}) == 1  # one subscription

    async def test_bytes_are_counted_as_the_server_counts_them(self, client, make_stream):
        stream = await make_stream()
        for number in range(20):
            await client.connection.request(f"{stream.name}.{number:02}", b"x" * 900, b"NATS/1.0\r\nA: b\r\n\r\n")
        consumer = await stream.create_consumer("c")
        async with listening(client, consumer) as pulls, consumer.consume(max_bytes=10_000) as messages:
            found = await take(messages, 20)
            assert found == list(range(1, 21))
            await until_async(lambda: messages._puller.messages > 0, what="first pull")
            messages._puller.wake()
        assert all(pull["batch"] == 1_000_000 for pull in pulls)
        assert all(5_000 <= pull["max_bytes"] <= 10_000 for pull in pulls), pulls

    @pytest.mark.guarantee("consumers-6")
    async def test_a_slow_reader_holds_no_more_than_its_buffer(self, make_stream):
        consumer = await (await make_stream(100)).create_consumer("c")
        async with consumer.consume(max_messages=10) as messages:
            async for message in messages:
                await asyncio.sleep(0.05)
                assert (await consumer.info())["num_ack_pending"] <= 10
                await message.double_ack()
                if message.sequence == 10:
                    break
            else:
                pytest.fail("ended before message 10")

    async def test_a_buffer_of_one_fetches_nothing_ahead(self, make_stream):
        consumer = await (await make_stream(3)).create_consumer("c")
        async with consumer.consume(max_messages=1) as messages:
            async for message in messages:
                assert (await consumer.info())["num_ack_pending"] == 1
                await message.double_ack()
                if message.sequence == 3:
                    break
            else:
                pytest.fail("ended before message 3")

    async def test_count_ends_it_and_no_more_is_delivered(self, make_stream):
        consumer = await (await make_stream(100)).create_consumer("c")
        assert [message.sequence async for message in consumer.consume(count=30)] == list(range(1, 31))
        assert (await consumer.info())["num_pending"] == 70

    async def test_batches_hold_what_is_there(self, make_stream):
        consumer = await (await make_stream(300)).create_consumer("c")
        found = []
        async with asyncio.timeout(AT_ONCE), consumer.consume(max_messages=100, count=300) as messages:
            async for batch in messages.batches():
                found += [message.sequence for message in batch]
                for message in batch:
                    await message.ack()
        assert found == list(range(1, 301))


class TestEnds:
    async def test_stop_ends_it_at_once(self, make_stream):
        consumer = await (await make_stream(10)).create_consumer("c")
        found = []
        async with asyncio.timeout(AT_ONCE), consumer.consume() as messages:
            async for message in messages:
                found.append(message.sequence)
                if len(found) == 3:
                    messages.stop()
        assert found == [1, 2, 3]

    async def test_drain_ends_it_after_what_was_delivered(self, client, make_stream):
        stream = await make_stream(10)
        consumer = await stream.create_consumer("c")
        found = []
        async with asyncio.timeout(AT_ONCE), consumer.consume(max_messages=100) as messages:
            async for message in messages:
                if not found:
                    await messages.drain()
                    await publish(client, stream.name, 5)
                found.append(message.sequence)
                await message.ack()
        assert found == list(range(1, 11))
        while (info := await consumer.info())["num_ack_pending"]:
            await asyncio.sleep(0.01)
        assert info["num_pending"] == 5

    async def test_drain_ends_one_that_waits(self, make_stream):
        consumer = await (await make_stream()).create_consumer("c")
        async with asyncio.timeout(AT_ONCE), consumer.consume() as messages:
            asyncio.get_running_loop().call_later(0.1, lambda: asyncio.ensure_future(messages.drain()))
            assert [message async for message in messages] == []

    @pytest.mark.guarantee("consumers-4", by="fault")
    async def test_a_consumer_deleted_under_it_is_an_error_after_what_came(self, make_stream):
        consumer = await (await make_stream(3)).create_consumer("c")
        events: list[Event] = []
        found = []

        async def consume() -> None:
            async for message in consumer.consume(on_event=events.append):
                found.append(message.sequence)
                if len(found) == 3:
                    await consumer.delete()

        with pytest.raises(ConsumerNotFound, match="was deleted"):
            await asyncio.wait_for(consume(), AT_ONCE)
        assert found == [1, 2, 3]
        assert [(event.severity, event.code) for event in events] == [("error", 409)]

    async def test_a_stream_deleted_under_it_is_an_error(self, make_stream):
        stream = await make_stream(1)
        consumer = await stream.create_consumer("c")

        async def consume() -> None:
            async for _ in consumer.consume():
                await stream.delete()

        with pytest.raises(ConsumerNotFound):
            await asyncio.wait_for(consume(), AT_ONCE)

    async def test_a_push_consumer_cannot_be_consumed(self, make_stream):
        consumer = await (await make_stream(1)).create_consumer("c", deliver_subject="pushed.there")
        with pytest.raises(ServerError, match="is a push consumer"):
            await take(consumer.consume(), 1)

    async def test_one_that_is_not_there_is_not_found(self, make_stream):
        stream = await make_stream()
        with pytest.raises(ConsumerNotFound):
            await take(stream.consumer("none").consume(), 1)


class TestStatuses:
    async def test_a_pull_whose_time_is_up_is_followed_by_another(self, client, make_stream):
        stream = await make_stream()
        consumer = await stream.create_consumer("c")
        events: list[Event] = []
        async with (
            listening(client, consumer) as pulls,
            consumer.consume(expires=SECOND, max_messages=10, on_event=events.append) as messages,
        ):
            waiting = asyncio.create_task(take(messages, 1, seconds=120))
            await until_async(lambda: len(pulls) >= 3, what="third pull")
            await publish(client, stream.name, 1)
            assert await waiting == [1]
        assert {pull["batch"] for pull in pulls} == {10}  # 408 gave all of it back
        late = "two heartbeats"  # half a second each: a machine that stands still misses them
        assert [event for event in events if late not in event.text] == []

    @pytest.mark.parametrize(
        ("limit", "options"),
        [
            ({"max_batch": 5}, {"max_messages": 20}),
            ({"max_expires": 20 * SECOND}, {"expires": 60 * SECOND}),
            ({"max_bytes": 300}, {"max_bytes": 2000}),
        ],
    )
    async def test_a_limit_of_the_consumer_is_a_warning_and_kept_from_then_on(self, make_stream, limit, options):
        consumer = await (await make_stream(30)).create_consumer("c", **limit)
        events: list[Event] = []
        async with consumer.consume(**options, on_event=events.append) as messages:
            assert await take(messages, 30) == list(range(1, 31))
        assert [event.severity for event in events] == ["warning"]
        assert "Exceeded MaxRequest" in events[0].text

    @pytest.mark.guarantee("consumers-4", by="fault")
    async def test_refused_pulls_are_sent_ever_more_rarely_until_the_server_takes_them(
        self, client, make_stream, monkeypatch
    ):
        """400 is an error that does not end consuming (ADR-37)."""
        monkeypatch.setattr("kvctl.jetstream.consumers.consume.REFUSALS", 4)
        monkeypatch.setattr("kvctl.jetstream.consumers.consume.LONGEST_PAUSE", 0.4)
        consumer = await (await make_stream(1)).create_consumer("c")
        events: list[Event] = []
        consumption = consumer.consume(on_event=events.append)
        heartbeat, consumption._buffer.heartbeat = consumption._buffer.heartbeat, 20  # over half of what a pull lives
        begun = time.monotonic()
        async with listening(client, consumer) as pulls:
            waiting = asyncio.create_task(take(consumption, 1))
            await until_async(lambda: len(pulls) == 10, what="tenth pull")
            assert 2.5 < time.monotonic() - begun < AT_ONCE  # 0.1 + 0.2 + 7 * 0.4
            consumption._buffer.heartbeat = heartbeat
            assert await waiting == [1]
        assert {(event.severity, event.code, event.final) for event in events} == {("error", 400, False)}
        assert len(events) in {3, 4}  # the first, and each fourth

    async def test_message_larger_than_the_buffer_is_reported_and_ends_consuming(
        self, client, make_stream, monkeypatch
    ):
        monkeypatch.setattr("kvctl.jetstream.consumers.consume.REFUSALS", 3)
        consumer = await (await make_stream(1, size=5000)).create_consumer("c")
        events: list[Event] = []
        async with listening(client, consumer) as pulls:
            with pytest.raises(ServerError, match="Message Size Exceeds MaxBytes"):
                await take(consumer.consume(max_bytes=1000, on_event=events.append), 1)
        assert len(pulls) == 3
        assert ["larger than `max_bytes`" in event.text for event in events] == [True]

    async def test_a_message_larger_than_a_refill_waits_for_an_empty_buffer(self, client, make_stream):
        """Or pulls that are too small for it would follow each other as fast as they can."""
        stream = await make_stream(10, size=600)
        await publish(client, stream.name, 1, size=9000)
        consumer = await stream.create_consumer("c")
        async with listening(client, consumer) as pulls, consumer.consume(max_bytes=10_000) as messages:
            found = []
            async for message in messages:
                found.append(message.sequence)
                await asyncio.sleep(0.02)
                if len(found) == 11:
                    break
        assert found == list(range(1, 12))
        assert len(pulls) < 8

    @pytest.mark.guarantee("consumers-1", by="fault")
    async def test_a_new_leader_is_pulled_from(self, cluster, unique):
        name = unique("LEADERS")
        events: list[Event] = []
        async with kvctl.connect(cluster.contexts["cluster"]) as client:
            stream = await client.jetstream.create_stream(name, subjects=[f"{name}.>"], num_replicas=3)
            consumer = await stream.create_consumer("c")
            async with consumer.consume(on_event=events.append) as messages:
                waiting = asyncio.create_task(take(messages, 1))
                while not (await consumer.info())["num_waiting"]:
                    await asyncio.sleep(0.05)
                await client.api.call(f"CONSUMER.LEADER.STEPDOWN.{name}.c")
                await until_async(
                    lambda: any("Leadership Change (409)" in event.text for event in events),
                    what="report of the new leader",
                )
                await publish(client, name, 1)
                assert await waiting == [1]

    async def test_a_client_that_another_one_displaced_pulls_without_its_pin(self, make_stream):
        stream = await make_stream(2)
        consumer = await stream.create_consumer(
            "c", priority_groups=["g"], priority_policy="pinned_client", priority_timeout=60 * SECOND
        )
        events: list[Event] = []
        async with consumer.consume(group="g", max_messages=1, on_event=events.append) as messages:
            assert await take(messages, 1) == [1]
            assert messages._pin
            messages._pin = "displaced"
            waiting = asyncio.create_task(take(messages, 1))
            await until_async(lambda: not messages._pin, what="end of the pin")
            await stream.api.call(f"CONSUMER.UNPIN.{stream.name}.c", {"group": "g"})
            assert await waiting == [2]
        assert events == []  # 423 is not for users (ADR-37)

    async def test_consume_continues_once_somebody_answers(self, client, make_stream, monkeypatch):
        """503, while the consumer's info cannot be had: its servers may be about to come back."""
        stream = await make_stream(1)

        async def unknown(*_: object, **__: object) -> None:
            raise PermissionDenied("not for you")

        monkeypatch.setattr("kvctl.jetstream.consumers.admin.info", unknown)
        events: list[Event] = []
        async with stream.consumer("later").consume(on_event=events.append) as messages:
            waiting = asyncio.create_task(take(messages, 1))
            await until_async(lambda: bool(events), what="first event")
            await stream.create_consumer("later")
            assert await waiting == [1]
        assert [(event.severity, event.code) for event in events] == [("warning", 503)]

    @pytest.mark.guarantee("consumers-4", by="fault")
    async def test_consume_waits_while_nobody_answers(self, make_stream, monkeypatch):
        """A worker outlives the reboot of the only server that holds its consumer."""
        monkeypatch.setattr("kvctl.jetstream.consumers.consume.LONGEST_PAUSE", 0.1)

        async def unknown(*_: object, **__: object) -> None:
            raise PermissionDenied("not for you")

        monkeypatch.setattr("kvctl.jetstream.consumers.admin.info", unknown)
        stream = await make_stream(1)
        later = stream.consumer("later")
        async with later.consume() as messages:
            waiting = asyncio.create_task(take(messages, 1))
            await until_async(lambda: messages._refusals > 2 * REFUSALS, what="refused pulls")
            await stream.create_consumer("later")
            assert await waiting == [1]


class TestDisturbances:
    @pytest.mark.guarantee("consumers-1", by="kill")
    async def test_a_restart_loses_nothing(self, own_server):
        events: list[Event] = []
        restarts = {30, 60}
        async with kvctl.connect(own_server.url) as client:
            stream = await client.jetstream.create_stream("S", subjects=["S.>"])
            await publish(client, "S", 100)
            consumer = await stream.create_consumer("c", ack_wait=2 * SECOND)
            found = set()
            async with asyncio.timeout(120), consumer.consume(max_messages=10, on_event=events.append) as messages:
                async for message in messages:
                    found.add(message.sequence)
                    if message.sequence in restarts:
                        restarts.remove(message.sequence)
                        own_server.kill()
                        own_server.start()
                    elif client.connection.online:  # else it comes again
                        await message.ack()
                    if len(found) == 100:
                        break
        assert found == set(range(1, 101))
        assert any("connection to the server was lost" in event.text for event in events)

    @pytest.mark.guarantee("consumers-2", by="kill")
    async def test_after_a_restart_messages_flow_within_two_seconds(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            stream = await client.jetstream.create_stream("S", subjects=["S.>"])
            consumer = await stream.create_consumer("c")
            async with consumer.consume() as messages:
                numbers = itertools.count(1)

                async def restarted() -> float:
                    waiting = asyncio.create_task(take(messages, 1))
                    while not (await consumer.info())["num_waiting"]:
                        await asyncio.sleep(0.01)
                    own_server.restart()
                    with RawClient(own_server.url) as raw:
                        raw.request("S.after", b"")
                    begun = time.monotonic()
                    assert await waiting == [next(numbers)]
                    return time.monotonic() - begun

                assert await quickest(restarted, 2) < 2

    async def test_heartbeats_are_not_missed_while_the_connection_is_away(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            events: list[Event] = []
            stream = await client.jetstream.create_stream("S", subjects=["S.>"])
            consumer = await stream.create_consumer("c")
            options = {"expires": 3 * SECOND, "idle_heartbeat": 1.5 * SECOND}
            async with consumer.consume(**options, on_event=events.append) as messages:
                waiting = asyncio.create_task(take(messages, 1, seconds=120))
                await asyncio.sleep(0.2)
                own_server.kill()
                await asyncio.sleep(4)
                own_server.start()
                await until_async(lambda: client.connection.online, what="reconnection")
                await publish(client, "S", 1)
                assert await waiting == [1]
            assert not [event for event in events if "two heartbeats" in event.text]

    async def test_missed_heartbeats_are_a_warning_and_a_new_pull(self, own_server, monkeypatch):
        monkeypatch.setattr("kvctl.connection.live_connection.PING_INTERVAL", 60)  # nothing else shall notice
        events: list[Event] = []
        async with kvctl.connect(own_server.url) as client:
            stream = await client.jetstream.create_stream("S", subjects=["S.>"])
            consumer = await stream.create_consumer("c")
            options = {"expires": SECOND, "idle_heartbeat": SECOND / 2}
            async with consumer.consume(**options, on_event=events.append) as messages:
                waiting = asyncio.create_task(take(messages, 1))
                await asyncio.sleep(0.1)
                own_server.pause()
                await until_async(lambda: bool(events), what="first event")
                own_server.resume()
                await publish(client, "S", 1)
                assert await waiting == [1]
        assert ("warning", True) == (events[0].severity, "two heartbeats" in events[0].text)

    @pytest.mark.guarantee("consumers-1", by="fault")
    async def test_a_stopped_server_is_waited_for(self, own_server, monkeypatch):
        monkeypatch.setattr("kvctl.connection.live_connection.PING_INTERVAL", 0.5)
        async with kvctl.connect(own_server.url) as client:
            stream = await client.jetstream.create_stream("S", subjects=["S.>"])
            # What the server sends into the old connection before it hears of its end comes again after the ack wait.
            consumer = await stream.create_consumer("c", ack_wait=2 * SECOND)
            async with consumer.consume() as messages:
                waiting = asyncio.create_task(take(messages, 1))
                await asyncio.sleep(0.1)
                own_server.pause()
                await until_async(lambda: not client.connection.online, what="loss of the connection")
                own_server.resume()
                with RawClient(own_server.url) as raw:
                    raw.request("S.after", b"")
                assert await waiting == [1]

    @pytest.mark.guarantee("consumers-4", by="kill")
    async def test_consumer_lost_in_a_restart_is_an_error(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            stream = await client.jetstream.create_stream("S", subjects=["S.>"], storage="memory")
            consumer = await stream.create_consumer("c")
            async with consumer.consume() as messages:
                waiting = asyncio.create_task(take(messages, 1))
                await asyncio.sleep(0.1)
                own_server.restart()
                with RawClient(own_server.url) as raw:
                    raw.create_stream("S", subjects=["S.>"], storage="memory")
                with pytest.raises(ConsumerNotFound, match="does not exist"):
                    await waiting

    @pytest.mark.guarantee("consumers-4", by="fault")
    async def test_consume_without_permission_for_info_continues_after_a_reconnect(self):
        with restricted('publish: {deny: "$JS.API.CONSUMER.INFO.>"}') as users:
            async with kvctl.connect(users.everything) as client:
                stream = await client.jetstream.create_stream("S", subjects=["S.>"])
                await stream.create_consumer("c")
            async with kvctl.connect(users.some) as client:
                consumer = client.jetstream.stream("S").consumer("c")
                waiting = asyncio.create_task(take(consumer.consume(), 1))
                await asyncio.sleep(0.1)
                users.server.restart()
                await until_async(lambda: client.connection.epoch > 0 and client.connection.online, what="reconnection")
                await publish(client, "S", 1)
                assert await waiting == [1]


async def test_a_consumer_in_another_domain(leaf, unique):
    name = unique("FAR")
    async with kvctl.connect(leaf.contexts["hub"]) as hub:
        stream = await hub.jetstream.create_stream(name, subjects=[f"{name}.>"])
        await publish(hub, name, 5)
        await stream.create_consumer("c")
        async with kvctl.connect(leaf.contexts["hub-via-leaf"]) as far:
            consumer = far.jetstream.stream(name).consumer("c")
            assert await take(consumer.consume(count=5), 5) == [1, 2, 3, 4, 5]
            while (await consumer.info())["num_ack_pending"]:
                await asyncio.sleep(0.01)


async def test_consume_with_the_library_s_parser(server, make_stream, monkeypatch):
    """As with a client library whose internals are not as expected."""
    stream = await make_stream(20)
    await stream.create_consumer("c")
    monkeypatch.setattr("kvctl.connection.live_connection.install_parser", lambda *_: None)
    connection = await connect(Context(url=server.url))
    try:
        consumer = Consumer(Api(connection), stream.name, "c")
        found = []
        async with asyncio.timeout(AT_ONCE), consumer.consume(max_messages=5) as messages:
            async for message in messages:
                found.append(message.sequence)
                await message.ack()
                if len(found) == 20:
                    await messages.drain()
        assert found == list(range(1, 21))
    finally:
        await connection.close()


async def test_answers_that_are_denied_are_an_error_and_no_endless_redelivery():
    with restricted('publish: {deny: "$JS.ACK.>"}') as users:
        async with kvctl.connect(users.everything) as client:
            stream = await client.jetstream.create_stream("S", subjects=["S.>"])
            await stream.create_consumer("c", ack_wait=SECOND)
            await publish(client, "S", 1)
        async with kvctl.connect(users.some) as client:
            with pytest.raises(PermissionDenied, match=r"\$JS\.ACK\.S\.c\.>"):
                await take(client.jetstream.stream("S").consumer("c").consume(), 2)


def test_a_pull_says_only_what_it_wants():
    assert json.loads(Pull(batch=3).body()) == {"batch": 3}
    assert json.loads(Pull(batch=1, no_wait=True, group="g", pin="p").body()) == {
        "batch": 1,
        "no_wait": True,
        "group": "g",
        "id": "p",
    }
