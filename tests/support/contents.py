"""What a bucket holds."""

from kvctl import Bucket


async def contents(bucket: Bucket) -> dict[str, bytes]:
    """Its living keys and their values."""
    return {entry.key: entry.value async for entry in bucket.entries()}
