"""Batch writes through Spark: `df.write.format("nats-kv")`."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kvctl.errors import BucketNotFound, NoServer, PartlyDone, ReadOnly, UsageError
from kvctl.pipeline.spark.failure import explained
from kvctl.pipeline.write.row_ids import job_of
from tests.support.raw import RawClient

Write = Callable[..., None]


@pytest.fixture
def write(server):
    """`write(rows, bucket, writeMode="create")`: appends rows to a bucket; fails with a KvctlError."""

    def write(rows: DataFrame, bucket: str, mode: str = "append", **options: str) -> None:
        given = {"url": server.url, "bucket": bucket, **options}
        try:
            rows.write.format("nats-kv").options(**given).mode(mode).save()
        except Exception as error:
            raise explained(error) from None

    return write


def puts(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    rows = spark.range(0, count, 1, partitions)
    return rows.selectExpr("concat('k.', id) as key", "cast(concat('v', id) as binary) as value")


def value(raw: RawClient, bucket: str, key: str) -> bytes:
    return raw.request(f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}").data


def test_rows_are_written_and_nothing_else_is_left(spark, fill, write, raw):
    bucket = fill()
    write(puts(spark, 3000), bucket)
    found = raw.state(bucket)
    assert (found["last_seq"], found["num_subjects"], found["consumer_count"]) == (3000, 3000, 0)
    assert value(raw, bucket, "k.2999") == b"v2999"


@pytest.mark.guarantee("pipeline-14")
def test_write_is_refused_while_tasks_may_run_twice_at_the_same_time(spark, fill, write, raw):
    bucket = fill()
    core_settings = "spark.sql.legacy.setCommandRejectsSparkCoreConfs"
    try:
        spark.conf.set(core_settings, "false")
        spark.conf.set("spark.speculation", "true")
        with pytest.raises(UsageError, match=r"spark\.speculation") as refused:
            write(puts(spark, 10), bucket)
    finally:
        spark.conf.unset("spark.speculation")
        spark.conf.unset(core_settings)
    assert "--conf spark.speculation=false" in (refused.value.hint or "")
    assert raw.state(bucket)["last_seq"] == 0


@pytest.mark.guarantee("pipeline-11")
def test_rows_that_were_read_can_be_written_back(spark, server, fill, write, raw):
    """History in the order of a key, deletions and times to live included."""
    config = {"max_msgs_per_subject": 5, "allow_msg_ttl": True}
    bucket, copy = fill(**config), fill(**config)
    for n in range(40):
        raw.put(bucket, f"k{n % 7}", bytes([n, 255]), {"N": str(n)} if n % 3 else None)
    raw.put(bucket, "k3", b"", {"KV-Operation": "DEL"})
    raw.put(bucket, "k4", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    raw.put(bucket, "k5", b"short", {"Nats-TTL": "3600"})
    raw.put(bucket, "k6", b"lasting", {"Nats-TTL": "never"})

    def history(name: str) -> DataFrame:
        columns = "key,value,revision,operation,headers,ttl"
        options = {"url": server.url, "bucket": name, "mode": "history", "columns": columns}
        return spark.read.format("nats-kv").options(**options).load()

    rows = history(bucket)
    write(rows.repartition(2, "key").sortWithinPartitions("revision"), copy)
    assert sorted(by_key(history(copy).collect())) == sorted(by_key(rows.collect()))


def by_key(rows: list[Any]) -> list[tuple[str, list[Any]]]:
    """Return the history of each key, in order, without revisions."""
    kept: dict[str, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row.revision):
        kept.setdefault(row.key, []).append((bytes(row.value or b""), row.operation, str(row.headers), row.ttl))
    return list(kept.items())


@pytest.mark.guarantee("pipeline-12")
def test_rows_that_fail_are_named_after_the_others_are_written(spark, fill, write, raw):
    bucket = fill()
    bad = spark.sql("select concat('not a key', id) as key, cast('v' as binary) as value from range(8)")
    with pytest.raises(PartlyDone) as caught:
        write(puts(spark, 100).union(bad), bucket)
    assert caught.value.message.startswith(
        f"100 rows were written to `{bucket}`, but 8 rows cannot be written: `not a key0`: `not a key0` is not a key; "
    )
    assert caught.value.message.endswith("; and 3 more")
    assert "deadLetter" in str(caught.value.hint)
    assert raw.state(bucket)["last_seq"] == 100


@pytest.mark.guarantee("pipeline-12")
def test_rejected_rows_are_stored_for_another_try(spark, fill, write, raw, tmp_path):
    bucket, folder = fill({"k.7": b"there"}), tmp_path / "dead"
    write(puts(spark, 100, 2), bucket, writeMode="create", deadLetter=str(folder))
    dead = spark.read.parquet(str(folder))
    assert [(row.key, bytes(row.value), row.cause) for row in dead.collect()] == [
        ("k.7", b"v7", "The key exists at revision 1")
    ]
    assert [file.suffix for file in folder.iterdir()] == [".parquet"]
    write(dead.drop("cause"), bucket)
    assert value(raw, bucket, "k.7") == b"v7"


@pytest.mark.slow
def test_stored_rejected_rows_are_readable_for_any_job_name(spark, fill, write, tmp_path):
    hidden = next(text for text in map(str, count()) if job_of(text).startswith("_"))
    rows = spark.sql("select 'no key' as key, cast('v' as binary) as value")
    write(rows, fill(), writeId=hidden, deadLetter=str(tmp_path / "dead"))
    assert [row.key for row in spark.read.parquet(str(tmp_path / "dead")).collect()] == ["no key"]


def test_invalid_write_is_refused_before_any_task(spark, fill, write, raw):
    bucket = fill()
    rows = spark.sql("select 'k' as kei, cast('v' as binary) as value")
    with pytest.raises(UsageError, match="Unknown column `kei`"):
        write(rows, bucket)
    assert raw.state(bucket)["last_seq"] == 0


@pytest.mark.guarantee("pipeline-10")
def test_buckets_that_take_no_writes_are_refused(spark, fill, write, raw, unique):
    origin, aggregate = fill(), unique("AGG")
    raw.create_bucket(aggregate, subjects=[], sources=[{"name": f"KV_{origin}"}], duplicate_window=0)
    with pytest.raises(ReadOnly, match="read-only aggregate"):
        write(puts(spark, 1), aggregate)
    with pytest.raises(BucketNotFound):
        write(puts(spark, 1), unique("NONE"))
    with pytest.raises(NoServer):
        write(puts(spark, 1), origin, url="nats://127.0.0.1:9")
    assert raw.state(origin)["last_seq"] == 0


@pytest.mark.slow
def test_an_empty_frame_writes_nothing(spark, fill, write, raw):
    bucket = fill()
    write(puts(spark, 0), bucket)
    assert raw.state(bucket)["last_seq"] == 0


@pytest.mark.guarantee("pipeline-31")
def test_sql_reads_and_writes(spark, server, fill, raw, unique):
    """Views have options; a table in the catalog has not, which statements and writers give instead."""
    bucket, view, table = fill({"a": b"1"}), unique("view"), unique("table")
    options = {"url": server.url, "bucket": bucket}
    given = ", ".join(f"{name} '{text}'" for name, text in {**options, "columns": "key,value"}.items())
    with_options = "with (" + ", ".join(f"`{name}` = '{text}'" for name, text in options.items()) + ")"
    spark.sql(f"create temporary view {view} using `nats-kv` options ({given})")
    spark.sql(f"create table {table} (key string, value binary) using `nats-kv`")
    try:
        spark.sql(f"insert into {view} values ('b', X'32')")
        spark.sql(f"insert into {table} {with_options} values ('c', X'33')")
        rows = spark.sql("select 'd' as key, X'34' as value")
        rows.writeTo(table).options(**options).append()
        found = spark.sql(f"select key, value from {table} {with_options}").collect()
        assert {row.key: bytes(row.value) for row in found} == {"a": b"1", "b": b"2", "c": b"3", "d": b"4"}
        spark.sql(f"insert overwrite {view} values ('e', X'35')")
        assert [row.key for row in spark.sql(f"select key from {view} where key > 'a'").collect()] == ["e"]
        counts = [spark.table(view).count()]
        raw.put(bucket, "f", b"6")
        counts.append(spark.table(view).count())
        spark.sql(f"create or replace temporary view {view} using `nats-kv` options ({given})")
        assert [*counts, spark.table(view).count()] == [1, 1, 2]
    finally:
        spark.catalog.dropTempView(view)
        spark.sql(f"drop table {table}")


@pytest.mark.guarantee("pipeline-15")
def test_write_under_an_id_continues_where_it_stopped(spark, fill, write, raw):
    bucket = fill(max_msgs_per_subject=3)
    for _ in range(2):
        write(puts(spark, 400), bucket, writeId="nightly 2026-11-21")
    assert raw.state(bucket)["last_seq"] == 400
    write(puts(spark, 400), bucket, writeId="nightly 2026-11-22")
    assert raw.state(bucket)["last_seq"] == 800


# -- overwrite -----------------------------------------------------------------------------------------------


@pytest.mark.guarantee("pipeline-16")
def test_overwrite_replaces_the_content(spark, fill, write, raw):
    bucket = fill({"old": b"1", "k.1": b"2"})
    write(puts(spark, 50), bucket, mode="overwrite")
    assert value(raw, bucket, "k.1") == b"v1"
    assert raw.request(f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.old").headers["KV-Operation"] == "DEL"
    assert raw.state(bucket)["last_seq"] == 53


@pytest.mark.guarantee("pipeline-16")
def test_failed_overwrite_deletes_nothing(spark, fill, write, raw):
    bucket = fill({"old": b"1", "k.1": b"2"})
    bad = spark.sql("select 'not a key' as key, cast('v' as binary) as value")
    with pytest.raises(PartlyDone, match=r"10 rows were written to .* but 1 row cannot be written: `not a key`"):
        write(puts(spark, 10).union(bad), bucket, mode="overwrite")
    assert (value(raw, bucket, "old"), value(raw, bucket, "k.1")) == (b"1", b"v1")


@pytest.mark.guarantee("pipeline-16")
@pytest.mark.parametrize(
    "options", [{"ifDifferent": "true"}, pytest.param({"writeMode": "create"}, marks=pytest.mark.slow)]
)
def test_overwrite_that_might_leave_rows_unwritten_is_refused(spark, fill, write, raw, options):
    bucket = fill({"old": b"1"})
    with pytest.raises(UsageError, match="Mode overwrite"):
        write(puts(spark, 1), bucket, mode="overwrite", **options)
    assert raw.state(bucket)["last_seq"] == 1
