"""Latest state of a bucket from its changes: the last remaining revision of each key.

A bucket without ttls has a key's newest revision. With a bucket ttl it may have expired, and all older ones with it. If
keys have their own ttl, in a bucket with a history, an older value comes back when the newer one expires, as on servers
(kvctl.kv.copied_entry): there a key's revisions are replayed in order, as the server did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvctl.pipeline.files.file_rows import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ENTRY = "struct<revision: bigint, created: timestamp, expires: timestamp, operation: string>"


def newest(changes: DataFrame, config: Mapping[str, Any]) -> DataFrame:
    """Return the last revision of each key that the bucket of this configuration has now, deletions included.

    The changes have the columns of an export, each revision once.
    """
    from pyspark.sql.functions import expr, max

    changes = changes.withColumn("expires", _expires(config))
    history = int(config.get("max_msgs_per_subject") or 1)
    if history > 1 and config.get("allow_msg_ttl"):
        last = _last_left(changes, history)
    else:
        last = changes.groupBy("key").agg(max("revision").alias("revision"))
    found = changes.join(last.select("revision"), "revision", "left_semi")
    return found.where("expires is null or expires > current_timestamp()").select(*COLUMNS, expr("expires"))


def _expires(config: Mapping[str, Any]) -> Column:
    """Return when an entry expires: by its own ttl, or the bucket's."""
    from pyspark.sql.functions import expr

    own = "timestamp_micros(unix_micros(created) + cast(ttl * 1000000 as bigint))"
    age = int(config.get("max_age") or 0) // 1000
    return expr(f"least({own}, timestamp_micros(unix_micros(created) + {age}))" if age else own)


def _last_left(changes: DataFrame, history: int) -> DataFrame:
    """Return the same if expiry uncovers earlier entries."""
    from pyspark.sql.functions import expr

    entries = "array_sort(collect_list(struct(revision, created, expires, operation)))"
    kept = "filter(kept, one -> one.expires is null or one.expires > entry.created)"
    after = f"concat(if(entry.operation = 'PURGE', array(), {kept}), array(entry))"
    trimmed = f"slice({after}, greatest(size({after}) - {history - 1}, 1), {history})"
    left = f"aggregate({entries}, cast(array() as array<{_ENTRY}>), (kept, entry) -> {trimmed})"
    now = f"filter({left}, one -> one.expires is null or one.expires > current_timestamp())"
    return changes.groupBy("key").agg(expr(f"try_element_at({now}, -1).revision").alias("revision"))
