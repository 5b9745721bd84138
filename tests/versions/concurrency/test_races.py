"""Races on one branch, on every store, with committers that are interrupted."""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest

from kvctl.errors import ConflictError, NotFoundError, UsageError
from kvctl.versions.branch import private_epoch
from kvctl.versions.commits import NothingToCommit
from kvctl.versions.garbage import CollectedGarbage
from kvctl.versions.repository import Repository
from kvctl.versions.store.jetstream_store import BucketStore
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.store.protocol import Place, StoreChange, StoreCondition, StoredValue
from kvctl.versions.tree.tree import Strategy
from tests.versions.concurrency.races import Race, Record, roles
from tests.versions.conftest import Open
from tests.versions.repos import held, whole


class Slow(MemoryStore):
    """Store in memory that yields to others between any two operations, and between the keys of one read."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[StoredValue | None]:
        if lasting:
            await self._wait()
            return await super().get_many(places, lasting=True)
        order = self._dice.sample(range(len(places)), len(places))
        found: dict[int, StoredValue | None] = {}
        for number in order:
            await self._wait()
            (found[number],) = await super().get_many([places[number]])
        return [found[number] for number in range(len(places))]

    async def clear(self, partition: bytes) -> None:
        await self._wait()
        await super().clear(partition)

    async def write(self, conditions: Sequence[StoreCondition], changes: Sequence[StoreChange]) -> list[int]:
        await self._wait()
        made = await super().write(conditions, changes)
        await self._wait()
        return made

    async def _wait(self) -> None:
        for _ in range(self._dice.randrange(4)):
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(private_epoch, "FEW", 2)


def all_have_acted(record: Record) -> bool:
    """Return whether commits were made, abandoned and read, and garbage was collected."""
    return min(record.commits, record.abandoned, record.listings, record.collections) > 1


@pytest.mark.guarantee("versions-6", by="race")
@pytest.mark.parametrize("seed", range(3))
async def test_race_in_memory_with_interleaving_at_any_step(seed):
    dice = random.Random(seed)
    store = Slow(dice)
    await Repository(store).init()
    race = Race(lambda: store, 3, dice)
    await race.run(0.3, *roles(race, writers=8, committers=[0, 0.001, 0.01]), enough=all_have_acted)


@pytest.mark.guarantee("versions-5", by="race")
@pytest.mark.parametrize("reopen", ["bucket", "replicas"], indirect=True)
async def test_race_of_sixteen_writers_and_a_committer_every_50_ms(reopen):
    await Repository(reopen()).init()
    race = Race(reopen, 3, random.Random(1))
    await race.run(1.5, *roles(race, writers=16, committers=[0.05]), enough=all_have_acted)


@pytest.mark.guarantee("versions-5", by="kill")
@pytest.mark.parametrize("reopen", ["bucket", "replicas"], indirect=True)
async def test_race_with_killed_committer_processes(reopen):
    await killed_committers(reopen, seconds=1, least=2)


def anything(repo: Repository, dice: random.Random, number: int) -> Sequence[Callable[[], Awaitable[object]]]:
    """Choose an operation on a repository that has or had three branches."""
    branch, other = dice.sample(["main", "left", "right"], 2)
    key, value = f"k{dice.randrange(9)}", b"x" * dice.choice([1, 2, 5000, 5001])
    return [
        lambda: repo.put(branch, key, value),
        lambda: repo.write_if(branch, key, value, None),
        lambda: repo.put_each(branch, {key: value, "k1": None, "k10": value}),
        lambda: repo.commit(branch, "commit"),
        lambda: repo.merge(other, branch, strategy=dice.choice([None, *Strategy]), squash=dice.random() < 0.2),
        lambda: repo.revert(branch, f"{other}@", parent=1),
        lambda: repo.cherry_pick(branch, f"{other}~1", parent=1),
        lambda: repo.record(branch, {key: value, "kept": b"y" * 5000}, "record"),
        lambda: repo.reset(branch),
        lambda: repo.reset_prefix(branch, key),
        lambda: repo.reset_hard(branch, f"{other}~1"),
        lambda: repo.create_branch(branch, other),
        lambda: repo.create_tag(f"t{number}", f"{branch}~1"),
        lambda: repo.delete_branch("left"),
        lambda: repo.delete_tag(f"t{number // 2}"),
        lambda: repo.entries(branch),
        repo.gc,
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_any_concurrent_operations_leave_all_data_complete(seed):
    """Only what is documented is raised, and all can be read afterwards."""
    dice = random.Random(seed)
    store = Slow(dice)
    await Repository(store).init()
    for branch in ("left", "right"):
        await Repository(store).create_branch(branch)

    async def act(first: int) -> None:
        repo = Repository(store)
        for number in range(first, first + 40):
            with suppress(ConflictError, NotFoundError, NothingToCommit, UsageError):
                await dice.choice(anything(repo, dice, number))()

    await asyncio.gather(*(act(first) for first in range(0, 240, 40)))
    repo = Repository(store)
    await whole(repo)
    before = {branch: await held(repo, branch) for branch in await repo.branches()}
    await repo.gc()
    assert await repo.gc() == CollectedGarbage()
    assert {branch: await held(repo, branch) for branch in await repo.branches()} == before
    await whole(repo)


@pytest.mark.slow
@pytest.mark.parametrize("reopen", ["bucket", "replicas"], indirect=True)
async def test_race_of_many_committers_for_a_minute(reopen):
    await Repository(reopen()).init()
    race = Race(reopen, 4, random.Random(2))
    await race.run(60, *roles(race, writers=16, committers=[0.05, 0.05, 0.01, 0.2]), enough=all_have_acted)


@pytest.mark.slow
@pytest.mark.parametrize("reopen", ["bucket", "replicas"], indirect=True)
async def test_race_with_killed_processes_for_a_minute(reopen):
    await killed_committers(reopen, seconds=60, least=5)


async def killed_committers(reopen: Open, *, seconds: float, least: int) -> None:
    """Run writers, a committer, and a process that is killed at any write, at least `times` times."""
    dice = random.Random(3)
    store = reopen()
    assert isinstance(store, BucketStore)
    await Repository(store).init()
    race = Race(reopen, 2, dice)
    url = store.bucket.binding.api.connection.context.url
    killed = 0

    async def kill_one_after_another() -> None:
        nonlocal killed
        while not race.ended.is_set():
            command = [sys.executable, "-m", "tests.versions.concurrency.committer", url, store.bucket.name]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            writes = asyncio.create_task(lines(process.stdout, dice.randrange(1, 12)))
            ends = asyncio.create_task(race.ended.wait())  # nobody writes any more: it may have nothing to commit
            await asyncio.wait({writes, ends}, return_when=asyncio.FIRST_COMPLETED)
            killed += writes.done()
            process.kill()
            await process.wait()
            for task in (writes, ends):
                task.cancel()

    writers = [race.writer(number) for number in range(6)]
    others = [race.committer(0, 0.3), race.reader(1), kill_one_after_another()]
    await race.run(seconds, *writers, *others, enough=lambda _: killed >= least)


async def lines(stream: asyncio.StreamReader | None, number: int) -> None:
    """Wait for a number of lines."""
    for _ in range(number):
        await stream.readline()
