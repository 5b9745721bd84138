"""Origins and their replica joined by Spark: hashes of each key's value, by the subjects where origins' keys land.

Only keys whose digests differ (`audit_digests`) are joined.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvctl.errors import KvctlError
from kvctl.kv.names import STREAM_PREFIX
from kvctl.pipeline.files.contents import read
from kvctl.pipeline.jobs.audit_digests import SLOTS, SlotComparison
from kvctl.pipeline.options import SourceOptions
from kvctl.topology.audit.audit import FirstComparison
from kvctl.topology.model.subjects import KeyMapping

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

MOST_SLOTS = 2_000
"""Maximum number of slots in a condition; with more, all keys are joined."""
COLUMNS = ("key", "value", "revision", "operation", "origin")
_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")


@dataclass(frozen=True, slots=True)
class Readable:
    """Bucket as the data source reads it."""

    options: SourceOptions
    stream: str
    prefix: str
    """Prefix of its keys' subjects."""


@dataclass(frozen=True, slots=True)
class OriginSide(Readable):
    """Origin, and the rules that map its subjects to the replica."""

    rules: KeyMapping


def put_side_by_side(
    spark: SparkSession,
    replica: Readable,
    origins: Sequence[OriginSide],
    digested: SlotComparison,
    *,
    revisions: bool,
    own: bool,
) -> FirstComparison:
    """Return the replica's subjects in differing slots whose values seem to differ between the sides.

    With `revisions` these must match, too. With `own`, keys that come from no origin are the replica's own.
    """
    from pyspark.sql.functions import coalesce, col, collect_set, count, count_if, crc32, encode, first, lit, max, size

    rows = _replica(spark, replica, origins if own else None, revisions)
    for number, origin in enumerate(origins):
        rows = rows.unionByName(_origin(spark, origin, revisions).withColumn("number", lit(number)))
    if len(digested.slots) <= MOST_SLOTS:
        rows = rows.where((crc32(encode("subject", "utf-8")) % SLOTS).isin(digested.slots))
    ours, other = count_if(col("number") < 0), count_if(col("number") >= 0)
    found = rows.groupBy("subject").agg(
        ours.alias("ours"),
        other.alias("theirs"),
        count("mark").alias("living"),
        size(collect_set(coalesce(col("mark"), lit("")))).alias("marks"),
        max("brought").alias("brought"),
        max("number").alias("number"),
        first("name", ignorenulls=True).alias("name"),
    )
    alone = (col("theirs") == 0) & (col("ours") == 1) & ~col("brought")
    agree = (col("theirs") == 1) & (col("ours") == 1) & (col("marks") == 1)
    left = found.where((col("living") > 0) & ~agree).select("subject", "number", "name", alone.alias("own"))
    counted = Counter[bool]()
    suspects = Suspects(_differing(left.toLocalIterator(), counted))
    return FirstComparison(suspects, counted[True], suspects.name, digested.keys)


def _differing(rows: Iterable[Row], counted: Counter[bool]) -> Iterator[tuple[str, int, str | None]]:
    """Yield those that are not the replica's own; count both.

    An escape in a subject may stand for a byte or be its text: both subjects are yielded.
    """
    for row in rows:
        counted[row.own] += 1
        if not row.own:
            names = {form(row.subject): row.name and form(row.name) for form in (str, _raw)}
            yield from ((subject, row.number, name) for subject, name in names.items())


def _origin(spark: SparkSession, origin: OriginSide, revisions: bool) -> DataFrame:
    """Return the subject and mark where its entries land, and its own name if it cannot be derived from the subject."""
    from pyspark.sql.functions import col, concat, lit, udf

    rules = origin.rules.rules

    def land(name: str) -> str | None:
        landed = KeyMapping(rules).land(_raw(name).encode("utf-8", "surrogateescape"))
        return None if landed is None else landed.decode("utf-8", "backslashreplace")

    landed = udf(land, "string", useArrow=True)
    rows = _entries(spark, origin, revisions).withColumn("own", concat(lit(origin.prefix), col("key")))
    rows = rows.withColumn("subject", landed(col("own"))).where(col("subject").isNotNull())
    name = col("own") if origin.rules.lossy else lit(None).cast("string")
    return rows.select("subject", "mark", lit(True).alias("brought"), name.alias("name"))


def _replica(
    spark: SparkSession, replica: Readable, origins: Sequence[OriginSide] | None, revisions: bool
) -> DataFrame:
    """Return the replica's entries; without `origins` all count as replicated."""
    from pyspark.sql.functions import coalesce, col, concat, lit

    names = [origin.stream.removeprefix(STREAM_PREFIX) for origin in origins or ()]
    brought = lit(True) if origins is None else coalesce(col("origin").isin(names), lit(False))
    return _entries(spark, replica, revisions).select(
        concat(lit(replica.prefix), col("key")).alias("subject"),
        "mark",
        brought.alias("brought"),
        lit(None).cast("string").alias("name"),
        lit(-1).alias("number"),
    )


def _entries(spark: SparkSession, held: Readable, revisions: bool) -> DataFrame:
    """Return the last entry of each key, with the parts that two sides must share; null for a deletion."""
    from pyspark.sql.functions import col, concat, lit, sha2, when

    rows = read(spark, replace(held.options, columns=COLUMNS, include_deleted=True))
    mark: Column = sha2(col("value"), 256)
    if revisions:
        mark = concat(mark, lit("@"), col("revision"))
    return rows.withColumn("mark", when(col("operation") == "PUT", mark))


def _raw(name: str) -> str:
    """Return a subject as on the server: the data source escapes bytes that are not UTF-8 as Python does."""
    if "\\" not in name:
        return name
    raw = _ESCAPED.sub(lambda match: chr(0xDC00 + int(match[1], 16)), name)
    return raw if raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") == name else name


_HINT = "Set `TMPDIR` to another directory for temporary files"


class Suspects:
    """Subjects in order, some with their name at an origin. All methods raise KvctlError if the disk is full."""

    def __init__(self, rows: Iterable[tuple[str, int, str | None]]) -> None:
        """Store rows of a subject, the number of an origin and the subject's name there, each subject once."""
        # A database without a name is a private temporary file. It is filled in one thread and read in another.
        self._base = sqlite3.connect("", check_same_thread=False)
        try:
            self._base.execute("create table suspects (subject blob primary key, number int, name blob) without rowid")
            rows = ((_bytes_of(subject), number, name and _bytes_of(name)) for subject, number, name in rows)  # type: ignore[misc]
            self._base.executemany("insert into suspects values (?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise KvctlError(f"Could not store the keys that seem to differ: {error}", hint=_HINT) from None

    def __iter__(self) -> Iterator[str]:
        for (subject,) in self._base.execute("select subject from suspects order by subject"):
            yield subject.decode("utf-8", "surrogateescape")

    def __len__(self) -> int:
        return int(self._base.execute("select count(*) from suspects").fetchone()[0])

    def name(self, number: int, landed: str) -> str | None:
        """Return the subject's name at an origin, if stored."""
        query = "select name from suspects where subject = ? and number = ?"
        found = self._base.execute(query, (_bytes_of(landed), number)).fetchone()
        return found[0].decode("utf-8", "surrogateescape") if found and found[0] is not None else None


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
