"""Atomic batches: all or nothing, on condition."""

import pytest

from kvctl import Bucket
from kvctl.errors import ServerError, UsageError, WrongRevision
from kvctl.jetstream.publish import BATCH_MESSAGES, BatchMessage, publish_batch
from kvctl.tokens import header_lines
from tests.support.socket_writes import recorded_writes

EXPECTED = "Nats-Expected-Last-Subject-Sequence"


@pytest.fixture
async def bucket(client, bucket_name):
    return await client.create_bucket(bucket_name, atomic=True)


def put(bucket: Bucket, key: str, value: bytes = b"", **headers: str) -> BatchMessage:
    return f"$KV.{bucket.name}.{key}".encode(), value, header_lines(headers).encode()


async def test_messages_are_stored_together_in_order(client, bucket):
    assert (
        await publish_batch(client.connection, [put(bucket, f"k.{n}", b"%d" % n) for n in range(BATCH_MESSAGES)])
        == BATCH_MESSAGES
    )
    assert [entry.value async for entry in bucket.history()] == [b"%d" % number for number in range(BATCH_MESSAGES)]


async def test_a_small_batch_is_one_write_to_the_socket(client, bucket, monkeypatch):
    writes = recorded_writes(client.connection, monkeypatch)
    await publish_batch(client.connection, [put(bucket, f"k.{number}") for number in range(16)])
    assert [data.count(b"HPUB") for data in writes] == [16]


async def test_one_message_is_a_batch(client, bucket):
    assert await publish_batch(client.connection, [put(bucket, "k")]) == 1


async def test_one_broken_condition_stores_nothing(client, bucket):
    await bucket.put("a", b"1")
    batch = [put(bucket, "b"), put(bucket, "a", b"2", **{EXPECTED: "7"}), put(bucket, "c")]
    with pytest.raises(WrongRevision):
        await publish_batch(client.connection, batch)
    assert [key async for key in bucket.keys()] == ["a"]
    batch[1] = put(bucket, "a", b"2", **{EXPECTED: "1"})
    assert await publish_batch(client.connection, batch) == 4


async def test_too_many_messages_store_nothing(client, bucket):
    with pytest.raises(ServerError):
        await publish_batch(client.connection, [put(bucket, f"k.{number}") for number in range(BATCH_MESSAGES + 1)])
    assert (await bucket.status()).values == 0


async def test_a_message_too_large_is_refused_before_any_is_sent(client, bucket):
    with pytest.raises(UsageError):
        await publish_batch(client.connection, [put(bucket, "a"), put(bucket, "b", b"x" * (2 << 20))])
    assert ((await bucket.status()).values, client.connection.epoch) == (0, 0)


async def test_a_stream_that_takes_none_stores_none(client, bucket_name):
    bucket = await client.create_bucket(bucket_name)
    with pytest.raises(ServerError) as caught:
        await publish_batch(client.connection, [put(bucket, "a"), put(bucket, "b")])
    assert caught.value.err_code == 10174
    assert (await bucket.status()).values == 0
