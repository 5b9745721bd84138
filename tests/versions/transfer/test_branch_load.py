"""A load on a branch in a process of its own that is ended while its rows are stored: they never appear."""

import asyncio
import json
import signal
import subprocess
import sys
import time

import pytest

from kvctl.doctor.content import inspect
from kvctl.server import Server
from kvctl.versions.branch import epochs
from kvctl.versions.repositories import Repositories, opened
from kvctl.versions.repository import Repository
from kvctl.versions.store.jetstream_store import BucketStore
from tests.versions.repos import committed, held, reservations, staged

ROWS = 5000


@pytest.fixture
async def repo(client, unique):
    repositories = Repositories(client)
    name = unique("LOADED")
    made = await repositories.create(name)
    await committed(made, "main", "base", a=b"1")
    await made.put("main", "k.1", b"staged")
    yield made
    await repositories.delete(name)


def name_of(repo: Repository) -> str:
    assert isinstance(repo.store, BucketStore)
    return repo.store.bucket.binding.stream.removeprefix("KVR_")


def loading(server: Server, repo: Repository) -> "subprocess.Popen[bytes]":
    """A load that has got its rows, and waits for more."""
    command = [sys.executable, "-m", "kvctl", "-s", server.url, "load", f"{name_of(repo)}@main", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    rows = "".join(json.dumps({"key": f"k.{number}", "value": "x" * 500}) + "\n" for number in range(ROWS))
    process.stdin.write(rows.encode())
    process.stdin.flush()
    return process


async def stored_rows(repo: Repository) -> int:
    """Return the number of rows in epochs that no branch has."""
    partitions = [epochs.partition_of(epoch) for epoch in await reservations(repo.store)]
    return sum([len([entry async for entry in repo.store.scan(one, values=False)]) for one in partitions])


async def ended(process: "subprocess.Popen[bytes]", repo: Repository, how: signal.Signals) -> str:
    """End the process when it has stored rows; return its stderr."""
    deadline = time.monotonic() + 30
    while not await stored_rows(repo):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    process.send_signal(how)
    _, text = await asyncio.to_thread(process.communicate)
    return text.decode()


@pytest.mark.guarantee("versions-23", by="kill")
@pytest.mark.guarantee("versions-24", by="kill")
async def test_killed_load_stages_nothing_and_is_collected(server, client, repo, monkeypatch):
    before = await held(repo), await staged(repo)
    await ended(loading(server, repo), repo, signal.SIGKILL)
    assert (await held(repo), await staged(repo)) == before
    assert (await repo.gc()).epochs == 0  # a load may be running
    found = await opened(client.api, name_of(repo))
    assert [one async for one in inspect(*found)] == []
    monkeypatch.setattr(epochs, "RESERVATION_S", 0)
    assert [one.check async for one in inspect(*found)] == ["orphaned-epochs"]
    assert (await repo.gc()).epochs == 1
    assert [one async for one in inspect(*found)] == []
    assert await reservations(repo.store) == []
    assert (await held(repo), await staged(repo)) == before


@pytest.mark.guarantee("versions-23", by="kill")
async def test_interrupted_load_stages_nothing_and_leaves_nothing(server, repo):
    before = await held(repo)
    text = await ended(loading(server, repo), repo, signal.SIGINT)
    assert "stages all rows or none" in text
    assert await held(repo) == before
    assert await reservations(repo.store) == []
    assert await epochs.uncollected(repo.store) == []
