"""Data source `nats-kv`: creates readers and writers of buckets for Spark.

spark.read.format("nats-kv").option("bucket", "orders").option("url", "nats://127.0.0.1:4222").load()

Spark creates it in separate processes for each step of a plan, so each reader and writer is imported when it is used:

    batch_reader.KvReader(schema, options)
    stream_reader.KvStreamReader(schema, options)
    writer.KvWriter(schema, options, overwrite)
    writer.KvStreamWriter(schema, options, overwrite)
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql import datasource

from kvctl.errors import UsageError
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.options import SourceOptions, parse

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class KvDataSource(datasource.DataSource):
    """Bucket, mirror or aggregate. Options are checked when it is created."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raises UsageError."""
        super().__init__(options)
        with crossing():
            self.asked: SourceOptions = parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "nats-kv"

    def schema(self) -> StructType:
        """Return the columns of the option `columns`, or the first five; those of several buckets have their names.

        Raises UsageError.
        """
        from kvctl.pipeline.read.columns import schema_of

        asked, more = self.asked, ["headers"] if self.asked.include_headers else []
        with crossing():
            return schema_of(asked.columns, *(["bucket"] if asked.several and not asked.columns else []), *more)

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Return a reader as of one revision. Raises UsageError for an invalid schema."""
        from kvctl.pipeline.read.batch_reader import KvReader

        with crossing():
            return KvReader(schema, self.asked)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        """Return a stream reader. Raises UsageError for an invalid schema."""
        from kvctl.pipeline.read.stream_reader import KvStreamReader

        with crossing():
            return KvStreamReader(schema, self.asked)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        """Return a writer. Raises UsageError for columns that cannot be written."""
        from kvctl.pipeline.write.writer import KvWriter

        with crossing():
            self._require_one()
            return KvWriter(schema, self.asked, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:
        """Return a writer of batches, each written once. Raises UsageError for columns that cannot be written."""
        from kvctl.pipeline.write.writer import KvStreamWriter

        with crossing():
            self._require_one()
            return KvStreamWriter(schema, self.asked, overwrite)

    def _require_one(self) -> None:
        if self.asked.several:
            raise UsageError("A write needs the option `bucket`: several buckets can only be read")
