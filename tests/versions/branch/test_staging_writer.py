"""Staging: one write per change, despite concurrent seals."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from kvctl.errors import UsageError
from kvctl.versions.branch import staging
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.refs import BranchNotFound
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.store.protocol import Change, Condition, Found, Predicate
from tests.versions.repos import held, staged


class CountingStore(MemoryStore):
    """Counts reads of staging records, and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = self.written = 0

    async def get(self, partition: bytes, key: bytes) -> Found:
        self.asked += partition == STAGING
        await asyncio.sleep(0)
        return await super().get(partition, key)

    async def write(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> list[Predicate]:
        self.written += 1
        await asyncio.sleep(0)
        return await super().write(conditions, changes)


@pytest.fixture
async def counting():
    store = CountingStore()
    repo = Repository(store)
    await repo.init()
    store.asked = store.written = 0
    return repo, store


async def test_epoch_is_requested_once(counting):
    repo, store = counting
    for number in range(10):
        await repo.put("main", f"k{number}", b"v")
    await repo.put_many("main", {"a": b"1", "b": None})
    await repo.put_each("main", {"c": b"1"})
    assert (store.asked, store.written) == (1, 12)


async def test_one_of_many_refused_tasks_requests_the_epoch(counting):
    repo, store = counting
    await repo.put("main", "k", b"v")
    await staging.seal(store, "main")
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
            await staging.seal(sealing.store, "main")

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
