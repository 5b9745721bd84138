"""Buckets read as streams by Spark: where they begin, what a batch holds, what they refuse."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from kvctl.pipeline.crossing import recall
from kvctl.server import Server
from tests.pipeline.conftest import Fill
from tests.raw import RawClient

Read = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def stream(spark: SparkSession, server: Server) -> Callable[..., DataFrame]:
    """Makes streams of a bucket on the shared server."""

    def stream(bucket: str, **options: object) -> DataFrame:
        return spark.readStream.format("nats-kv").options(url=server.url, bucket=bucket, **options).load()

    return stream


@pytest.fixture
def read(stream: Callable[..., DataFrame], spark: SparkSession, tmp_path: Path) -> Read:
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


def test_what_is_there_and_then_what_is_new_is_read_once(fill: Fill, raw: RawClient, read: Read) -> None:
    bucket = fill({"a": b"1", "b": b"2"}, max_msgs_per_subject=5)
    assert read(bucket) == [("a", b"1"), ("b", b"2")]
    assert read(bucket) == []
    raw.put(bucket, "a", b"3")
    raw.put(bucket, "b", b"", {"KV-Operation": "DEL"})
    assert read(bucket) == [("a", b"3"), ("b", None)]
