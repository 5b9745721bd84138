"""Exports of buckets on real Spark: the bucket as of one revision, complete or absent."""

import re
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from kvctl.errors import BucketNotFound, ConflictError, KvctlError
from kvctl.pipeline.jobs.export import ExportResult, export, of_bucket
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.parts import COLUMNS
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.tables.stored_table import StoredTable
from tests.support.proxy import DOWN, Proxy, Replace
from tests.support.raw import RawClient


@pytest.fixture
def exported(engine, server, tmp_path):
    """Exports a bucket into `out`: `exported(bucket, mode="history")`."""

    def run(
        bucket: str,
        to: Path = tmp_path / "out",
        *,
        mode: str = "latest",
        filters: tuple[str, ...] = (),
        on_evicted: str = "newer",
        **settings: object,
    ) -> ExportResult:
        options = SourceOptions(bucket=bucket, url=server.url, mode=mode, filter=filters, on_evicted=on_evicted)
        return export(engine, lambda: of_bucket(options), TablePlace(str(to)), **settings)  # type: ignore[arg-type]

    return run


def opened(folder: Path) -> StoredTable:
    """The table of an export, whose files are all there."""
    table = stored_table.open_table(TablePlace(str(folder)))
    assert stored_table.damages(table) == []
    return table


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of an export, by revision."""
    files = [folder / part.name for part in opened(folder).parts]
    rows = [row for path in files for row in parquet.read_table(path).to_pylist()]
    return sorted(rows, key=lambda row: row["revision"])


def test_export_has_existing_keys_and_names_its_revision(exported, fill, raw, tmp_path):
    bucket = fill({"a.1": b"x", "a.2": b"gone", "b.1": b"\xff"})
    raw.put(bucket, "a.2", b"", {"KV-Operation": "DEL"})
    made = exported(bucket)
    table, origin = opened(tmp_path / "out"), opened(tmp_path / "out").origin
    assert made.table.origin == origin
    assert (origin.bucket, origin.cut, table.rows, origin.newer, origin.mode) == (bucket, 4, 2, 0, "latest")
    assert origin.config["name"] == f"KV_{bucket}"
    rows = rows_of(tmp_path / "out")
    assert [(row["key"], row["value"]) for row in rows] == [("a.1", b"x"), ("b.1", b"\xff")]
    assert list(rows[0]) == list(COLUMNS)


def test_export_of_history_has_every_entry(exported, fill, raw, tmp_path):
    bucket = fill({"a": b"1"}, max_msgs_per_subject=5)
    raw.put(bucket, "a", b"2")
    raw.put(bucket, "a", b"", {"KV-Operation": "DEL"})
    exported(bucket, mode="history")
    entries = [(row["revision"], row["operation"], row["value"]) for row in rows_of(tmp_path / "out")]
    assert entries == [(1, "PUT", b"1"), (2, "PUT", b"2"), (3, "DEL", None)]


def test_export_has_the_keys_of_its_filters(exported, fill, tmp_path):
    bucket = fill({"a.1": b"x", "a=b/c.2": b"y", "b.1": b"z", "lone": b"w"})
    made = exported(bucket, filters=("a.>", "a=b/c.*", "lone"))
    assert [row["key"] for row in rows_of(tmp_path / "out")] == ["a.1", "a=b/c.2", "lone"]
    assert made.table.origin.filters == ("a.>", "a=b/c.*", "lone")


def test_export_of_an_empty_bucket_is_empty(exported, fill, tmp_path):
    made = exported(fill({}))
    assert (made.table.rows, made.table.origin.cut) == (0, 0)
    assert opened(tmp_path / "out")


def test_export_excludes_writes_after_the_cut(engine, fill, raw, server, tmp_path):
    bucket = fill({"a": b"1", "b": b"1"}, max_msgs_per_subject=3)
    found = of_bucket(SourceOptions(bucket=bucket, url=server.url))
    raw.put(bucket, "a", b"2")
    raw.put(bucket, "b", b"", {"KV-Operation": "DEL"})
    raw.put(bucket, "c", b"2")
    made = export(engine, lambda: found, TablePlace(str(tmp_path / "out")))
    assert (made.table.origin.cut, made.table.origin.exact) == (2, True)
    assert [(row["key"], row["value"]) for row in rows_of(tmp_path / "out")] == [("a", b"1"), ("b", b"1")]


@pytest.mark.guarantee("pipeline-22")
def test_export_takes_and_counts_newer_values_of_evicted_entries(engine, fill, raw, server, tmp_path):
    bucket = fill({"a": b"1", "b": b"1", "c": b"1"})
    found = of_bucket(SourceOptions(bucket=bucket, url=server.url))
    raw.put(bucket, "a", b"2")
    raw.put(bucket, "b", b"", {"KV-Operation": "DEL"})
    made = export(engine, lambda: found, TablePlace(str(tmp_path / "out")))
    assert (made.table.origin.cut, made.table.origin.exact, made.table.origin.newer) == (3, False, 2)
    assert [(row["key"], row["value"]) for row in rows_of(tmp_path / "out")] == [("c", b"1"), ("a", b"2")]


@pytest.mark.guarantee("pipeline-22")
def test_concurrent_writers_do_not_affect_the_cut(exported, fill, server, tmp_path):
    """Keys are overwritten in turn, never more often than history holds: each row is the last one up to the cut."""
    count = 200
    bucket = fill(max_msgs_per_subject=64)
    under_way = threading.Event()

    def write() -> None:
        with RawClient(server.url) as writer:
            for number in range(50 * count):
                writer.put(bucket, f"k.{number % count}", b"%d" % (number + 1))
                if number == 2 * count:
                    under_way.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert under_way.wait(120)
    made = exported(bucket)
    thread.join()
    cut = made.table.origin.cut
    assert cut
    assert made.table.origin.exact
    assert [row["revision"] for row in rows_of(tmp_path / "out")] == list(range(cut - count + 1, cut + 1))
    assert all(row["value"] == b"%d" % row["revision"] for row in rows_of(tmp_path / "out"))


@pytest.mark.parametrize("format", stored_table.FORMATS)
def test_overwriting_export_reports_replaced_files(exported, fill, tmp_path, format):
    bucket = fill({"a": b"1"})
    exported(bucket, format=format)
    with pytest.raises(ConflictError, match=r"contains an? (export|Delta table)"):
        exported(bucket, format=format)
    again = exported(bucket, overwrite=True, format=format)
    assert again.removed.files == (1 if format == "delta" else 2)
    assert opened(tmp_path / "out").format == format
    assert [row["key"] for row in rows_of(tmp_path / "out")] == ["a"]


def test_failed_export_leaves_the_previous_one(exported, fill, tmp_path):
    exported(fill({"a": b"1"}))
    with pytest.raises(BucketNotFound):
        exported("NOWHERE", overwrite=True)
    assert opened(tmp_path / "out")
    with pytest.raises(BucketNotFound):
        exported("NOWHERE", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_export_with_missing_rows_fails(exported, fill, tmp_path, monkeypatch):
    """Executors that write to a disk of their own leave nothing here."""
    run = tasks.over_items

    def elsewhere(*given: Any) -> list[Any]:
        written = run(*given)
        for path in (tmp_path / "out").rglob("*.parquet"):
            path.unlink()
        return written

    monkeypatch.setattr(tasks, "over_items", elsewhere)
    with pytest.raises(KvctlError, match=r"1 rows were written, but .* has files with 0") as raised:
        exported(fill({"a": b"1"}))
    assert "On a cluster" in str(raised.value.hint)


def _with_clock(proxy: Proxy, ahead: timedelta) -> None:
    """Have infos of streams say that the server's clock is ahead of this machine's."""

    def later(match: re.Match[bytes]) -> bytes:
        return match[1] + (datetime.fromisoformat(match[2].decode()) + ahead).isoformat().encode()

    stamp = re.compile(rb'("ts":")([-T:\d]{19})')
    proxy.on(stamp, lambda frame: Replace(stamp.sub(later, frame)), way=DOWN, times=None)


@pytest.mark.guarantee("writing-13", by="fault")
@pytest.mark.parametrize(("ahead", "left"), [(timedelta(minutes=30), 1800), (timedelta(minutes=-30), 5400)])
def test_export_computes_remaining_ttl_by_the_servers_clock(fill, raw, server, ahead, left):
    bucket = fill({"plain": b"v"}, allow_msg_ttl=True)
    raw.put(bucket, "k", b"v", {"Nats-TTL": "1h"})
    with Proxy(server.url) as proxy:
        _with_clock(proxy, ahead)
        rows = of_bucket(SourceOptions(bucket=bucket, url=proxy.url)).rows
        batches = [batch for item in rows.items for batch in rows.read(item)]
    found = {row["key"]: row["ttl"] for batch in batches for row in batch.to_pylist()}
    assert found["plain"] is None
    assert left - 120 < found["k"] <= left
