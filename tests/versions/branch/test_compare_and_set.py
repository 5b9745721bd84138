"""Staged writes conditional on a staged revision, which changes when the same value is staged again."""

import asyncio

import pytest

from kvctl.versions.branch import staging
from kvctl.versions.branch.compare_and_set import StagedMismatch
from kvctl.versions.repository import Repository
from kvctl.versions.store.jetstream_store import BucketStore
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.store.store_subjects import revision_of
from tests.versions.concurrency.steps import Fuse, SteppedStore, at_every_step
from tests.versions.repos import committed, held, staged


async def test_write_if_staged_fails_after_the_same_value_is_staged_again(repo):
    first = await repo.put("main", "lock", b"held")
    second = await repo.write_if_staged("main", "lock", b"held", first.__eq__)
    assert second != first
    with pytest.raises(StagedMismatch) as told:
        await repo.write_if_staged("main", "lock", b"held", first.__eq__)
    assert told.value.staged == second
    third = await repo.write_if_staged("main", "lock", None, second.__eq__)
    with pytest.raises(StagedMismatch) as told:  # a deletion is no value
        await repo.write_if_staged("main", "lock", b"x", third.__eq__)
    assert (told.value.staged, told.value.identity) == (None, None)


async def test_write_if_staged_finds_values_in_sealed_epochs_but_not_committed_ones(repo):
    first = await repo.put("main", "k", b"1")
    await staging.seal(repo.store, "main")
    second = await repo.write_if_staged("main", "k", b"2", first.__eq__)
    assert await held(repo) == {"k": b"2"}
    await repo.commit("main", "2")
    with pytest.raises(StagedMismatch) as told:
        await repo.write_if_staged("main", "k", b"3", second.__eq__)
    assert told.value.staged is None
    assert told.value.identity is not None
    with pytest.raises(StagedMismatch):
        await repo.write_if_staged("main", "none", b"3", second.__eq__)


@pytest.mark.guarantee("versions-3", by="race")
async def test_one_of_many_conditional_writes_with_the_same_revision_succeeds(repo):
    read = await repo.put("main", "lock", b"free")
    ends = await asyncio.gather(
        *(repo.write_if_staged("main", "lock", b"free", read.__eq__) for _ in range(8)), return_exceptions=True
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
            await Repository(SteppedStore(store, fuse, backwards=backwards)).write_if_staged(
                "main", "k", b"mine", read.__eq__
            )
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
        await repo.put("main", "a", b"1"), await repo.write_if("main", "b", b"1", None), await repo.delete("main", "c"),
        *(await repo.put_many("main", {"d": b"1", "e": None})).values(),
    ]  # fmt: skip
    epoch = (await staging.read(repo.store, "main")).staging.epoch
    stored = await repo.store.get_many([(staging.partition_of(epoch), key) for key in (b"a", b"b", b"c", b"d", b"e")])
    assert made == [one and one.predicate for one in stored]
    await repo.commit("main", "taken before it was asked again")
    if isinstance(repo.store, BucketStore):
        revisions = [revision_of(one) or 0 for one in made]
        assert revisions == sorted(revisions)
        assert min(revisions) > 0
