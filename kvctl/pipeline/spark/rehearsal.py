"""Rehearsal of the jobs on made-up rows: the JVM that runs it loads the classes that jobs need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, WriterCommitMessage
from pyspark.sql.functions import expr
from pyspark.sql.types import StructType

from kvctl.pipeline.spark import tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition

    from kvctl.pipeline.spark.engine import Engine

ROWS = 1000


def rehearse(engine: Engine, place: Path) -> None:
    """Run tasks; read and write a data source in Python; shuffle, join, write and read files, run a stream."""
    spark = engine.spark
    tasks.over_items(engine, [1], lambda item: [item])
    spark.dataSource.register(Rehearsal)
    source = spark.read.format(Rehearsal.name()).load()
    source.write.format(Rehearsal.name()).mode("append").save()
    _files(spark, source, place)


def _files(spark: SparkSession, source: DataFrame, place: Path) -> None:
    counted = source.observe(Observation(), expr("count_if(operation = 'PUT')").alias("rows"))
    rows = counted.where("operation = 'PUT'").selectExpr("*", "revision % 7 as part")
    for form in ("parquet", "json", "csv"):
        rows.write.mode("overwrite").partitionBy("part").format(form).save(f"{place}/{form}")
    stored = spark.read.parquet(f"{place}/parquet")
    stored.groupBy("part").count().orderBy("part").collect()
    stored.join(rows.select("key", "part"), ["key", "part"], "full_outer").selectExpr("sum(hash(key))").collect()
    stream = spark.readStream.schema(stored.schema).parquet(f"{place}/parquet").writeStream.format("parquet")
    query = stream.option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True).start(f"{place}/out")
    query.awaitTermination(60)


class Rehearsal(DataSource):
    """Data source without a bucket."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "kvctl-rehearsal"

    def schema(self) -> StructType:
        """Return the columns of a bucket."""
        from kvctl.pipeline.read.columns import schema_of

        return schema_of(())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of identical entries."""
        return _Reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer that discards rows."""
        return _Writer()


class _Reader(DataSourceReader):
    def __init__(self, schema: StructType) -> None:
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from kvctl.pipeline.read.arrow_decoder import Decoder

        frames = [(b"$KV.B.%d" % n, b"$JS.ACK.KV_B.C.1.%d.%d.%d.0" % (n, n, n), b"", b"value") for n in range(ROWS)]
        yield Decoder(self._schema, "B", "$KV.B.").of_frames(frames)


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
