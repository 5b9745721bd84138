"""Rows in files: every value of an export comes back byte for byte, and tables from elsewhere are read."""

import random
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import parquet
from pyspark.sql import DataFrame

from kvctl.errors import UsageError
from kvctl.pipeline.read.columns import PROBLEM
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.spark.tasks import over_rows
from kvctl.pipeline.tables import file_rows
from kvctl.pipeline.tables import parts as table_parts
from kvctl.pipeline.tables.parts import COLUMNS, PartForm
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.tables.stored_table import DELTA, StoredTable
from tests.pipeline.tables.test_stored_table import origin_of
from tests.support.differences import differences

ODD = [
    *b'| |  lead|trail \t|\0|#c|\\|"|""|\\"|a"b|a\\"b,c|,|x\\|\r|\n|\r\n|a\nb|null|NaN|1.0|true|\x7f'.split(b"|"),
    *b"\xff\xfe|\xed\xa0\x80|\xc0\x80".split(b"|"),
    *(text.encode() for text in "é\u2028\u0085|\ufeffx|\U0001f600".split("|")),
    bytes(range(256)),
    bytes(range(256)) * 4096,
    b"x" * 1_048_576,
]
"""Among them two of a megabyte; base64 of the first has more characters than MIME puts into a line."""


def write(rows: DataFrame, folder: Path) -> StoredTable:
    """Write rows as an export does, in a task for each partition; return a table of the files."""
    place = TablePlace(str(folder))
    written = over_rows(rows.select(*COLUMNS), partial(table_parts.write, form=PartForm.of(place)))
    files = tuple(part for one in written for part in one.parts)
    return StoredTable(place, DELTA, origin_of(columns=COLUMNS, mode="history"), files)


def values() -> list[bytes]:
    """Unusual values, random bytes, and random text of characters that are special in some format."""
    chance = random.Random(7)
    alphabet = "\"\\,' #;\té\ufeff\u2028\u0085\U0001f600{}[]:\n\r\0a"
    texts = ["".join(chance.choices(alphabet, k=chance.randrange(7))).encode() for _ in range(1500)]
    return [*ODD, *(chance.randbytes(chance.randrange(7)) for _ in range(1500)), *texts]


@pytest.fixture(scope="module")
def rows(spark):
    """Entries with those values, in two partitions; every tenth with a ttl and headers."""
    found = [
        (f"a.{n}" if n % 3 else f"k{n}", value, n + 1, "PUT", *((60.5, {"X": '"1,2'}) if n % 10 == 0 else (None, None)))
        for n, value in enumerate(values())
    ]
    schema = "key string, value binary, revision bigint, operation string, ttl double, headers map<string, string>"
    frame = spark.createDataFrame(found, schema).selectExpr("*", "timestamp '2026-11-21 10:00:00.000009' as created")
    return frame.repartition(2)


@pytest.mark.guarantee("pipeline-21")
def test_values_come_back_byte_for_byte(rows, engine, spark, tmp_path):
    folder = tmp_path / "an [odd] {folder}, 100%3D #1"
    table = write(rows, folder)
    assert len(table.parts) == 2
    found = sorted(file_rows.rows_of(table).frame(engine).collect(), key=lambda row: row.revision)
    assert [bytes(row.value) for row in found] == values()
    assert [(row.ttl, row.headers) for row in found[:11:10]] == [(60.5, {"X": '"1,2'})] * 2
    assert {row.operation for row in found} == {"PUT"}
    assert (found[1].ttl, found[1].headers) == (None, None)
    files = {row["revision"]: row for row in parquet.read_table(folder).to_pylist()}  # as other tools read them
    assert [files[n + 1]["value"] for n in range(len(files))] == values()


def test_marker_has_no_value(engine, spark, tmp_path):
    schema = "key string, value binary, revision bigint, operation string, ttl double, headers map<string, string>"
    found = [("a", None, 1, "DEL", None, None), ("b", b"x", 2, "PURGE", None, None), ("c", b"", 3, "PUT", None, None)]
    frame = spark.createDataFrame(found, schema).selectExpr("*", "timestamp '2026-11-21 10:00:00' as created")
    manifest = write(frame.coalesce(1), tmp_path / "out")
    read = file_rows.rows_of(manifest).frame(engine).orderBy("key").collect()
    assert [row.value for row in read] == [None, b"x", b""]


def test_a_delta_table_of_others_is_read_with_the_values_of_its_partitions(engine, tmp_path):
    table = pa.table({"id": [1, 2, 3], "v": ["x", "y", None], "day": ["a", "a", "b"]})
    write_deltalake(str(tmp_path / "t"), table, partition_by=["day"])
    write_deltalake(str(tmp_path / "t"), table.slice(0, 1), mode="append")
    place = TablePlace(str(tmp_path / "t"))
    for column, expected in (("v", [b"x", b"x", b"y", None]), ("day", [b"a", b"a", b"a", b"b"])):
        found = file_rows.read_table(engine, place, "delta", "id", column).orderBy("key").collect()
        assert [row.key for row in found] == ["1", "1", "2", "3"]
        assert [row.value and bytes(row.value) for row in found] == expected


def test_a_file_is_shared_by_tasks_in_row_groups(tmp_path):
    rows = pa.table({"key": [f"k{n}" for n in range(100)], "value": [b"v"] * 100})
    parquet.write_table(rows, tmp_path / "p.parquet", row_group_size=7)
    shares = [file_rows.FileShare(TablePlace(str(tmp_path)), "p.parquet", number, 4) for number in range(4)]
    read = [
        [key for batch in file_rows.read_share(share, ["key"]) for key in batch["key"].to_pylist()] for share in shares
    ]
    assert all(read)
    assert sorted(key for keys in read for key in keys) == sorted(f"k{n}" for n in range(100))


TABLES = {
    "json": '{"id": 1, "v": "x", "o": {"b": 1, "a": [true, null, 1.50]}}\n{"id": 2, "v": 1.10}\n',
    "csv": 'id,v,o\n1,x,"a ""quoted"", b"\n2,,"two\nlines"\n',
    "tsv": "id\tv\to\n1\tx\ta,b\n2\t\t\n",
}


@pytest.mark.parametrize(
    ("format", "column", "expected"),
    [
        pytest.param("json", "v", [b"x", b"1.10"], marks=pytest.mark.slow),
        ("json", "o", [b'{"b": 1, "a": [true, null, 1.50]}', None]),
        pytest.param("csv", "v", [b"x", b""], marks=pytest.mark.slow),
        ("csv", "o", [b'a "quoted", b', b"two\nlines"]),
        ("tsv", "o", [b"a,b", b""]),
    ],
)
def test_foreign_table_is_read_as_text(format, column, expected, engine, spark, tmp_path):
    path = tmp_path / f"table.{format}"
    path.write_text(TABLES[format])
    assert file_rows.format_of(TablePlace(str(path))) == format
    found = file_rows.read_table(engine, TablePlace(str(path)), format, "id", column).orderBy("key").collect()
    assert [row.key for row in found] == ["1", "2"]
    assert [None if row.value is None else bytes(row.value) for row in found] == expected


PROBLEMS = {
    "csv": (
        "key,value,encoding,ttl\na,1,,\nA,/w==,base64,30\nB,x,utf-8,\n"
        "b,hello, world,utf-8,\nc\nd,%%,base64,\ne,x,gzip,\nf,x,,30s\n",
        {"a": (b"1", None), "A": (b"\xff", 30.0), "B": (b"x", None)},
        {"b": "of fields", "c": "of fields", "d": "not base64", "e": "`gzip` is not an", "f": "`30s` is not a t"},
    ),
    "json": ('{"key": "a", "value": "1"}\n{"key": "b", "value"\n', {"a": (b"1", None)}, {None: "not a JSON object"}),
}


@pytest.mark.parametrize("format", ["csv", "json"])
def test_rows_that_would_lose_data_are_reported(format, engine, spark, tmp_path):
    text, fine, expected = PROBLEMS[format]
    (tmp_path / "t").write_text(text)
    found = file_rows.read_table(engine, TablePlace(str(tmp_path / "t")), format, "key", "value").collect()
    whole = [row.asDict() for row in found if row[PROBLEM] is None]
    assert {row["key"]: (bytes(row["value"]), row.get("ttl")) for row in whole} == fine
    problems = {row.key: row[PROBLEM] for row in found if row[PROBLEM] is not None}
    assert problems.keys() == expected.keys()
    assert all(expected[key] in problems[key] for key in expected)


def test_files_of_a_table_with_columns_in_another_order_are_refused(engine, spark, tmp_path):
    for name, heading in (("a.csv", "key,value"), ("b.csv", "value,key")):
        (tmp_path / name).write_text(f"{heading}\nx,y\n")
    with pytest.raises(Exception, match="header"):
        file_rows.read_table(engine, TablePlace(str(tmp_path)), "csv", "key", "value").collect()


def test_binary_keys_that_are_not_utf_8_are_reported(engine, spark, tmp_path):
    frame = spark.createDataFrame([(b"a", "x"), (b"\xff", "y")], "key binary, value string")
    frame.coalesce(1).write.parquet(str(tmp_path / "t"))
    found = file_rows.read_table(engine, TablePlace(str(tmp_path / "t")), "parquet", "key", "value").collect()
    assert [(row.key, row[PROBLEM]) for row in found] == [("a", None), (None, "The key is not UTF-8")]


def test_bytes_and_numbers_of_a_parquet_table(engine, spark, tmp_path):
    row = (7, b"\xff", 1.5, {"a": None, "b": 1})
    frame = spark.createDataFrame([row], "n int, `odd``name` binary, d double, s struct<a: int, b: int>")
    frame.write.parquet(str(tmp_path / "t"))
    read = lambda value: file_rows.read_table(engine, TablePlace(str(tmp_path / "t")), "parquet", "n", value).first()  # noqa: E731
    assert (read("odd`name").key, bytes(read("odd`name").value)) == ("7", b"\xff")
    assert bytes(read("d").value) == b"1.5"
    assert bytes(read("s").value) == b'{"a":null,"b":1}'


def test_missing_column_is_named(engine, spark, tmp_path):
    (tmp_path / "t.csv").write_text("id,v\n1,x\n")
    with pytest.raises(UsageError, match="no column `key`") as raised:
        file_rows.read_table(engine, TablePlace(str(tmp_path / "t.csv")), "csv", "key", "v")
    assert raised.value.hint == "Set `--key` to one of `id`, `v`"


@pytest.mark.parametrize("range_bytes", [1 << 30, 40_000, 1])
def test_rows_are_divided_into_ranges_of_keys_and_sorted(rows, engine, tmp_path, monkeypatch, range_bytes):
    monkeypatch.setattr(tasks, "RANGE_BYTES", range_bytes)
    table = write(
        rows.union(rows.selectExpr("key", "value", "revision + 100000 as revision", *rows.columns[3:])), tmp_path
    )
    sorted_rows = file_rows.rows_of(table, ["key", "value", "revision"])
    found = tasks.over(engine, sorted_rows, lambda batches: [pa.Table.from_batches(batches)], "revision")
    ranges = [part.to_pylist() for part in found]
    assert len(ranges) > 1 or range_bytes > 1 << 20
    for part, following in pairwise(ranges):
        assert max(row["key"] for row in part) < min(row["key"] for row in following)
    for part in ranges:
        assert part == sorted(part, key=itemgetter("revision"))
    whole = [(row["revision"], row["key"], row["value"]) for part in ranges for row in part]
    wanted = [(row.revision, row.key, bytes(row.value)) for row in rows.collect()]
    assert differences(sorted(whole), sorted([*wanted, *((n + 100_000, *rest) for n, *rest in wanted)])) == []


@pytest.mark.parametrize("step", [1, 7_919])
def test_what_spark_holds_of_rows_that_are_divided_does_not_grow_with_the_ranges(monkeypatch, step):
    """`partitionBy` sends nothing before it holds ten pieces for each range."""
    monkeypatch.setattr(tasks, "RUN_BYTES", 40_000)
    keys = [f"k.{number * step % 20_000:05d}" for number in range(20_000)]
    batches = pa.table({"key": keys, "value": [b"v" * 20] * len(keys)}).to_batches(100)
    bounds = sorted(keys)[400::400]
    pieces = [pa.Table.from_batches(piece) for _, piece in tasks._divided(batches, bounds)]
    assert sum(map(len, pieces)) == len(keys)
    sizes = [piece.nbytes for piece in pieces]
    held = 10 * (len(bounds) + 1)
    assert max(sum(sizes[at : at + held]) for at in range(len(sizes))) < 12 * tasks.RUN_BYTES < sum(sizes)


def test_parquet_with_types_that_spark_does_not_read_is_read(engine, tmp_path):
    """As pandas and DuckDB write them."""
    columns = {
        "id": pa.array([1, 2], pa.uint32()),
        "ns": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns")),
        "time": pa.array([45_296_000_001_000, None], pa.time64("ns")),
        "ms": pa.array([1_700_000_000_123, None], pa.timestamp("ms")),
    }
    (tmp_path / "t").mkdir()
    parquet.write_table(pa.table(columns), tmp_path / "t" / "a.parquet")
    parquet.write_table(pa.table(columns), tmp_path / "t" / "b.parquet", row_group_size=1)
    expected = {"ns": b"2023-11-14 22:13:20.123456", "time": b"12:34:56.000001", "ms": b"2023-11-14 22:13:20.123"}
    for path, count in (("t", 2), ("t/a.parquet", 1)):
        place = TablePlace(str(tmp_path / path))
        for column, value in expected.items():
            found = file_rows.read_table(engine, place, "parquet", "id", column).collect()
            assert sorted((row.key, row.value and bytes(row.value)) for row in found) == (
                [("1", value)] * count + [("2", None)] * count
            )
