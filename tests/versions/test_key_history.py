"""History of keys, commit by commit; revisions of staged changes; loads and dumps of a branch."""

import io
import json
from typing import Any

import pytest

import kvctl
from kvctl.errors import HazardRefused, UsageError
from kvctl.kv.bulk import input_file
from kvctl.kv.bulk.bulk_writer import RowCounts
from kvctl.kv.bulk.dump_file import DumpWriter, entry_line
from kvctl.kv.bulk.loader import LoadOptions
from kvctl.kv.bulk.rows import Mode
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.transfer import ref_files
from tests.versions.concurrency.steps import Fuse, SteppedStore, at_every_step
from tests.versions.repos import committed, held, seal


async def begun() -> Repository:
    made = Repository(MemoryStore(), author="ann")
    await made.init()
    return made


@pytest.fixture
async def repo():
    """A repository in memory."""
    return await begun()


@pytest.fixture
async def stored(client, unique):
    """A repository on a server."""
    return await kvctl.Repositories(client).create(unique("R"))


async def versions(repo: Repository, ref: str = "main", *filters: str) -> list[tuple[str, bytes | None, str | None]]:
    return [
        (one.key, one.value, one.commit.message if one.commit else None)
        async for batch in repo.key_history(ref, filters)
        for one in batch
    ]


class TestHistory:
    async def test_history_lists_changes_by_commit_oldest_first_and_staged_ones_last(self, repo):
        await committed(repo, "main", "one", a=b"1", b=b"1")
        await committed(repo, "main", "two", a=b"2", b=None)
        await repo.put("main", "c", b"3")
        assert await versions(repo) == [
            ("a", b"1", "one"), ("b", b"1", "one"), ("a", b"2", "two"), ("b", None, "two"), ("c", b"3", None)
        ]  # fmt: skip
        assert await versions(repo, "main@", "b") == [("b", b"1", "one"), ("b", None, "two")]
        assert await versions(repo, "main~1", "a") == [("a", b"1", "one")]

    @pytest.mark.guarantee("versions-4")
    async def test_merge_counts_for_keys_that_differ_from_all_its_parents(self, repo):
        await committed(repo, "main", "base", a=b"0", b=b"0")
        await repo.create_branch("try")
        await committed(repo, "main", "left", a=b"1")
        await committed(repo, "try", "right", b=b"1")
        await repo.merge("try", "main", "merge")
        assert [message for *_, message in await versions(repo, "main", "a", "b")] == ["base", "base", "left", "right"]

    async def test_concurrent_commit_at_any_step_hides_no_change(self):
        """Each change is listed as staged or by its commit; it is never missing."""

        async def scenario(fuse: Fuse) -> None:
            repo = await begun()
            await repo.put("main", "a", b"1")
            fuse.then = lambda: repo.commit("main", "meanwhile")
            assert [key for key, *_ in await versions(Repository(SteppedStore(repo.store, fuse)))] == ["a"]

        assert await at_every_step(scenario, kill=False) > 2

    async def test_large_values_are_complete(self, repo):
        await committed(repo, "main", "one", a=b"x" * 100_000)
        assert await versions(repo) == [("a", b"x" * 100_000, "one")]


class TestRevisions:
    async def test_revisions_are_the_streams_and_increase(self, stored):
        first = await stored.put("main", "a", b"1")
        second = await stored.put("main", "a", b"1")
        assert second > first > 10**15
        assert [one.revision for one in await stored.entries("main")] == [second]

    async def test_only_staged_values_have_a_revision_that_of_their_newest_change(self, repo):
        await committed(repo, "main", "one", c=b"1")
        await repo.put("main", "a", b"1")
        made = {"b": await repo.put("main", "b", b"1")}
        await seal(repo.store, "main")
        made |= await repo.put_many("main", {"a": b"2", "d": None})
        staged = {key: made[key] for key in ("a", "b")}
        found = await repo.get("main", "a", "b", "c")
        assert {one.key: one.revision for one in found if one} == {**staged, "c": None}
        assert {one.key: one.revision for one in await repo.entries("main")} == {**staged, "c": None}
        assert {one.key: one.revision for one in (await repo.status("main")).changes} == staged
        listed = [one async for batch in repo.key_history("main") for one in batch]
        assert {one.key: one.revision for one in listed} == {**staged, "c": None}


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
