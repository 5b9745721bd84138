"""An entry written again: the headers that are kept, its lifetime, and the older value that comes back afterwards.

Observed on nats-server 2.11 to 2.15, in buckets with history: servers drop the last entry and leave a marker only if it
was the key's only entry. Otherwise the entry below becomes the key's last one again, with a live value. A ttl below the
bucket's marker ttl is raised to it, in the stored message, too. The bucket's ttl removes everything older, whatever ttl
the message has.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING

from kvctl.jetstream.streams import ServerClock
from kvctl.kv.entry import Entry, Operation
from kvctl.units import NEVER, duration_from_ns
from kvctl.wire import decode_headers

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket


_NOT_THE_WRITERS = tuple(
    "nats-expected- nats-batch- nats-msg-id nats-stream-source nats-rollup nats-ttl kvctl-row kvctl-id".split()
)
"""Headers that control the server, or report its or a writer's action; necessary ones are set again."""


def own_headers(entry: Entry) -> dict[str, str]:
    """Return the entry's headers to keep, including the operation and a marker's reason."""
    return writers_own(decode_headers(entry.header)) if entry.header else {}


def writers_own(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers without those that control a server."""
    return {name: value for name, value in headers.items() if not name.lower().startswith(_NOT_THE_WRITERS)}


def may_roll_up(key: str) -> bool:
    """Return True if a rollup on the key erases only its own history: on `a.*` it erases every key that matches."""
    return not any(token in ("*", ">") for token in key.split("."))


async def remaining_ttl(bucket: Bucket, entry: Entry) -> timedelta | None:
    """Return the remaining ttl of an entry read from the bucket's leader. Raises as `ServerClock.read`."""
    if entry.ttl in (None, NEVER):
        return entry.ttl
    source = bucket.binding.source
    clock = await ServerClock.read(source.api, source.stream)
    return ttl_left(entry, clock.now_ns())


def ttl_left(entry: Entry, now_ns: int) -> timedelta | None:
    """Return the remaining ttl by the server's clock, at least one second."""
    ttl = entry.ttl
    if ttl is None or ttl == NEVER:
        return ttl
    age = timedelta(microseconds=(now_ns - entry.created_ns) // 1000)
    return max(timedelta(seconds=round((ttl - age).total_seconds())), timedelta(seconds=1))


async def returning(bucket: Bucket, keys: Iterable[str]) -> list[Entry]:
    """Return earlier entries of these keys that become values again when the last ones expire.

    Raises PermissionDenied, BucketNotFound and as `Bucket.history`.
    """
    most = await bucket_ttl(bucket)
    held: dict[str, list[Entry]] = {}
    async with aclosing(bucket.history(*keys)) as entries:
        async for entry in entries:
            held.setdefault(entry.key, []).append(entry)
    return [below[-1] for *earlier, last in held.values() if (below := _outliving(earlier, last, most))]


async def bucket_ttl(bucket: Bucket) -> timedelta | None:
    """Return the ttl of the bucket that takes the writes. Raises BucketNotFound, PermissionDenied."""
    info = (await bucket.locate()).source.info
    age = info["config"].get("max_age", 0) if info else 0
    return duration_from_ns(age) if age else None


async def time_left(bucket: Bucket, entry: Entry) -> timedelta | None:
    """Return an entry's remaining life, by its own ttl and the bucket's; None for one that does not expire.

    Raises as `bucket_ttl` and `ServerClock.read`.
    """
    if entry.ttl == NEVER:
        return None
    lives = [ttl for ttl in (entry.ttl, await bucket_ttl(bucket)) if ttl is not None]
    if not lives:
        return None
    source = bucket.binding.source
    age = (await ServerClock.read(source.api, source.stream)).now_ns() - entry.created_ns
    return max(min(lives) - timedelta(microseconds=age // 1000), timedelta(0))


def _outliving(earlier: list[Entry], last: Entry, most: timedelta | None) -> list[Entry]:
    """Return the entries that outlive the last one; none if they leave the key deleted."""
    end = _end(last, most)
    below = [entry for entry in earlier if end is not None and ((one := _end(entry, most)) is None or one > end)]
    return below if below and below[-1].operation is Operation.PUT else []


def _end(entry: Entry, most: timedelta | None) -> int | None:
    """Return the time at which its own ttl or the bucket's, `most`, ends it, in nanoseconds since the epoch."""
    lives = [ttl for ttl in (entry.ttl, most) if ttl is not None]
    return None if entry.ttl == NEVER or not lives else entry.created_ns + int(min(lives).total_seconds() * 10**9)
