"""Leases: a key held for a time by one owner, renewed by compare-and-set, gone by itself when its holder is.

The key's value is the owner's text. Each write of a lease bears an identity (Nats-Msg-Id) that tells its holder from
another of the same name, and the ttl meant (Kvctl-Lease): where a bucket has a history, servers raise a message's own
to the bucket's marker ttl.
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
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.names import check_key
from kvctl.kv.writing import MESSAGE_ID, TTL_SINCE, no_ttl, write_fields
from kvctl.quantities import duration_from_ns, duration_seconds, format_duration
from kvctl.wire import encode_headers, header_value

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

LEASE_HEADER = "Kvctl-Lease"
SHORTEST = timedelta(seconds=1)
LOOK_AGAIN = 1.0
"""Seconds after which a waiting owner looks by itself: not every key that goes leaves a marker."""
MARGIN = 0.1
RETRY_PAUSE = 0.1
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds that pass also while this process is stopped, and where the system can tell while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


async def acquire(
    bucket: Bucket, key: str, owner: str, ttl: timedelta, *,
    wait: timedelta | None = None, waiting: Callable[[str], object] = lambda owner: None,
) -> Lease:  # fmt: skip
    """Take the key, if nobody holds it, or within `wait`; `waiting` is told who does.

    Raises LeaseHeld without `wait`, else WaitExpired; KvctlError for a bucket whose keys cannot have a ttl; as `put`.
    """
    lease = Lease(bucket, check_key(key), owner, ttl)
    await _check(bucket, ttl)
    holder = await lease.take()
    if holder is None:
        return lease
    if wait is None:
        name = _owner(holder)
        raise LeaseHeld(
            f"`{key}` is held by `{name}`, at revision {holder.revision}", owner=name, hint="`--wait` waits for it"
        )
    waiting(_owner(holder))
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
            with suppress(KvctlError):  # it ends by itself
                await lease.release()


async def _check(bucket: Bucket, ttl: timedelta) -> None:
    """Raises KvctlError for a bucket that keeps no key for this time and no longer."""
    if bucket.binding.api.connection.server_version < TTL_SINCE:
        raise no_ttl(bucket.binding.api.connection.server_version)
    try:
        source = (await bucket.locate()).source
        bucket.check_writes_go_somewhere()
        info = await streams.find(source.api, source.stream)
    except PermissionDenied:
        return  # what the bucket does not allow, the write will say
    config = info["config"] if info else {}
    if info and not config.get("allow_msg_ttl"):
        raise KvctlError(
            f"Bucket `{source.bucket}` gives keys no ttl of their own, which a lease needs; nothing was written",
            hint=f"`kvctl bucket edit {source.bucket} --marker-ttl 1s` allows it",
        )
    longest = duration_from_ns(config.get("max_age") or 0)
    if longest and longest < ttl:
        raise UsageError(
            f"The lease is for {format_duration(ttl)}, but keys of bucket `{source.bucket}` go after "
            f"{format_duration(longest)}",
            hint=f"Give a `--ttl` of at most {format_duration(longest)}",
        )


class Lease:
    """A key that is held, or was. It has to be kept: `keep` renews it until it is lost."""

    def __init__(self, bucket: Bucket, key: str, owner: str, ttl: timedelta) -> None:
        if ttl < SHORTEST:
            raise UsageError(f"A lease is for one second at least, not {format_duration(ttl)}")
        self.bucket = bucket
        self.key = key
        self.owner = owner
        self.ttl = ttl
        self.token = 0
        """The revision at which it was taken: every later holder's is higher, so writes can be fenced by it."""
        self.revision = 0
        self.deadline = 0.0
        """When, by `clock`, it may be somebody else's."""
        self.grace = min(5.0, ttl.total_seconds() / 6)
        """Seconds before the deadline at which it is given up if it could not be renewed."""
        self._identity = os.urandom(8).hex()
        self._begun: dict[bytes, float] = {}

    @property
    def over(self) -> bool:
        """Whether it must not be counted on any more."""
        return clock() >= self.deadline - self.grace

    async def take(self, expired: int = 0) -> Entry | None:
        """Take the key unless it lives at another revision than `expired`; the entry that stands in the way, if any."""
        try:
            while True:
                entry = await self._last()
                if entry is not None and entry.operation is Operation.PUT and entry.revision != expired:
                    if not self._adopt(entry):
                        return entry
                    self.token = entry.revision
                    return None
                with suppress(WrongRevision, OutcomeUnknown):  # the next look tells
                    await self._write(entry.revision if entry else 0)
                    self.token = self.revision
                    return None
        except asyncio.CancelledError:
            with suppress(KvctlError):
                await self.release()  # it may have been stored all the same
            raise

    async def keep(self, renewed: Callable[[float], object] = lambda deadline: None) -> NoReturn:
        """Renew it at a third of its ttl; `renewed` is told each new deadline.

        Raises LeaseLost: at once when somebody else deletes or takes the key, and when it could not be renewed, `grace`
        seconds before it may be somebody else's.
        """
        ways = [asyncio.ensure_future(self._renew(renewed)), asyncio.ensure_future(self._notice())]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            raise next(iter(done)).exception() or AssertionError("keeping a lease has no other end")
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def release(self) -> bool:
        """Delete the key if it is held still; whether it was. Raises KvctlError when that cannot be found out."""
        for _ in range(3):
            entry = await self._last()
            if entry is None or entry.operation is not Operation.PUT or not self._adopt(entry):
                return False
            with suppress(WrongRevision):  # a renewal that was under way
                await self.bucket.delete(self.key, revision=entry.revision)
                return True
        return False

    async def _last(self) -> Entry | None:
        return await self.bucket.last_entry(self.key, leader=True)

    async def _write(self, expected: int) -> None:
        """Write the key on condition; the time counts from before the message leaves."""
        begun = clock()
        number = f"{self._identity}.{len(self._begun)}"
        self._begun[number.encode()] = begun
        whole = timedelta(seconds=math.ceil(self.ttl.total_seconds()))  # servers cut what is no whole second
        fields = write_fields(expected=expected, ttl=whole)
        fields |= {MESSAGE_ID.decode(): number, LEASE_HEADER: str(duration_seconds(self.ttl))}
        value = os.fsencode(self.owner)
        self.revision = await self.bucket._write(self.key, value, encode_headers(fields), expected)
        self.deadline = begun + self.ttl.total_seconds()

    def _adopt(self, entry: Entry) -> bool:
        """Whether the entry is this lease's own writing, whose answer may have been lost."""
        begun = self._begun.get(header_value(entry.header, MESSAGE_ID) or b"")
        if begun is None:
            return False
        self.revision, self.deadline = entry.revision, begun + self.ttl.total_seconds()
        return True

    async def _renew(self, renewed: Callable[[float], object]) -> None:
        patience = max(1.0, self.ttl.total_seconds() / 6)
        while True:
            await self._sleep_until(self.deadline - self.ttl.total_seconds() * 2 / 3)
            problem = "kvctl was stopped meanwhile"
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
        """Until the key is written by somebody else."""
        try:
            watcher = await self.bucket.watch(self.key)
            async with watcher, aclosing(watcher.batches()) as batches:
                async for batch in batches:
                    for entry in batch:
                        if header_value(entry.header, MESSAGE_ID) not in self._begun:
                            raise self._lost(entry)
        except StreamReplaced:
            raise LeaseLost(
                f"The lease on `{self.key}` was lost: bucket `{self.bucket.name}` was deleted or emptied"
            ) from None
        except LeaseLost:
            raise
        except KvctlError:
            await asyncio.Event().wait()  # no permission to watch: the next renewal will tell

    def _lost(self, entry: Entry | None) -> LeaseLost:
        if entry is not None and entry.operation is Operation.PUT:
            how = f"`{_owner(entry)}` took it, at revision {entry.revision}"
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


class _Turn:
    """Waits until a lease can be taken: told by the key's changes, and looking by itself now and then.

    A holder that has not renewed its lease for the whole ttl, watched from here, has given it up, whatever the server
    makes of it: with a history it keeps a key for the bucket's marker ttl at least.
    """

    def __init__(self, lease: Lease, holder: Entry, until: float) -> None:
        self._lease = lease
        self._until = until
        self._changed = asyncio.Event()
        self._see(holder)

    def _see(self, holder: Entry) -> None:
        self._holder = holder
        said = header_value(holder.header, LEASE_HEADER.encode())
        try:
            self._expires = clock() + float(said or math.inf) + MARGIN
        except ValueError:
            self._expires = math.inf

    async def come(self) -> None:
        """Until the lease is taken. Raises WaitExpired."""
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
        raise WaitExpired(f"`{key}` is still held by `{_owner(self._holder)}`", hint="A longer `--wait` may get it")

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
        with suppress(KvctlError):  # then looking now and then has to do
            watcher = await self._lease.bucket.watch(self._lease.key)
            async with watcher, aclosing(watcher.batches()) as batches:
                async for _ in batches:
                    self._changed.set()


def _owner(entry: Entry) -> str:
    return entry.value.decode(errors="replace")
