"""The ordered consumer below listings and watches: what a message says, what is lost on the way, what is refused."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest

import kvctl
from kvctl import Bucket, Client
from kvctl.errors import PermissionDenied, ServerError, StreamNotFound
from kvctl.jetstream.consumers import ordered_consumer, server_consumer
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer, read
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.kv.entry import from_frame, from_frames
from kvctl.server import run_server
from kvctl.wire import RawFrame


@pytest.fixture
async def bucket(client, bucket_name):
    """Keys k.0 to k.99, one revision each."""
    bucket = await client.create_bucket(bucket_name, history=3)
    await bucket.put_many((f"k.{number}", b"x") for number in range(100))
    return bucket


def selection(bucket: Bucket, **options: Any) -> Selection:
    return Selection(subjects=(f"$KV.{bucket.name}.>",), **options)


def sequences(frames: list[RawFrame]) -> list[int]:
    return [delivery(frame[1])[0] for frame in frames]


async def read_all(client: Client, bucket: Bucket, **options: Any) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(60):
        async for batch in read(client.api, f"KV_{bucket.name}", selection(bucket, **options)):
            found += sequences(batch)
    return found


@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.ACK.KV_B.kvctl-1.1.42.7.1795265100385569383.3",
        b"$JS.ACK.hub.ACCHASH.KV_B.kvctl-1.1.42.7.1795265100385569383.3",
        b"$JS.ACK._.ACCHASH.KV_B.kvctl-1.1.42.7.1795265100385569383.3.random",
    ],
)
def test_both_forms_of_a_reply_subject_say_the_same(reply):
    assert delivery(reply) == (42, 7, 1795265100385569383, 3)


def test_entries_of_many_messages_are_those_of_each():
    short, long = b"$JS.ACK.KV_B.kvctl-1.1.42.7.17952651003855.3", b"$JS.ACK._.H.KV_B.kvctl-1.1.43.8.17952651003856.2.r"
    headers = b"", b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
    for replies in ([short], [short, long], [long, long]):
        for some in (headers[:2], headers):
            frames = [(b"$KV.B.k\xff", reply, header, b"v") for reply in replies for header in some]
            assert from_frames("B", 6, frames) == [from_frame("B", 6, frame) for frame in frames]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(1, 101)),
        ({"deliver": "all"}, range(1, 101)),
        ({"deliver": "by_start_sequence", "start": 90}, range(90, 101)),
        ({"deliver": "by_start_sequence", "start": 1}, range(1, 101)),
        ({"deliver": "by_start_sequence", "start": 101}, range(0)),
        ({"deliver": "new"}, range(0)),
        ({"headers_only": True}, range(1, 101)),
    ],
)
async def test_each_selection_is_read_to_its_end(client, bucket, options, expected):
    assert await read_all(client, bucket, **options) == list(expected)


async def test_a_stream_that_is_not_there_is_not_found(client):
    with pytest.raises(StreamNotFound):
        async with OrderedConsumer(client.api, "KV_NONE", Selection(subjects=("$KV.NONE.>",))):
            pass


@pytest.mark.guarantee("reading-9", by="fault")
@pytest.mark.parametrize("deliver", ["all", "last_per_subject"])
async def test_messages_lost_in_transit_are_read_again(client, bucket, monkeypatch, deliver):
    original, calls = OrderedConsumer._receive, 0

    async def lossy(self: OrderedConsumer) -> list[RawFrame]:
        nonlocal calls
        calls += 1
        frames = await original(self)
        return frames[:5] + frames[6:] if calls == 1 else frames

    monkeypatch.setattr(OrderedConsumer, "_receive", lossy)
    assert await read_all(client, bucket, deliver=deliver) == list(range(1, 101))
    assert calls > 1


async def keys_read(consumer: OrderedConsumer) -> list[bytes]:
    """The last tokens of the subjects that come up to the end of what was there."""
    found: list[bytes] = []
    async with asyncio.timeout(25):  # a pull that nothing wakes rests for 30
        async for batch in consumer.batches():
            if not batch:
                break
            found += [frame[0].rsplit(b".", 1)[1] for frame in batch]
    return found


async def overwrite(bucket: Bucket, keys: Sequence[str], times: int) -> None:
    for number in range(times):
        assert not (await bucket.put_many((key, b"%d" % number) for key in keys)).failed


class TestGapsInAList:
    """Servers rest at each entry of their list of last messages that is gone: until something wakes them."""

    KEYS = frozenset(b"%d" % number for number in range(100))
    GONE = tuple(f"k.{number}" for number in range(100) if number < 30 or number % 2)

    @pytest.mark.parametrize("follow", [False, True])
    @pytest.mark.parametrize("history", [2, 5])
    async def test_keys_overwritten_before_their_turn_are_read_in_time(self, client, bucket_name, history, follow):
        bucket = await client.create_bucket(bucket_name, history=history)
        await overwrite(bucket, [f"k.{number}" for number in range(100)], 1)
        async with OrderedConsumer(client.api, f"KV_{bucket.name}", selection(bucket), follow=follow) as consumer:
            await overwrite(bucket, self.GONE, history)
            assert set(await keys_read(consumer)) == self.KEYS

    @pytest.mark.parametrize("follow", [False, True])
    async def test_keys_purged_before_their_turn_hold_nothing_up(self, client, bucket, follow):
        async with OrderedConsumer(client.api, f"KV_{bucket.name}", selection(bucket), follow=follow) as consumer:
            await asyncio.gather(*(bucket.purge(key) for key in self.GONE))
            assert set(await keys_read(consumer)) == self.KEYS

    @pytest.mark.parametrize("informed", [True, False])
    async def test_the_last_of_the_list_is_not_missed_when_others_are_written(
        self, client, bucket, monkeypatch, informed
    ):
        await bucket.put("other", b"")
        if not informed:

            async def refused(*_: Any, **__: Any) -> None:
                raise PermissionDenied("STREAM.INFO is not allowed")

            monkeypatch.setattr(ordered_consumer.streams, "info", refused)
        chosen = Selection(subjects=(f"$KV.{bucket.name}.k.>",))
        async with OrderedConsumer(client.api, f"KV_{bucket.name}", chosen) as consumer:
            await overwrite(bucket, ["k.0", "k.98", "k.99"], 3)
            await bucket.put("other", b"")
            assert set(await keys_read(consumer)) == self.KEYS

    async def test_list_with_many_gaps_starts_over(self, client, bucket, monkeypatch):
        monkeypatch.setattr(server_consumer, "PAUSES", 10)
        async with OrderedConsumer(client.api, f"KV_{bucket.name}", selection(bucket)) as consumer:
            first = consumer._consumer.name
            await overwrite(bucket, self.GONE, 3)
            assert set(await keys_read(consumer)) == self.KEYS
            assert consumer._consumer.name != first


async def test_reading_that_never_reaches_the_end_gives_up(client, bucket, monkeypatch):
    monkeypatch.setattr(server_consumer, "MAX_ROUNDS", 1)
    monkeypatch.setattr(OrderedConsumer, "_ended", lambda *_: None)  # always something more to send
    async with OrderedConsumer(client.api, f"KV_{bucket.name}", selection(bucket)) as consumer:
        await overwrite(bucket, ["k.1"], 1)
        with pytest.raises(ServerError, match="is written faster than it can be read"):
            await keys_read(consumer)


async def test_silent_consumer_is_recreated(client, bucket, monkeypatch):
    """As when the server it stood on is lost from a cluster: no status comes."""
    monkeypatch.setattr(server_consumer, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(server_consumer, "BATCH_MESSAGES", 10)
    original, calls = OrderedConsumer._receive, 0

    async def silent(self: OrderedConsumer) -> list[RawFrame]:
        nonlocal calls
        calls += 1
        if calls == 2:
            await client.api.call(f"CONSUMER.DELETE.{self.stream}.{self._consumer.name}")
            await asyncio.sleep(0.1)
            self._consumer.puller._subscription.inbox.frames.clear()
        return await original(self)

    monkeypatch.setattr(OrderedConsumer, "_receive", silent)
    assert sorted(set(await read_all(client, bucket))) == list(range(1, 101))  # the list begins anew


async def test_a_refused_pull_is_an_error(client, bucket, monkeypatch):
    monkeypatch.setattr(server_consumer, "HEARTBEAT_S", 20.0)  # more than half of what a pull lives
    with pytest.raises(ServerError, match="refused a pull"):
        await read_all(client, bucket)


async def test_one_message_larger_than_a_pull_gets_through(monkeypatch):
    import kvctl

    config = 'listen: 127.0.0.1:@client@\nserver_name: @name@\nmax_payload: 8MB\njetstream { store_dir: "@store@" }\n'
    with run_server(name="large", config=config) as server:
        async with kvctl.connect(server.url) as client:
            bucket = await client.create_bucket("B")
            await bucket.put_many((f"k.{number}", b"x" * 7_000_000) for number in range(4))
            monkeypatch.setattr(type(client.connection), "max_payload", 1 << 20)  # as it was when we connected
            assert [len(entry.value) async for entry in bucket.entries()] == [7_000_000] * 4


async def test_the_consumer_lives_in_memory_and_goes_with_its_reader(raw, client, bucket):
    stream = f"KV_{bucket.name}"
    async with OrderedConsumer(client.api, stream, selection(bucket), follow=True):
        (name,) = raw.api(f"CONSUMER.NAMES.{stream}")["consumers"]
        config = raw.api(f"CONSUMER.INFO.{stream}.{name}")["config"]
        assert name.startswith("kvctl-")
        assert (config["mem_storage"], config["num_replicas"], config["ack_policy"]) == (True, 1, "none")
        assert config["inactive_threshold"] == 30_000_000_000
    async with asyncio.timeout(25):  # the server forgets it after 30
        while raw.api(f"CONSUMER.NAMES.{stream}")["total"]:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("history", [1, 3])
async def test_end_of_a_reading_is_reported_by_the_server_even_if_a_pull_asks_for_exactly_all(
    client, bucket_name, monkeypatch, history
):
    bucket = await client.create_bucket(bucket_name, history=history)
    await bucket.put_many((f"k.{number}", b"x") for number in range(2000))
    monkeypatch.setattr(server_consumer, "BATCH_MESSAGES", 2000)
    asked: list[str] = []
    client.connection.trace = lambda subject, seconds, note: asked.append(subject)
    assert await read_all(client, bucket) == list(range(1, 2001))
    assert not [subject for subject in asked if ".STREAM.MSG.GET." in subject]


LARGE = os.urandom(450_000).hex().encode()


@pytest.mark.parametrize(("small", "large"), [(0, 40), (3000, 110)])
async def test_none_is_missing_however_sizes_are_mixed(server, raw, unique, small, large):
    name = unique()
    raw.create_bucket(name, max_msgs_per_subject=5)
    for number in range(small):
        raw.publish(f"$KV.{name}.small.{number}")
    for number in range(large):
        raw.put(name, f"large.{number}", LARGE)
    async with kvctl.connect(server.url) as client:
        bucket = client.bucket(name)
        listed = [entry.revision async for entry in bucket.entries()]
        async with await bucket.watch(follow=False) as watcher:
            watched = [item.revision async for item in watcher if isinstance(item, kvctl.Entry)]
    assert listed == watched == list(range(1, small + large + 1))
    raw.api(f"STREAM.DELETE.KV_{name}")
