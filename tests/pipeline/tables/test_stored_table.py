"""Stored tables, Delta and Parquet: publishing, opening, and detection of every change of their files."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvctl.errors import ConflictError, KvctlError, NotFoundError, UsageError
from kvctl.pipeline.jobs.export import table_schema
from kvctl.pipeline.tables import parts as table_parts
from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.delta import LOG, KvTable
from kvctl.pipeline.tables.origin import Part, TableOrigin, decode, encode
from kvctl.pipeline.tables.parts import PartForm, WrittenRows
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.tables.stored_table import DELTA, MANIFEST, PARQUET, STAGING, StoredTable

LIFE = "2026-11-21T00:00:00Z"


def origin_of(**fields: Any) -> TableOrigin:
    known = {"kind": "export", "bucket": "ORDERS", "instance": LIFE, "config": {"name": "KV_ORDERS"}, "cut": 17}
    return TableOrigin(**{**known, "mode": "latest", "filters": ("a.>",), "created": LIFE, **fields})


def batch(*revisions: int, value: bytes = b"x") -> pa.RecordBatch:
    """Rows of these revisions."""
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    row = {"value": value, "created": at, "operation": "PUT"}
    return pa.RecordBatch.from_pylist(
        [{"key": f"k{number}", "revision": number, **row} for number in revisions], schema=table_schema()
    )


def written(place: TablePlace, *batches: pa.RecordBatch, **settings: Any) -> WrittenRows:
    """Files as one task writes them."""
    (found,) = table_parts.write(batches, PartForm.of(place, **settings))
    return found


def stored(folder: Path, format: str, *groups: list[int], overwrite: bool = False, **origin: Any) -> StoredTable:
    """A table with a file for each group of revisions."""
    place = TablePlace(str(folder))
    stored_table.occupants(place, overwrite=overwrite)
    staging = STAGING if format == PARQUET else ""
    files = [part for group in groups for part in written(place, batch(*group), folder=staging).parts]
    return stored_table.publish(place, format, table_schema(), origin_of(**origin), files, overwrite=overwrite)


@pytest.fixture(params=[DELTA, PARQUET])
def table(request, tmp_path):
    """A table of three files."""
    return stored(tmp_path / "table", request.param, [1], [2, 3], [4, 5, 6])


@pytest.fixture
def folder(table):
    """The folder of the table."""
    return Path(table.place.uri)


def test_published_table_opens_as_it_was_written(table):
    found = stored_table.open_table(table.place)
    assert {part.name: (part.bytes, part.rows, part.sha256) for part in found.parts} == {
        part.name: (part.bytes, part.rows, part.sha256) for part in table.parts
    }
    assert (found.origin, found.format, found.version, found.rows) == (table.origin, table.format, table.version, 6)
    assert stored_table.damages(found) == []
    assert not (Path(table.place.uri) / STAGING).exists()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    path.rename(path.parents[1] / "moved")
    path.symlink_to(path.parents[1] / "moved")


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (flip, "changed"),
    "truncated": (lambda path: os.truncate(path, 5), "truncated"),
    "emptied": (lambda path: os.truncate(path, 0), "truncated"),
    "appended": (lambda path: path.open("ab").write(b"{}\n"), "longer"),
    "removed": (Path.unlink, "missing"),
    "linked": (link, "missing"),
    "a folder in its place": (folder_instead, "missing"),
}


@pytest.mark.guarantee("pipeline-23")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_named(damage, table, folder):
    do, problem = DAMAGES[damage]
    name = table.parts[1].name
    do(folder / name)
    found = {item.problem for item in stored_table.damages(stored_table.open_table(table.place)) if item.file == name}
    assert problem in found
    with pytest.raises(ConflictError, match=name):
        stored_table.require_whole(table)


@pytest.mark.guarantee("pipeline-23")
@pytest.mark.parametrize("name", ["part-9.parquet", "below/part-9.parquet"])
def test_foreign_file_is_found(name, table, folder):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"x")
    assert [(item.file, item.problem) for item in stored_table.damages(table)] == [(name, "extra")]


def test_file_that_delta_rs_wrote_is_read_completely(tmp_path):
    table = stored(tmp_path / "table", DELTA, [1])
    data = pq.read_table(tmp_path / "table" / table.parts[0].name)
    pq.write_table(data, tmp_path / "table" / "own.parquet")
    part = Part("own.parquet", (tmp_path / "table" / "own.parquet").stat().st_size, 1, None)
    table = replace(table, counted=None)
    assert stored_table.damages(replace(table, parts=(part,))) == []
    assert [item.problem for item in stored_table.damages(replace(table, parts=(replace(part, rows=2),)))] == [
        "changed"
    ]
    (tmp_path / "table" / "own.parquet").write_bytes(bytes(part.bytes))
    assert [item.problem for item in stored_table.damages(replace(table, parts=(part,)))] == ["changed"]


def test_changed_manifest_is_refused(tmp_path):
    table = stored(tmp_path / "table", PARQUET, [1])
    path = tmp_path / "table" / MANIFEST
    whole = path.read_bytes()
    for bit in range(0, 8 * 1500, 997):
        data = bytearray(whole)
        data[bit // 8 % (len(data) - 1)] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(ConflictError):
            stored_table.open_table(table.place)


def test_newer_origin_is_refused_by_its_version():
    document = json.loads(encode(origin_of()))
    with pytest.raises(ConflictError, match="has version 2, but this kvctl supports 1"):
        decode(json.dumps({**document, "version": 2}), "x")
    with pytest.raises(ConflictError, match="has been changed"):
        decode(json.dumps({**document, "cut": 18}), "x")


@pytest.mark.parametrize("name", ["/etc/passwd", "../part.json", "a/b", ".a", "_a", "a\\b", ""])
def test_origin_names_no_files_elsewhere(name):
    with pytest.raises(ConflictError, match="names the file"):
        decode(encode(origin_of(), [Part(name, 1, 1, "00")]), "x")


def test_log_names_no_files_elsewhere(tmp_path):
    table = stored(tmp_path / "table", DELTA, [1])
    log = tmp_path / "table" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace(table.parts[0].name, "..%2Fsecret.parquet"))
    with pytest.raises(ConflictError, match=r"names the file|damaged"):
        stored_table.open_table(table.place)


def test_folder_without_a_table_is_none(tmp_path):
    with pytest.raises(NotFoundError, match="does not exist"):
        stored_table.open_table(TablePlace(str(tmp_path / "nowhere")))
    with pytest.raises(ConflictError, match="is not a complete export"):
        stored_table.open_table(TablePlace(str(tmp_path)))


def test_foreign_delta_table_is_refused(tmp_path):
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "table", batch(1))
    with pytest.raises(ConflictError, match="kvctl did not write"):
        stored_table.open_table(TablePlace(str(tmp_path / "table")))


def test_occupied_place_requires_overwrite(table, folder, tmp_path, monkeypatch):
    with pytest.raises(ConflictError, match=r"contains (an export|a Delta table)"):
        stored_table.occupants(table.place, overwrite=False)
    assert stored_table.occupants(table.place, overwrite=True).files == 3 + (table.format == PARQUET)
    (tmp_path / "empty").mkdir()
    assert not stored_table.occupants(TablePlace(str(tmp_path / "empty")), overwrite=False).files
    with pytest.raises(ConflictError, match="not a complete export"):
        stored_table.occupants(TablePlace(str(tmp_path)), overwrite=False)
    with pytest.raises(UsageError, match="is not a folder"):
        stored_table.occupants(TablePlace(str(folder / table.parts[0].name)), overwrite=True)
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match="Refusing to empty"):
        stored_table.occupants(TablePlace(str(tmp_path)), overwrite=True)


@pytest.mark.parametrize("before", [DELTA, PARQUET, "files"])
@pytest.mark.parametrize("after", [DELTA, PARQUET])
def test_overwriting_replaces_whatever_was_there(before, after, tmp_path):
    folder = tmp_path / "table"
    if before == "files":
        (folder / "day=1").mkdir(parents=True)
        (folder / "day=1" / "mine.parquet").write_bytes(b"x")
    else:
        stored(folder, before, [1], [2])
    stored(folder, after, [3, 4], overwrite=True)
    found = stored_table.open_table(TablePlace(str(folder)))
    assert (found.format, found.rows) == (after, 2)
    assert stored_table.damages(found) == []
    assert not (folder / "day=1").exists()
    if before == after == DELTA:
        assert found.version == 1


def test_failed_job_leaves_only_what_was_there(tmp_path):
    table = stored(tmp_path / "table", DELTA, [1])
    before = table.place.listing()
    form = PartForm.of(table.place)
    list(table_parts.write([batch(2)], form))
    stored_table.discard(table.place, form.job)
    assert table.place.listing() == before
    new = TablePlace(str(tmp_path / "new"))
    form = PartForm.of(new, folder=STAGING)
    list(table_parts.write([batch(2)], form))
    stored_table.discard(new, form.job)
    assert not (tmp_path / "new").exists()


def test_failure_after_the_transaction_leaves_the_table(tmp_path):
    place = TablePlace(str(tmp_path / "table"))
    form = PartForm.of(place)
    (one,) = table_parts.write([batch(1)], form)
    stored_table.publish(place, DELTA, table_schema(), origin_of(), one.parts, overwrite=False)
    list(table_parts.write([batch(2)], form))
    stored_table.discard(place, form.job)
    assert stored_table.damages(stored_table.open_table(place)) == []
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 1


def test_statistics_find_rows_by_key_and_time(tmp_path):
    from deltalake import DeltaTable

    stored(tmp_path / "table", DELTA, [1, 2], [8, 9])
    actions = pa.table(DeltaTable(tmp_path / "table").get_add_actions(flatten=True)).to_pylist()
    assert sorted((row["min.key"], row["max.revision"], row["min.created"].hour) for row in actions) == [
        ("k1", 2, 12),
        ("k8", 9, 12),
    ]


def test_a_file_is_limited_in_size(tmp_path, monkeypatch):
    monkeypatch.setattr(table_parts, "GROUP_BYTES", 1)
    monkeypatch.setattr(table_parts, "FILE_BYTES", 1)
    found = written(TablePlace(str(tmp_path / "table")), batch(1), batch(2, 3))
    assert [part.rows for part in found.parts] == [1, 2]


def test_concurrent_creations_make_one_table(tmp_path):
    place = TablePlace(str(tmp_path / "table"))
    stored(tmp_path / "table", DELTA, [1])
    with pytest.raises(ConflictError, match="created by another process"):
        KvTable.create(place, table_schema(), origin_of(), [])


def test_compaction_deletes_nothing_of_others(tmp_path):
    """Neither in a folder that a link leads to, although Delta's log names it, nor a file that no job left."""
    table, outside = stored(tmp_path / "table", DELTA, [1], [2, 3]), tmp_path / "outside"
    folder = Path(table.place.uri)
    outside.mkdir()
    (folder / "sub").symlink_to(outside)
    precious = [outside / "a.parquet", outside / table.parts[0].name, folder / "notes.txt"]
    for path in precious:
        path.write_text("x")
        os.utime(path, (0, 0))
    remove = {"path": f"sub/{table.parts[0].name}", "deletionTimestamp": 0, "dataChange": True, "size": 1}
    (folder / LOG / f"{1:020}.json").write_text(json.dumps({"remove": remove}) + "\n")
    opened = KvTable.find(table.place)
    assert opened is not None
    done = opened.compact(timedelta())
    assert (done.removed, done.vacuumed) == (2, 2)
    assert [path.exists() for path in precious] == [True, True, True]


def test_link_to_the_log_of_another_table_is_refused(tmp_path):
    other = stored(tmp_path / "other", DELTA, [1], [2])
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / LOG).symlink_to(tmp_path / "other" / LOG)
    with pytest.raises(ConflictError, match="its `_delta_log` is a link"):
        KvTable.find(TablePlace(str(tmp_path / "table")))
    assert stored_table.open_table(other.place).version == 0


def test_compaction_of_a_table_with_files_elsewhere_is_refused(tmp_path):
    table = stored(tmp_path / "table", DELTA, [1], [2])
    add = {"path": "../x.parquet", "size": 1, "partitionValues": {}, "modificationTime": 0, "dataChange": True}
    (tmp_path / "table" / LOG / f"{1:020}.json").write_text(json.dumps({"add": add}) + "\n")
    opened = KvTable.find(table.place)
    assert opened is not None
    with pytest.raises(ConflictError, match="it names the file"):
        opened.compact(timedelta())


@pytest.mark.parametrize("form", ["missing", "without rows"])
def test_log_that_names_fewer_rows_is_damaged(form, tmp_path):
    """The files that it does not name look like the rest of a killed job."""
    table = stored(tmp_path / "table", DELTA, [1], [2, 3])
    log = Path(table.place.uri) / LOG / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    last = next(line for line in reversed(lines) if "add" in line)
    if form == "missing":
        lines.remove(last)
    else:
        del last["add"]["stats"]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = stored_table.open_table(table.place)
    (damage,) = stored_table.damages(found)
    assert damage.file == LOG
    assert "rows instead of 3" in damage.detail
    with pytest.raises(ConflictError, match="`_delta_log` names files with"):
        stored_table.require_whole(found)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def without_metadata(path: Path) -> None:
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "metaData" not in line))


def of_another_type(path: Path) -> None:
    path.write_text(path.read_text().replace('"size":', '"size":"x","was":'))


def broken(place: TablePlace) -> None:
    with pytest.raises(ConflictError, match=r"The table in `.*` is damaged: its `_delta_log`") as error:
        stored_table.open_table(place)
    assert error.value.hint is not None
    assert "into another place" in error.value.hint


@pytest.mark.guarantee("pipeline-23")
@pytest.mark.parametrize("damage", [truncate, Path.unlink, without_metadata, of_another_type, folder_instead])
def test_broken_log_is_damage_of_the_table(damage, tmp_path):
    table = stored(tmp_path / "table", DELTA, [1])
    log = Path(table.place.uri) / LOG
    damage(log / f"{0:020}.json")
    if not (log / f"{0:020}.json").is_file():  # without any other, delta-rs takes the place for an empty one
        (log / f"{1:020}.json").write_text('{"commitInfo": {}}\n')
    broken(table.place)


@pytest.mark.guarantee("pipeline-23")
@pytest.mark.parametrize("damage", [truncate, Path.unlink])
def test_broken_checkpoint_is_damage_of_the_table(damage, tmp_path):
    opened = KvTable.find(stored(tmp_path / "table", DELTA, [1]).place)
    assert opened is not None
    opened.compact(timedelta())
    log = tmp_path / "table" / LOG
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    for path in log.glob("*.json"):
        path.unlink()
    damage(checkpoint)
    if damage is Path.unlink:
        (log / f"{5:020}.json").write_text('{"commitInfo": {}}\n')
    broken(opened.place)


def test_table_that_needs_a_newer_delta_is_not_called_damaged(tmp_path):
    log = Path(stored(tmp_path / "table", DELTA, [1]).place.uri) / LOG / f"{0:020}.json"
    log.write_text(log.read_text().replace('"minReaderVersion":1', '"minReaderVersion":99'))
    with pytest.raises(KvctlError, match="Unsupported minimum reader version 99") as error:
        stored_table.open_table(TablePlace(str(tmp_path / "table")))
    assert not isinstance(error.value, ConflictError)
