"""Buckets read by Spark: columns, modes, filters, and nothing left on the server."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import col, lit

from kvctl.errors import BucketNotFound, ContextNotFound, HistoryLost, KvctlError, NoServer, UsageError
from kvctl.pipeline.data_source import KvDataSource
from kvctl.pipeline.error_transport import recall
from kvctl.pipeline.read.columns import schema_of
from kvctl.units import format_time
from tests.pipeline.reading import Read, latest
from tests.support.raw import RawClient
from tests.support.waiting import until

VALUES = {
    "empty": b"",
    "text": "ä\n\t\x00".encode(),
    "binary": bytes(range(256)),
    "large": bytes(1 << 20),
    "a/b=c_d-e.F.0": b"v",
    "-": b"\xff\xfe",
    "k" * 200: b"long key",
    "a.b.c.d.e.f.g.h": b"deep",
}


@pytest.fixture
def load(spark, server):
    """Reads buckets of the shared server."""

    def load(bucket: str, schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("nats-kv").options(url=server.url, bucket=bucket, **options)
        return (reader.schema(schema) if schema else reader).load()

    return load


def refused(work: Callable[[], object]) -> KvctlError:
    """The error that a worker of Spark's raised."""
    with pytest.raises(PySparkException) as raised:
        work()
    error = recall(str(raised.value))
    assert error is not None, str(raised.value)
    return error


@pytest.mark.guarantee("pipeline-5")
def test_every_value_and_key_comes_as_it_was_written(load, fill, raw):
    name = fill(VALUES)
    rows = load(name).collect()
    assert {row.key: bytes(row.value) for row in rows} == VALUES
    assert [row.revision for row in rows] == list(range(1, len(VALUES) + 1))
    assert {row.operation for row in rows} == {"PUT"}
    stored = raw.api(f"STREAM.MSG.GET.KV_{name}", {"seq": 3})["message"]["time"]
    created = load(name).where("revision = 3").selectExpr("cast(created as string)", "unix_micros(created)").first()
    assert created[1] == (datetime.fromisoformat(stored[:26].rstrip("Z")).replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


class TestSeveralBuckets:
    def test_buckets_of_a_list_are_read_with_their_names(self, server, fill):
        one, two = fill({"a": b"1"}), fill({"a": b"2", "b": b"3"})
        rows = Read(server.url, "", buckets=f"{one},{two}").rows()
        assert [(row["bucket"], row["key"], row["value"]) for row in rows] == [
            (one, "a", b"1"),
            (two, "a", b"2"),
            (two, "b", b"3"),
        ]
        assert list(rows[0]) == ["key", "value", "revision", "created", "operation", "bucket"]

    def test_a_pattern_is_a_regular_expression_and_leaves_mirrors_out(self, server, fill, raw, unique):
        name = fill({"a": b"1"})
        raw.create_stream(f"KV_{name}_M", mirror={"name": f"KV_{name}"}, max_msgs_per_subject=1, allow_direct=True)
        raw.create_bucket(f"{name}_B", {"b": b"2"})
        rows = Read(server.url, "", bucketPattern=f"{name}.*", columns="bucket,key").rows()
        assert rows == [{"bucket": name, "key": "a"}, {"bucket": f"{name}_B", "key": "b"}]
        with pytest.raises(BucketNotFound, match=r"No bucket has a name that matches `nothing\.\*`"):
            Read(server.url, "", bucketPattern="nothing.*")

    def test_tasks_are_shared_by_the_buckets(self, server, fill):
        names = [fill({f"k{number}": b"" for number in range(20)}) for _ in range(3)]
        for options, tasks in (({"partitions": "6"}, 6), ({"partitions": "2"}, 3), ({"minPartitions": "7"}, 9)):
            assert len(Read(server.url, "", buckets=",".join(names), mode="changes", **options).parts) == tasks

    def test_a_write_needs_one_bucket(self):
        with pytest.raises(UsageError, match="A write needs the option `bucket`"):
            KvDataSource({"buckets": "a,b"}).writer(schema_of(("key", "value")), False)


class TestTimes:
    @pytest.fixture
    def written(self, fill, raw):
        """Two entries, a pause, and two more; the bucket, and a time in the pause."""
        name = fill({"a": b"1", "b": b"2"}, max_msgs_per_subject=5)
        time.sleep(0.05)
        middle = format_time(time.time_ns())
        time.sleep(0.05)
        raw.put(name, "a", b"3")
        raw.put(name, "c", b"4")
        return name, middle

    @pytest.mark.parametrize(
        ("options", "revisions"),
        [
            ({"mode": "latest"}, [1, 2]),
            ({"mode": "history"}, [1, 2]),
            ({"mode": "changes"}, [1, 2]),
            ({"mode": "changes", "fromRevision": "2"}, [2]),
        ],
    )
    def test_a_read_ends_before_a_time(self, server, written, options, revisions):
        name, middle = written
        rows = Read(server.url, name, endingTime=middle, **options).rows()
        assert sorted(row["revision"] for row in rows) == revisions

    def test_adjacent_times_have_each_change_once(self, server, written):
        name, middle = written
        for options, revisions in (
            ({"startingTime": middle}, [3, 4]),
            ({"startingTime": "-1h", "endingTime": middle}, [1, 2]),
            ({"startingTime": middle, "endingTime": middle}, []),
        ):
            rows = Read(server.url, name, mode="changes", **options).rows()
            assert [row["revision"] for row in rows] == revisions

    def test_a_time_before_everything_reads_nothing_and_one_to_come_reads_all(self, server, written):
        name, _ = written
        for mode, everything in (("latest", 3), ("history", 4), ("changes", 4)):
            assert Read(server.url, name, mode=mode, endingTime="-1h").rows() == []
            future = format_time(time.time_ns() + 10**12)
            assert len(Read(server.url, name, mode=mode, endingTime=future).rows()) == everything


def test_headers_are_a_column_on_request(server, fill, raw):
    name = fill({"a": b"1"})
    raw.put(name, "b", b"2", {"Trace": "7"})
    rows = Read(server.url, name, includeHeaders="true").rows()
    assert [row["headers"] for row in rows] == [None, [("Trace", "7")]]
    rows = Read(server.url, name, includeHeaders="true", columns="key").rows()
    assert [list(row) for row in rows] == [["key", "headers"]] * 2


def test_tasks_are_at_least_as_many_as_asked_for_where_a_read_can_be_divided(server, fill):
    name = fill({f"k{number}": b"" for number in range(10)})
    for mode, tasks in (("changes", 4), ("latest", 1)):
        read = Read(server.url, name, mode=mode, minPartitions="4")
        assert (len(read.parts), len(read.rows())) == (tasks, 10)


_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


@pytest.mark.guarantee("pipeline-4")
def test_modes_give_states_histories_and_changes(server, fill, raw):
    name = fill({"a": b"1", "b": b"1"}, max_msgs_per_subject=5)
    raw.put(name, "a", b"2")
    raw.put(name, "b", b"", {"KV-Operation": "DEL"})
    raw.put(name, "c", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    raw.put(name, "d", b"1")

    def rows(**options: str) -> list[tuple[Any, ...]]:
        columns = ("key", "revision", "operation", "value")
        return [tuple(row[column] for column in columns) for row in Read(server.url, name, **options).rows()]

    living = [("a", 3, "PUT", b"2"), ("d", 6, "PUT", b"1")]
    marked = [("b", 4, "DEL", None), ("c", 5, "PURGE", None)]
    everything = sorted([("a", 1, "PUT", b"1"), ("b", 2, "PUT", b"1"), *living, *marked], key=lambda row: row[1])
    assert rows() == living
    assert rows(includeDeleted="true") == sorted(living + marked, key=lambda row: row[1])
    assert rows(mode="history") == everything
    assert rows(mode="changes") == everything
    assert rows(mode="changes", fromRevision="2", toRevision="5") == everything[1:5]
    assert rows(mode="changes", fromRevision="6", toRevision="99") == everything[5:]
    assert rows(mode="changes", fromRevision="7") == []
    assert rows(filter="a,d") == living
    assert rows(filter="nothing.*") == []


@pytest.mark.guarantee("pipeline-5")
def test_columns_on_demand(server, fill, raw, unique):
    name, mirror, aggregate = fill(allow_msg_ttl=True), unique("M"), unique("A")
    raw.put(name, "own", b"v", {"Content-Type": "text/plain", "Nats-Expected-Last-Subject-Sequence": "0"})
    raw.put(name, "ttl", b"v", {"Nats-TTL": "90s"})
    raw.put(name, "gone", b"", {"KV-Operation": "DEL", "By": "me"})
    columns = {"columns": "key,headers,ttl,bucket,origin", "mode": "history"}
    assert [tuple(row.values()) for row in Read(server.url, name, **columns).rows()] == [
        ("own", [("Content-Type", "text/plain")], None, name, None),
        ("ttl", None, 90.0, name, None),
        ("gone", [("By", "me")], None, name, None),
    ]
    raw.create_stream(mirror, mirror={"name": f"KV_{name}"}, allow_msg_ttl=True)
    moved = {"src": f"$KV.{name}.>", "dest": f"$KV.{aggregate}.>"}
    source = {"name": f"KV_{name}", "subject_transforms": [moved]}
    raw.create_stream(f"KV_{aggregate}", sources=[source], allow_msg_ttl=True)
    for stream in (mirror, f"KV_{aggregate}"):
        until(lambda stream=stream: raw.api(f"STREAM.INFO.{stream}")["state"]["last_seq"] == 3)
    for replica in (mirror, aggregate):
        rows = Read(server.url, replica, columns="key,bucket,origin", mode="history").rows()
        assert [tuple(row.values()) for row in rows] == [(key, replica, name) for key in ("own", "ttl", "gone")]


@pytest.mark.guarantee("pipeline-5")
def test_a_schema_chooses_columns_and_is_checked(load, fill):
    name = fill({"a": b"1"})
    assert load(name, "revision long, key string").collect() == [Row(1, "a")]
    assert load(name, columns="revision, key").columns == ["revision", "key"]
    unknown = refused(load(name, "key string, vlaue binary").collect)
    assert (type(unknown), unknown.message) == (UsageError, "The schema has an unknown column `vlaue`")
    assert "`value`" in (unknown.hint or "")
    assert "Column `value` has type binary, not string" in refused(load(name, "value string").collect).message
    assert "has an unknown column `keys`" in refused(lambda: load(name, columns="keys")).message
    assert "names `key` twice" in refused(lambda: load(name, columns="key,key")).message


@pytest.mark.guarantee("pipeline-5")
def test_without_the_value_none_is_sent(fill, server):
    name = fill({"a": b"1"})
    for columns, sent in (("key,revision", True), ("key,value", False)):
        with RawClient(server.url) as ear:
            ear._send(b"SUB $JS.API.CONSUMER.CREATE.KV_%b.> 9\r\n" % name.encode())
            ear.flush()
            assert len(Read(server.url, name, columns=columns).rows()) == 1
            assert ear._next().json()["config"]["headers_only"] is sent


PREDICATES: dict[str, Callable[[Row], bool]] = {
    "key = 'k.3'": lambda row: row.key == "k.3",
    "key in ('k.1', 'k.2', 'none', null)": lambda row: row.key in ("k.1", "k.2"),
    "key like 'k.1%'": lambda row: row.key.startswith("k.1"),
    "revision between 5 and 9 and key like 'k.%'": lambda row: 5 <= row.revision <= 9 and row.key[0] == "k",
    "revision > 30 and revision < 12": lambda _: False,
    "created >= '{time}'": lambda row: row.revision >= 20,
    "value = cast('v5' as binary)": lambda row: row.value == b"v5",
}


@pytest.mark.guarantee("pipeline-6")
def test_several_queries_filter_one_dataframe(load, fill, raw):
    name = fill({f"{'km'[number % 2]}.{number // 2}": b"v%d" % number for number in range(30)}, max_msgs_per_subject=3)
    raw.put(name, "k.4", b"again", {"KV-Operation": "DEL"})
    rows = load(name, includeDeleted="true")
    everything = rows.withColumn("text", col("created").cast("string")).collect()
    assert len(everything) == 30
    time = next(row.text for row in everything if row.revision == 20)
    parts = [rows.where(text.format(time=time)).select(lit(text).alias("by"), "revision") for text in PREDICATES]
    found = reduce(DataFrame.union, parts).collect()
    assert {text: sorted(row.revision for row in found if row.by == text) for text in PREDICATES} == {
        text: sorted(row.revision for row in everything if chosen(row)) for text, chosen in PREDICATES.items()
    }


@pytest.mark.guarantee("pipeline-9")
def test_a_read_that_is_ended_early_leaves_nothing_on_the_server(load, raw, fill):
    name = fill()
    for number in range(60_000):
        raw.publish(f"$KV.{name}.k.{number}", b"v" * 50)
    until(lambda: raw.state(name)["last_seq"] == 60_000)
    assert len(load(name, onEvicted="fail", partitions="3").limit(5).collect()) == 5
    assert load(name).select("key").first() is not None
    assert load(name).count() == 60_000
    until(lambda: raw.api(f"CONSUMER.NAMES.KV_{name}")["total"] == 0)


@pytest.mark.guarantee("pipeline-9")
@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_tasks_share_a_bucket(server, fill, tasks):
    name = fill({f"{'abc'[number % 3]}.{number}": b"v" for number in range(30)})
    for options in ({"onEvicted": "fail"}, {"mode": "changes"}, {"filter": "a.>,b.>,c.>"}):
        read = Read(server.url, name, partitions=str(tasks), **options)
        assert len(read.parts) == tasks
        assert sorted(row["revision"] for row in read.rows()) == list(range(1, 31))


def test_an_empty_bucket_has_no_rows(load, server, fill):
    name = fill()
    assert load(name).collect() == []
    assert Read(server.url, name, mode="changes").parts == []
    assert Read(server.url, name, onEvicted="fail").parts == []


def test_what_is_not_there_is_an_error_of_ours(load, fill):
    name = fill()
    missing = refused(load(name + "x").collect)
    assert (type(missing), missing.exit_code) == (BucketNotFound, 3)
    assert f"Did you mean `{name}`?" in (missing.hint or "")
    with pytest.raises(NoServer):
        Read("nats://127.0.0.1:1", "B", timeout="1s")
    for options, kind, words in (
        ({"context": "none"}, ContextNotFound, "`none`"),
        ({"user": "me", "passwordFile": "/none"}, UsageError, "`passwordFile /none` cannot be read"),
    ):
        with pytest.raises(kind, match=words):
            KvDataSource({"bucket": "B", **options}).reader(schema_of(())).partitions()


@pytest.mark.guarantee("pipeline-31")
def test_a_table_of_the_catalog_needs_its_options_in_the_statement(spark, server, fill, unique):
    name, table = fill({"a": b"1"}), unique("t")
    options = f"bucket '{name}', url '{server.url}'"
    spark.sql(f"create table {table} using `nats-kv` options ({options})")
    try:
        missing = refused(spark.sql(f"select key from {table}").collect)
        assert missing.message == "The option `bucket` is missing"
        assert "`with (bucket = ...)`" in (missing.hint or "")
        said = f"with (bucket = '{name}', url = '{server.url}')"
        assert spark.sql(f"select key from {table} {said}").collect() == [Row("a")]
    finally:
        spark.sql(f"drop table {table}")


@pytest.mark.guarantee("pipeline-7")
def test_one_dataframe_is_of_one_revision(load, fill, raw):
    name = fill({"a": b"1"}, max_msgs_per_subject=3)
    rows = load(name)
    assert rows.count() == 1
    raw.put(name, "b", b"1")
    assert (rows.count(), load(name).count()) == (1, 2)
    raw.put(name, "a", b"2")
    raw.put(name, "a", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    strict = load(name, onEvicted="fail")
    assert strict.filter(col("operation") == "PUT").count() == 1
    raw.put(name, "b", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    assert isinstance(refused(strict.collect), HistoryLost)


@pytest.mark.parametrize("history", [1, 5])
@pytest.mark.parametrize("onEvicted", ["newer", "fail"])
def test_keys_that_the_servers_index_leaves_out_are_read_in_every_mode(server, fill, raw, history, onEvicted):
    name = fill({"a": b"0", "x\x7fy": b"1", "b": b"2", "\x7f": b"3"}, max_msgs_per_subject=history)
    raw.put(name, "x\x7fy", b"4")
    raw.put(name, "a", b"5")  # the first revision is not 1 without a history
    raw.put(name, "\x7f", b"", {"KV-Operation": "DEL"})
    expected = {"x\x7fy": b"4", "b": b"2", "a": b"5"}
    assert latest(server.url, name, onEvicted=onEvicted) == expected
    revisions = list(range(1 if history > 1 else 2, 8))
    for mode in ("history", "changes"):
        for options in ({}, {"partitions": "3"}):
            rows = Read(server.url, name, mode=mode, onEvicted=onEvicted, **options).rows()
            assert [row["revision"] for row in rows] == revisions


def test_an_error_that_names_a_key_that_is_not_utf_8_reaches_the_driver(load, fill, raw):
    """The driver waited forever for a traceback that could not be encoded."""
    name = fill({"k.\udcff": b"1"}, allow_msg_ttl=True)
    rows = load(name, onEvicted="fail")
    assert rows.count() == 1  # planned
    raw.put(name, "k.\udcff", b"2")
    lost = refused(rows.collect)
    assert isinstance(lost, HistoryLost)
    assert "k.\udcff" in lost.message


def test_newer_values_of_keys_that_cannot_be_requested_are_read(server, fill, raw):
    keys = ["k.\udcff", "k.\udcfe", "k.*", "k.a"]
    name = fill(dict.fromkeys(keys, b"1"))
    read = Read(server.url, name)
    for key in keys:
        raw.put(name, key, b"2")
        raw.put(name, key, b"3", {"KV-Operation": "DEL"} if key == "k.\udcfe" else None)
    rows = {row["key"]: row["value"] for row in read.rows()}
    assert rows == {r"k.\xff": b"3", "k.*": b"3", "k.a": b"3"}


def test_keys_that_cannot_be_requested_and_are_deleted_before_they_are_read_have_no_row(server, fill, raw):
    name = fill({"k.\udcfe": b"1", "a": b"1"})
    read = Read(server.url, name)
    raw.put(name, "k.\udcfe", b"", {"KV-Operation": "DEL"})
    assert [row["key"] for row in read.rows()] == ["a"]
