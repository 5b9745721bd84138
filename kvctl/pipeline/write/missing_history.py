"""Find the part of a history still to be written: a load that was killed, run again, writes what is missing.

If a key's history in the bucket ends with the first entries of the one to load, these are skipped. So a complete load
run again writes nothing if the bucket keeps that many entries per key; if it keeps fewer, the oldest are evicted, all
are written again, and the same ones remain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DIGEST = "struct(revision, operation, sha2(coalesce(value, cast('' as binary)), 256) as digest) as entry"
_OVERLAP = """
    array_max(filter(sequence(0, least(size(wanted), size(there))), n ->
        slice(contents(there), size(there) - n + 1, n) = slice(contents(wanted), 1, n)))
"""
"""Number of the last existing entries that equal the first wanted ones."""
_CONTENTS = "transform({0}, entry -> struct(entry.operation, entry.digest))"


def missing(wanted: DataFrame, there: DataFrame) -> DataFrame:
    """Return the entries of a history that a bucket, by its own history, lacks."""
    from pyspark.sql.functions import expr

    overlap = _OVERLAP.replace("contents(there)", _CONTENTS.format("there"))
    overlap = overlap.replace("contents(wanted)", _CONTENTS.format("wanted"))
    both = histories(wanted, "wanted").join(histories(there, "there"), "key")
    done = both.withColumn("overlap", expr(overlap)).where("overlap > 0")
    stored = done.selectExpr("key", "wanted[overlap - 1].revision as stored")
    return wanted.join(stored, "key", "left").where("stored is null or revision > stored").drop("stored")


def histories(rows: DataFrame, name: str) -> DataFrame:
    """Return a row per key: its entries in order, as revision, operation and a hash of the value."""
    from pyspark.sql.functions import expr

    entries = rows.selectExpr("key", _DIGEST)
    return entries.groupBy("key").agg(expr("sort_array(collect_list(entry))").alias(name))
