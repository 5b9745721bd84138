"""Buckets read as streams by Spark: where they begin, what a batch holds, what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kvctl.errors import HistoryLost, StreamReplaced, UsageError
from kvctl.pipeline.data_source import KvDataSource
from kvctl.pipeline.error_transport import recall
from kvctl.pipeline.read.columns import schema_of


@pytest.fixture
def stream(spark, server):
    """Makes streams of a bucket on the shared server."""

    def stream(bucket: str, **options: object) -> DataFrame:
        return spark.readStream.format("nats-kv").options(url=server.url, bucket=bucket, **options).load()

    return stream


@pytest.fixture
def read(stream, spark, tmp_path):
    """Reads what is there into Parquet, with a checkpoint: what is new since the last time, as (key, value)."""

    def read(bucket: str, **options: object) -> list[tuple[Any, ...]]:
        before = _stored(spark, tmp_path / "sink")
        writer = stream(bucket, **options).writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "sink"))
        query.awaitTermination()
        after = _stored(spark, tmp_path / "sink")
        return [row[:2] for row in after if row not in before]

    return read


def _stored(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    if not (folder / "_spark_metadata").exists():
        return []
    rows = spark.read.parquet(str(folder)).select("key", "value", "revision", "operation").collect()
    return sorted((tuple(row) for row in rows), key=lambda row: row[2])


def test_what_is_there_and_then_what_is_new_is_read_once(fill, raw, read):
    bucket = fill({"a": b"1", "b": b"2"}, max_msgs_per_subject=5)
    assert read(bucket) == [("a", b"1"), ("b", b"2")]
    assert read(bucket) == []
    raw.put(bucket, "a", b"3")
    raw.put(bucket, "b", b"", {"KV-Operation": "DEL"})
    assert read(bucket) == [("a", b"3"), ("b", None)]


def test_latest_is_pinned_although_the_bucket_moves_before_the_first_row_is_read(fill, raw, read, tmp_path):
    bucket = fill({"a": b"1", "b": b"2"})
    assert read(bucket, startingRevision="latest") == []
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
    assert [json.loads(path.read_text().splitlines()[2])["revision"] for path in offsets] == [2]
    raw.put(bucket, "a", b"3")
    assert read(bucket, startingRevision="latest") == [("a", b"3")]


def test_columns_and_filters_are_those_of_a_read(fill, read, stream):
    bucket = fill({"a.1": b"1", "b.1": b"2", "a.2": b"3"})
    assert read(bucket, filter="a.>") == [("a.1", b"1"), ("a.2", b"3")]
    assert stream(bucket, columns="key,ttl,bucket").columns == ["key", "ttl", "bucket"]


def test_progress_of_several_buckets_tells_how_far_a_query_is_behind(spark, server, fill, tmp_path):
    names = [fill({f"k{number}": b"x" for number in range(4)}) for _ in range(2)]
    source = spark.readStream.format("nats-kv").options(
        url=server.url, buckets=",".join(names), maxRevisionsPerTrigger=4, includeHeaders=True
    )
    rows = []
    query = (
        source.load()
        .writeStream.foreachBatch(lambda batch, _: rows.extend((row.bucket, row.key) for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(rows) == sorted((name, f"k{number}") for name in names for number in range(4))
    progress = [json.loads(batch["sources"][0]["latestOffset"])["behind"] for batch in query.recentProgress]
    assert progress[:2] == [4, 0]


@pytest.mark.guarantee("pipeline-27")
def test_a_bucket_made_anew_is_refused_by_its_name(fill, raw, read):
    bucket = fill({"a": b"1"})
    assert read(bucket) == [("a", b"1")]
    raw.api(f"STREAM.DELETE.KV_{bucket}")
    raw.create_bucket(bucket, {"a": b"other"})
    with pytest.raises(PySparkException) as caught:
        read(bucket)
    error = recall(str(caught.value))
    assert isinstance(error, StreamReplaced)
    assert f"Bucket `{bucket}` was recreated" in error.message


def test_what_was_purged_unread_is_a_loss_that_can_be_allowed(fill, raw, read):
    bucket = fill({"a": b"1"})
    assert read(bucket) == [("a", b"1")]
    raw.put(bucket, "b", b"2")
    raw.api(f"STREAM.PURGE.KV_{bucket}")
    with pytest.raises(PySparkException) as caught:
        read(bucket)
    error = recall(str(caught.value))
    assert isinstance(error, HistoryLost)
    assert error.hint == "Set option `failOnDataLoss=false` to continue with the remaining entries"
    assert read(bucket, failOnDataLoss="false") == []
    raw.put(bucket, "c", b"3")
    assert read(bucket) == [("c", b"3")]


@pytest.mark.parametrize("options", [{"mode": "changes", "fromRevision": "5"}, {"endingTime": "-1h"}], ids=str)
def test_options_of_other_reads_are_refused_before_anything_is_read(options):
    with pytest.raises(UsageError, match="cannot be used with a stream"):
        KvDataSource({"bucket": "a", **options}).streamReader(schema_of(()))
