"""Writes of many tasks in few batches."""

import asyncio
from collections.abc import Sequence

from kvctl.errors import ServerError
from kvctl.versions.store import group_commit
from kvctl.versions.store.group_commit import GroupCommit, PendingWrite, UnmetConditions
from kvctl.versions.store.protocol import ABSENT, PredicateFailed

FENCE = ("fence", 7)


class Carrier:
    """Runs batches one after the other, and records them; conditions on keys in `failing` do not hold."""

    def __init__(self, *failing: str) -> None:
        self.batches: list[list[PendingWrite]] = []
        self.failing = set(failing)

    async def __call__(self, writes: Sequence[PendingWrite]) -> None:
        self.batches.append(list(writes))
        await asyncio.sleep(0)
        if lost := {key for pending in writes for key, _ in pending.conditions} & self.failing:
            raise UnmetConditions(lost)

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


def put(key: str, value: bytes = b"v") -> PendingWrite:
    return PendingWrite([FENCE], {key: value})


def create(key: str) -> PendingWrite:
    return PendingWrite([FENCE, (key, ABSENT)], {key: b"v", "touched": b""})


async def ended(carrier: Carrier, *writes: PendingWrite) -> list[object]:
    group = GroupCommit(carrier)
    return await asyncio.gather(*(group.write(pending) for pending in writes), return_exceptions=True)


async def test_writes_during_a_batch_in_flight_join_the_next_one():
    carrier = Carrier()
    group = GroupCommit(carrier)
    first = asyncio.create_task(group.write(put("first")))
    while not carrier.batches:
        await asyncio.sleep(0)
    others = [asyncio.create_task(group.write(create(f"k{number}"))) for number in range(20)]
    await asyncio.gather(first, *others)
    assert carrier.sizes == [1, 20]


async def test_failing_condition_fails_only_its_own_write():
    carrier = Carrier("k3", "k5")
    ends = await ended(carrier, *(create(f"k{number}") for number in range(8)))
    assert [number for number, end in enumerate(ends) if isinstance(end, PredicateFailed)] == [3, 5]
    assert carrier.sizes == [8, 6]


async def test_unknown_failing_condition_fails_the_batch():
    class Mute(Carrier):
        async def __call__(self, writes: Sequence[PendingWrite]) -> None:
            await super().__call__(writes)
            raise UnmetConditions(set())

    carrier = Mute()
    ends = await ended(carrier, put("a"), put("b"))
    assert all(isinstance(end, PredicateFailed) for end in ends)
    assert carrier.sizes == [2]


async def test_writes_of_the_same_key_are_not_in_one_batch():
    other_fence = PendingWrite([("fence", 8)], {"x": b"v"})
    moves_fence = PendingWrite([], {"fence": b"v"})
    for one, two in (
        (put("k", b"1"), put("k", b"2")), (put("k"), create("k")), (create("k"), put("k")), (put("a"), other_fence),
        (put("a"), moves_fence), (moves_fence, put("a")),
    ):  # fmt: skip
        carrier = Carrier()
        await ended(carrier, PendingWrite(one.conditions, one.changes), PendingWrite(two.conditions, two.changes))
        assert carrier.sizes == [1, 1]


async def test_equal_changes_are_made_once():
    carrier = Carrier()
    await ended(carrier, put("k"), put("k"), create("a"), create("b"))
    assert carrier.sizes == [4]


async def test_a_batch_is_bounded(monkeypatch):
    monkeypatch.setattr(group_commit, "MOST_MESSAGES", 10)
    carrier = Carrier()
    await ended(carrier, *(put(f"k{number}") for number in range(12)))
    assert max(carrier.sizes) == 5
    monkeypatch.setattr(group_commit, "MOST_BYTES", 100)
    carrier = Carrier()
    await ended(carrier, put("big", b"v" * 1000), *(put(f"k{number}", b"v" * 40) for number in range(4)))
    assert carrier.sizes == [1, 2, 2]


async def test_error_of_a_batch_reaches_all_its_writers_and_the_next_batch_runs():
    class Refusing(Carrier):
        async def __call__(self, writes: Sequence[PendingWrite]) -> None:
            await super().__call__(writes)
            if len(self.batches) == 1:
                raise ServerError("full")

    carrier = Refusing()
    group = GroupCommit(carrier)
    ends = await asyncio.gather(group.write(put("a")), group.write(put("b")), return_exceptions=True)
    assert all(isinstance(end, ServerError) for end in ends)
    await group.write(put("c"))


async def test_write_cancelled_before_its_turn_is_skipped():
    carrier = Carrier()
    group = GroupCommit(carrier)
    tasks = [asyncio.create_task(group.write(put(f"k{number}"))) for number in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [key for batch in carrier.batches for pending in batch for key in pending.changes] == ["k0", "k2"]
