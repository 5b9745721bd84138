"""Attempts at a task detect each other on the server, although Spark may restart numbering them."""

import pytest

import kvctl
from kvctl.errors import NoServer
from kvctl.kv.bulk.bulk_writer import target_of
from kvctl.pipeline.write import task_registry


@pytest.mark.guarantee("pipeline-14")
async def test_second_attempt_detects_the_first(client, bucket_name, raw):
    await client.create_bucket(bucket_name)
    raw.put(bucket_name, "a", b"")
    target = await target_of(client.bucket(bucket_name))
    assert not await task_registry.claim(target, "JOB", 0)
    assert await task_registry.claim(target, "JOB", 0)
    assert not await task_registry.claim(target, "JOB", 1)
    assert not await task_registry.claim(target, "BOJ", 0)
    await task_registry.release(target, "JOB")
    assert raw.api(f"CONSUMER.NAMES.KV_{bucket_name}")["consumers"] == ["kvctl-write-BOJ-0"]
    assert not await task_registry.claim(target, "JOB", 0)


async def test_every_task_learns_which_run_began_the_job(client, bucket_name, raw):
    await client.create_bucket(bucket_name)
    raw.put(bucket_name, "a", b"")
    first = await target_of(client.bucket(bucket_name))
    assert await task_registry.begin(first, "JOB", "run 1") == task_registry.Beginning("run 1", 1)
    raw.put(bucket_name, "a", b"")
    later = await target_of(client.bucket(bucket_name))
    for run in ("run 1", "run 2"):
        assert await task_registry.begin(later, "JOB", run) == task_registry.Beginning("run 1", 1)
    assert await task_registry.begin(later, "BOJ", "run 2") == task_registry.Beginning("run 2", 2)
    await task_registry.forget(later, "JOB")
    assert await task_registry.begin(later, "JOB", "run 2") == task_registry.Beginning("run 2", 2)


async def test_missing_room_for_consumers_skips_the_registry(client, bucket_name, raw):
    raw.create_bucket(bucket_name, max_consumers=1)
    target = await target_of(client.bucket(bucket_name))
    assert [await task_registry.claim(target, "JOB", task) for task in (0, 1, 1)] == [False] * 3
    assert await task_registry.begin(target, "JOB", "run") is None


async def test_lost_answer_may_belong_to_a_first_attempt(own_server, bucket_name):
    async with kvctl.connect(own_server.url) as client:
        await client.create_bucket(bucket_name)
        target = await target_of(client.bucket(bucket_name))
        client.connection.timeout = 0.2
        own_server.pause()
        try:
            assert await task_registry.claim(target, "JOB", 0)
        except NoServer:
            pytest.fail("the claim was not sent")
        finally:
            own_server.resume()
