"""JetStream, Stream, Consumer, Message: ADR-37's objects."""

import asyncio
import time
from datetime import timedelta

import pytest

import kvctl
from kvctl.errors import (
    ConflictError,
    ConsumerNotFound,
    NotFoundError,
    ReadOnly,
    RefusedError,
    StreamNotFound,
    UsageError,
)
from kvctl.jetstream.consumers.message import Message
from tests.jetstream.conftest import MakeStream, publish

SECOND = timedelta(seconds=1)


async def test_a_stream_is_created_found_changed_listed_and_deleted(client, unique):
    js, name = client.jetstream, unique("LIFE")
    await js.create_stream(name, subjects=[f"{name}.>"], max_age=60 * SECOND)
    again = await js.create_stream(name, subjects=[f"{name}.>"], max_age=60 * SECOND)
    assert again.cached_info["config"]["max_age"] == 60 * 10**9
    with pytest.raises(ConflictError):
        await js.create_stream(name, subjects=[f"{name}.other"])
    changed = await js.update_stream(name, subjects=[f"{name}.>"], max_age=90 * SECOND)
    assert (await changed.info())["config"]["max_age"] == 90 * 10**9
    changed = await js.create_or_update_stream(name, subjects=[f"{name}.>"], description="changed")
    assert changed.cached_info["config"]["description"] == "changed"
    assert name in await js.stream_names()
    assert await js.stream_names(f"{name}.x") == [name]
    assert name in [stream.name for stream in await js.list_streams()]
    assert (await js.get_stream(name)).name == name
    await js.delete_stream(name)
    for missing in (js.get_stream(name), js.delete_stream(name), js.update_stream(name)):
        with pytest.raises(StreamNotFound):
            await missing


async def test_messages_are_read_deleted_and_purged(client, make_stream):
    stream = await make_stream(10)
    await publish(client, stream.name, 1, size=7)
    first = await stream.get_message(1)
    last = await stream.get_message(last_for=f"{stream.name}.0")
    following = await stream.get_message(2, next_for=f"{stream.name}.0")
    assert [message and message.sequence for message in (first, last, following)] == [1, 11, 11]
    assert await stream.get_message(99) is None
    for wrong in ({}, {"sequence": 1, "last_for": "x"}):
        with pytest.raises(UsageError):
            await stream.get_message(**wrong)
    await stream.delete_message(1)
    await stream.delete_message(2, erase=False)
    with pytest.raises(NotFoundError):
        await stream.delete_message(1)
    assert len(await stream.subjects()) == 9
    assert await stream.purge(subject=f"{stream.name}.9") == 1
    assert await stream.purge(sequence=5) == 2
    assert await stream.purge(keep=2) == 4
    assert (await stream.info())["state"]["messages"] == 2


async def test_purge_of_a_replicated_stream_wants_its_name(client, make_stream):
    origin, other = await make_stream(3), await make_stream(3)
    js, mirror = client.jetstream, f"M{origin.name}"
    await js.create_stream(mirror, mirror={"name": origin.name})
    for name in (origin.name, mirror):
        with pytest.raises(RefusedError, match=f"Stream `{name}` was not purged") as caught:
            await js.stream(name).purge(keep=1)
        assert f"confirm='{name}'" in str(caught.value.hint)
        with pytest.raises(UsageError):
            await js.stream(name).purge(confirm=other.name)
    assert (await origin.info())["state"]["messages"] == 3
    assert await origin.purge(confirm=origin.name) == 3
    assert await other.purge() == 3


async def test_a_consumer_is_created_found_changed_listed_and_deleted(client, make_stream):
    stream = await make_stream()
    js, name = client.jetstream, stream.name
    with pytest.raises(ConsumerNotFound, match="`c` of stream"):
        await js.update_consumer(name, "c")
    made = await js.create_consumer(name, "c", filter_subject=f"{name}.a", ack_wait=5 * SECOND)
    assert made.cached_info["config"]["durable_name"] == "c"
    assert made.cached_info["config"]["ack_policy"] == "explicit"
    await js.create_consumer(name, "c", filter_subject=f"{name}.a", ack_wait=5 * SECOND)
    with pytest.raises(ConflictError, match="another configuration"):
        await js.create_consumer(name, "c", filter_subject=f"{name}.b")
    await js.update_consumer(name, "c", filter_subjects=[f"{name}.a", f"{name}.b"])
    changed = await js.create_or_update_consumer(name, "c", description="changed")
    assert (await changed.info())["config"]["description"] == "changed"
    ephemeral = await stream.create_consumer(inactive_threshold=60 * SECOND)
    assert "durable_name" not in (await ephemeral.info())["config"]
    assert set(await stream.consumer_names()) == {"c", ephemeral.name}
    assert {consumer.name for consumer in await stream.list_consumers()} == {"c", ephemeral.name}
    assert (await js.get_consumer(name, "c")).name == "c"
    await ephemeral.delete()
    await js.delete_consumer(name, "c")
    for missing in (js.get_consumer(name, "c"), js.delete_consumer(name, "c")):
        with pytest.raises(ConsumerNotFound):
            await missing
    with pytest.raises(StreamNotFound, match="`NONE`"):
        await js.create_consumer("NONE", "c")


async def test_consumers_are_listed_through_all_pages(make_stream):
    stream = await make_stream()
    await asyncio.gather(*(stream.create_consumer(f"c{number}", mem_storage=True) for number in range(300)))
    assert len(await stream.consumer_names()) == 300
    assert len(await stream.list_consumers()) == 300
    await stream.delete()


async def test_a_pause_holds_messages_back(make_stream):
    consumer = await (await make_stream(1)).create_consumer("c")
    paused = await consumer.pause(time.time_ns() + 60 * 10**9)
    assert paused["paused"]
    assert [message async for message in consumer.fetch(1, expires=SECOND)] == []
    assert not (await consumer.resume())["paused"]
    assert await consumer.next() is not None


async def test_the_account_tells_usage_and_limits(client, make_stream):
    await make_stream()
    info = await client.jetstream.account_info()
    assert info["streams"] >= 1
    assert "limits" in info


class TestAnswers:
    async def first(self, make_stream: MakeStream, **config: object) -> Message:
        consumer = await (await make_stream(1)).create_consumer("c", **config)
        self.consumer = consumer
        message = await consumer.next()
        assert message is not None
        return message

    async def again(self) -> list[int]:
        """How often the message has been delivered, each time that it comes within a second."""
        return [message.metadata.delivered async for message in self.consumer.fetch(1, expires=SECOND)]

    async def test_acknowledged_message_is_not_redelivered(self, make_stream):
        message = await self.first(make_stream)
        await message.ack()
        while (await self.consumer.info())["num_ack_pending"]:
            await asyncio.sleep(0.01)
        assert (await self.consumer.info())["ack_floor"]["stream_seq"] == 1

    async def test_a_double_ack_has_arrived_when_it_returns(self, make_stream):
        message = await self.first(make_stream)
        await message.double_ack()
        assert (await self.consumer.info())["num_ack_pending"] == 0

    async def test_failed_message_is_redelivered_immediately_or_after_a_delay(self, make_stream):
        message = await self.first(make_stream)
        await message.nak()
        assert await self.again() == [2]
        message = await self.first(make_stream)
        await message.nak(1.5 * SECOND)
        begun = time.monotonic()
        assert await self.again() + await self.again() == [2]
        assert time.monotonic() - begun > 1.4
        with pytest.raises(UsageError):
            await message.nak(-SECOND)

    async def test_terminated_message_is_not_redelivered(self, make_stream):
        message = await self.first(make_stream, ack_wait=SECOND)
        await message.term("it is broken")
        while (await self.consumer.info())["num_ack_pending"]:
            await asyncio.sleep(0.01)

    async def test_message_in_progress_is_not_redelivered(self, make_stream):
        message = await self.first(make_stream, ack_wait=4 * SECOND)
        for _ in range(50):
            await asyncio.sleep(0.1)
            await message.in_progress()
        assert (await self.consumer.info())["num_redelivered"] == 0

    async def test_a_connection_for_reading_sends_none(self, server, make_stream):
        message = await self.first(make_stream)
        async with kvctl.connect(server.url, read_only=True) as reader:
            theirs = Message(message.frame, reader.connection)
            for answer in (theirs.ack, theirs.double_ack, theirs.nak, theirs.term, theirs.in_progress):
                with pytest.raises(ReadOnly):
                    await answer()
        assert (await self.consumer.info())["num_ack_pending"] == 1


async def test_a_message_says_where_it_comes_from(client, make_stream):
    stream = await make_stream()
    consumer = await stream.create_consumer("c")
    await client.connection.request(f"{stream.name}.a", b"data", b"NATS/1.0\r\nColor: red\r\nColor: blue\r\n\r\n")
    await publish(client, stream.name, 2)
    message = await consumer.next()
    assert (message.subject, message.data, message.headers) == (f"{stream.name}.a", b"data", {"Color": "red, blue"})
    told = message.metadata
    assert (told.stream, told.consumer, told.delivered, told.sequence) == (stream.name, "c", 1, 1)
    assert (told.consumer_sequence, told.pending) == (1, 2)
    assert abs(told.time_ns - time.time_ns()) < 60 * 10**9


class TestOrderedReading:
    async def test_everything_comes_once_in_order_and_ends(self, make_stream):
        stream = await make_stream(50)
        assert [message.sequence async for message in stream.read()] == list(range(1, 51))
        assert [message.sequence async for message in stream.read(f"{stream.name}.7", f"{stream.name}.9")] == [8, 10]
        assert [m.sequence async for m in stream.read(deliver="by_start_sequence", start=48)] == [48, 49, 50]
        assert await stream.consumer_names() == []

    async def test_ordered_reading_follows_across_gaps_deleted_consumers_and_restarts(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            stream = await client.jetstream.create_stream("S", subjects=["S.>"])
            await publish(client, "S", 5)
            found: list[int] = []
            async with asyncio.timeout(60), stream.read(follow=True) as reading:
                async for message in reading:
                    found.append(message.sequence)
                    if len(found) == 5:
                        (name,) = await stream.consumer_names()
                        await stream.delete_consumer(name)
                        await publish(client, "S", 5)
                    if len(found) == 10:
                        own_server.restart()
                        epoch = client.connection.epoch
                        while client.connection.epoch == epoch or not client.connection.online:
                            await asyncio.sleep(0.01)
                        await publish(client, "S", 5)
                    if len(found) == 15:
                        break
        assert found == list(range(1, 16))

    async def test_impossible_options_are_usage_errors(self, make_stream):
        stream = await make_stream()
        for wrong in ({"deliver": "last"}, {"start": 3}, {"deliver": "by_start_sequence"}):
            with pytest.raises(UsageError):
                stream.read(**wrong)
