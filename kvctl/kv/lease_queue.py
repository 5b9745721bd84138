"""Acquire a lease: immediately, or when it becomes free."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from kvctl.errors import KvctlError, LeaseHeld, PermissionDenied, UnreachableError, UsageError, WaitExpired
from kvctl.jetstream import streams
from kvctl.kv.entry import Entry
from kvctl.kv.lease import LEASE_HEADER, RETRY_PAUSE, Lease, clock, owner_of
from kvctl.kv.names import check_key
from kvctl.kv.write.conditional_write import TTL_SINCE, no_ttl
from kvctl.units import duration_from_ns, format_duration
from kvctl.wire import header_value

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

LOOK_AGAIN = 1.0
"""Seconds between reads by a waiting owner: not every key that expires leaves a marker."""
MARGIN = 0.1
"""Seconds beyond its ttl after which a lease that was not renewed counts as given up."""


async def acquire(
    bucket: Bucket, key: str, owner: str, ttl: timedelta, *,
    wait: timedelta | None = None, waiting: Callable[[str], object] = lambda owner: None,
) -> Lease:  # fmt: skip
    """Take the key if nobody holds it, or within `wait`; `waiting` is called with the holder's name.

    Raises LeaseHeld without `wait`, otherwise WaitExpired; KvctlError for a bucket without per-key TTLs; as `put`.
    """
    lease = Lease(bucket, check_key(key), owner, ttl)
    await _check(bucket, ttl)
    holder = await lease.take()
    if holder is None:
        return lease
    if wait is None:
        name = owner_of(holder)
        raise LeaseHeld(
            f"`{key}` is held by `{name}`, at revision {holder.revision}",
            owner=name,
            hint="Wait for it with `--wait-for`",
        )
    waiting(owner_of(holder))
    await _Turn(lease, holder, clock() + wait.total_seconds()).come()
    return lease


@asynccontextmanager
async def held(
    bucket: Bucket, key: str, owner: str, ttl: timedelta, wait: timedelta | None = None
) -> AsyncIterator[Lease]:
    """Hold the key while the block runs; see `Bucket.lease`."""
    lease = await acquire(bucket, key, owner, ttl, wait=wait)
    block = asyncio.current_task()
    assert block is not None
    keeping = asyncio.ensure_future(lease.keep())

    def end(task: asyncio.Task[NoReturn]) -> None:
        if not task.cancelled():
            block.cancel()

    keeping.add_done_callback(end)
    try:
        yield lease
    except asyncio.CancelledError:
        if not keeping.done() or block.uncancel():
            raise
        await keeping
    finally:
        keeping.remove_done_callback(end)
        lost = keeping.done()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        if not lost:
            with suppress(KvctlError):  # it expires by itself
                await lease.release()


async def _check(bucket: Bucket, ttl: timedelta) -> None:
    """Raise KvctlError for a bucket that cannot expire a key after this time."""
    if bucket.binding.api.connection.server_version < TTL_SINCE:
        raise no_ttl(bucket.binding.api.connection.server_version)
    try:
        source = (await bucket.locate()).source
        bucket.check_writes_go_somewhere()
        info = await streams.find(source.api, source.stream)
    except PermissionDenied:
        return  # a setting that the bucket does not allow is reported by the write
    config = info["config"] if info else {}
    if info and not config.get("allow_msg_ttl"):
        raise KvctlError(
            f"Bucket `{source.bucket}` does not allow per-key TTLs, which leases need; nothing was written",
            hint=f"Allow them with `kvctl bucket edit {source.bucket} --marker-ttl 1s`",
        )
    longest = duration_from_ns(config.get("max_age") or 0)
    if longest and longest < ttl:
        raise UsageError(
            f"The lease is for {format_duration(ttl)}, but keys of bucket `{source.bucket}` expire after "
            f"{format_duration(longest)}",
            hint=f"Use a `--ttl` of at most {format_duration(longest)}",
        )


class _Turn:
    """Wait for a lease that is held: watches the key and reads it at intervals.

    A holder that has not renewed its lease for its full ttl, as watched from here, has given it up, even if the server
    keeps the key: with history it does so for at least the bucket's marker ttl.
    """

    def __init__(self, lease: Lease, holder: Entry, until: float) -> None:
        self._lease = lease
        self._until = until
        self._changed = asyncio.Event()
        self._see(holder)

    def _see(self, holder: Entry) -> None:
        self._holder = holder
        ttl = header_value(holder.header, LEASE_HEADER.encode())
        try:
            self._expires = clock() + float(ttl or math.inf) + MARGIN
        except ValueError:
            self._expires = math.inf

    async def come(self) -> None:
        """Wait until the lease is taken. Raises WaitExpired."""
        following = asyncio.ensure_future(self._follow())
        try:
            while clock() < self._until:
                left = min(self._until, self._expires) - clock()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(min(LOOK_AGAIN, left), 0)):
                        await self._changed.wait()
                self._changed.clear()
                if await self._try():
                    return
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        key = self._lease.key
        raise WaitExpired(f"`{key}` is still held by `{owner_of(self._holder)}`", hint="Try a longer `--wait-for`")

    async def _try(self) -> bool:
        expired = self._holder.revision if clock() >= self._expires else 0
        try:
            holder = await self._lease.take(expired)
        except UnreachableError:
            await asyncio.sleep(RETRY_PAUSE)
            return False
        if holder is not None and holder.revision != self._holder.revision:
            self._see(holder)
        return holder is None

    async def _follow(self) -> None:
        with suppress(KvctlError):  # then the periodic reads have to do
            watcher = await self._lease.bucket.watch(self._lease.key)
            async with watcher, aclosing(watcher.batches()) as batches:
                async for _ in batches:
                    self._changed.set()
