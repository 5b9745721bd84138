"""What an export is of: rows, and what its manifest says of where they come from.

A bucket at one revision is one; what gives rows of the same columns, like a commit's tree, is another.
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
"""The time on the machine that runs Spark's driver: what is left where no server is asked."""


def ttl_left(now: str = NOW) -> str:
    """The SQL expression of the seconds that entries with a ttl have left at a time."""
    age = f"(unix_micros({now}) - unix_micros(created)) / 1000000D"
    return f"case when ttl is not null then greatest(1D, round(ttl - {age})) end"


def server_time(info: StreamInfo) -> str:
    """The SQL expression of the time on the server that has just sent this info. Raises ServerError."""
    return f"timestamp_micros({ServerClock.from_info(info).now_ns() // 1000})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Rows of the data source's columns, and their origin."""

    rows: DataFrame
    bucket: str
    incarnation: str
    """When the stream was created, RFC 3339."""
    config: Mapping[str, Any]
    mode: str
    filters: tuple[str, ...] = ()
    cut: int | None = None
    """The revision at which the bucket is read; rows above it stand for what the bucket did not hold any more."""
    ref: str | None = None
    """The commit, for a versioned bucket."""


def of_bucket(spark: SparkSession, options: SourceOptions) -> Contents:
    """A bucket's latest entries or its history, as of its last revision now; ttls are what is left of them.

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
    """What the data source reads with these options."""
    return spark.read.format("nats-kv").options(**given_as(options)).load()


async def info_of(options: SourceOptions) -> StreamInfo:
    """The info of a bucket's stream. Raises BucketNotFound, RefusedError for what is not whole."""
    async with worker_connection.connected(options) as client:
        binding = await client.bucket(options.bucket).locate(fresh=True)
    assert binding.info is not None
    if kind_of(binding.info["config"]) is Kind.INCOMPLETE:
        raise RefusedError(f"`{options.bucket}` is what an interrupted restore or copy left: it is not whole")
    return binding.info
