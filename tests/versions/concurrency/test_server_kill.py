"""Killed server: deleted data stays deleted, and restored entries of cleared epochs have no effect.

Once a marker has expired, nats-server 2.15 may bring back what it deleted (its issue 8505). So the markers of what
decides never expire. Here all others expire after a second.
"""

import asyncio
from datetime import timedelta

import pytest

import kvctl
from kvctl.doctor.content import inspect
from kvctl.jetstream.api import Api
from kvctl.server import Server
from kvctl.versions import refs
from kvctl.versions.branch import epochs
from kvctl.versions.repositories import Repositories, opened
from kvctl.versions.repository import Repository
from kvctl.versions.store import writes
from kvctl.versions.store.jetstream_store import BucketStore
from kvctl.versions.store.protocol import StoreChange
from tests.support.waiting import until_async
from tests.versions.repos import committed, held, reservations, seal, staged, whole


@pytest.fixture
def short_markers(monkeypatch):
    monkeypatch.setattr(writes, "MARKER_TTL", timedelta(seconds=1))


@pytest.fixture
async def repo(own_server, short_markers):
    async with kvctl.connect(own_server.url) as client:
        yield await Repositories(client).create("c")


def api_of(repo: Repository) -> Api:
    assert isinstance(repo.store, BucketStore)
    return repo.store.bucket.binding.api


async def kill(server: Server, repo: Repository) -> None:
    """Write until all markers have expired, then kill: an idle server saves its state."""
    for number in range(8):
        await repo.put("main", "busy", b"%d" % number)
        await asyncio.sleep(0.25)
    await repo.reset_key("main", "busy")
    server.kill()
    server.start()


@pytest.mark.guarantee("versions-8", by="kill")
async def test_deleted_branches_and_tags_stay_deleted(own_server, repo):
    await committed(repo, "main", "one", a=b"1")
    for name in ("gone", "again"):
        await repo.create_branch(name)
        await repo.put(name, "s", b"1")
        await repo.create_tag(f"tag-{name}")
        await repo.delete_branch(name)
        await repo.delete_tag(f"tag-{name}")
    await repo.create_branch("again")
    await repo.create_tag("tag-again")
    await kill(own_server, repo)
    assert set(await repo.branches()) == {"main", "again"}
    assert set(await repo.tags()) == {"tag-again"}
    assert [await staged(repo, branch) for branch in ("main", "again")] == [{}, {}]


@pytest.mark.guarantee("versions-8", by="kill")
async def test_changes_that_were_reset_stay_reset(own_server, repo):
    await committed(repo, "main", "one", a=b"1", b_c=b"1")
    await repo.put_many("main", {"a": b"2", "b.c": None, "b.d": b"2", "new": b"2", "kept": b"2"})
    await repo.reset_key("main", "a")
    await repo.reset_key("main", "new")
    await repo.reset_prefix("main", "b.")
    await kill(own_server, repo)
    assert await staged(repo) == {"kept": b"2"}
    made = await repo.commit("main", "two")
    assert await held(repo, made.id) == {"a": b"1", "b.c": b"1", "kept": b"2"}


async def test_folded_epoch_survives_the_collection_after_a_kill(own_server, repo):
    """The epoch was reserved before the branch used it; the reservation is restored, and must be ignored."""
    await repo.put_many("main", {"app.a": b"1", "app.b": b"1", "kept": b"1"})
    await seal(repo.store, "main")
    await repo.reset_prefix("main", "app.")
    await kill(own_server, repo)
    await repo.gc()
    assert await staged(repo) == {"kept": b"1"}
    await whole(repo)


async def test_doctor_finds_nothing_after_a_kill_and_a_collection(own_server, repo):
    for number in range(6):
        await committed(repo, "main", str(number), **{f"k{number}": b"x" * 5000})
    await repo.create_branch("gone")
    await committed(repo, "gone", "gone", g=b"1")
    await repo.delete_branch("gone")
    await repo.gc()
    await kill(own_server, repo)
    await repo.gc()
    assert [one async for one in inspect(*await opened(api_of(repo), "c"))] == []
    assert (await held(repo)).keys() == {f"k{number}" for number in range(6)}


@pytest.mark.parametrize("reopen", ["memory", "bucket"], indirect=True)
class TestReservations:
    """Restored entries are written by the test: no kill is needed."""

    @pytest.fixture
    async def repo(self, store):
        made = Repository(store)
        await made.init()
        return made

    async def test_epoch_of_a_branch_is_not_cleared_whatever_reservation_is_restored(self, repo):
        await repo.put("main", "k", b"1")
        await seal(repo.store, "main")
        await repo.put("main", "l", b"1")
        for epoch in (await refs.branch(repo.store, "main")).branch.epochs:
            await repo.store.set(epochs.RESERVED, epoch.encode(), b"0")
        assert (await repo.gc(dry_run=True)).epochs == 0
        assert (await repo.gc()).epochs == 0
        assert await staged(repo) == {"k": b"1", "l": b"1"}
        assert await reservations(repo.store) == []

    async def test_restored_cleared_epoch_is_collected(self, repo):
        await repo.put("main", "k", b"1")
        (epoch,) = (await refs.branch(repo.store, "main")).branch.epochs
        await repo.commit("main", "one")
        await until_async(lambda: repo.store.is_empty(epochs.partition_of(epoch)))
        await repo.store.write([], [StoreChange(epochs.partition_of(epoch), b"k", b"\x01back")])
        assert (await repo.gc(dry_run=True)).epochs == 1
        assert (await repo.gc()).epochs == 1
        assert (await repo.gc(dry_run=True)).epochs == (await repo.gc()).epochs == 0
        assert await held(repo) == {"k": b"1"}


async def test_doctor_and_collection_agree_on_restored_epochs(own_server, repo):
    for name in ("old", "older"):
        await repo.store.set(epochs.partition_of(name), b"k", b"\x01v")
    found = [one async for one in inspect(*await opened(api_of(repo), "c"))]
    assert [(one.check, one.evidence[:1]) for one in found] == [("orphaned-epochs", "2")]
    assert (await repo.gc()).epochs == 2
    assert [one async for one in inspect(*await opened(api_of(repo), "c"))] == []
