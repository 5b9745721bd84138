"""Writers of one key each, on a store with torn reads, beside all operations that move the branch."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest

from kvctl.errors import ConflictError
from kvctl.versions.branch import branch_state, epochs, private_epoch
from kvctl.versions.commits import NothingToCommit
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.store.protocol import Place, Store, StoredValue
from kvctl.versions.tree.tree import Strategy
from tests.versions.concurrency.steps import Fuse, Killed, SteppedStore
from tests.versions.concurrency.test_races import Slow
from tests.versions.repos import seal

pytestmark = pytest.mark.oracle


@pytest.fixture(autouse=True)
def small_loads(monkeypatch):
    monkeypatch.setattr(private_epoch, "FEW", 1)


class Torn(Slow):
    """Between two keys of one read there may be time for several operations of others."""

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[StoredValue | None]:
        if lasting:
            return await super().get_many(places, lasting=True)
        found: dict[int, StoredValue | None] = {}
        for number in self._dice.sample(range(len(places)), len(places)):
            (found[number],) = await super().get_many([places[number]])
            for _ in range(self._dice.choice([0, 0, 20, 60])):
                await asyncio.sleep(0)
        return [found[number] for number in range(len(places))]


_NEXT: dict[bytes | None, list[bytes | None]] = {None: [b"1", b"2"], b"1": [b"2", None], b"2": [b"1", None]}


class Counter:
    """A key of its own whose value goes back and forth: whoever takes a value for an older one loses it."""

    def __init__(self, repo: Repository, key: str, dice: random.Random) -> None:
        self.repo, self.key, self.dice = repo, key, dice
        self.value: bytes | None = None

    async def run(self, writes: int) -> None:
        for _ in range(writes):
            value = self.dice.choice(_NEXT[self.value])
            kind = self.dice.random()
            if kind < 0.3:
                await self._write_if(value)
            elif kind < 0.5:
                await self.repo.put_each("main", {self.key: value, f"{self.key}.loaded": value})
                self.value = value
            else:
                await self.repo.put_many("main", {self.key: value})
                self.value = value
            for _ in range(self.dice.randrange(3)):
                await self.check("main")
                await asyncio.sleep(0)

    async def _write_if(self, value: bytes | None) -> None:
        """Nobody else writes the key, so that no condition on what it is may fail."""
        (entry,) = await self.repo.get("main", self.key)
        await self.repo.write_if("main", self.key, value, entry.identity if entry else None)
        self.value = value

    async def check(self, ref: str) -> None:
        (entry,) = await self.repo.get(ref, self.key)
        assert (entry.value if entry else None) == self.value


@pytest.mark.parametrize(("keys", "all_sorts"), [(1, False), (2, False), (4, True)])
async def test_torn_reads_lose_no_acknowledged_write(seed, steps, keys, all_sorts, monkeypatch):
    """Each record is read at another time; commits, merges, resets, folds and collections come in between."""
    monkeypatch.setattr(epochs, "MAX_SEALED", 4)
    dice = random.Random(seed * 31 + keys)

    async def pause() -> None:
        for _ in range(dice.randrange(30)):
            await asyncio.sleep(0)

    monkeypatch.setattr(branch_state, "pause", pause)  # by no clock: the same seed is the same run
    store = Torn(dice)
    repo = Repository(store)
    await repo.init()
    await repo.create_branch("side")
    counters = [Counter(Repository(store), f"own.{number}", dice) for number in range(keys)]
    ended = asyncio.Event()

    def others(own: Repository, number: int) -> list[Callable[[], Awaitable[object]]]:
        return [
            lambda: own.commit("main", "m"),
            lambda: own.commit("main", "m"),
            lambda: staged_commit(own),
            lambda: seal(store, "main"),
            lambda: own.merge("side", "main", strategy=Strategy.DEST_WINS, squash=dice.random() < 0.5),
            lambda: own.reset_prefix("main", "scratch"),
            lambda: own.put("main", "scratch.x", b"x"),
            lambda: own.put("side", f"side.{dice.randrange(5)}", b"%d" % number),
            lambda: own.commit("side", "m"),
            lambda: own.merge("main", "side", strategy=Strategy.SOURCE_WINS),
            own.gc,
            lambda: abandoned(store, dice),
            lambda: own.put_each("main", {f"scratch.{one}": b"%d" % number for one in range(dice.randrange(1, 5))}),
        ]

    async def other() -> None:
        for number in range(2 * steps(40)):  # bounded: each commit makes the next merge read more
            if ended.is_set():
                return
            some = others(Repository(store), number)
            with suppress(ConflictError, NothingToCommit):
                await dice.choice(some if all_sorts else some[:5])()
            for _ in range(dice.choice([0, 10, 100])):
                await asyncio.sleep(0)

    async def write() -> None:
        await asyncio.gather(*(counter.run(steps(40)) for counter in counters))
        ended.set()

    async with asyncio.TaskGroup() as tasks:
        for task in (write(), *(other() for _ in range(4))):
            tasks.create_task(task)
    for counter in counters:
        await counter.check("main")


class Pace(Fuse):
    """Half of the steps are slow, those of reading several keys too."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(0, kill=False)
        self._dice = dice

    async def step(self, *, writes: bool) -> None:
        """Let others come first."""
        for _ in range(self._dice.randrange(self._dice.choice([2, 30]))):
            await asyncio.sleep(0)


@pytest.mark.guarantee("versions-5", "versions-7")
async def test_value_changed_back_survives_torn_reads_of_committers(seed, steps, monkeypatch):
    """Many short rounds: k is 1, then 2, then 1 again, beside committers that may take one 1 for the other."""
    for number in range(steps(600)):
        dice = random.Random(seed * 1000 + number)

        async def pause(dice: random.Random = dice) -> None:
            for _ in range(dice.randrange(30)):
                await asyncio.sleep(0)

        monkeypatch.setattr(branch_state, "pause", pause)
        store = MemoryStore()
        repo = Repository(store)
        await repo.init()
        await repo.put("main", "k", b"1")
        await repo.commit("main", "base")
        await asyncio.gather(there_and_back(store, dice), *(commits(store, dice) for _ in range(3)))
        (entry,) = await repo.get("main", "k")
        assert entry.value == b"1", f"round {number}"


async def there_and_back(store: Store, dice: random.Random) -> None:
    own = Repository(paced(store, dice))
    for value in (b"2", b"1"):
        await own.put("main", "k", value)
        if dice.random() < 0.8:
            await seal(store, "main")
        for _ in range(dice.choice([0, 5, 20, 60])):
            await asyncio.sleep(0)


async def commits(store: Store, dice: random.Random) -> None:
    own = Repository(paced(store, dice))
    for _ in range(3):
        with suppress(ConflictError, NothingToCommit):
            await own.commit("main", "m")
        for _ in range(dice.choice([1, 5, 20])):
            await asyncio.sleep(0)


def paced(store: Store, dice: random.Random) -> SteppedStore:
    return SteppedStore(store, Pace(dice), backwards=dice.random() < 0.5)


async def abandoned(store: Store, dice: random.Random) -> None:
    with suppress(Killed):
        await Repository(SteppedStore(store, Fuse(dice.randrange(1, 6), kill=True))).commit("main", "m")


async def staged_commit(own: Repository) -> None:
    """Commit an epoch that this session has written to, and so seals before it has read the branch."""
    await own.put("main", "scratch.y", b"y")
    await asyncio.sleep(0)
    await own.commit("main", "m")
