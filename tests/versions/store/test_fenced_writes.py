"""Many fenced writes over lost connections: no newer value is replaced, and nothing is written past the fence."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

import kvctl
from kvctl import Context
from kvctl.errors import OutcomeUnknown
from kvctl.kv.bucket import Bucket
from kvctl.server import Server
from kvctl.versions.store.jetstream_store import BucketStore
from kvctl.versions.store.protocol import Condition, PredicateFailed
from kvctl.versions.store.store_subjects import subject_token
from tests.support.proxy import DOWN, Cut, Proxy
from tests.support.raw import RawClient
from tests.versions.conftest import stored

pytestmark = pytest.mark.asyncio
P = b"partition"
COUNT = 600
FIRST = 10**15
"""The stream's first revision, which the fence has."""
VALUES = {b"%03d" % number: b"v%d" % number for number in range(COUNT)}


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.url) as running:
        yield running


@pytest.fixture
async def ours(proxy: Proxy, client: kvctl.Client, bucket_name: str) -> AsyncIterator[BucketStore]:
    await stored(client, bucket_name, 1)
    async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=5))) as connected:
        yield BucketStore(Bucket(connected.api, bucket_name))


@pytest.fixture
async def theirs(client: kvctl.Client, ours: BucketStore) -> BucketStore:
    return BucketStore(Bucket(client.api, ours.bucket.name))


async def fence_of(store: BucketStore) -> Condition:
    await store.set(P, b"fence", b"")
    return Condition(P, b"fence", (await store.get(P, b"fence")).predicate)


async def contents(store: BucketStore) -> dict[bytes, bytes]:
    async with store.scan(P) as entries:
        return {entry.key: entry.value async for entry in entries if entry.key != b"fence"}


def subject(store: BucketStore, key: bytes) -> bytes:
    return store.bucket.binding.subject(subject_token(P, key)).encode() + b" "


class Newer:
    """Another client's write of a key, for a rule of the proxy."""

    def __init__(self, server: Server, bucket: str, key: bytes) -> None:
        self._url, self._bucket, self._place = server.url, bucket, subject_token(P, key)

    def __call__(self) -> None:
        with RawClient(self._url) as raw:
            raw.put(self._bucket, self._place, b"newer")


async def test_writes_with_lost_requests_are_stored(ours: BucketStore, theirs: BucketStore, proxy: Proxy) -> None:
    fence = await fence_of(ours)
    await theirs.set(P, b"450", b"older")
    rule = proxy.on(subject(ours, b"300"), Cut())
    await ours.set_many(P, VALUES, fence=fence)
    assert rule.seen.is_set()
    assert await contents(theirs) == VALUES


async def test_writes_with_lost_answers_are_stored_once(ours: BucketStore, theirs: BucketStore, proxy: Proxy) -> None:
    fence = await fence_of(ours)
    rule = proxy.on(b'"seq":%d' % (FIRST + 300), Cut(), way=DOWN)
    await ours.set_many(P, VALUES, fence=fence)
    assert rule.seen.is_set()
    assert await contents(theirs) == VALUES
    last = (await theirs.bucket.status()).last_revision
    assert last <= FIRST + COUNT + 2  # a batch writes its smallest value twice, which carries the fence


@pytest.mark.guarantee("versions-23", by="fault")
@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_newer_value_of_another_session_is_not_replaced_after_a_lost_connection(
    ours: BucketStore, theirs: BucketStore, proxy: Proxy, server: Server, lost: str
) -> None:
    fence = await fence_of(ours)
    newer = Newer(server, ours.bucket.name, b"450")
    if lost == "request":
        proxy.on(subject(ours, b"300"), Cut(), hook=newer)
    else:
        proxy.on(b'"seq":%d' % (FIRST + 300), Cut(), way=DOWN, hook=newer)
    await ours.set_many(P, VALUES, fence=fence)
    assert await contents(theirs) == VALUES | {b"450": b"newer"}


async def test_older_value_is_replaced_after_a_lost_connection(
    ours: BucketStore, theirs: BucketStore, proxy: Proxy
) -> None:
    fence = await fence_of(ours)
    for key in (b"299", b"300", b"599"):
        await theirs.set(P, key, b"older")
    proxy.on(subject(ours, b"299"), Cut())
    await ours.set_many(P, VALUES, fence=fence)
    assert await contents(theirs) == VALUES


async def test_fence_that_moves_during_a_lost_connection_stops_the_writes_and_names_those_done(
    ours: BucketStore, theirs: BucketStore, proxy: Proxy, server: Server
) -> None:
    fence = await fence_of(ours)
    proxy.on(subject(ours, b"300"), Cut(), hook=Newer(server, ours.bucket.name, b"fence"))
    with pytest.raises(PredicateFailed) as refused:
        await ours.set_many(P, VALUES, fence=fence)
    assert refused.value.written == set(await contents(theirs)) == {key for key in VALUES if key < b"300"}


async def test_partition_cleared_during_a_lost_connection_leaves_the_outcome_unknown(
    ours: BucketStore, proxy: Proxy, server: Server
) -> None:
    fence = await fence_of(ours)

    def clear() -> None:
        with RawClient(server.url) as raw:
            raw.api(f"STREAM.PURGE.KV_{ours.bucket.name}", {"filter": ours.bucket.binding.subject(">")})

    proxy.on(subject(ours, b"300"), Cut(), hook=clear)
    with pytest.raises(OutcomeUnknown, match="repository"):
        await ours.set_many(P, VALUES, fence=fence)
