"""Removal of the markers of removed entries, on demand.

A removal leaves its marker permanently: a nats-server up to 2.15 that is killed may restore a removed entry whose
marker no longer exists (nats-server issue 8505), as happened with markers that had a ttl.
"""

from __future__ import annotations

from datetime import timedelta

from kvctl.kv.maintenance import compaction
from kvctl.kv.maintenance.compaction import Tombstones
from kvctl.tables.table import Table


async def find(table: Table, *, older_than: timedelta = timedelta()) -> list[Tombstones]:
    """Return the markers of removals that are at least this old, stream by stream. Raises TableNotFound."""
    await table.layout.check_life()
    buckets = table.layout.buckets
    return [await table.layout.mapped(compaction.find(bucket, older_than=older_than)) for bucket in buckets]


async def remove(table: Table, found: list[Tombstones]) -> int:
    """Remove the markers, except of keys written since, and return their number. Raises PartlyDone."""
    pairs = zip(table.layout.buckets, found, strict=True)
    return sum([await compaction.remove(bucket, tombstones) for bucket, tombstones in pairs])
