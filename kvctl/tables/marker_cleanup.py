"""Remove the markers of removed entries, on demand.

A removal leaves its marker permanently: a nats-server up to 2.15 that is killed may bring back a removed entry whose
marker is no longer there (nats-server issue 8505), which is what happened to markers with a ttl.
"""

from __future__ import annotations

from datetime import timedelta

from kvctl.kv.maintenance import compaction
from kvctl.kv.maintenance.compaction import Tombstones
from kvctl.tables.table import Table


async def find(table: Table, *, older_than: timedelta = timedelta()) -> list[Tombstones]:
    """The markers of removals that are this old or older, stream by stream. Raises TableNotFound."""
    await table.layout.check_life()
    buckets = table.layout.buckets
    return [await table.layout.tell(compaction.find(bucket, older_than=older_than)) for bucket in buckets]


async def remove(table: Table, found: list[Tombstones]) -> int:
    """Remove them, but for those of keys that were written since; returns their number. Raises PartlyDone."""
    pairs = zip(table.layout.buckets, found, strict=True)
    return sum([await compaction.remove(bucket, tombstones) for bucket, tombstones in pairs])
