"""Keys read together are not consistent: whatever others do between two of them, nothing is lost."""

import asyncio

import pytest

from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.store.protocol import Store
from tests.versions.concurrency.steps import Fuse, StagingRecord, SteppedStore, at_every_step
from tests.versions.repos import committed, held, seal, staged

pytestmark = pytest.mark.parametrize("backwards", [False, True])


async def based() -> tuple[MemoryStore, Repository]:
    """A repository in memory in which k is 1."""
    store = MemoryStore()
    repo = Repository(store)
    await repo.init()
    await committed(repo, "main", "base", k=b"1")
    return store, repo


async def commits_later(store: Store) -> tuple[StagingRecord, asyncio.Task[object]]:
    """Start a commit of the sealed epochs, stopped before it moves the branch."""
    pause = StagingRecord()
    task: asyncio.Task[object] = asyncio.create_task(Repository(SteppedStore(store, pause)).commit("main", "k is 2"))
    await pause.reached.wait()
    return pause, task


async def commit(repo: Repository) -> object:
    return await repo.commit("main", "k is 1 again")


async def merge(repo: Repository) -> object:
    return await repo.merge("side", "main")


async def record(repo: Repository) -> object:
    return await repo.record("main", {"k": b"1"}, "k is 1")


async def reset_other(repo: Repository) -> object:
    await repo.put("main", "other", b"1")
    return await repo.reset_key("main", "other")


@pytest.mark.guarantee("versions-7", by="fault")
@pytest.mark.parametrize("operation", [commit, merge, record, reset_other], ids=lambda one: one.__name__)
async def test_value_staged_again_survives_a_commit_between_any_two_reads(operation, backwards):
    """k is 1; a commit of 2 is under way, and 1 is staged again: with the head of before, that would be no change."""

    async def scenario(fuse: Fuse) -> None:
        store, repo = await based()
        await repo.create_branch("side")
        await committed(repo, "side", "side", s=b"1")
        await repo.put("main", "k", b"2")
        await seal(store, "main")
        pause, committing = await commits_later(store)
        await repo.put("main", "k", b"1")
        await seal(store, "main")

        async def others_commit() -> None:
            pause.go_on.set()
            await asyncio.gather(committing, return_exceptions=True)

        fuse.then = others_commit
        await asyncio.gather(
            operation(Repository(SteppedStore(store, fuse, backwards=backwards))), return_exceptions=True
        )
        await others_commit()
        assert (await held(repo))["k"] == b"1"

    assert await at_every_step(scenario, kill=False) > 5


async def test_conditional_write_reports_no_false_conflict(backwards):
    """A commit between the reads moves the value from staged to committed: it stays the same."""

    async def scenario(fuse: Fuse) -> None:
        store, repo = await based()
        await repo.put("main", "k", b"2")
        (entry,) = await repo.get("main", "k")
        fuse.then = lambda: Repository(store).commit("main", "k is 2")
        reading = Repository(SteppedStore(store, fuse, backwards=backwards))
        await reading.write_if("main", "k", b"3", entry.identity)
        assert await held(repo) == {"k": b"3"}

    assert await at_every_step(scenario, kill=False) > 2


async def test_merge_raises_staged_only_for_a_branch_with_staged_changes(backwards):
    """A commit between the reads takes the staged changes: at no time do they differ from the head."""

    async def scenario(fuse: Fuse) -> None:
        store, repo = await based()
        await repo.create_branch("side")
        await committed(repo, "side", "side", s=b"1")
        await repo.put("main", "k", b"1")

        async def moves() -> None:
            await repo.reset("main")
            await committed(repo, "main", "k is 2", k=b"2")
            await repo.put("main", "k", b"2")

        fuse.then = moves
        await Repository(SteppedStore(store, fuse, backwards=backwards)).merge("side", "main")
        assert (await held(repo))["k"] == (b"2" if fuse.blown else b"1")
        assert await staged(repo) == {}

    assert await at_every_step(scenario, kill=False) > 5
