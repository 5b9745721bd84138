"""Statistics of a bucket: keys, sizes, churn and age by prefix, the largest and the hottest keys."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvctl.errors import UsageError
from kvctl.kv.maintenance.statistics import SHORTEST_HISTORY_NS
from kvctl.pipeline.files import contents
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read import worker_connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kvctl.pipeline.spark.engine import Engine

_COLUMNS = ("key", "value", "revision", "created", "operation")
_ENTRY = (
    "count(*) as entries", "max(revision) as revision", "sum(coalesce(length(value), 0)) as held",
    "min(created) as first",
    "max_by(struct(operation, coalesce(length(value), 0) as bytes, created), revision) as last",
)  # fmt: skip
_GROUP = (
    "count_if(lives) as keys", "count_if(not lives) as deleted", "sum(entries) as entries",
    "coalesce(sum(bytes) filter (where lives), 0) as bytes", "sum(held) as held",
    "count_if(changed >= {now} - interval 1 day) as changed_today",
    "min(changed) as oldest", "percentile_approx(changed, 0.5) as median", "max(changed) as newest",
)  # fmt: skip
_EMPTY = (0, 0, 0, 0, 0, 0, None, None, None)


@dataclass(frozen=True, slots=True)
class Group:
    """Some of the bucket's keys together; sizes in bytes, times as microseconds since the epoch."""

    prefix: str
    """Common prefix of their names, up to a dot; empty for all keys."""
    keys: int
    """Existing keys."""
    deleted: int
    """Deleted keys that still have a marker."""
    entries: int
    """Entries, history and markers included."""
    bytes: int
    """Bytes of the latest values."""
    held: int
    """Bytes of all values, history included."""
    changed_today: int
    """Keys that were written or deleted within a day."""
    oldest: int | None
    """Last change of the key that was unchanged for longest."""
    median: int | None
    newest: int | None


@dataclass(frozen=True, slots=True)
class Key:
    """Notable key."""

    key: str
    revision: int
    bytes: int
    entries: int
    a_day: float | None
    """Writes per day, over the entries that the bucket has; None for less than an hour of them."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of a bucket as of one revision."""

    bucket: str
    cut: int
    history: int
    """Entries kept per key."""
    full: int
    """Keys with the maximum number of entries: older ones were evicted."""
    total: Group
    prefixes: tuple[Group, ...]
    """Largest prefixes first."""
    more: int
    """Number of further prefixes."""
    largest: tuple[Key, ...]
    hottest: tuple[Key, ...]
    seconds: float


def stats(engine: Engine, options: SourceOptions, *, tokens: int = 1, limit: int = 20) -> Stats:
    """Read the bucket's history once; prefixes have `tokens` tokens. Raises BucketNotFound, UsageError."""
    if tokens < 1 or limit < 1:
        raise UsageError(f"`{min(tokens, limit)}` is not a positive number")
    begun = time.monotonic()
    with engine.explaining():
        info = worker_connection.run(contents.info_of(options))
        now = contents.server_time(info)
        cut, history = int(info["state"]["last_seq"]), int(info["config"].get("max_msgs_per_subject", 0))
        asked = replace(options, mode="history", columns=_COLUMNS, as_of=cut or None)
        keys = _keys(contents.read(engine.spark, asked), tokens).persist()
        try:
            total = next(iter(_groups(keys.selectExpr("*", "'' as name"), now, 1)), Group("", *_EMPTY))
            prefixes = _groups(keys.selectExpr("*", "prefix as name"), now, limit)
            count = keys.select("prefix").distinct().count()
            full = keys.where(f"entries >= {history}").count() if history > 1 else 0
            largest, hottest = _largest(keys, limit), _hottest(keys, limit)
        finally:
            keys.unpersist()
    return Stats(
        options.bucket, cut, history, full, total, prefixes, count - len(prefixes), largest, hottest,
        time.monotonic() - begun,
    )  # fmt: skip


def _keys(entries: DataFrame, tokens: int) -> DataFrame:
    """Return a row per key: its latest entry, and its number of entries."""
    from pyspark.sql.functions import expr

    aggregates = map(expr, _ENTRY)
    parts = "split(key, '[.]')"
    prefix = f"array_join(slice({parts}, 1, least({tokens}, greatest(size({parts}) - 1, 0))), '.')"
    return entries.groupBy("key").agg(*aggregates).selectExpr(
        "key", f"{prefix} as prefix", "entries", "revision", "held", "first", "last.bytes as bytes",
        "last.created as changed", "last.operation = 'PUT' as lives",
        "(entries - 1) / nullif(unix_micros(last.created) - unix_micros(first), 0) * 86400000000 as a_day",
        f"unix_micros(last.created) - unix_micros(first) < {SHORTEST_HISTORY_NS // 1000} as brief",
    )  # fmt: skip


def _groups(keys: DataFrame, now: str, limit: int) -> tuple[Group, ...]:
    from pyspark.sql.functions import expr

    aggregates = (expr(text.replace("{now}", now)) for text in _GROUP)
    found = keys.groupBy("name").agg(*aggregates).orderBy(expr("bytes").desc(), "name").limit(limit).selectExpr(
        "name", "keys", "deleted", "entries", "bytes", "held", "changed_today",
        *(f"unix_micros({name}) as {name}" for name in ("oldest", "median", "newest")),
    )  # fmt: skip
    return tuple(Group(*row) for row in found.collect())


def _largest(keys: DataFrame, limit: int) -> tuple[Key, ...]:
    return _top(keys.where("lives"), "bytes", limit)


def _hottest(keys: DataFrame, limit: int) -> tuple[Key, ...]:
    return _top(keys.where("a_day is not null and entries > 1"), "a_day", limit)


def _top(keys: DataFrame, column: str, limit: int) -> tuple[Key, ...]:
    from pyspark.sql.functions import expr

    rows: list[Any] = keys.orderBy(expr(column).desc(), "key").limit(limit).selectExpr(
        "key", "revision", "bytes", "entries", "if(brief, null, a_day) as a_day"
    ).collect()  # fmt: skip
    return tuple(Key(*row) for row in rows)
