"""How many entries each partition of a table holds."""

from __future__ import annotations

import asyncio
import os

from kvctl.jetstream.api import Api
from kvctl.tables.catalog import AT_ONCE, Found
from kvctl.tables.config import partition_stream, stream_name, subject_prefix


async def counts(api: Api, table: Found) -> list[int]:
    """The entries of each partition, those removed in the last hour included: their markers cannot be told apart.

    As consumers made for it count them; nothing is read.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def count(partition: int) -> int:
        async with slots:
            name = table.config.name
            stream = partition_stream(name, partition) if table.config.apart else stream_name(name)
            return await _pending(api, stream, f"{subject_prefix(name)}{partition:04x}.>")

    return list(await asyncio.gather(*(count(partition) for partition in range(table.config.partitions))))


async def _pending(api: Api, stream: str, subject: str) -> int:
    name = f"kvctl-{os.urandom(6).hex()}"
    config = {
        "name": name,
        "deliver_policy": "last_per_subject",
        "filter_subject": subject,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 5 * 10**9,
    }
    made = await api.call(f"CONSUMER.CREATE.{stream}.{name}.{subject}", {"stream_name": stream, "config": config})
    await api.call(f"CONSUMER.DELETE.{stream}.{name}")
    return int(made["num_pending"])
