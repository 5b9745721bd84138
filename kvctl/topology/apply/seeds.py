"""Entries of a topology file: created in buckets where their keys are absent, never overwritten."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from kvctl.errors import KeyExists
from kvctl.jetstream.api import Api
from kvctl.kv.bucket import Bucket

MAX_CONCURRENT_WRITES = 16


async def absent(api: Api, bucket: str, keys: Sequence[str]) -> list[str]:
    """Return the keys without a living entry, as the leader knows: never written, deleted, purged or expired."""
    found = await Bucket(api, bucket).get_many(keys, leader=True)
    return [key for key, entry in zip(keys, found, strict=True) if entry is None]


async def create(api: Api, bucket: str, entries: Mapping[str, str]) -> int:
    """Create the entries whose keys are absent, and return their number. Raises what a write raises."""
    handle, slots = Bucket(api, bucket), asyncio.Semaphore(MAX_CONCURRENT_WRITES)

    async def one(key: str, value: str) -> bool:
        async with slots:
            try:
                await handle.create(key, value.encode())
            except KeyExists:
                return False
            return True

    return sum(await asyncio.gather(*(one(key, value) for key, value in entries.items())))
