"""Staging: one write per change, despite concurrent seals; and writes conditional on a staged revision."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from kvctl.errors import UsageError
from kvctl.versions import refs
from kvctl.versions.branch import epochs
from kvctl.versions.branch.staging import StagedMismatch
from kvctl.versions.refs import BRANCHES, BranchNotFound
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.store.protocol import Place, StoreChange, StoreCondition, StoredValue
from tests.versions.concurrency.steps import Fuse, SteppedStore, at_every_step
from tests.versions.repos import committed, held, seal, staged


class CountingStore(MemoryStore):
    """Counts reads of branches, and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = self.writes = 0

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[StoredValue | None]:
        self.asked += places[0][0] == BRANCHES
        await asyncio.sleep(0)
        return await super().get_many(places, lasting=lasting)

    async def write(self, conditions: Sequence[StoreCondition], changes: Sequence[StoreChange]) -> list[int]:
        self.writes += 1
        await asyncio.sleep(0)
        return await super().write(conditions, changes)


@pytest.fixture
async def counting():
    store = CountingStore()
    repo = Repository(store)
    await repo.init()
    store.asked = store.writes = 0
    return repo, store


async def test_epoch_is_requested_once(counting):
    repo, store = counting
    for number in range(10):
        await repo.put("main", f"k{number}", b"v")
    await repo.put_many("main", {"a": b"1", "b": None})
    await repo.put_each("main", {"c": b"1"})
    assert (store.asked, store.writes) == (1, 12)


async def test_one_of_many_refused_tasks_requests_the_epoch(counting):
    repo, store = counting
    await repo.put("main", "k", b"v")
    await seal(store, "main")
    store.asked = 0
    await asyncio.gather(*(repo.put("main", f"k{number}", b"v") for number in range(50)))
    assert store.asked == 1
    assert len(await staged(repo)) == 51


async def test_deleted_branch_is_detected_and_a_new_one_of_its_name_is_distinct(repo):
    await repo.create_branch("b")
    await repo.put("b", "k", b"v")
    other = Repository(repo.store)
    await other.delete_branch("b")
    with pytest.raises(BranchNotFound):
        await repo.put("b", "k", b"v")
    await other.create_branch("b")
    await repo.put("b", "new", b"v")
    assert await held(other, "b") == {"new": b"v"}


async def test_write_during_a_seal_is_committed_or_staged(repo):
    sealing = Repository(repo.store)
    changes = {f"key.{number:04}": b"%d" % number for number in range(3000)}

    async def commit() -> None:
        for _ in range(5):
            await asyncio.sleep(0.005)
            await seal(sealing.store, "main")

    await asyncio.gather(repo.put_each("main", dict.fromkeys(changes)), commit())
    await asyncio.gather(repo.put_each("main", dict(changes)), commit())
    assert await held(repo) == changes
    await repo.commit("main", "all")
    assert await held(repo, "main@") == changes


@pytest.mark.guarantee("versions-2")
@pytest.mark.parametrize("size", ["at the limit", "above it"])
async def test_the_largest_value_is_staged_committed_and_read(repo, size):
    largest = repo.writer.largest
    value = b"x" * (largest + (size == "above it"))
    writes: list[Callable[[], object]] = [
        lambda: repo.put("main", "one", value),
        lambda: repo.put_many("main", {"two": value, "small": b"v"}),
        lambda: repo.put_each("main", {"three": value}),
        lambda: repo.write_if("main", "four", value, None),
    ]
    if size == "above it":
        for write in writes:
            with pytest.raises(UsageError, match=f"the maximum is {largest:,}"):
                await write()  # type: ignore[misc]
        assert await held(repo) == {}
        return
    for write in writes:
        await write()  # type: ignore[misc]
    await repo.commit("main", "large")
    found = await held(Repository(repo.store), "main@")
    assert {found[key] for key in ("one", "two", "three", "four")} == {value}


async def test_write_if_staged_fails_after_the_same_value_is_staged_again(repo):
    first = await repo.put("main", "lock", b"held")
    second = await repo.write_if_staged("main", "lock", b"held", first)
    assert second != first
    with pytest.raises(StagedMismatch) as told:
        await repo.write_if_staged("main", "lock", b"held", first)
    assert told.value.staged == second
    third = await repo.write_if_staged("main", "lock", None, second)
    with pytest.raises(StagedMismatch) as told:  # a deletion is no value
        await repo.write_if_staged("main", "lock", b"x", third)
    assert (told.value.staged, told.value.identity) == (None, None)


async def test_write_if_staged_finds_values_in_sealed_epochs_but_not_committed_ones(repo):
    first = await repo.put("main", "k", b"1")
    await seal(repo.store, "main")
    second = await repo.write_if_staged("main", "k", b"2", first)
    assert await held(repo) == {"k": b"2"}
    await repo.commit("main", "2")
    with pytest.raises(StagedMismatch) as told:
        await repo.write_if_staged("main", "k", b"3", second)
    assert told.value.staged is None
    assert told.value.identity is not None
    with pytest.raises(StagedMismatch):
        await repo.write_if_staged("main", "none", b"3", second)


@pytest.mark.guarantee("versions-3", by="race")
async def test_one_of_many_conditional_writes_with_the_same_revision_succeeds(repo):
    read = await repo.put("main", "lock", b"free")
    ends = await asyncio.gather(
        *(repo.write_if_staged("main", "lock", b"free", read) for _ in range(8)), return_exceptions=True
    )
    assert sum(not isinstance(end, BaseException) for end in ends) == 1
    assert all(isinstance(end, StagedMismatch) for end in ends if isinstance(end, BaseException))


@pytest.mark.parametrize("backwards", [False, True])
async def test_write_if_staged_is_refused_if_the_same_value_is_staged_at_any_step(backwards):
    outcomes: set[bool] = set()

    async def scenario(fuse: Fuse) -> None:
        store = MemoryStore()
        repo = Repository(store)
        await repo.init()
        await committed(repo, "main", "one", k=b"1")
        read = await repo.put("main", "k", b"2")
        fuse.then = lambda: Repository(store).put("main", "k", b"2")
        try:
            await Repository(SteppedStore(store, fuse, backwards=backwards)).write_if_staged("main", "k", b"mine", read)
        except StagedMismatch:
            assert fuse.blown
            outcomes.add(False)
            assert await staged(repo) == {"k": b"2"}
        else:
            assert fuse.finished
            outcomes.add(True)
            assert await staged(repo) == {"k": b"mine"}

    assert await at_every_step(scenario, kill=False) > 2
    assert outcomes == {True, False}


async def test_writes_return_their_acknowledged_revision(repo):
    made = [
        await repo.put("main", "a", b"1"),
        await repo.write_if("main", "b", b"1", None),
        await repo.delete("main", "c"),
        *(await repo.put_many("main", {"d": b"1", "e": None})).values(),
    ]
    epoch = (await refs.branch(repo.store, "main")).branch.epoch
    stored = await repo.store.get_many([(epochs.partition_of(epoch), key) for key in (b"a", b"b", b"c", b"d", b"e")])
    assert made == [one and one.revision for one in stored]
    await repo.commit("main", "taken before it was asked again")
    assert made == sorted(made)
    assert min(made) > 0
