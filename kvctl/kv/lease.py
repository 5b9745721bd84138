"""Leases: a key held for a time by one owner, renewed by compare-and-set; it expires with its holder.

The key's value is the owner's text. The identity of each write tells its holder from another of the same name. The
intended ttl is in a header (Kvctl-Lease): where a bucket has history, servers raise a message's own ttl to the bucket's
marker ttl.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from kvctl.errors import (
    KeyNotFound,
    KvctlError,
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    PermissionDenied,
    StreamReplaced,
    UnreachableError,
    UsageError,
    WaitExpired,
    WrongRevision,
)
from kvctl.jetstream import streams
from kvctl.kv import identity as identities
from kvctl.kv.conditional_write import TTL_SINCE, no_ttl, write_fields
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.identity import identity_of
from kvctl.kv.names import check_key
from kvctl.kv.oddity import WRITES
from kvctl.units import duration_from_ns, duration_seconds, format_duration
from kvctl.wire import encode_headers, header_value

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket


LEASE_HEADER = "Kvctl-Lease"
SHORTEST = timedelta(seconds=1)
LONGEST_OWNER = 200
"""Characters of an owner that messages show."""
RETRY_PAUSE = 0.1
REMEMBERED = 100
"""Writes of a lease, possibly still in flight, that it recognises as its own."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
LOOK_AGAIN = 1.0
"""Seconds between reads by a waiting owner: not every key that expires leaves a marker."""
MARGIN = 0.1
"""Seconds beyond its ttl after which a lease that was not renewed counts as given up."""


def clock() -> float:
    """Return seconds that also pass while this process is stopped and, where supported, while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """Lease on a key. Keep it alive with `keep`, which renews it until it is lost."""

    def __init__(self, bucket: Bucket, key: str, owner: str, ttl: timedelta) -> None:
        if ttl < SHORTEST:
            raise UsageError(f"A lease must last at least 1 second, not {format_duration(ttl)}")
        self.bucket = bucket
        self.key = key
        self.owner = owner
        self.ttl = ttl
        self.token = 0
        """Fencing token: the revision at which it was taken; every later holder's is higher."""
        self.revision = 0
        self.deadline = 0.0
        """Time, by `clock`, from which another owner may hold it."""
        self.grace = min(5.0, ttl.total_seconds() / 6)
        """Seconds before the deadline at which it is given up if it could not be renewed."""
        self._begun: dict[bytes, float] = {}
        """Start times of its last writes, by identity."""

    @property
    def over(self) -> bool:
        """True once the lease must not be relied on any more."""
        return clock() >= self.deadline - self.grace

    async def take(self, expired: int = 0) -> Entry | None:
        """Take the key unless it lives at another revision than `expired`; return the entry in the way, if any."""
        try:
            while True:
                entry = await self._last()
                if entry is not None and entry.operation is Operation.PUT and entry.revision != expired:
                    if not self._adopt(entry):
                        return entry
                    self.token = entry.revision
                    return None
                with suppress(WrongRevision, OutcomeUnknown):  # the next read shows it
                    await self._write(entry.revision if entry else 0)
                    self.token = self.revision
                    return None
        except asyncio.CancelledError:
            with suppress(KvctlError):
                await self.release()  # it may have been stored nevertheless
            raise

    async def keep(self, renewed: Callable[[float], object] = lambda deadline: None) -> NoReturn:
        """Renew it at a third of its ttl and call `renewed` with each new deadline.

        Raises LeaseLost: immediately when somebody else deletes or takes the key, otherwise `grace` seconds before the
        deadline if it could not be renewed.
        """
        ways = [asyncio.ensure_future(self._renew(renewed)), asyncio.ensure_future(self._notice())]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            raise next(iter(done)).exception() or AssertionError("a renewal task ended without an exception")
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def release(self) -> bool:
        """Delete the key if still held; return True if it was. Raises KvctlError if that cannot be found out."""
        for _ in range(3):
            entry = await self._last()
            if entry is None or entry.operation is not Operation.PUT or not self._adopt(entry):
                return False
            with suppress(WrongRevision, KeyNotFound):  # a renewal was in flight, or it expired
                await self.bucket.delete(self.key, revision=entry.revision)
                return True
        return False

    async def _last(self) -> Entry | None:
        return await self.bucket.last_entry(self.key, leader=True)

    async def _write(self, expected: int) -> None:
        """Write the key conditionally; its time counts from before the message is sent."""
        begun = clock()
        identity = identities.new()
        self._begun[identity] = begun
        if len(self._begun) > REMEMBERED:
            del self._begun[next(iter(self._begun))]
        whole = timedelta(seconds=math.ceil(self.ttl.total_seconds()))  # servers truncate to full seconds
        fields = write_fields(expected=expected, ttl=whole)
        fields[LEASE_HEADER] = str(duration_seconds(self.ttl))
        value, header = os.fsencode(self.owner), encode_headers(fields)
        self.revision = await self.bucket.write_message(self.key, value, header, expected, identity=identity)
        self.deadline = begun + self.ttl.total_seconds()

    def _adopt(self, entry: Entry) -> bool:
        """Return True if the entry is this lease's own write, whose acknowledgement may have been lost."""
        begun = self._begun.get(identity_of(entry.header) or b"")
        if begun is None:
            return False
        self.revision, self.deadline = entry.revision, begun + self.ttl.total_seconds()
        return True

    async def _renew(self, renewed: Callable[[float], object]) -> None:
        patience = max(1.0, self.ttl.total_seconds() / 6)
        while True:
            await self._sleep_until(self.deadline - self.ttl.total_seconds() * 2 / 3)
            problem = "kvctl was suspended"
            while not self.over:
                try:
                    async with asyncio.timeout(min(self.deadline - self.grace - clock(), patience)):
                        await self._renew_once()
                    renewed(self.deadline)
                    break
                except TimeoutError:
                    problem = "no answer came in time"
                except KvctlError as error:
                    if isinstance(error, LeaseLost):
                        raise
                    problem = error.message
                await asyncio.sleep(RETRY_PAUSE)
            if self.over:
                raise LeaseLost(f"The lease on `{self.key}` could not be renewed: {problem}")

    async def _renew_once(self) -> None:
        try:
            await self._write(self.revision)
        except WrongRevision:
            entry = await self._last()
            if entry is None or not self._adopt(entry):
                raise self._lost(entry) from None

    async def _notice(self) -> None:
        """Wait until somebody else writes the key."""
        try:
            watcher = await self.bucket.watch(self.key)
            async with watcher, aclosing(watcher.batches()) as batches:
                async for batch in batches:
                    for entry in batch:
                        if identity_of(entry.header) not in self._begun:
                            raise self._lost(entry)
        except StreamReplaced:
            raise LeaseLost(
                f"The lease on `{self.key}` was lost: bucket `{self.bucket.name}` was deleted or emptied"
            ) from None
        except LeaseLost:
            raise
        except KvctlError:
            await asyncio.Event().wait()  # no permission to watch: the next renewal notices

    def _lost(self, entry: Entry | None) -> LeaseLost:
        if entry is not None and entry.operation is Operation.PUT:
            how = f"`{owner_of(entry)}` took it, at revision {entry.revision}"
        elif entry is not None and entry.reason == "MaxAge":
            how = "it expired"
        else:
            how = "it was deleted"
        return LeaseLost(f"The lease on `{self.key}` was lost: {how}")

    async def _sleep_until(self, moment: float) -> None:
        while True:
            left = moment - clock()
            if left <= 0:
                return
            await asyncio.sleep(min(left, 1.0))  # the loop's clock may stand still while the machine sleeps


def owner_of(entry: Entry) -> str:
    """Return the holder of the key, truncated where it is more than a name."""
    text = entry.value.decode(errors="replace")
    return text if len(text) <= LONGEST_OWNER else f"{text[:LONGEST_OWNER]}…"


async def acquire(
    bucket: Bucket,
    key: str,
    owner: str,
    ttl: timedelta,
    *,
    wait: timedelta | None = None,
    waiting: Callable[[str], object] = lambda owner: None,
) -> Lease:
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
    try:
        source = (await bucket.locate()).source
        bucket.check_writes_go_somewhere(operation=WRITES)
        info = await streams.find(source.api, source.stream)
    except PermissionDenied:
        return  # a setting that the bucket does not allow is reported by the write
    if info and (version := streams.version_of(info)) < TTL_SINCE:
        raise no_ttl(version)
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
