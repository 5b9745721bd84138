"""Epochs: resets of all, one key, a prefix; folds, however often the branch was sealed."""

import pytest

from kvctl.errors import UsageError
from kvctl.versions import commits, refs
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.branch.epochs import partition_of
from kvctl.versions.commits import CommitInfo, HasStagedChanges, NothingToCommit
from kvctl.versions.model import encode_staged
from kvctl.versions.refs import BranchNotFound, RefNotFound
from kvctl.versions.repository import Repository
from tests.versions.repos import committed, held, history_ids, reservations, seal, staged


async def sealed(repo: Repository, branch: str = "main") -> tuple[str, ...]:
    return (await refs.branch(repo.store, branch)).branch.sealed


async def keys_of(repo: Repository, epoch: str) -> list[bytes]:
    return [entry.key async for entry in repo.store.scan(partition_of(epoch))]


class Fails(Exception):
    pass


async def fail(*_: object) -> None:
    raise Fails


async def test_reset_drops_all_staged_changes_and_leaves_nothing_behind(repo):
    await committed(repo, "main", "one", a=b"1")
    await repo.put("main", "a", b"2")
    await seal(repo.store, "main")
    await repo.put("main", "b", b"1")
    before = (await refs.branch(repo.store, "main")).branch.epochs
    await repo.reset("main")
    assert await held(repo) == {"a": b"1"}
    assert [await keys_of(repo, epoch) for epoch in before] == [[], []]
    with pytest.raises(NothingToCommit):
        await repo.commit("main", "nothing")
    with pytest.raises(BranchNotFound):
        await repo.reset("nope")


@pytest.mark.parametrize("seals", [0, 1, 2])
async def test_reset_of_a_key_works_in_any_epoch(repo, seals):
    await committed(repo, "main", "one", a=b"1", ab=b"1")
    await repo.put_many("main", {"a": b"2", "ab": b"2", "c": b"1"})
    if seals:
        await seal(repo.store, "main")
    if seals == 2:
        await repo.put("main", "a", b"3")
    assert await repo.reset_key("main", "a")
    assert await held(repo) == {"a": b"1", "ab": b"2", "c": b"1"}
    assert not await repo.reset_key("main", "a")
    assert not await repo.reset_key("main", "none")
    made = await repo.commit("main", "the others")
    assert await held(repo, made.id) == {"a": b"1", "ab": b"2", "c": b"1"}
    with pytest.raises(UsageError):
        await repo.reset_key("main", "a..b")


@pytest.mark.parametrize("seals", [0, 1, 2])
async def test_reset_of_a_prefix_drops_all_its_keys(repo, seals):
    await repo.put_many("main", {f"app.{number}": b"1" for number in range(20)} | {"ap": b"1", "apq": b"1", "z": b"1"})
    if seals:
        await seal(repo.store, "main")
    if seals == 2:
        await repo.put_many("main", {"app.3": None, "app.x": b"2", "zz": b"1"})
    assert await repo.reset_prefix("main", "app.") == (21 if seals == 2 else 20)
    assert await repo.reset_prefix("main", "app.") == 0
    left = {"ap", "apq", "z"} | ({"zz"} if seals == 2 else set())
    assert set(await staged(repo)) == left
    assert set(await held(repo, (await repo.commit("main", "rest")).id)) == left


async def test_reset_of_many_keys_is_atomic(repo):
    many = {f"k{number}": b"1" for number in range(700)}
    await repo.put_many("main", many)
    await repo.put("main", "other", b"1")
    assert await repo.reset_prefix("main", "k") == 700
    assert await staged(repo) == {"other": b"1"}


async def test_hard_reset_moves_the_branch_and_is_refused_with_staged_changes(repo):
    for number in range(3):
        await committed(repo, "main", str(number), n=b"%d" % number)
    ids = await history_ids(repo)
    await repo.put("main", "n", b"staged")
    for dry_run in (True, False):
        with pytest.raises(HasStagedChanges):
            await repo.reset_hard("main", "main~1", dry_run=dry_run)
    assert (await repo.branches())["main"] == ids[0]
    await repo.reset("main")
    assert (await repo.reset_hard("main", "main~1", dry_run=True)).id == ids[1]
    assert await history_ids(repo) == ids
    assert (await repo.reset_hard("main", "main~1")).id == ids[1]
    assert await held(repo) == {"n": b"1"}
    assert (await repo.reset_hard("main", ids[0])).id == ids[0]
    assert await history_ids(repo) == ids
    with pytest.raises(RefNotFound):
        await repo.reset_hard("main", "nope")


@pytest.mark.guarantee("versions-13")
async def test_epochs_of_many_failed_commits_are_folded_without_loss(repo, monkeypatch):
    monkeypatch.setattr(epochs, "MAX_SEALED", 12)

    updated = repo.objects.updated
    for number in range(100):
        await repo.put("main", f"k{number}", b"v")
        await repo.put("main", "same", b"%d" % number)
        repo.objects.updated = fail  # type: ignore[method-assign]
        with pytest.raises(Fails):
            await repo.commit("main", "fails")
        repo.objects.updated = updated  # type: ignore[method-assign]
        assert len(await sealed(repo)) <= 12
    assert len(await staged(repo)) == 101
    made = await repo.commit("main", "at last")
    assert await held(repo, made.id) == {f"k{number}": b"v" for number in range(100)} | {"same": b"99"}
    assert await sealed(repo) == ()
    assert await reservations(repo.store) == []


@pytest.mark.guarantee("versions-13")
async def test_failed_commits_with_nothing_new_staged_seal_once(repo):
    await repo.put("main", "a", b"1")
    updated, repo.objects.updated = repo.objects.updated, fail  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(Fails):
            await repo.commit("main", "fails")
        assert len(await sealed(repo)) == 1
    repo.objects.updated = updated  # type: ignore[method-assign]
    await repo.commit("main", "at last")
    assert await held(repo, "main@") == {"a": b"1"}


async def crowd(repo: Repository, count: int, *, branch: str = "main") -> None:
    """Leave `count` sealed epochs, as commits killed after the seal do, most of them empty."""
    await repo.put(branch, "k0", b"1")
    await repo.put(branch, "app.x", b"1")
    await seal(repo.store, branch)
    left = [epochs.new_epoch() for _ in range(count)]
    for number in range(0, count, 100):
        changes = {b"k%d" % (number + 1): encode_staged(b"1"), b"same": encode_staged(b"%d" % number)}
        await repo.store.set_many(partition_of(left[number]), changes)
    await add_sealed(repo, branch, left)


async def add_sealed(repo: Repository, name: str, more: list[str]) -> None:
    record = await refs.branch(repo.store, name)
    after = record.branch._replace(sealed=(*record.branch.sealed, *more))
    await repo.store.write([record.unchanged], [record.replaced(after)])


CROWDED = {"k0", "app.x", "same", *(f"k{number + 1}" for number in range(0, 1100, 100))}


class TestManySealedEpochs:
    """More epochs than one write has room for messages: each operation copes with others' leftovers."""

    async def test_commit(self, repo):
        await crowd(repo, 1100)
        made = await repo.commit("main", "at last")
        assert (await held(repo, made.id)).keys() == CROWDED
        assert (await held(repo, made.id))["same"] == b"1000"
        assert await sealed(repo) == ()

    async def test_reset(self, repo):
        await crowd(repo, 1100)
        await repo.reset("main")
        assert (await staged(repo), await sealed(repo)) == ({}, ())

    async def test_reset_of_a_prefix(self, repo):
        await crowd(repo, 1100)
        assert await repo.reset_prefix("main", "app.") == 1
        assert (await staged(repo)).keys() == CROWDED - {"app.x"}

    async def test_deleted_branch(self, repo):
        await crowd(repo, 1100)
        await repo.delete_branch("main")
        assert await repo.branches() == {}
        await repo.gc()
        assert await epochs.uncollected(repo.store) == []

    async def test_merge_when_staged_values_equal_committed_ones(self, repo):
        await committed(repo, "main", "one", k0=b"1", app_x=b"1")
        await repo.create_branch("side")
        await committed(repo, "side", "side", s=b"1")
        await crowd(repo, 1)
        await repo.store.clear(partition_of((await sealed(repo))[-1]))
        await add_sealed(repo, "main", [epochs.new_epoch() for _ in range(1100)])
        await repo.merge("side", "main")
        assert (await held(repo)).keys() == {"k0", "app.x", "s"}


@pytest.mark.parametrize("others", [15, 16, 30])
async def test_commit_whose_epoch_is_folded_and_forgotten_takes_all_sealed_epochs(repo, others):
    """It used to report that the head has its changes, which were still staged."""
    await repo.put("main", "mine", b"1")
    own, _ = await commits._seal(repo.store, "main", CommitInfo("", ""))
    for number in range(others):
        await repo.put("main", f"k{number}", b"v")
        await seal(repo.store, "main")
    assert await epochs.fold(repo.store, await refs.branch(repo.store, "main"))
    state = await branch_state.read(repo.store, "main")
    commits._check_left(own, state)
    made = await repo.commit("main", "all")
    assert (await held(repo, made.id)).keys() == {"mine", *(f"k{number}" for number in range(others))}
    with pytest.raises(NothingToCommit) as told:
        commits._check_left(own, await branch_state.read(repo.store, "main"))
    assert told.value.taken_by in (made.id, None)
