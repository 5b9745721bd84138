"""What of a history is still to be written: a load that was killed, run again, writes what is missing.

Where a key's history in the bucket ends with the first entries of the one to be loaded, these are left out. So a whole
load run again writes nothing, where the bucket holds that many entries of a key; where it holds fewer, the oldest are
gone, all are written again, and the same ones are left.
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
"""How many of the last entries that are there are the first ones that are wanted."""
_CONTENTS = "transform({0}, entry -> struct(entry.operation, entry.digest))"


def missing(wanted: DataFrame, there: DataFrame) -> DataFrame:
    """The entries of a history that a bucket, by its own history, lacks."""
    from pyspark.sql.functions import expr

    overlap = _OVERLAP.replace("contents(there)", _CONTENTS.format("there"))
    overlap = overlap.replace("contents(wanted)", _CONTENTS.format("wanted"))
    both = histories(wanted, "wanted").join(histories(there, "there"), "key")
    done = both.withColumn("overlap", expr(overlap)).where("overlap > 0")
    stored = done.selectExpr("key", "wanted[overlap - 1].revision as stored")
    return wanted.join(stored, "key", "left").where("stored is null or revision > stored").drop("stored")


def histories(rows: DataFrame, name: str) -> DataFrame:
    """A row a key: its entries in their order, as revision, operation and a hash of the value."""
    from pyspark.sql.functions import expr

    entries = rows.selectExpr("key", _DIGEST)
    return entries.groupBy("key").agg(expr("sort_array(collect_list(entry))").alias(name))
