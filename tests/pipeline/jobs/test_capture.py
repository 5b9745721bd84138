"""Captures into Delta tables: every change once, through restarts, second captures, recreated buckets and losses."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kvctl.errors import BucketNotFound, ConflictError, HazardRefused, HistoryLost, StreamReplaced, UsageError
from kvctl.pipeline.jobs import capture as capture_job
from kvctl.pipeline.jobs.audit import audit
from kvctl.pipeline.jobs.capture import CaptureOrder, CaptureResult, capture
from kvctl.pipeline.jobs.load import Order, load, open_export
from kvctl.pipeline.options import parse
from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.delta import LOG, ROWS, KvTable
from kvctl.pipeline.tables.storage import TablePlace

Capture = Callable[..., CaptureResult]


@pytest.fixture
def place(tmp_path):
    return TablePlace(str(tmp_path / "capture"))


@pytest.fixture
def take(engine, server, place):
    """Capture the existing changes of a bucket into `place`."""

    def take(bucket: str, order: CaptureOrder = CaptureOrder(once=True), **options: str) -> CaptureResult:  # noqa: B008
        return capture(engine, parse({"bucket": bucket, "url": server.url, **options}), place, order)

    return take


def rows_of(place: TablePlace) -> list[dict[str, Any]]:
    """Return the rows of the table's version, by revision."""
    table = stored_table.open_table(place)
    assert stored_table.damages(table) == []
    columns = [pq.read_table(Path(place.uri) / part.name).to_pylist() for part in table.parts]
    return sorted((row for rows in columns for row in rows), key=lambda row: row["revision"])


def captured(place: TablePlace) -> list[tuple[int, str, str, bytes | None]]:
    """Return revision, key, operation and value of all rows."""
    return [(row["revision"], row["key"], row["operation"], row["value"]) for row in rows_of(place)]


@pytest.mark.guarantee("pipeline-29")
def test_every_change_is_captured_once_however_often_it_runs(fill, raw, take, place):
    bucket = fill({"a": b"1", "b": b"2"}, max_msgs_per_subject=5)
    first = take(bucket)
    assert (first.rows, len(first.table.parts), first.table.offset.revision) == (2, 1, 2)
    raw.put(bucket, "a", b"", {"KV-Operation": "DEL"})
    raw.put(bucket, "b", b"\xff\x00")
    again = take(bucket, maxRevisionsPerTrigger="1")
    assert (again.rows, len(again.table.parts), again.table.offset.revision) == (2, 3, 4)
    assert take(bucket).rows == 0
    assert captured(place) == [
        (1, "a", "PUT", b"1"),
        (2, "b", "PUT", b"2"),
        (3, "a", "DEL", None),
        (4, "b", "PUT", b"\xff\x00"),
    ]


def test_foreign_place_and_recreated_bucket_are_refused(fill, raw, take, place):
    bucket = fill({"a": b"1"})
    Path(place.uri).mkdir()
    (Path(place.uri) / "mine").write_bytes(b"")
    with pytest.raises(ConflictError, match="has files that are not a capture"):
        take(bucket)
    (Path(place.uri) / "mine").unlink()
    take(bucket)
    with pytest.raises(ConflictError, match="has a capture with bucket"):
        take(fill({"a": b"1"}))
    with pytest.raises(ConflictError, match="has a capture with mode `changes`"):
        take(bucket, CaptureOrder(once=True, mode="latest"))
    raw.api(f"STREAM.DELETE.KV_{bucket}")
    with pytest.raises(BucketNotFound):
        take(bucket)
    raw.create_bucket(bucket, {"a": b"other"})
    with pytest.raises(StreamReplaced, match="it was recreated"):
        take(bucket)
    assert captured(place) == [(1, "a", "PUT", b"1")]


@pytest.mark.guarantee("pipeline-29")
@pytest.mark.parametrize("mode", ["changes", "latest"])
def test_second_capture_into_the_table_is_a_conflict(mode, fill, raw, take, place, monkeypatch):
    bucket = fill({"a": b"1"})
    order = CaptureOrder(once=True, mode=mode)
    take(bucket, order)
    raw.put(bucket, "b", b"2")
    commit, name = (
        getattr(KvTable, {"changes": "append", "latest": "merge"}[mode]),
        {"changes": "append", "latest": "merge"}[mode],
    )

    def late(table: KvTable, *args: Any, **settings: Any) -> None:
        monkeypatch.setattr(KvTable, name, commit)
        take(bucket, order)
        commit(table, *args, **settings)

    monkeypatch.setattr(KvTable, name, late)
    with pytest.raises(ConflictError, match="Another capture is writing into"):
        take(bucket, order)
    assert [row[0] for row in captured(place)] == [1, 2]


@pytest.mark.parametrize("mode", ["changes", "latest"])
def test_compaction_does_not_stop_a_capture(mode, fill, raw, take, place, monkeypatch):
    bucket = fill({"a": b"1"})
    order = CaptureOrder(once=True, mode=mode)
    take(bucket, order)
    raw.put(bucket, "b", b"2")
    take(bucket, order)
    raw.put(bucket, "a", b"3")
    name = {"changes": "append", "latest": "merge"}[mode]
    commit = getattr(KvTable, name)

    def late(table: KvTable, *args: Any, **settings: Any) -> None:
        other = KvTable.find(place)
        assert other is not None
        other.compact(capture_job.TRIGGER * 7200)
        commit(table, *args, **settings)

    monkeypatch.setattr(KvTable, name, late)
    take(bucket, order)
    assert [row[0] for row in captured(place)] == ([1, 2, 3] if mode == "changes" else [2, 3])


def test_lost_changes_end_the_capture_unless_allowed(fill, raw, take, place):
    bucket = fill({"a": b"1"})
    take(bucket)
    raw.put(bucket, "b", b"2")
    raw.api(f"STREAM.PURGE.KV_{bucket}")
    with pytest.raises(HistoryLost, match="no longer holds revisions 2 to 2"):
        take(bucket)
    assert not take(bucket, failOnDataLoss="false").rows
    raw.put(bucket, "c", b"3")
    assert take(bucket).table.loss == 2
    assert [row[0] for row in captured(place)] == [1, 3]


@pytest.mark.guarantee("pipeline-30")
def test_latest_has_one_row_for_each_key(fill, raw, take, place):
    bucket = fill({f"k{number}": b"old" for number in range(20)}, max_msgs_per_subject=3)
    order = CaptureOrder(once=True, mode="latest")
    take(bucket, order)
    raw.put(bucket, "k0", b"", {"KV-Operation": "DEL"})
    raw.put(bucket, "gone", b"x")
    raw.put(bucket, "gone", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    raw.put(bucket, "k1", b"new", {"Mine": "x"})
    again = take(bucket, order)
    assert again.table.offset.revision == 24
    found = {row["key"]: (row["value"], row["revision"]) for row in rows_of(place)}
    assert found == {f"k{n}": (b"old", n + 1) for n in range(2, 20)} | {"k1": (b"new", 24)}
    raw.put(bucket, "never", b"", {"KV-Operation": "DEL"})
    assert take(bucket, order).table.offset.revision == 25, "a batch that changes no row moves the offset, too"
    assert take(bucket, order).rows == 0


def test_latest_marks_deleted_keys(fill, raw, take, place):
    bucket = fill({"a": b"1", "b": b"2"})
    order = CaptureOrder(once=True, mode="latest", keep_deleted=True)
    take(bucket, order)
    raw.put(bucket, "a", b"", {"KV-Operation": "DEL"})
    take(bucket, order)
    assert captured(place) == [(2, "b", "PUT", b"2"), (3, "a", "DEL", None)]


def test_latest_merges_large_values_in_small_batches(fill, take, place, monkeypatch):
    monkeypatch.setattr(capture_job, "BATCH_BYTES", 20_000)
    sizes = []
    merge = KvTable.merge
    monkeypatch.setattr(
        KvTable,
        "merge",
        lambda table, rows, *args, **more: (sizes.append(rows.nbytes), merge(table, rows, *args, **more)),
    )
    take(fill({f"k{number}": b"x" * 1000 for number in range(60)}), CaptureOrder(once=True, mode="latest"))
    assert len(captured(place)) == 60
    assert max(sizes) < 40_000


def test_values_are_decoded_and_fields_can_be_added(fill, raw, take, place):
    bucket = fill({"a": b'{"sku": "x", "n": 7}', "b": b"no json"}, max_msgs_per_subject=5)
    with pytest.raises(UsageError):
        take(bucket, CaptureOrder(once=True, schema="sku strng"))
    for schema in ("sku string, SKU int", "a struct<b: int, B: int>"):
        with pytest.raises(UsageError, match="several fields of one name"):
            take(bucket, CaptureOrder(once=True, schema=schema))
    assert not place.listing(), "nothing is created"
    take(bucket, CaptureOrder(once=True, schema="sku string"))
    raw.put(bucket, "c", b'{"sku": "y", "n": 8}')
    take(bucket)
    raw.put(bucket, "d", b'{"sku": "z", "n": 9}')
    take(bucket, CaptureOrder(once=True, schema="sku string, n bigint"))
    raw.put(bucket, "e", b'{"sku": 1, "n": "ten"}')
    take(bucket)
    assert [row["json"] for row in rows_of(place)] == [
        {"sku": "x"},
        None,
        {"sku": "y"},
        {"sku": "z", "n": 9},
        {"sku": "1", "n": None},
    ]
    with pytest.raises(UsageError, match=r"`json.sku` has the type string in the table, not integer"):
        take(bucket, CaptureOrder(once=True, schema="sku int"))


def test_gap_in_the_revisions_moves_the_offset(fill, raw, take, place):
    bucket = fill({"a": b"1"}, max_msgs_per_subject=1)
    take(bucket)
    for number in range(5):
        raw.put(bucket, "b", b"%d" % number)
    assert take(bucket, maxRevisionsPerTrigger="2").table.offset.revision == 6
    assert [row[0] for row in captured(place)] == [1, 6]


def test_capture_with_more_entries_than_a_bucket_keeps_is_not_loaded(engine, fill, raw, server, take, place):
    """A bucket without history had each of them; `dump --history` of it never has more than one."""
    bucket = fill({"a": b"1"})
    for value in (b"2", b"3"):
        take(bucket)
        raw.put(bucket, "a", value)
    take(bucket)
    copy = fill({})
    with pytest.raises(HazardRefused, match="up to 3 entries per key, but"):
        load(engine, open_export(place), parse({"bucket": copy, "url": server.url}), Order())
    deep = fill({}, max_msgs_per_subject=3)
    assert load(engine, open_export(place), parse({"bucket": deep, "url": server.url}), Order()).written == 3
    assert load(engine, open_export(place), parse({"bucket": deep, "url": server.url}), Order()).written == 0


@pytest.mark.guarantee("pipeline-23")
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("order", [{}, {"mode": "latest"}, {"mode": "latest", "keep_deleted": True}], ids=str)
def test_log_of_a_capture_that_names_fewer_files_is_damaged(order, compacted, fill, raw, take, place):
    bucket = fill({"a": b"1", "b": b"2", "c": b"3"}, max_msgs_per_subject=5)
    order = CaptureOrder(once=True, **order)
    take(bucket, order)
    raw.put(bucket, "b", b"", {"KV-Operation": "DEL"})
    raw.put(bucket, "never", b"", {"KV-Operation": "DEL"})
    raw.put(bucket, "a", b"4")
    table = take(bucket, order).table
    if compacted:
        table.compact(capture_job.TRIGGER)
        raw.put(bucket, "d", b"4")
        take(bucket, order)
    count = len(rows_of(place))
    log = max((Path(place.uri) / LOG).glob("*.json"))
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"add"' not in line))
    left = stored_table.open_table(place)
    assert left.rows < count
    with pytest.raises(ConflictError, match=f"`{LOG}` names files with {left.rows} rows instead of {count}"):
        open_export(place)


def test_capture_of_an_earlier_version_is_counted_from_then_on(fill, raw, take, place):
    bucket = fill({"a": b"1"})
    take(bucket)
    log = Path(place.uri) / LOG
    for path in log.glob("*.json"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if ROWS not in line))
    assert stored_table.open_table(place).counted is None
    assert len(rows_of(place)) == 1
    raw.put(bucket, "b", b"2")
    take(bucket)
    assert stored_table.open_table(place).counted == len(rows_of(place)) == 2


def test_latest_capture_is_loaded_and_audited_as_an_export_is(engine, fill, raw, server, take, place):
    """Its files are of delta-rs, with types of its own for texts and bytes."""
    bucket = fill({f"k{number}": b"old" for number in range(20)})
    order = CaptureOrder(once=True, mode="latest")
    take(bucket, order)
    raw.put(bucket, "k1", b"\xff", {"Mine": "x"})
    take(bucket, order)
    copy = fill({})
    options = parse({"bucket": copy, "url": server.url})
    table = open_export(place)
    assert load(engine, table, options, Order()).written == 20
    raw.put(copy, "k2", b"other")
    (found,) = audit(engine, options, [copy], timedelta(seconds=1), table=table.table)
    assert (found.error, found.keys) == (None, 20)
    assert [(str(item.kind), item.key) for item in found.samples] == [("differing", "k2")]
