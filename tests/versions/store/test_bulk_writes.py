"""Many writes over lost connections: all are stored, and the last of each key is its value."""

from datetime import timedelta

import pytest

import kvctl
from kvctl import Context
from kvctl.errors import ServerError, UnreachableError
from kvctl.kv.bucket import Bucket
from kvctl.versions.store import bulk_writes
from kvctl.versions.store.jetstream_store import BucketStore
from tests.support.proxy import DOWN, Cut, Late, Proxy, Swallow
from tests.versions.conftest import stored

pytestmark = pytest.mark.asyncio
P = b"partition"
COUNT = 600
FIRST = 10**15
"""The stream's first revision."""
VALUES = {b"%03d" % number: b"v%d" % number for number in range(COUNT)}


@pytest.fixture
def proxy(server):
    with Proxy(server.url) as running:
        yield running


@pytest.fixture
async def ours(proxy, client, bucket_name):
    await stored(client, bucket_name, 1)
    async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=1))) as connected:
        yield BucketStore(Bucket(connected.api, bucket_name))


@pytest.fixture
async def theirs(client, ours):
    return BucketStore(Bucket(client.api, ours.bucket.name))


async def contents(store: BucketStore) -> dict[bytes, bytes]:
    return {entry.key: entry.value async for entry in store.scan(P)}


def subject(store: BucketStore, key: bytes) -> bytes:
    return store.bucket.binding.subject(store._place(P, key)).encode() + b" "


@pytest.mark.guarantee("versions-23", by="fault")
@pytest.mark.parametrize("lost", ["request", "answer", "answers without an end of the connection"])
async def test_writes_that_are_lost_are_sent_again(ours, theirs, proxy, lost):
    if lost == "request":
        rule = proxy.on(subject(ours, b"300"), Cut())
    elif lost == "answer":
        rule = proxy.on(b'"seq":%d' % (FIRST + 300), Cut(), way=DOWN)
    else:
        rule = proxy.on(b'"seq":%d' % (FIRST + 599), Swallow(), way=DOWN)
    await ours.set_many(P, VALUES)
    assert rule.seen.is_set()
    assert await contents(theirs) == VALUES


@pytest.mark.guarantee("versions-23", by="fault")
@pytest.mark.parametrize("late", [False, True], ids=["lost", "arriving late"])
async def test_later_value_of_a_key_is_its_value_after_a_lost_connection(ours, theirs, proxy, late):
    """The earlier value is sent again first, and its first copy may arrive after that."""
    rule = proxy.on(subject(ours, b"300"), Late(0.05) if late else Cut())
    async with ours.fill(P) as filling:
        await filling.add(dict.fromkeys(VALUES, b"old"))
        await filling.add({b"300": b"new"})
    assert rule.seen.is_set()
    assert await contents(theirs) == dict.fromkeys(VALUES, b"old") | {b"300": b"new"}


async def test_server_that_stays_away_ends_the_writes(ours, proxy, monkeypatch):
    monkeypatch.setattr(bulk_writes, "LEADER_DEADLINE_S", 0.5)
    proxy.on(subject(ours, b"300"), Cut(), hook=proxy.refuse)
    with pytest.raises(UnreachableError, match="Could not write all keys"):
        await ours.set_many(P, VALUES)


async def test_refusal_by_the_server_ends_the_writes(ours, raw):
    name = f"KV_{ours.bucket.name}"
    config = raw.api(f"STREAM.INFO.{name}")["config"]
    raw.api(f"STREAM.UPDATE.{name}", config | {"max_msgs": 100})
    with pytest.raises(ServerError) as refused:
        await ours.set_many(P, VALUES)
    assert "kvctl repo gc" in str(refused.value.hint)
    assert len(await contents(ours)) <= 100
