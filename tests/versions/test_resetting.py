"""Staged changes dropped: all, of one key, of a prefix, however often the branch was sealed."""

import pytest

from kvctl.errors import UsageError
from kvctl.versions import dropping, folding, staging
from kvctl.versions.committing import NothingToCommit, Staged
from kvctl.versions.refs import BranchNotFound, RefNotFound
from kvctl.versions.repository import Repository
from kvctl.versions.staging import partition_of
from tests.versions.repos import committed, held, history_ids, staged


async def sealed(repo: Repository, branch: str = "main") -> tuple[str, ...]:
    return (await staging.read(repo.store, branch)).staging.sealed


async def keys_of(repo: Repository, epoch: str) -> list[bytes]:
    async with repo.store.scan(partition_of(epoch)) as entries:
        return [entry.key async for entry in entries]


async def test_a_reset_drops_all_and_leaves_nothing_behind(repo: Repository) -> None:
    await committed(repo, "main", "one", a=b"1")
    await repo.put("main", "a", b"2")
    await staging.seal(repo.store, "main")
    await repo.put("main", "b", b"1")
    epochs = (await staging.read(repo.store, "main")).staging.epochs
    await repo.reset("main")
    assert await held(repo) == {"a": b"1"}
    assert [await keys_of(repo, epoch) for epoch in epochs] == [[], []]
    assert await dropping.listed(repo.store) == []
    with pytest.raises(NothingToCommit):
        await repo.commit("main", "nothing")
    with pytest.raises(BranchNotFound):
        await repo.reset("nope")


@pytest.mark.parametrize("seals", [0, 1, 2])
async def test_a_key_is_reset_in_whatever_epoch_it_is(repo: Repository, seals: int) -> None:
    await committed(repo, "main", "one", a=b"1", ab=b"1")
    await repo.put_many("main", {"a": b"2", "ab": b"2", "c": b"1"})
    if seals:
        await staging.seal(repo.store, "main")
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
async def test_a_prefix_is_reset_whole(repo: Repository, seals: int) -> None:
    await repo.put_many("main", {f"app.{number}": b"1" for number in range(20)} | {"ap": b"1", "apq": b"1", "z": b"1"})
    if seals:
        await staging.seal(repo.store, "main")
    if seals == 2:
        await repo.put_many("main", {"app.3": None, "app.x": b"2", "zz": b"1"})
    assert await repo.reset_prefix("main", "app.") == (21 if seals == 2 else 20)
    assert await repo.reset_prefix("main", "app.") == 0
    left = {"ap", "apq", "z"} | ({"zz"} if seals == 2 else set())
    assert set(await staged(repo)) == left
    assert set(await held(repo, (await repo.commit("main", "rest")).id)) == left


async def test_a_reset_of_many_keys_is_one_step(repo: Repository) -> None:
    many = {f"k{number}": b"1" for number in range(700)}
    await repo.put_many("main", many)
    await repo.put("main", "other", b"1")
    assert await repo.reset_prefix("main", "k") == 700
    assert await staged(repo) == {"other": b"1"}


async def test_hard_moves_the_branch_and_is_refused_with_staged_changes(repo: Repository) -> None:
    for number in range(3):
        await committed(repo, "main", str(number), n=b"%d" % number)
    ids = await history_ids(repo)
    await repo.put("main", "n", b"staged")
    for dry_run in (True, False):
        with pytest.raises(Staged):
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


async def test_what_is_left_of_many_failed_commits_is_folded_and_loses_nothing(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "GRACE", 0)

    class Fails(Exception):
        pass

    async def fail(*_: object) -> None:
        raise Fails

    updated = repo.objects.updated
    for number in range(100):
        await repo.put("main", f"k{number}", b"v")
        await repo.put("main", "same", b"%d" % number)
        repo.objects.updated = fail  # type: ignore[method-assign]
        with pytest.raises(Fails):
            await repo.commit("main", "fails")
        repo.objects.updated = updated  # type: ignore[method-assign]
        assert len(await sealed(repo)) <= folding.MOST + 1
    assert len(await staged(repo)) == 101
    made = await repo.commit("main", "at last")
    assert await held(repo, made.id) == {f"k{number}": b"v" for number in range(100)} | {"same": b"99"}
    assert await sealed(repo) == ()
    assert await dropping.listed(repo.store) == []


async def test_failed_commits_with_nothing_new_staged_seal_once(repo: Repository) -> None:
    class Fails(Exception):
        pass

    async def fail(*_: object) -> None:
        raise Fails

    await repo.put("main", "a", b"1")
    updated, repo.objects.updated = repo.objects.updated, fail  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(Fails):
            await repo.commit("main", "fails")
        assert len(await sealed(repo)) == 1
    repo.objects.updated = updated  # type: ignore[method-assign]
    await repo.commit("main", "at last")
    assert await held(repo, "main@") == {"a": b"1"}
