"""Compactions: the bucket restored from its captured changes, in a folder without other content."""

import asyncio
import math
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import kvctl
from kvctl.errors import ConflictError, KvctlError, NotFoundError, UsageError
from kvctl.pipeline.jobs.capture import capture
from kvctl.pipeline.jobs.capture_folder import CaptureFolder
from kvctl.pipeline.jobs.compact import beside, check_places, compact, newest, take_place
from kvctl.pipeline.options import parse
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.tables.stored_table import open_table
from kvctl.server import Server

DELETE, PURGE = {"KV-Operation": "DEL"}, {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}


@pytest.mark.guarantee("pipeline-30")
def test_compaction_equals_the_bucket_and_is_replaced_by_the_next(fill, raw, engine, server, tmp_path):
    bucket = fill({f"k{number}": b"old" for number in range(20)}, max_msgs_per_subject=3)
    folder, changes = tmp_path / "latest", tmp_path / "capture"
    options = parse({"bucket": bucket, "url": server.url})

    def taken() -> bool:
        capture(engine, options, changes, tmp_path / "checkpoint", once=True)
        found = compact(engine, changes, folder)
        living = asyncio.run(living_entries(server, bucket))
        table = ds.dataset(folder).to_table().to_pylist()
        assert {row["key"]: (row["value"], row["revision"]) for row in table} == living
        assert len(table) == len(living) == found.exported.table.rows
        origin = open_table(TablePlace(str(folder))).origin
        assert (origin.bucket, origin.cut) == (bucket, found.exported.table.origin.cut)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["capture", "checkpoint", "latest"]
        return found.replaced

    for number in range(10):
        raw.put(bucket, f"k{number}", b"new")
    raw.put(bucket, "k1", b"", DELETE)
    raw.put(bucket, "k2", b"", PURGE)
    raw.put(bucket, "k19", b"", DELETE)
    assert not taken()
    raw.put(bucket, "k1", b"back")
    raw.put(bucket, "k3", b"", PURGE)
    raw.put(bucket, "empty", b"", {"Custom": "header"})
    assert taken()


@pytest.mark.parametrize("extra", ["notes.txt", "_hidden", "sub/data.parquet"])
def test_folder_with_other_content_is_refused(tmp_path, extra):
    folder = tmp_path / "latest"
    captured(tmp_path / "capture")
    (folder / extra).parent.mkdir(parents=True)
    (folder / extra).write_text("mine")
    with pytest.raises(ConflictError, match="contains files that are not a compaction"):
        check_places(tmp_path / "capture", folder)
    (folder / "_manifest.json").write_text("{}")
    for mark, said in (("", "contains a damaged `_compact.json`"), ('{"bucket": "stock"}', "of bucket `stock`")):
        (folder / "_compact.json").write_text(mark)
        with pytest.raises(ConflictError, match=said):
            check_places(tmp_path / "capture", folder)
    assert (folder / extra).read_text() == "mine"


def test_overlapping_folders_are_refused(tmp_path):
    captured(tmp_path / "capture")
    for folder in (tmp_path / "capture", tmp_path / "capture" / "latest", tmp_path):
        with pytest.raises(UsageError, match="overlap"):
            check_places(tmp_path / "capture", folder)
    with pytest.raises(NotFoundError, match="does not exist"):
        check_places(tmp_path / "nowhere", tmp_path / "latest")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        check_places(tmp_path / "capture", tmp_path / "file")


def test_empty_capture_is_compacted_but_not_one_with_a_missing_file(engine, tmp_path):
    folder = captured(tmp_path / "capture")
    state = folder.existing()
    assert compact(engine, folder.path, tmp_path / "empty").exported.table.rows == 0
    (folder.path / "_capture.json").write_bytes(
        (folder.path / "_capture.json").read_bytes().replace(b'"rows": 0', b'"rows": 5')
    )
    assert folder.existing() != state
    with pytest.raises(ConflictError, match="it captured 5 rows, but its files have 0"):
        compact(engine, folder.path, tmp_path / "latest")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["capture", "empty"]


@pytest.mark.guarantee("pipeline-30")
def test_expired_keys_are_left_out_and_uncover_what_was_before_them(spark):
    now = datetime.now(UTC)
    rows = []

    def entry(key: str, ago: int, *, ttl: float | None = None, operation: str = "PUT") -> None:
        value = None if operation != "PUT" else b"value"
        rows.append((key, value, len(rows) + 1, now - timedelta(seconds=ago), operation, ttl, None))

    entry("plain", 500)
    entry("uncovered", 400)
    entry("pushed out", 400)
    entry("purged", 400)
    entry("uncovered", 390, ttl=60.0)
    entry("gone", 390, ttl=60.0)
    entry("fresh", 100, ttl=10_000.0)
    entry("purged", 380, operation="PURGE")
    entry("purged", 370, ttl=60.0)
    entry("pushed out", 50, ttl=10.0)
    entry("pushed out", 49, ttl=10.0)
    entry("deleted", 5, operation="DEL")
    entry("lasting", 500, ttl=math.inf)
    columns = "key string, value binary, revision bigint, created timestamp, operation string, ttl double, " + (
        "headers map<string, string>"
    )
    changes = spark.createDataFrame(rows, columns)

    def left(**config: int) -> Mapping[str, Any]:
        found = newest(changes, config).collect()
        assert len({row["key"] for row in found}) == len(found)
        return {row["key"]: row["revision"] for row in found if row["operation"] == "PUT"}

    lasting = {"lasting": len(rows)}
    assert left(max_msgs_per_subject=1, allow_msg_ttl=True) == lasting | {"plain": 1, "fresh": 7}
    assert left(max_msgs_per_subject=2, allow_msg_ttl=True) == lasting | {"plain": 1, "uncovered": 2, "fresh": 7}
    assert left(max_msgs_per_subject=3, allow_msg_ttl=True) == {
        "plain": 1,
        "uncovered": 2,
        "pushed out": 3,
        "fresh": 7,
        "lasting": 13,
    }
    assert left(max_msgs_per_subject=1, max_age=395 * 10**9) == lasting | {"fresh": 7}


async def living_entries(server: Server, bucket: str) -> Mapping[str, tuple[bytes, int]]:
    """Return value and revision of the bucket's entries, by the library."""
    async with kvctl.connect(server.url) as client:
        return {entry.key: (entry.value, entry.revision) async for entry in client.bucket(bucket).entries()}


def captured(path: Path) -> CaptureFolder:
    """A capture of bucket `orders` that holds nothing yet."""
    folder = CaptureFolder(path)
    path.mkdir()
    folder.begun("orders", "2026-01-31T12:00:00Z", {})
    return folder


def made(place: Path, text: str) -> Path:
    """A folder with one file."""
    place.mkdir(parents=True)
    (place / "data").write_text(text)
    return place


def test_folder_is_created_and_replaced_without_leftovers(tmp_path):
    folder = tmp_path / "state"
    for text in ("first", "second"):
        with beside(folder) as new:
            take_place(folder, made(new, text))
        assert (folder / "data").read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_failure_leaves_the_folder_unchanged(tmp_path):
    folder = made(tmp_path / "state", "before")
    with beside(folder) as new:
        made(new, "half")
    assert (folder / "data").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("name", ["state", "state [1]*"])
def test_folder_moved_away_by_a_killed_process_is_restored(name, tmp_path):
    folder = tmp_path / name
    made(tmp_path / f".{name}.kvctl-dead" / "old", "before")
    made(tmp_path / f".{name}.kvctl-dead" / "new", "after")
    with beside(folder):
        assert (folder / "data").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_folder_of_a_running_process_is_left_alone(tmp_path):
    folder = tmp_path / "state"
    with beside(folder) as first:
        made(first, "first")
        with beside(folder) as second:
            assert first.exists()
            take_place(folder, made(second, "second"))
        take_place(folder, first)
    assert (folder / "data").read_text() == "first"


def test_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KvctlError, match="Could not write"), beside(tmp_path / "file" / "state"):
        shutil.rmtree(tmp_path)
