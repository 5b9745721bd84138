"""Writes of many tasks in one batch, each with its own conditions; and many writes over lost connections."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

import kvctl
from kvctl import Context
from kvctl.errors import ServerError, UnreachableError
from kvctl.kv.bucket import Bucket
from kvctl.versions.store import writes
from kvctl.versions.store.jetstream_store import BucketStore
from kvctl.versions.store.protocol import ABSENT, PredicateFailed
from kvctl.versions.store.writes import BucketWriting, PendingWrite, Revisions, UnmetConditions
from tests.support.proxy import DOWN, Cut, Late, Swallow
from tests.versions.conftest import stored

FENCE = ("fence", 7)


class Carrier(BucketWriting):
    """Records batches instead of sending them; conditions on keys in `failing` do not hold, which may be unknown."""

    def __init__(self, bucket: Bucket, *failing: str, mute: bool = False) -> None:
        super().__init__(bucket)
        self.sizes: list[int] = []
        self.failing = set(failing)
        self.mute = mute

    async def _batch(self, group: Sequence[PendingWrite]) -> Revisions:
        self.sizes.append(len(group))
        await asyncio.sleep(0)
        if self.mute:
            raise UnmetConditions(set())
        if lost := {key for pending in group for key, _ in pending.conditions} & self.failing:
            raise UnmetConditions(lost)
        return {}


@pytest.fixture
def bucket(client, unique):
    return client.bucket(unique())


def put(key: str, value: bytes = b"v") -> PendingWrite:
    return PendingWrite([FENCE], {key: value})


def create(key: str) -> PendingWrite:
    return PendingWrite([FENCE, (key, ABSENT)], {key: b"v", "touched": b""})


async def ended(carrier: Carrier, *writes: PendingWrite) -> list[object]:
    return await asyncio.gather(*(carrier.write(pending) for pending in writes), return_exceptions=True)


async def test_failing_condition_fails_only_its_own_write(bucket):
    carrier = Carrier(bucket, "k3", "k5")
    ends = await ended(carrier, *(create(f"k{number}") for number in range(8)))
    assert [number for number, end in enumerate(ends) if isinstance(end, PredicateFailed)] == [3, 5]
    assert carrier.sizes == [8, 6]


async def test_unknown_failing_condition_fails_the_batch(bucket):
    carrier = Carrier(bucket, mute=True)
    ends = await ended(carrier, put("a"), put("b"))
    assert all(isinstance(end, PredicateFailed) for end in ends)
    assert carrier.sizes == [2]


async def test_writes_that_depend_on_each_other_are_not_in_one_batch(bucket):
    other_fence = PendingWrite([("fence", 8)], {"x": b"v"})
    moves_fence = PendingWrite([], {"fence": b"v", "other": b"v"})
    pairs = [
        *((put("k", b"1"), put("k", b"2")), (put("k"), create("k")), (create("k"), put("k"))),
        *((put("a"), other_fence), (put("a"), moves_fence), (moves_fence, put("a"))),
    ]
    for one, two in pairs:
        carrier = Carrier(bucket)
        await ended(carrier, PendingWrite(one.conditions, one.changes), PendingWrite(two.conditions, two.changes))
        assert carrier.sizes == [1, 1]


async def test_equal_changes_are_made_once(bucket):
    carrier = Carrier(bucket)
    await ended(carrier, put("k"), put("k"), create("a"), create("b"))
    assert carrier.sizes == [4]


P = b"partition"
COUNT = 600
FIRST = 10**15
"""The stream's first revision."""
VALUES = {b"%03d" % number: b"v%d" % number for number in range(COUNT)}


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
    monkeypatch.setattr(writes, "LEADER_DEADLINE_S", 0.5)
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
