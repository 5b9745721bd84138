"""Number of entries in each partition of a table."""

from __future__ import annotations

import asyncio

from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import admin
from kvctl.tables.catalog import MAX_CONCURRENT_STREAMS, Found
from kvctl.tables.config import partition_stream, stream_name


async def counts(api: Api, table: Found) -> list[int]:
    """Return the number of entries of each partition, removed ones included: their markers are counted too.

    The server counts them for temporary consumers; nothing is read.
    """
    slots = asyncio.Semaphore(MAX_CONCURRENT_STREAMS)

    async def count(partition: int) -> int:
        async with slots:
            name = table.config.name
            stream = partition_stream(name, partition) if table.config.apart else stream_name(name)
            entries = f"{table.prefix}{partition:04x}.>"
            return await admin.count(api, stream, deliver_policy="last_per_subject", filter_subject=entries)

    return list(await asyncio.gather(*(count(partition) for partition in range(table.config.partitions))))
