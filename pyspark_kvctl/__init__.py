"""Where Spark looks for data sources: packages named `pyspark_*` with a `DefaultSource`. This one's is `nats-kv`.

Spark imports all of them together, and one that fails hides the others; so this one never fails.
"""

from contextlib import suppress

with suppress(Exception):
    from kvctl.pipeline.data_source import KvDataSource as DefaultSource

    __all__ = ["DefaultSource"]
