"""Writes of many tasks in few batches."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from kvctl.errors import ServerError
from kvctl.kv.transaction import group_commit
from kvctl.kv.transaction.group_commit import GroupCommit, GroupedWrite


class Named(GroupedWrite[str]):
    """Write of one message; those of one name depend on each other."""

    def __init__(self, name: str, size: int = 1) -> None:
        super().__init__(1, size)
        self.name = name


def distinct() -> Callable[[Named], bool]:
    names: set[str] = set()

    def admit(write: Named) -> bool:
        independent = write.name not in names
        names.add(write.name)
        return independent

    return admit


class Carrier:
    """Runs batches one after the other, and records them; the first ones fail with these errors."""

    def __init__(self, *errors: Exception) -> None:
        self.batches: list[list[str]] = []
        self.errors = list(errors)

    async def __call__(self, writes: Sequence[Named]) -> None:
        self.batches.append([write.name for write in writes])
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        for write in writes:
            write.succeed(write.name)

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


async def ended(group: GroupCommit[Named], *writes: Named) -> list[object]:
    for write in writes:
        group.add(write)
    return await asyncio.gather(*(write.done for write in writes), return_exceptions=True)


async def test_writes_during_a_batch_in_flight_join_the_next_one():
    carrier = Carrier()
    group = GroupCommit(carrier, distinct)
    first = Named("first")
    group.add(first)
    while not carrier.batches:
        await asyncio.sleep(0)
    assert await ended(group, *(Named(f"k{number}") for number in range(20))) == [f"k{one}" for one in range(20)]
    assert await first.done == "first"
    assert carrier.sizes == [1, 20]


async def test_dependent_writes_are_not_in_one_batch():
    carrier = Carrier()
    await ended(GroupCommit(carrier, distinct), Named("a"), Named("b"), Named("a"), Named("c"))
    assert carrier.batches == [["a", "b"], ["a", "c"]]


async def test_a_batch_is_bounded(monkeypatch):
    monkeypatch.setattr(group_commit, "LIMIT", 5)
    carrier = Carrier()
    await ended(GroupCommit(carrier, distinct), *(Named(f"k{number}") for number in range(12)))
    assert carrier.sizes == [5, 5, 2]
    monkeypatch.setattr(group_commit, "JOINT_BYTES", 100)
    carrier = Carrier()
    await ended(GroupCommit(carrier, distinct), Named("big", 1000), *(Named(f"k{one}", 40) for one in range(4)))
    assert carrier.sizes == [1, 2, 2]


async def test_error_of_a_batch_reaches_all_its_writers_and_the_next_batch_runs():
    carrier = Carrier(ServerError("full"))
    group = GroupCommit(carrier, distinct)
    assert all(isinstance(end, ServerError) for end in await ended(group, Named("a"), Named("b")))
    assert await ended(group, Named("c")) == ["c"]


async def test_write_cancelled_before_its_turn_is_skipped():
    carrier = Carrier()
    group = GroupCommit(carrier, distinct)
    writes = [Named(f"k{number}") for number in range(3)]
    for write in writes:
        group.add(write)
    writes[1].done.cancel()
    await asyncio.gather(*(write.done for write in writes), return_exceptions=True)
    assert carrier.batches == [["k0", "k2"]]


@pytest.mark.parametrize("in_flight", [1, 4])
async def test_write_in_the_moment_in_which_all_batches_end_is_made(in_flight):
    answered = asyncio.Event()
    applied: list[str] = []

    async def store(writes: Sequence[Named]) -> None:
        await answered.wait()  # wakes all batches in flight at once, as one read of the socket does
        for write in writes:
            applied.append(write.name)
            write.succeed("")

    group = GroupCommit(store, distinct, in_flight=in_flight)

    async def writer(*names: str) -> None:
        for name in names:
            await ended(group, Named(name))

    tasks = []
    for names in [("first", "second"), *((str(number),) for number in range(1, in_flight))]:
        tasks.append(asyncio.create_task(writer(*names)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its batch is in flight alone
    answered.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert sorted(applied) == sorted(["first", "second", *(str(number) for number in range(1, in_flight))])
