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
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from kvctl.errors import KeyNotFound, KvctlError, LeaseLost, OutcomeUnknown, StreamReplaced, UsageError, WrongRevision
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.write import identity as identities
from kvctl.kv.write.conditional_write import write_fields
from kvctl.kv.write.identity import identity_of
from kvctl.units import duration_seconds, format_duration
from kvctl.wire import encode_headers

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
