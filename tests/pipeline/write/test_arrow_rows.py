"""Columns that can be written, and batches converted to rows."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kvctl.errors import UsageError
from kvctl.pipeline.write.arrow_rows import check_columns, chunk_of
from kvctl.pipeline.write.decision import WriteMode

KEY, VALUE = StructField("key", StringType()), StructField("value", BinaryType())


@pytest.mark.guarantee("pipeline-10")
@pytest.mark.parametrize(
    ("columns", "mode", "message", "hint"),
    [
        ([StructField("key", LongType()), VALUE], "put", "Column `key` has type bigint, not string", "Cast it"),
        ([StructField("kei", StringType()), VALUE], "put", "Unknown column `kei`", "Did you mean `key`?"),
        ([KEY, StructField("x", LongType())], "put", "Unknown column `x`", "Columns are"),
        ([KEY], "put", "Column `value` is missing", "Columns are key, value"),
        ([VALUE], "put", "Column `key` is missing", "Columns are key, value"),
        (
            [KEY, StructField("value", DecimalType(2, 1))],
            "put",
            "Column `value` has type decimal(2,1), not binary or",
            "Cast it to binary",
        ),
        ([KEY, VALUE], "update", "Column `revision` is missing", "in mode update also revision"),
        ([KEY, VALUE, VALUE], "put", "Column `value` occurs twice", "None"),
    ],
)
def test_columns_that_cannot_be_written_are_named(columns, mode, message, hint):
    with pytest.raises(UsageError) as caught:
        check_columns(StructType(columns), WriteMode(mode))
    assert caught.value.message.startswith(message)
    assert hint in str(caught.value.hint)


def test_columns_of_a_reading_are_taken():
    read = [
        KEY,
        VALUE,
        StructField("revision", LongType()),
        StructField("created", TimestampType()),
        StructField("operation", StringType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("ttl", DoubleType()),
        StructField("bucket", StringType()),
        StructField("origin", StringType()),
    ]
    for mode in WriteMode:
        check_columns(StructType(read), mode)
    check_columns(StructType([KEY, StructField("operation", StringType())]), WriteMode.PUT)
    check_columns(
        StructType([KEY, StructField("value", StringType()), StructField("ttl", IntegerType())]), WriteMode.PUT
    )


def test_rows_that_cannot_be_written_are_separated():
    rows = [
        {"key": "fine", "value": "ö", "operation": "PUT"},
        {"key": None, "value": "", "operation": None},
        {"key": "a.*", "value": "", "operation": None},
        {"key": "_kv.x", "value": "", "operation": None},
        {"key": "none", "value": None, "operation": None},
        {"key": "gone", "value": None, "operation": "DEL"},
        {"key": "odd", "value": "", "operation": "del"},
        {"key": "short", "value": "", "operation": None, "ttl": 0.5},
        {"key": "never", "value": "", "operation": None, "ttl": float("nan")},
        {"key": "head", "value": "", "operation": None, "headers": [("a b", "c")]},
    ]
    kinds = [
        ("key", pa.string()),
        ("value", pa.string()),
        ("operation", pa.string()),
        ("ttl", pa.float64()),
        ("headers", pa.map_(pa.string(), pa.string())),
    ]
    chunk = chunk_of(pa.RecordBatch.from_pylist(rows, pa.schema(kinds)), 100, WriteMode.PUT)
    assert chunk.bad == {
        1: "The key is null",
        2: "`a.*` is not a key: keys cannot contain wildcards",
        3: "`_kv.x` is reserved",
        4: "The value is null, and the row does not delete its key",
        6: "`del` is not an operation: use PUT, DEL or PURGE",
        7: "The ttl of a key must be at least 1 second",
        8: "`nan` is not a ttl",
        9: "Header `a b` cannot be sent",
    }
    assert [(row.line, row.key, row.value, str(row.operation)) for row, _ in map(chunk.asked, chunk.places())] == [
        (100, "fine", "ö".encode(), "PUT"),
        (105, "gone", b"", "DEL"),
    ]


def test_headers_with_server_side_effects_are_not_written():
    headers = [("Nats-Rollup", "all"), ("Nats-Msg-Id", "1"), ("Kvctl-Row", "x.0.0"), ("Color", "red")]
    kinds = [("key", pa.string()), ("value", pa.binary()), ("headers", pa.map_(pa.string(), pa.string()))]
    rows = [{"key": "a", "value": b"", "headers": headers}]
    chunk = chunk_of(pa.RecordBatch.from_pylist(rows, pa.schema(kinds)), 0, WriteMode.PUT)
    assert chunk.header(0) == b"NATS/1.0\r\nColor: red\r\n\r\n"


@pytest.mark.parametrize(
    ("operation", "header", "stored"),
    [
        ("PUT", ("KV-Operation", "DEL"), "DEL"),
        (None, ("KV-Operation", "PURGE"), "PURGE"),
        ("PUT", ("KV-Operation", "odd"), "DEL"),
        ("PUT", ("Nats-Marker-Reason", "MaxAge"), "PURGE"),
        ("DEL", ("KV-Operation", "PURGE"), "PURGE"),
        ("PURGE", ("KV-Operation", "DEL"), "DEL"),
        ("DEL", ("KV-Operation", "odd"), None),
        ("DEL", ("Nats-Marker-Reason", "MaxAge"), None),
        ("PUT", ("kv-operation", "DEL"), None),
    ],
)
def test_row_whose_headers_are_another_operation_is_refused(operation, header, stored):
    """Readers would see a value as deleted."""
    kinds = [("key", pa.string()), ("value", pa.binary()), ("operation", pa.string())]
    kinds.append(("headers", pa.map_(pa.string(), pa.string())))
    rows = [{"key": "a", "value": b"x", "operation": operation, "headers": [header]}]
    chunk = chunk_of(pa.RecordBatch.from_pylist(rows, pa.schema(kinds)), 0, WriteMode.PUT)
    asked = operation or "PUT"
    assert chunk.bad == ({0: f"The operation is {asked}, but its headers make it a {stored}"} if stored else {})


def test_a_condition_needs_a_revision():
    kinds = [("key", pa.string()), ("value", pa.binary()), ("revision", pa.int64()), ("operation", pa.string())]
    rows = [{"key": f"k{n}", "value": b"", "revision": n, "operation": "DEL"} for n in (0, None, -1, 7)]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(kinds))
    assert chunk_of(batch, 0, WriteMode.UPDATE).bad == {1: "The revision is null", 2: "Invalid revision -1"}
    assert set(chunk_of(batch, 0, WriteMode.CREATE).bad.values()) == {"Mode create does not allow deletions"}
