"""Writes of many tasks in one batch, each with its own conditions."""

import asyncio
from collections.abc import Sequence

import pytest

from kvctl.kv.bucket import Bucket
from kvctl.versions.store.protocol import ABSENT, PredicateFailed
from kvctl.versions.store.writes import BucketWriting, PendingWrite, Revisions, UnmetConditions

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
