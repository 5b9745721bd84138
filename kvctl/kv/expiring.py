"""What comes back when a key expires: where a bucket keeps a history, servers drop the last entry and leave no marker.

Found on nats-server 2.11 to 2.15: a marker is left only when the last of a key's entries expires. Before that the entry
below is the key's last one again, its value alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING

from kvctl.kv.entry import Entry, Operation

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket


async def returning(bucket: Bucket, keys: Iterable[str]) -> list[Entry]:
    """Earlier entries of these keys that come back as their values when the last ones expire by their ttl.

    Raises PermissionDenied, BucketNotFound and as `Bucket.history`.
    """
    held: dict[str, list[Entry]] = {}
    async with aclosing(bucket.history(*keys)) as entries:
        async for entry in entries:
            held.setdefault(entry.key, []).append(entry)
    return [below[-1] for *earlier, last in held.values() if (below := _outliving(earlier, last))]


def _outliving(earlier: list[Entry], last: Entry) -> list[Entry]:
    """The entries that are there still when the last one expires; none when what is left of the key is deleted."""
    end = _end(last)
    below = [entry for entry in earlier if end is not None and ((one := _end(entry)) is None or one > end)]
    return below if below and below[-1].operation is Operation.PUT else []


def _end(entry: Entry) -> int | None:
    """When its own ttl ends it, in nanoseconds since the epoch."""
    return None if entry.ttl is None else entry.created_ns + int(entry.ttl.total_seconds() * 10**9)
