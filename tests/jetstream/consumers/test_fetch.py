"""Fetch and next: how they end, and every status that ends them, from real servers."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl.errors import (
    ConnectionLost,
    ConsumerNotFound,
    PermissionDenied,
    RequestTimeout,
    ServerError,
    StreamNotFound,
    UsageError,
)
from kvctl.jetstream.consumers.context import Consumer
from kvctl.jetstream.consumers.fetch import Fetch
from kvctl.jetstream.consumers.pull import Event, Pull, size_of
from tests.support.restricted import restricted

SECOND = timedelta(seconds=1)
AT_ONCE = 25.0
"""Seconds, on a machine that may stand still for some of them: a pull lives for 30 s."""


@pytest.fixture
def patient(monkeypatch):
    """The server may be late with the end of a pull."""
    monkeypatch.setattr("kvctl.jetstream.consumers.fetch.MARGIN", AT_ONCE)


async def sequences(fetch: Fetch) -> list[int]:
    async with asyncio.timeout(AT_ONCE), fetch:
        return [message.sequence async for message in fetch]


async def test_fetch_returns_the_requested_number_in_order(make_stream):
    consumer = await (await make_stream(10)).create_consumer("c")
    assert await sequences(consumer.fetch(4)) == [1, 2, 3, 4]
    assert await sequences(consumer.fetch(6)) == [5, 6, 7, 8, 9, 10]


@pytest.mark.usefixtures("patient")
async def test_fetch_returns_available_messages_at_its_timeout(make_stream):
    consumer = await (await make_stream(3)).create_consumer("c")
    begun = time.monotonic()
    assert await sequences(consumer.fetch(10, expires=SECOND)) == [1, 2, 3]  # 408
    assert 0.9 < time.monotonic() - begun < AT_ONCE


async def test_fetch_without_waiting_returns_available_messages(make_stream):
    consumer = await (await make_stream(3)).create_consumer("c")
    begun = time.monotonic()
    assert await sequences(consumer.fetch(10, no_wait=True)) == [1, 2, 3]
    assert await sequences(consumer.fetch(10, no_wait=True)) == []  # 404
    assert time.monotonic() - begun < AT_ONCE


async def test_fetch_ends_before_the_message_that_exceeds_its_size(make_stream):
    consumer = await (await make_stream(10, size=1000)).create_consumer("c")
    assert await sequences(consumer.fetch(max_bytes=3500)) == [1, 2, 3]  # 409 Message Size Exceeds MaxBytes
    assert await sequences(consumer.fetch(max_bytes=500)) == []
    assert await sequences(consumer.fetch(2, max_bytes=100_000)) == [4, 5]  # 409 Batch Completed


async def test_fetch_ends_when_its_bytes_are_used_up_to_the_last(make_stream):
    """Of such a pull servers say nothing more."""
    stream = await make_stream(10, size=100)
    async with (await stream.create_consumer("c")).fetch(6) as fetch:
        size = sum([size_of(message.frame) async for message in fetch])
    begun = time.monotonic()
    same = await stream.create_consumer("d")
    assert await sequences(same.fetch(max_bytes=size, expires=60 * SECOND)) == [1, 2, 3, 4, 5, 6]
    assert time.monotonic() - begun < AT_ONCE


async def test_fetch_and_next_may_be_shorter_than_a_second(make_stream):
    consumer = await (await make_stream(1)).create_consumer("c")
    assert await sequences(consumer.fetch(5, expires=SECOND / 5)) == [1]
    begun = time.monotonic()
    assert await consumer.next(expires=SECOND / 5) is None
    assert time.monotonic() - begun < AT_ONCE


async def test_pinned_client_fetches_again_with_its_pin(make_stream):
    stream = await make_stream(6)
    consumer = await stream.create_consumer(
        "c", priority_groups=["g"], priority_policy="pinned_client", priority_timeout=60 * SECOND
    )
    options: dict[str, Any] = {"group": "g", "expires": SECOND}
    found = [await sequences(consumer.fetch(2, **options)) for _ in range(2)]
    assert found == [[1, 2], [3, 4]]
    message = await consumer.next(**options)
    assert message.sequence == 5
    events: list[Event] = []
    await stream.api.call(f"CONSUMER.UNPIN.{stream.name}.c", {"group": "g"})
    assert await sequences(consumer.fetch(1, on_event=events.append, **options)) == [6]
    assert events == []  # 423 is not for users (ADR-37)


async def test_filter_and_filters_together_are_refused_as_such(make_stream):
    stream = await make_stream()
    with pytest.raises(ServerError, match="10136"):
        await stream.create_consumer("c", filter_subject=f"{stream.name}.a", filter_subjects=[f"{stream.name}.b"])


async def test_nothing_is_sent_before_the_limits_are_checked(make_stream):
    consumer = await (await make_stream()).create_consumer("c")
    with pytest.raises(UsageError):
        consumer.fetch()
    assert (await consumer.info())["num_waiting"] == 0


@pytest.mark.usefixtures("patient")
async def test_next_gives_one_and_asks_for_no_more(make_stream):
    consumer = await (await make_stream(2)).create_consumer("c")
    message = await consumer.next()
    assert message.sequence == 1
    assert (await consumer.info())["num_ack_pending"] == 1
    await message.double_ack()
    message = await consumer.next()
    await message.double_ack()
    assert await consumer.next(expires=SECOND) is None


async def test_next_waits_for_later_messages(client, make_stream):
    stream = await make_stream()
    consumer = await stream.create_consumer("c")
    waiting = asyncio.create_task(consumer.next())
    while not (await consumer.info())["num_waiting"]:
        await asyncio.sleep(0.01)
    await client.connection.request(f"{stream.name}.late", b"now")
    message = await waiting
    assert message.data == b"now"


@pytest.mark.parametrize(
    ("limit", "options", "text"),
    [
        ({"max_batch": 5}, {"max_messages": 6}, "Exceeded MaxRequestBatch of 5"),
        ({"max_expires": 2 * SECOND}, {"max_messages": 1, "expires": 3 * SECOND}, "Exceeded MaxRequestExpires of 2s"),
        ({"max_bytes": 100}, {"max_bytes": 101}, "Exceeded MaxRequestMaxBytes of 100"),
    ],
)
async def test_a_limit_of_the_consumer_is_a_warning(make_stream, limit, options, text):
    consumer = await (await make_stream(10)).create_consumer("c", **limit)
    events: list[Event] = []
    fetch = consumer.fetch(**options, on_event=events.append)
    assert await sequences(fetch) == []
    assert [(event.severity, event.code) for event in events] == [("warning", 409)]
    assert text in events[0].text
    assert fetch.refusal.text == text


async def test_too_many_pulls_at_once_are_a_warning(make_stream):
    consumer = await (await make_stream()).create_consumer("c", max_waiting=1)
    events: list[Event] = []
    async with consumer.fetch(1):
        while not (await consumer.info())["num_waiting"]:
            await asyncio.sleep(0.01)
        assert await sequences(consumer.fetch(1, on_event=events.append)) == []
    assert ["Exceeded MaxWaiting" in event.text for event in events] == [True]


async def test_a_pull_that_the_server_does_not_understand_is_an_error(make_stream):
    consumer = await (await make_stream(1)).create_consumer("c")
    events: list[Event] = []
    fetch = consumer.fetch(1, on_event=events.append)
    fetch._pull = Pull(batch=1, expires=1, heartbeat=20)
    with pytest.raises(ServerError, match="heartbeat value too large") as caught:
        await sequences(fetch)
    assert caught.value.code == 400
    assert [event.severity for event in events] == ["error"]


async def test_a_consumer_deleted_under_it_ends_it_after_what_came(make_stream):
    consumer = await (await make_stream(2)).create_consumer("c")
    found = []

    async def fetch() -> None:
        async for message in consumer.fetch(10):
            found.append(message.sequence)
            if len(found) == 2:
                await consumer.delete()

    with pytest.raises(ConsumerNotFound, match="was deleted"):
        await asyncio.wait_for(fetch(), AT_ONCE)
    assert found == [1, 2]


async def test_a_push_consumer_cannot_be_pulled(make_stream):
    consumer = await (await make_stream(1)).create_consumer("c", deliver_subject="pushed.there")
    with pytest.raises(ServerError, match="is a push consumer"):
        await sequences(consumer.fetch(1))


async def test_one_that_is_not_there_is_not_found(client, make_stream):
    stream = await make_stream()
    with pytest.raises(ConsumerNotFound):
        await sequences(stream.consumer("none").fetch(1))
    with pytest.raises(StreamNotFound):
        await sequences(Consumer(client.api, "NONE", "none").fetch(1))


async def test_a_lost_connection_ends_it(own_server):
    async with kvctl.connect(own_server.url) as client:
        stream = await client.jetstream.create_stream("S", subjects=["s.>"])
        consumer = await stream.create_consumer("c")
        async with consumer.fetch(1) as fetch:
            own_server.kill()
            with pytest.raises(ConnectionLost):
                async with asyncio.timeout(AT_ONCE):
                    await anext(aiter(fetch))


async def test_fetch_waits_slightly_longer_than_the_server(make_stream, monkeypatch):
    consumer = await (await make_stream()).create_consumer("c")
    fetch = consumer.fetch(1, expires=SECOND)
    begun = time.monotonic()
    async with fetch:
        assert fetch._deadline - begun > 1 + 1.5
        fetch._deadline = time.monotonic() + 0.1
        with pytest.raises(RequestTimeout):
            await anext(aiter(fetch))


async def test_missed_heartbeats_end_it(own_server, monkeypatch):
    monkeypatch.setattr("kvctl.connection.live_connection.PING_INTERVAL", 60)
    async with kvctl.connect(own_server.url) as client:
        stream = await client.jetstream.create_stream("S", subjects=["s.>"])
        consumer = await stream.create_consumer("c")
        events: list[Event] = []
        begun = time.monotonic()
        async with consumer.fetch(1, idle_heartbeat=SECOND / 2, on_event=events.append) as fetch:
            own_server.pause()
            with pytest.raises(RequestTimeout, match="stopped responding"):
                await anext(aiter(fetch))
            own_server.resume()
        assert time.monotonic() - begun < AT_ONCE
        assert [event.severity for event in events] == ["warning"]


async def test_a_pull_that_is_denied_says_so_at_once():
    with restricted('publish: {deny: "$JS.API.CONSUMER.MSG.NEXT.S.*"}') as users:
        async with kvctl.connect(users.everything) as client:
            await (await client.jetstream.create_stream("S", subjects=["s.>"])).create_consumer("c")
        async with kvctl.connect(users.some) as client:
            consumer = await client.jetstream.get_consumer("S", "c")
            with pytest.raises(PermissionDenied, match=r"MSG\.NEXT\.S\.c"):
                await sequences(consumer.fetch(1))
