"""Origins and their replica put side by side by Spark: hashes of what each key holds, where the origin's keys land."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvctl.kv.names import STREAM_PREFIX
from kvctl.pipeline.files.contents import read
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.suspects import Suspects
from kvctl.topology.audit.audit import Compared
from kvctl.topology.mapping import Mapping

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

COLUMNS = ("key", "value", "revision", "operation", "origin")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Readable:
    """A bucket as the data source reads it."""

    options: SourceOptions
    stream: str
    prefix: str
    """Of its keys' subjects."""


@dataclass(frozen=True, slots=True)
class Fed(Readable):
    """An origin, and the rules by which its subjects land in the replica."""

    rules: Mapping


def put_side_by_side(
    spark: SparkSession, replica: Readable, origins: Sequence[Fed], *, revisions: bool, own: bool
) -> Compared:
    """What has to be looked at closely: subjects of the replica in which the sides seem to differ.

    With `revisions` these have to agree, too. With `own`, keys that no origin has brought, or holds, are the replica's.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import coalesce, col, collect_set, count, count_if, first, lit, max, size

    seen = [Observation() for _ in origins]
    theirs = [
        _origin(spark, origin, revisions).observe(observation, count_if(col("mark").isNotNull()).alias("living"))
        for origin, observation in zip(origins, seen, strict=True)
    ]
    rows = _replica(spark, replica, origins if own else None, revisions)
    for number, frame in enumerate(theirs):
        rows = rows.unionByName(frame.withColumn("number", lit(number)))
    ours, other = count_if(col("number") < 0), count_if(col("number") >= 0)
    found = rows.groupBy("subject").agg(
        ours.alias("ours"), other.alias("theirs"), count("mark").alias("living"),
        size(collect_set(coalesce(col("mark"), lit("")))).alias("marks"), max("brought").alias("brought"),
        max("number").alias("number"), first("name", ignorenulls=True).alias("name"),
    )  # fmt: skip
    alone = (col("theirs") == 0) & (col("ours") == 1) & ~col("brought")
    agree = (col("theirs") == 1) & (col("ours") == 1) & (col("marks") == 1)
    left = found.where((col("living") > 0) & ~agree).select("subject", "number", "name", alone.alias("own"))
    counted = Counter[bool]()
    suspects = Suspects(_differing(_rows(spark, left), counted))
    return Compared(suspects, counted[True], suspects.name, [int(one.get["living"]) for one in seen])


def _rows(spark: SparkSession, left: DataFrame) -> Iterable[Row]:
    """The rows, which are not on the driver together.

    Spark reports what it observed when such an iterator begins. Only adaptive plans have read both sides by then.
    """
    return left.toLocalIterator() if spark.conf.get("spark.sql.adaptive.enabled") == "true" else left.collect()


def _differing(rows: Iterable[Row], counted: Counter[bool]) -> Iterator[tuple[str, int, str | None]]:
    """Those that are not the replica's own; both are counted."""
    for row in rows:
        counted[row.own] += 1
        if not row.own:
            yield _raw(row.subject), row.number, None if row.name is None else _raw(row.name)


def _origin(spark: SparkSession, origin: Fed, revisions: bool) -> DataFrame:
    """Where its entries land: subject, mark; and its own name, where that cannot be told from the subject."""
    from pyspark.sql.functions import col, concat, lit, udf

    rules = origin.rules.rules

    def land(name: str) -> str | None:
        landed = Mapping(rules).land(_raw(name).encode("utf-8", "surrogateescape"))
        return None if landed is None else landed.decode("utf-8", "backslashreplace")

    landed = udf(land, "string", useArrow=True)
    rows = _entries(spark, origin, revisions).withColumn("own", concat(lit(origin.prefix), col("key")))
    rows = rows.withColumn("subject", landed(col("own"))).where(col("subject").isNotNull())
    name = col("own") if origin.rules.lossy else lit(None).cast("string")
    return rows.select("subject", "mark", lit(True).alias("brought"), name.alias("name"))


def _replica(spark: SparkSession, replica: Readable, origins: Sequence[Fed] | None, revisions: bool) -> DataFrame:
    """What it holds; without `origins` all of it counts as brought."""
    from pyspark.sql.functions import coalesce, col, concat, lit

    names = [origin.stream.removeprefix(STREAM_PREFIX) for origin in origins or ()]
    brought = lit(True) if origins is None else coalesce(col("origin").isin(names), lit(False))
    return _entries(spark, replica, revisions).select(
        concat(lit(replica.prefix), col("key")).alias("subject"), "mark", brought.alias("brought"),
        lit(None).cast("string").alias("name"), lit(-1).alias("number"),
    )  # fmt: skip


def _entries(spark: SparkSession, held: Readable, revisions: bool) -> DataFrame:
    """The last entry of each key with what two must share to agree; null for one that deletes it."""
    from pyspark.sql.functions import col, concat, lit, sha2, when

    rows = read(spark, replace(held.options, columns=COLUMNS, include_deleted=True))
    mark: Column = sha2(col("value"), 256)
    if revisions:
        mark = concat(mark, lit("@"), col("revision"))
    return rows.withColumn("mark", when(col("operation") == "PUT", mark))


def _raw(name: str) -> str:
    """A subject as it is on the server: the data source writes bytes that are no UTF-8 as Python does."""
    return _ESCAPED.sub(lambda match: chr(0xDC00 + int(match[1], 16)), name) if "\\" in name else name
