"""Stream writes: each batch of a query once, however often it is run."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kvctl.errors import PartlyDone, UsageError
from kvctl.pipeline.spark.failure import explained
from tests.pipeline.write.test_writer import value


class Query:
    """Files of JSON lines, streamed into a bucket until all are read."""

    def __init__(self, spark: SparkSession, folder: Path, **options: str) -> None:
        self.spark = spark
        self.input, self.checkpoint = folder / "input", folder / "checkpoint"
        self.input.mkdir()
        self.options = options
        self.partitions = 0
        """How many the rows are cut into; 0 leaves that to Spark."""

    def add(self, name: str, rows: list[dict[str, Any]]) -> None:
        (self.input / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self, **options: str) -> None:
        """Write every row."""
        rows = self._read()
        self._write(rows.repartition(self.partitions) if self.partitions else rows, "append", **options)

    def count(self, mode: str) -> None:
        """Write how often each key came."""
        self._write(self.counts(), mode)

    def counts(self) -> DataFrame:
        return self._read().groupBy("key").count().selectExpr("key", "cast(count as string) as value")

    def _read(self) -> DataFrame:
        return self.spark.readStream.schema("key string, value string").json(str(self.input))

    def _write(self, frame: DataFrame, mode: str, **options: str) -> None:
        write = frame.writeStream.format("nats-kv").options(**self.options, **options).outputMode(mode)
        try:
            query = write.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
            query.awaitTermination()
        except Exception as error:
            raise explained(error) from None

    def forget_last_commit(self) -> None:
        """Simulate a kill before Spark recorded the last batch."""
        last = max(int(file.name) for file in (self.checkpoint / "commits").iterdir() if file.name.isdecimal())
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def query(spark, server, tmp_path):
    return lambda bucket, **options: Query(spark, tmp_path, url=server.url, bucket=bucket, **options)


def rows(count: int, value: str = "v") -> list[dict[str, Any]]:
    return [{"key": f"k.{n}", "value": f"{value}{n}"} for n in range(count)]


@pytest.mark.guarantee("pipeline-18", by="fault")
@pytest.mark.parametrize("history", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_replayed_batch_adds_nothing(query, fill, raw, history):
    """Neither in the duplicate window nor, as here, outside it; the note of the last batch stays for its repetition."""
    bucket = fill({"k.3": b"before"}, max_msgs_per_subject=history, duplicate_window=100_000_000)
    stream = query(bucket)
    stream.add("1.json", rows(300))
    stream.run()
    stream.add("2.json", rows(200, "w"))
    stream.run()
    assert raw.state(bucket)["last_seq"] == 501
    for _ in range(2):
        stream.forget_last_commit()
        stream.run()
    assert raw.state(bucket)["last_seq"] == 501
    assert (value(raw, bucket, "k.3"), value(raw, bucket, "k.250")) == (b"w3", b"v250")
    stream.add("3.json", rows(10, "x"))
    stream.run()
    assert raw.state(bucket)["last_seq"] == 511
    (note,) = raw.api(f"CONSUMER.NAMES.KV_{bucket}")["consumers"]
    assert note.startswith("kvctl-began-")
    assert note.endswith("-2")


@pytest.mark.guarantee("pipeline-18")
@pytest.mark.parametrize(
    ("history", "others"),
    [(1, 4), pytest.param(5, 3, marks=pytest.mark.slow), pytest.param(1, 9, marks=pytest.mark.slow)],
)
def test_replay_in_any_partitions_leaves_newer_values_of_others(query, fill, raw, history, others):
    """Whichever worker takes which partition, and in however many partitions the rows come again."""
    bucket = fill(max_msgs_per_subject=history)
    stream = query(bucket)
    stream.partitions = 4
    stream.add("1.json", rows(40))
    stream.run()
    theirs = [f"k.{n}" for n in range(0, 40, 3)]
    for key in theirs:
        raw.put(bucket, key, b"theirs")
    before = raw.state(bucket)["last_seq"]
    stream.forget_last_commit()
    stream.partitions = others
    stream.run()
    assert {key: value(raw, bucket, key) for key in theirs} == dict.fromkeys(theirs, b"theirs")
    assert raw.state(bucket)["last_seq"] == before == 40 + len(theirs)


@pytest.mark.guarantee("pipeline-18")
def test_replay_of_rows_that_others_all_overwrote_writes_none(query, fill, raw):
    """Nothing of the batch is left in the bucket to know it by."""
    bucket = fill()
    stream = query(bucket)
    stream.add("1.json", rows(10))
    stream.run()
    for n in range(10):
        raw.put(bucket, f"k.{n}", b"theirs")
    stream.forget_last_commit()
    stream.run()
    assert [value(raw, bucket, f"k.{n}") for n in range(10)] == [b"theirs"] * 10
    assert raw.state(bucket)["last_seq"] == 20


def test_a_batch_with_rows_that_fail_ends_the_query(query, fill, raw):
    bucket = fill()
    stream = query(bucket)
    stream.add("1.json", [*rows(10), {"key": "not a key", "value": ""}])
    with pytest.raises(PartlyDone, match=r"10 rows were written to .* but 1 row cannot be written: `not a key`"):
        stream.run()
    dead = stream.checkpoint.with_name("dead")
    for _ in range(2):
        stream.run(deadLetter=str(dead))
        stream.forget_last_commit()
    assert raw.state(bucket)["last_seq"] == 10
    assert [row.key for row in stream.spark.read.parquet(str(dead)).collect()] == ["not a key"]


def test_output_mode_complete_is_refused(query, fill):
    stream = query(fill())
    stream.add("1.json", rows(3))
    with pytest.raises(UsageError, match="Output mode complete"):
        stream.count("complete")


@pytest.mark.guarantee("pipeline-20")
def test_changed_results_are_put_batch_by_batch(query, fill, raw):
    """Spark lets no source of Python take output mode update; `foreachBatch` does, with an id for each batch."""
    bucket = fill(max_msgs_per_subject=5)
    stream = query(bucket)

    def put(rows: DataFrame, batch: int) -> None:
        rows.write.format("nats-kv").options(**stream.options, writeId=f"counts {batch}").mode("append").save()

    for name, found in (("1.json", rows(3)), ("2.json", rows(2)), ("", [])):
        if name:
            stream.add(name, found)
        else:
            stream.forget_last_commit()
        write = stream.counts().writeStream.foreachBatch(put).outputMode("update")
        write.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start().awaitTermination()
    assert [value(raw, bucket, f"k.{n}") for n in range(3)] == [b"2", b"2", b"1"]
    assert raw.state(bucket)["last_seq"] == 5
