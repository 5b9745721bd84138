"""Loads and dumps of a branch; a load whose process is ended while its rows are stored never appears."""

import asyncio
import io
import json
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from kvctl.doctor.content import inspect
from kvctl.errors import HazardRefused, UsageError
from kvctl.kv.bulk import input_file
from kvctl.kv.bulk.bulk_writer import RowCounts
from kvctl.kv.bulk.dump_file import DumpWriter, entry_line
from kvctl.kv.bulk.loader import LoadOptions
from kvctl.kv.bulk.rows import Mode
from kvctl.server import Server
from kvctl.versions.branch import epochs
from kvctl.versions.repositories import Repositories, opened
from kvctl.versions.repository import Repository
from kvctl.versions.store.jetstream_store import BucketStore
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.transfer import ref_files
from tests.versions.concurrency.steps import Fuse, SteppedStore, at_every_step
from tests.versions.repos import committed, held, reservations, staged

ROWS = 5000


@pytest.fixture
async def served(client, unique):
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
async def test_killed_load_stages_nothing_and_is_collected(server, client, served, monkeypatch):
    before = await held(served), await staged(served)
    await ended(loading(server, served), served, signal.SIGKILL)
    assert (await held(served), await staged(served)) == before
    assert (await served.gc()).epochs == 0  # a load may be running
    found = await opened(client.api, name_of(served))
    assert [one async for one in inspect(*found)] == []
    monkeypatch.setattr(epochs, "RESERVATION_S", 0)
    assert [one.check async for one in inspect(*found)] == ["orphaned-epochs"]
    assert (await served.gc()).epochs == 1
    assert [one async for one in inspect(*found)] == []
    assert await reservations(served.store) == []
    assert (await held(served), await staged(served)) == before


@pytest.mark.guarantee("versions-23", by="kill")
async def test_interrupted_load_stages_nothing_and_leaves_nothing(server, served):
    before = await held(served)
    text = await ended(loading(server, served), served, signal.SIGINT)
    assert "stages all rows or none" in text
    assert await held(served) == before
    assert await reservations(served.store) == []
    assert await epochs.uncollected(served.store) == []


async def begun() -> Repository:
    made = Repository(MemoryStore(), author="ann")
    await made.init()
    return made


@pytest.fixture
async def repo():
    """A repository in memory."""
    return await begun()


async def load(repo: Repository, *rows: dict[str, Any], **options: Any) -> RowCounts:
    text = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    source = input_file.open_input("rows.ndjson", io.BytesIO(text))
    return await ref_files.load(repo, "main", source, LoadOptions(**options))


class TestTransfer:
    async def test_last_row_of_a_key_is_loaded(self, repo):
        rows = [{"key": "a", "value": str(number)} for number in range(5)] + [{"key": "b", "operation": "DEL"}]
        await committed(repo, "main", "one", b=b"1")
        assert await load(repo, *rows) == RowCounts(6, 0, 0)
        assert [(one.key, one.value) for one in await repo.entries("main")] == [("a", b"4")]

    async def test_load_modes(self, repo):
        await committed(repo, "main", "one", a=b"1", b=b"1")
        rows = [{"key": key, "value": "1" if key == "a" else "2"} for key in "abc"]
        assert await load(repo, *rows, mode=Mode.IF_DIFFERENT, dry_run=True) == RowCounts(2, 1, 0)
        assert await load(repo, *rows, mode=Mode.CREATE_ONLY) == RowCounts(1, 2, 0)
        assert await load(repo, *rows, mode=Mode.IF_DIFFERENT) == RowCounts(1, 2, 0)
        assert [(one.key, one.value) for one in await repo.entries("main")] == [("a", b"1"), ("b", b"2"), ("c", b"2")]

    async def test_concurrently_created_key_is_left_unchanged(self, repo, monkeypatch):
        get = repo.get

        async def then_created(ref: str, *keys: str) -> Any:
            found = await get(ref, *keys)
            await repo.put("main", "a", b"theirs")
            return found

        monkeypatch.setattr(repo, "get", then_created)
        rows = [{"key": key, "value": "ours"} for key in "ab"]
        assert await load(repo, *rows, mode=Mode.CREATE_ONLY) == RowCounts(1, 1, 0)
        assert [one.value for one in await repo.entries("main")] == [b"theirs", b"ours"]

    @pytest.mark.guarantee("versions-2")
    async def test_rows_that_no_repository_can_hold_are_rejected(self, repo):
        bad: list[Any] = []
        rows = [{"key": "a", "value": "1", "ttl": 5}, {"key": "k" * 3000, "value": "1"}, {"key": "b", "value": "1"}]
        assert await load(repo, *rows, rejected=bad.append) == RowCounts(1, 0, 2)
        assert sorted(row.line for row in bad) == [1, 2]
        with pytest.raises(UsageError, match="nothing was written"):
            await load(repo, {"key": "c", "value": "1"}, *rows, strict=True)
        assert [one.key for one in await repo.entries("main")] == ["b"]

    async def test_dump_is_loaded_again(self, repo):
        await committed(repo, "main", "one", a=b"1", b=bytes(range(256)), c=b"x" * 9000)
        await repo.delete("main", "a")
        file = io.BytesIO()
        made = await ref_files.dump(repo, "R", {}, "main", file)
        assert (made.entries, made.cut, made.exact) == (2, (await repo.show("main")).id, True)
        file.seek(0)
        await repo.create_branch("copy", "main~1")
        await ref_files.load(repo, "copy", input_file.open_input("dump", file), LoadOptions())
        assert await held(repo, "copy") == {"b": bytes(range(256)), "c": b"x" * 9000}
        assert (await ref_files.dump(repo, "R", {}, "main@", io.BytesIO(), ["a"])).entries == 1

    async def test_dump_is_consistent_with_its_cut_despite_a_commit_at_any_step(self):
        async def scenario(fuse: Fuse) -> None:
            repo = await begun()
            first = await committed(repo, "main", "one", a=b"1")
            await repo.put("main", "b", b"1")

            async def then() -> None:
                await repo.commit("main", "meanwhile")
                await repo.put("main", "c", b"1")

            fuse.then = then
            for ref, entries in ("main@", 1), ("main", 2):
                file = io.BytesIO()
                made = await ref_files.dump(Repository(SteppedStore(repo.store, fuse)), "R", {}, ref, file)
                header = json.loads(file.getvalue().partition(b"\n")[0])
                assert (header["cut"], made.exact) == (made.cut, True)
                committed_keys = await held(repo, made.cut)
                assert made.entries == len(committed_keys) + header.get("staged", 0)
                assert made.cut != first.id or made.entries == entries

        assert await at_every_step(scenario, kill=False) > 2

    async def test_dump_of_history_is_refused_unless_forced(self, repo):
        file = io.BytesIO()
        writer = DumpWriter(file, {"bucket": "B", "config": {}, "cut": 1, "created": "", "history": True})
        writer.add(entry_line("B", "a", b"1") + entry_line("B", "a", b"2"), 2)
        writer.finish(exact=True)
        file.seek(0)
        source = input_file.open_input("dump", file)
        with pytest.raises(HazardRefused, match="only the last one stays"):
            await ref_files.load(repo, "main", source, LoadOptions())
        await ref_files.load(repo, "main", source, LoadOptions(shorter_history=True))
        assert [one.value for one in await repo.entries("main")] == [b"2"]
