"""Attempts at a task meet on the server, although Spark may number them anew."""

import pytest

import kvctl
from kvctl.errors import NoServer
from kvctl.kv.load_target import target_of
from kvctl.pipeline import claims
from kvctl.server import Server
from tests.raw import RawClient


async def test_a_second_attempt_meets_the_first(client: kvctl.Client, bucket_name: str, raw: RawClient) -> None:
    await client.create_bucket(bucket_name)
    raw.put(bucket_name, "a", b"")
    assert await claims.claim(await target_of(client.bucket(bucket_name)), "JOB", 0) == (False, None)
    raw.put(bucket_name, "a", b"")
    target = await target_of(client.bucket(bucket_name))
    assert await claims.claim(target, "JOB", 0) == (True, 1)
    assert await claims.claim(target, "JOB", 1) == (False, None)
    assert await claims.claim(target, "BOJ", 0) == (False, None)
    await claims.release(target, "JOB", 2)
    assert raw.api(f"CONSUMER.NAMES.KV_{bucket_name}")["consumers"] == ["kvctl-write-BOJ-0"]
    assert await claims.claim(target, "JOB", 0) == (False, None)


async def test_without_room_for_it_nothing_is_noted(client: kvctl.Client, bucket_name: str, raw: RawClient) -> None:
    raw.create_bucket(bucket_name, max_consumers=1)
    target = await target_of(client.bucket(bucket_name))
    assert [await claims.claim(target, "JOB", task) for task in (0, 1, 1)] == [(False, None)] * 3


async def test_an_answer_that_is_lost_may_be_of_a_first_attempt(own_server: Server, bucket_name: str) -> None:
    async with kvctl.connect(own_server.url) as client:
        await client.create_bucket(bucket_name)
        target = await target_of(client.bucket(bucket_name))
        client.connection.timeout = 0.2
        own_server.pause()
        try:
            assert await claims.claim(target, "JOB", 0) == (True, None)
        except NoServer:
            pytest.fail("the claim was not sent")
        finally:
            own_server.resume()
