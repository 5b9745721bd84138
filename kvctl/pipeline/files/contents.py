"""Contents of an export: rows, and their origin for the manifest.

They come from a bucket at one revision, or from other rows of the same columns, such as a commit's tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvctl.errors import RefusedError
from kvctl.jetstream.server_clock import ServerClock
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.stream_kind import Kind, kind_of
from kvctl.pipeline.files.file_rows import COLUMNS
from kvctl.pipeline.options import SourceOptions, given_as
from kvctl.pipeline.read import worker_connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW = "current_timestamp()"
"""Time of the machine that runs Spark's driver: the fallback if no server is asked."""


def ttl_left(now: str = NOW) -> str:
    """Return the SQL expression for the seconds that entries with a ttl have left at a time."""
    age = f"(unix_micros({now}) - unix_micros(created)) / 1000000D"
    return f"case when ttl is not null then greatest(1D, round(ttl - {age})) end"


def server_time(info: StreamInfo) -> str:
    """Return the SQL expression for the time of the server that just sent this info. Raises ServerError."""
    return f"timestamp_micros({ServerClock.from_info(info).now_ns() // 1000})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Rows with the data source's columns, and their origin."""

    rows: DataFrame
    bucket: str
    incarnation: str
    """Creation time of the stream, RFC 3339."""
    config: Mapping[str, Any]
    mode: str
    filters: tuple[str, ...] = ()
    cut: int | None = None
    """Revision at which the bucket is read; rows above it replace entries that the bucket no longer had."""
    ref: str | None = None
    """Commit, for a versioned bucket."""


def of_bucket(spark: SparkSession, options: SourceOptions) -> Contents:
    """Return a bucket's latest entries or its history, as of its current last revision, with remaining ttls.

    Raises BucketNotFound, RefusedError.
    """
    info = worker_connection.run(info_of(options))
    cut = int(info["state"]["last_seq"])
    from pyspark.sql.functions import expr

    wanted = replace(options, columns=COLUMNS, include_deleted=options.mode == "latest", as_of=cut or None)
    rows = read(spark, wanted).withColumn("ttl", expr(ttl_left(server_time(info))))
    return Contents(
        rows=rows, bucket=options.bucket, incarnation=info["created"], config=info["config"],
        mode=options.mode, filters=options.filter, cut=cut,
    )  # fmt: skip


def read(spark: SparkSession, options: SourceOptions) -> DataFrame:
    """Read with the data source and these options."""
    return spark.read.format("nats-kv").options(**given_as(options)).load()


async def info_of(options: SourceOptions) -> StreamInfo:
    """Return the info of a bucket's stream. Raises BucketNotFound, RefusedError for an incomplete one."""
    async with worker_connection.connected(options) as client:
        binding = await client.bucket(options.bucket).locate(fresh=True)
    assert binding.info is not None
    if kind_of(binding.info["config"]) is Kind.INCOMPLETE:
        raise RefusedError(f"`{options.bucket}` is incomplete: a restore or copy of it was interrupted")
    return binding.info
