"""Any number of changes that appear on a branch together, whatever happens beside them."""

import asyncio
from contextlib import suppress

import pytest

from kvctl.errors import ConflictError, UsageError
from kvctl.versions import refs
from kvctl.versions.branch import epochs, private_epoch
from kvctl.versions.commits import NothingToCommit
from kvctl.versions.refs import BranchNotFound
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from tests.versions.concurrency.steps import Fuse, SteppedStore, at_every_step
from tests.versions.repos import committed, held, reservations, seal, staged

CHANGES: dict[str, bytes | None] = {"a": b"load", "b": None, "c": b"load", "d": b"load"}
LOADED = {"a": b"load", "c": b"load", "d": b"load"}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """The changes are too many for one batch."""
    monkeypatch.setattr(private_epoch, "FEW", 2)


async def based(repo: Repository) -> Repository:
    """One key is committed, one sealed, one staged."""
    await committed(repo, "main", "base", a=b"1", b=b"1")
    await repo.put("main", "b", b"2")
    await seal(repo.store, "main")
    await repo.put("main", "c", b"2")
    return repo


async def fresh() -> Repository:
    repo = Repository(MemoryStore())
    await repo.init()
    return await based(repo)


async def left_over(repo: Repository) -> set[str]:
    """Return the epochs that have changes and no branch."""
    with_changes = {name.decode()[6:] for name in await repo.store.partitions() if name.startswith(b"epoch/")}
    known = {one for branch in await repo.branches() for one in (await epochs_of(repo, branch))}
    return with_changes - known


async def epochs_of(repo: Repository, branch: str = "main") -> list[str]:
    return (await refs.branch(repo.store, branch)).branch.epochs


async def test_changes_replace_what_was_staged_and_are_replaced_by_later_ones(repo):
    await based(repo)
    await repo.put_each("main", CHANGES)
    assert await held(repo) == LOADED
    await repo.put("main", "c", b"3")
    await repo.put_each("main", {"a": b"again", "e": b"e", "f": b"f"})
    assert await held(repo) == {"a": b"again", "c": b"3", "d": b"load", "e": b"e", "f": b"f"}
    made = await repo.commit("main", "all")
    assert await held(repo, made.id) == await held(repo)
    assert await left_over(repo) == set()
    assert await reservations(repo.store) == []


async def test_empty_current_epoch_is_kept(repo):
    before = await epochs_of(repo)
    for _ in range(6):
        await repo.put_each("main", CHANGES)
    assert (await epochs_of(repo))[0] == before[0]
    assert len(await epochs_of(repo)) == 7
    made = await repo.commit("main", "all")
    assert len(await epochs_of(repo)) == 1
    assert await held(repo, made.id) == LOADED


async def test_few_changes_need_no_epoch(repo):
    before = await epochs_of(repo)
    await repo.put_each("main", {"a": b"1", "b": None})
    await repo.put_each("main", {})
    assert await epochs_of(repo) == before
    assert await held(repo) == {"a": b"1"}


async def test_error_in_the_block_stages_nothing(repo):
    await based(repo)
    before = await held(repo)

    async def fail() -> None:
        async with private_epoch.load(repo.store, repo.writer, "main") as loading:
            await loading.add({b"a": b"", b"b": b"", b"c": b""})
            await loading.add({b"large": bytes(repo.writer.largest + 1)})

    with pytest.raises(UsageError, match="the maximum is"):
        await fail()
    with pytest.raises(BranchNotFound):
        await repo.put_each("none", CHANGES)
    assert await held(repo) == before
    assert await left_over(repo) == set()
    assert await reservations(repo.store) == []


async def test_added_changes_are_known_before_they_appear(repo):
    async with private_epoch.load(repo.store, repo.writer, "main") as loading:
        await loading.add({b"a": b"1", b"b": None})
        assert await loading.added([b"a", b"b", b"c"]) == {b"a": b"1", b"b": None}
        await loading.add({b"c": b"1", b"a": b"2"})
        assert await loading.added([b"a", b"b", b"c", b"d"]) == {b"a": b"2", b"b": None, b"c": b"1"}
        assert await held(repo) == {}


async def put(repo: Repository) -> None:
    await repo.put_many("main", {"a": b"theirs", "e": b"theirs"})


async def commit(repo: Repository) -> None:
    with suppress(NothingToCommit):
        await repo.commit("main", "theirs")


async def put_and_commit(repo: Repository) -> None:
    await put(repo)
    await commit(repo)


async def reset(repo: Repository) -> None:
    await repo.reset("main")


async def reset_keys(repo: Repository) -> None:
    await repo.reset_prefix("main", "b")


async def load(repo: Repository) -> None:
    await repo.put_each("main", {"a": b"theirs", "e": b"theirs", "f": b"theirs"})


async def clean_and_merge(repo: Repository) -> None:
    await repo.create_branch("side")
    await repo.put("side", "e", b"theirs")
    await repo.commit("side", "theirs")
    await commit(repo)
    await repo.merge("side", "main")


async def collect(repo: Repository) -> None:
    await repo.gc()


@pytest.mark.guarantee("versions-23", by="race")
@pytest.mark.parametrize(
    "other",
    [put, commit, put_and_commit, reset, reset_keys, load, clean_and_merge, collect],
    ids=lambda one: one.__name__,
)
async def test_other_operation_at_any_step_comes_completely_before_or_after(other):
    async def load_all(repo: Repository) -> None:
        await repo.put_each("main", CHANGES)

    expected = []
    for order in ((other, load_all), (load_all, other)):
        repo = await fresh()
        for one in order:
            await one(repo)
        expected.append(await held(repo))

    async def scenario(fuse: Fuse) -> None:
        repo = await fresh()

        fuse.then = lambda: other(Repository(repo.store))
        await load_all(Repository(SteppedStore(repo.store, fuse)))
        if fuse.finished:
            return
        assert await held(repo) in expected
        await repo.gc()
        assert await held(repo) in expected
        await commit(repo)
        assert await held(repo, "main@") in expected
        assert await left_over(repo) == set()

    assert await at_every_step(scenario, kill=False) > 8


@pytest.mark.guarantee("versions-23", by="race")
async def test_readers_see_all_or_nothing_at_any_step():
    seen = list[bool]()

    async def scenario(fuse: Fuse) -> None:
        repo = await fresh()
        before = await held(repo)

        async def between() -> None:
            found = await held(Repository(repo.store))
            assert found in (before, LOADED)
            seen.append(found == before)

        fuse.then = between
        await Repository(SteppedStore(repo.store, fuse)).put_each("main", CHANGES)

    await at_every_step(scenario, kill=False)
    assert seen.count(True) > 8


async def test_branch_deleted_at_any_step_leaves_nothing():
    async def scenario(fuse: Fuse) -> None:
        repo = await fresh()

        fuse.then = lambda: Repository(repo.store).delete_branch("main")
        with suppress(BranchNotFound):
            await Repository(SteppedStore(repo.store, fuse)).put_each("main", CHANGES)
        assert not fuse.blown or await repo.branches() == {}
        await repo.gc()
        assert await left_over(repo) == set()

    assert await at_every_step(scenario, kill=False) > 8


@pytest.mark.guarantee("versions-23", by="kill")
async def test_killed_at_any_write_all_or_nothing_is_staged_and_the_rest_is_collected(monkeypatch):
    async def scenario(fuse: Fuse) -> None:
        repo = await fresh()
        before = await held(repo)
        with fuse.killing():
            await Repository(SteppedStore(repo.store, fuse)).put_each("main", CHANGES)
        found = await held(repo)
        assert found in (before, LOADED)
        garbage = await left_over(repo)
        assert (await repo.gc()).epochs == 0
        assert await left_over(repo) == garbage
        with monkeypatch.context() as later:
            later.setattr(epochs, "RESERVATION_S", 0)
            assert {*await epochs.uncollected(repo.store)} >= garbage
            await repo.gc()
        assert await left_over(repo) == set()
        assert await reservations(repo.store) == []
        assert await held(repo) == found
        await repo.put_each("main", CHANGES)
        assert await held(repo) == LOADED

    assert await at_every_step(scenario, kill=True) > 5


@pytest.mark.guarantee("versions-23", by="race")
async def test_collection_after_the_reservation_at_any_step_leaves_all_or_nothing(monkeypatch):
    monkeypatch.setattr(epochs, "RESERVATION_S", 0)
    refused = list[bool]()

    async def scenario(fuse: Fuse) -> None:
        repo = await fresh()
        before = await held(repo)

        fuse.then = lambda: Repository(repo.store).gc()
        refused.append(False)
        try:
            await Repository(SteppedStore(repo.store, fuse)).put_each("main", CHANGES)
        except ConflictError:
            refused[-1] = True
        assert await held(repo) == (before if refused[-1] else LOADED)
        await repo.gc()
        assert await left_over(repo) == set()

    assert await at_every_step(scenario, kill=False) > 8
    assert {*refused} == {True, False}


async def test_reservation_is_renewed_for_as_long_as_changes_come(repo, monkeypatch):
    monkeypatch.setattr(epochs, "RENEWAL_S", 0.01)
    async with private_epoch.load(repo.store, repo.writer, "main") as loading:
        await loading.add({b"a": b"1", b"b": b"1", b"c": b"1"})
        assert loading.epoch is not None
        first = await epochs.reserved(repo.store, loading.epoch)
        while await epochs.reserved(repo.store, loading.epoch) == first:
            await asyncio.sleep(0.01)
        assert (await repo.gc()).epochs == 0
    assert len(await held(repo)) == 3
    assert len(await staged(repo)) == 3
