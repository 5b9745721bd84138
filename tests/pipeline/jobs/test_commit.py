"""Commits created and exported by Spark: the same tree as without it."""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvctl.errors import KvctlError, UsageError
from kvctl.pipeline.jobs import commit
from kvctl.pipeline.jobs.commit import CommitResult, of_commit, rehearse
from kvctl.pipeline.jobs.commit import commit as record
from kvctl.pipeline.jobs.export import export, of_bucket
from kvctl.pipeline.jobs.load import open_export, open_table
from kvctl.pipeline.options import parse
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.versions.catalog import RepositoryConfig
from kvctl.versions.commits import HasStagedChanges, NothingToCommit
from kvctl.versions.repositories import create
from kvctl.versions.repository import Repository
from kvctl.versions.tree import tree
from tests.support.differences import differences


@pytest.fixture
def name(unique):
    return unique("CONF")


@pytest.fixture
async def repository(client, name):
    made, _ = await create(client.api, RepositoryConfig(name), author="tests")
    return made


@pytest.fixture
def options(name, repository, server):
    return parse({"bucket": name, "url": server.url})


def content(count: int, seed: int = 0) -> dict[str, bytes]:
    """Return keys and values of all sizes, including those stored separately."""
    chosen = random.Random(seed)
    sizes = (0, 5, 100, 100, 100, 9000)
    return {f"k.{chosen.randrange(10**9)}": chosen.randbytes(chosen.choice(sizes)) for _ in range(count)}


def batched(rows: dict[str, bytes], size: int) -> list[list[str]]:
    keys = list(rows)
    return [keys[start : start + size] for start in range(0, len(keys), size)]


def table(folder: Path, rows: dict[str, bytes]) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"sku": list(rows), "data": list(rows.values())}), path)
    return path


@pytest.fixture
def go(engine, options, tmp_path):
    """Commits rows to `main`, from a table of Parquet."""

    async def go(rows: dict[str, bytes], message: str = "by Spark") -> CommitResult:
        source = open_table(TablePlace(str(table(tmp_path, rows))), key="sku", value="data")
        return await asyncio.to_thread(record, engine, source, options, "main", message, meta={"a": "b"}, author="ann")

    return go  # type: ignore[return-value]


async def held(repository: Repository, ref: str = "main") -> dict[str, bytes]:
    return {entry.key: entry.value for entry in await repository.entries(ref)}


async def test_committed_root_equals_that_of_the_same_rows_put_and_committed(client, unique, repository, go):
    rows = content(3000)
    made = await go(rows)
    other, _ = await create(client.api, RepositoryConfig(unique("CONF")), author="tests")
    for keys in batched(rows, 500):
        await other.put_many("main", {key: rows[key] for key in keys})
    assert made.commit.root == (await other.commit("main", "put")).root
    assert (made.rows, made.recorded, made.commit.author, made.commit.meta) == (3000, True, "ann", {"a": "b"})
    assert await held(repository) == rows


async def test_repeated_run_creates_no_second_commit(repository, go):
    rows = content(50)
    first, again = await go(rows), await go(rows)
    assert (again.commit, again.recorded) == (first.commit, False)
    with pytest.raises(NothingToCommit):
        await go(rows, message="another")
    assert len([commit async for commit in repository.log("main")]) == 2


async def test_commit_replaces_the_content_of_the_branch(repository, go):
    await go(content(50, seed=1))
    rows = content(60, seed=2)
    await go(rows)
    assert await held(repository) == rows
    await go({})
    assert await held(repository) == {}


async def test_commit_refuses_staged_changes(repository, go):
    await repository.put("main", "k", b"staged")
    with pytest.raises(HasStagedChanges):
        await go(content(5))
    assert (await repository.status("main")).changes


@pytest.mark.parametrize("rows", [{"no key": b""}, pytest.param({"_kv.a": b""}, marks=pytest.mark.slow)])
async def test_commit_with_invalid_rows_is_refused_completely(repository, go, rows):
    with pytest.raises(UsageError):
        await go({"fine": b"1", **rows})
    assert await held(repository) == {}


async def test_duplicate_key_is_refused(repository, engine, options, tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("key,value\na,1\nb,2\na,3\n")
    source = open_table(TablePlace(str(path)), key=None, value=None, format="csv")
    with pytest.raises(KvctlError, match="`a` occurs twice"):
        await asyncio.to_thread(record, engine, source, options, "main", "m", meta={}, author=None)


@pytest.mark.parametrize("range_bytes", [tasks.RANGE_BYTES, pytest.param(1_000, marks=pytest.mark.slow)])
async def test_duplicate_key_in_two_files_is_refused(
    repository, engine, options, server, fill, raw, tmp_path, monkeypatch, range_bytes
):
    monkeypatch.setattr(tasks, "RANGE_BYTES", range_bytes)
    bucket = fill({f"k.{number}": b"1" * 10 for number in range(100)}, max_msgs_per_subject=2)
    raw.put(bucket, "k.3", b"again")
    wanted = parse({"bucket": bucket, "url": server.url, "mode": "history", "onEvicted": "fail", "partitions": "4"})
    place = TablePlace(str(tmp_path / "history"))
    made = await asyncio.to_thread(export, engine, lambda: of_bucket(wanted), place)
    assert len(made.table.parts) == 4
    with pytest.raises(KvctlError, match=r"`k\.3` occurs twice"):
        await asyncio.to_thread(record, engine, open_export(place), options, "main", "m", meta={}, author=None)
    assert await held(repository) == {}


async def test_a_rehearsal_counts_checks_and_stores_nothing(client, repository, engine, options, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("key,value\n" + "".join(f"k.{number},{number}\n" for number in range(300)))
    source = open_table(TablePlace(str(path)), key=None, value=None, format="csv")
    before = await client.api.call(f"STREAM.INFO.KVR_{options.bucket}")
    assert await asyncio.to_thread(rehearse, engine, source, options, "main") == 300
    after = await client.api.call(f"STREAM.INFO.KVR_{options.bucket}")
    assert before["state"] == after["state"]
    await asyncio.to_thread(record, engine, source, options, "main", "m", meta={}, author=None)
    with pytest.raises(NothingToCommit):
        await asyncio.to_thread(rehearse, engine, source, options, "main")


async def test_export_of_a_commit_has_the_keys_its_filters_select(repository, go, engine, options, tmp_path):
    rows = content(400) | {f"eu.{number}": b"x" * 500 for number in range(500)}
    await go(rows)
    chosen = replace(options, filter=("eu.2", "k.>"))

    def out() -> Path:
        contents = lambda: of_commit(chosen, "main")  # noqa: E731
        return Path(export(engine, contents, TablePlace(str(tmp_path / "out"))).table.place.uri)

    folder = await asyncio.to_thread(out)
    table = stored_table.open_table(TablePlace(str(folder)))
    assert table.origin.filters == chosen.filter
    files = [folder / part.name for part in table.parts]
    found = [row for path in files for row in pq.read_table(path, columns=["key", "value"]).to_pylist()]
    wanted = {key: value for key, value in rows.items() if key.startswith("k.") or key == "eu.2"}
    assert differences({row["key"]: row["value"] for row in found}, wanted) == []


async def test_leaves_are_read_a_few_at_a_time(repository, go, monkeypatch):
    rows = {f"eu.{number}": b"x" * 500 for number in range(6_000)}
    made = await go(rows)
    leaves = await repository.objects.run(tree.leaves(bytes.fromhex(made.commit.root)))
    monkeypatch.setattr(commit, "READ_AHEAD", 10)
    read, sizes = repository.objects.read, []

    async def measured(wanted: Iterable[bytes], *, keep: bool) -> dict[bytes, bytes]:
        wanted = list(wanted)
        sizes.append(len(wanted))
        return await read(wanted, keep=keep)

    monkeypatch.setattr(repository.objects, "read", measured)
    keys = [key.decode() async for chunk in commit._chunks(repository, leaves) for key in chunk.keys]
    assert keys == sorted(rows)
    assert len(leaves) > 10
    assert max(sizes) == 10


async def test_a_commit_is_exported_and_recorded_elsewhere(
    client, unique, repository, go, engine, options, server, tmp_path, monkeypatch
):
    monkeypatch.setattr(tasks, "RANGE_BYTES", 200_000)
    rows = content(2000)
    made = await go(rows)
    await repository.put("main", "staged", b"1")

    def out() -> Path:
        contents = lambda: of_commit(options, "main")  # noqa: E731
        return Path(export(engine, contents, TablePlace(str(tmp_path / "out"))).table.place.uri)

    monkeypatch.setattr(commit, "A_TASK", 5)  # leaves
    source = open_export(TablePlace(str(await asyncio.to_thread(out))))
    assert (source.table.rows, source.table.origin.ref) == (2000, made.commit.id)
    assert len(source.table.parts) > 3
    elsewhere = unique("CONF")
    await create(client.api, RepositoryConfig(elsewhere), author="tests")
    there = parse({"bucket": elsewhere, "url": server.url})
    assert await asyncio.to_thread(rehearse, engine, source, there, "main") == 2000
    again = await asyncio.to_thread(record, engine, source, there, "main", "copied", meta={}, author=None)
    assert again.commit.root == made.commit.root
    with pytest.raises(NothingToCommit):
        await asyncio.to_thread(rehearse, engine, source, there, "main")
