"""Checkout key by key over lost connections: a change is recognised by its identity, not its value."""

from datetime import timedelta

import pytest

import kvctl
from kvctl import Context
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.transfer import checkout
from tests.support.contents import contents
from tests.support.proxy import Cut, LoseAnswer
from tests.support.raw import putting


@pytest.fixture(params=[1, 5], ids=["no history", "history"])
async def bucket(request, proxy, client, bucket_name):
    made = await client.create_bucket(bucket_name, history=request.param)
    await made.put("gone", b"old")
    async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=5))) as connected:
        yield connected.bucket(bucket_name)


@pytest.fixture
async def rollout(bucket):
    """`gone` is to be deleted and `k` to be written, in this order."""
    repository = Repository(MemoryStore(), author="tests")
    await repository.init()
    await repository.put("main", "k", b"wanted")
    await repository.commit("main", "content")
    return await checkout.plan(repository, "main", bucket)


@pytest.mark.parametrize("subject", ["gone", "k"])
async def test_change_with_a_lost_answer_is_stored_once(rollout, bucket, proxy, subject):
    rule = proxy.on(f"$KV.{bucket.name}.{subject} ".encode(), LoseAnswer(cut=True))
    done = await checkout.apply(rollout, bucket)
    assert rule.seen.is_set()
    assert (done.done, done.changed_meanwhile, done.done_by_others) == (2, [], [])
    assert done.revisions == {2, 3}
    assert await contents(bucket) == {"k": b"wanted"}
    assert (await bucket.status()).last_revision == 3


async def test_equal_value_of_another_client_is_not_taken_for_our_own(rollout, bucket, proxy, server):
    proxy.on(f"$KV.{bucket.name}.k ".encode(), Cut(), hook=putting(server.url, bucket.name, "k", b"wanted"))
    done = await checkout.apply(rollout, bucket)
    assert (done.done, done.done_by_others, done.written_by_others) == (1, ["k"], [])


async def test_deletion_by_another_client_is_not_taken_for_our_own(rollout, bucket, proxy, server):
    theirs = putting(server.url, bucket.name, "gone", b"", KV_Operation="DEL")
    proxy.on(f"$KV.{bucket.name}.gone ".encode(), Cut(), hook=theirs)
    done = await checkout.apply(rollout, bucket)
    assert (done.done, done.done_by_others, done.written_by_others) == (1, ["gone"], [])


async def test_change_overwritten_by_others_is_found_in_the_history(rollout, bucket, proxy, server):
    subject = f"$KV.{bucket.name}.k ".encode()
    proxy.on(subject, LoseAnswer(cut=True))
    proxy.on(subject, Cut(at=-1), hook=putting(server.url, bucket.name, "k", b"later"))
    done = await checkout.apply(rollout, bucket)
    kept = (await bucket.status()).history > 1
    assert (done.done, done.changed_meanwhile) == ((2, []) if kept else (1, ["k"]))
    assert await contents(bucket) == {"k": b"later"}
