"""Every kind of traffic on one bucket, recorded while faults happen, and checked against what the bucket holds then.

Each client writes, each kind of operation is a method, and what was acknowledged is noted. An operation may fail as
the contract says: unreachable (5), unknown (6), conflict (4), a wait that ended (9); anything else ends the test.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import kvctl
from kvctl import Bucket, Client, Entry
from kvctl.errors import (
    ConflictError,
    KeyExists,
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    UnreachableError,
    WaitExpired,
    WrongRevision,
)
from kvctl.kv.lease import acquire, clock
from kvctl.kv.transaction.transaction import Transaction

TIMEOUT = timedelta(seconds=4)
LONGEST_WAIT_S = 4 * TIMEOUT.total_seconds()
"""Bound of every single operation: tries of a write and the reading back each have the timeout."""
ACCOUNTS, EACH = 6, 100
STEADY = 200
"""Keys that exist before the faults begin and are never written again: every listing has all of them."""
HISTORY = 64


@dataclass
class Workload:
    """What was done to a bucket and acknowledged."""

    name: str
    timeout: timedelta = TIMEOUT
    operations: int = 0
    unknown: int = 0
    failed: int = 0
    longest_wait: float = 0.0
    longest_gap: float = 0.0
    puts: dict[str, list[tuple[int, int, bool]]] = field(default_factory=lambda: defaultdict(list))
    """By key: number written, revision or 0, whether it was acknowledged."""
    cas: list[tuple[int, int]] = field(default_factory=list)
    """Revision expected and got."""
    created: list[tuple[str, int]] = field(default_factory=list)
    transferred: dict[str, int] = field(default_factory=dict)
    """By receipt of a transfer: the revision reported."""
    refused: list[str] = field(default_factory=list)
    """Receipts of transfers that were reported not to be stored."""
    seen: list[list[Entry]] = field(default_factory=list)
    """By watch."""
    held: list[tuple[float, float, int]] = field(default_factory=list)
    """When a lease was held, and its token."""
    violations: list[str] = field(default_factory=list)
    _last_ack: float = field(default_factory=time.monotonic)

    async def prepare(self, client: Client, replicas: int) -> Bucket:
        """Make the bucket with what it holds before the faults."""
        bucket = await client.create_bucket(
            self.name, replicas=replicas, history=HISTORY, atomic=True, marker_ttl=timedelta(seconds=5)
        )
        for number in range(STEADY):
            await bucket.put(f"steady.{number}", b"here")
        for number in range(ACCOUNTS):
            await bucket.put(f"account.{number}", b"%d" % EACH)
        await bucket.put("counter", b"0")
        return bucket

    @asynccontextmanager
    async def running(self, connect: Sequence[str]) -> AsyncIterator[None]:
        """Clients at work while the block runs, each with the servers in an order of its own."""
        kinds = [self.put, self.put, self.update, self.update, self.create, self.create, self.transfer, self.transfer]
        kinds += [self.watch, self.watch, self.list, self.lease, self.lease]
        async with AsyncExitStack() as stack:
            tasks: list[asyncio.Task[None]] = []
            for number, kind in enumerate(kinds):
                urls = ",".join(random.sample(connect, len(connect)))
                context = kvctl.Context(url=urls, timeout=self.timeout)
                client = await stack.enter_async_context(kvctl.connect(context))
                tasks.append(asyncio.create_task(self._again(kind, client.bucket(self.name), number)))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            self.violations += [repr(one) for one in ended if not isinstance(one, asyncio.CancelledError)]

    async def _again(self, kind: Callable[[Bucket, int], Awaitable[None]], bucket: Bucket, number: int) -> None:
        while True:
            try:
                await kind(bucket, number)
            except UnreachableError:
                self.failed += 1
                await asyncio.sleep(0.05)
            except OutcomeUnknown:
                self.unknown += 1
            await asyncio.sleep(random.uniform(0, 0.004))

    @asynccontextmanager
    async def timed(self) -> AsyncIterator[None]:
        """One operation."""
        begun = time.monotonic()
        self.operations += 1
        try:
            yield
        finally:
            took = time.monotonic() - begun
            self.longest_wait = max(self.longest_wait, took)
            if took > LONGEST_WAIT_S:
                self.violations.append(f"an operation took {took:.1f} s")

    def acknowledged(self) -> None:
        """A write was."""
        now = time.monotonic()
        self.longest_gap, self._last_ack = max(self.longest_gap, now - self._last_ack), now

    async def put(self, bucket: Bucket, number: int) -> None:
        """The next number to a key that only this client writes."""
        count = sum(len(numbers) for key, numbers in self.puts.items() if key.startswith(f"put.{number}."))
        key = f"put.{number}.{count // (HISTORY - 4)}"
        self.puts[key].append((count + 1, 0, False))
        async with self.timed():
            revision = await bucket.put(key, b"%d" % (count + 1))
        self.puts[key][-1] = (count + 1, revision, True)
        self.acknowledged()

    async def update(self, bucket: Bucket, _: int) -> None:
        """One more, on condition."""
        known = max((got for _, got in self.cas), default=0)
        async with self.timed():
            entry = await bucket.get("counter", leader=True)
        self._require(entry.revision >= known, f"the leader read revision {entry.revision} after {known}")
        with suppress(WrongRevision):
            async with self.timed():
                got = await bucket.update("counter", b"%d" % (int(entry.value) + 1), entry.revision)
            self.cas.append((entry.revision, got))
            self.acknowledged()

    async def create(self, bucket: Bucket, _: int) -> None:
        """A key that several want, all with the same value."""
        key = f"mutex.{len(self.created) // 2}"
        with suppress(KeyExists, WrongRevision):
            async with self.timed():
                revision = await bucket.create(key, b"mine")
            self.created.append((key, revision))
        await asyncio.sleep(0.02)

    async def transfer(self, bucket: Bucket, number: int) -> None:
        """From one account to two others, all or none, with a receipt under a key of its own."""
        async with self.timed():
            found = await bucket.get_many(
                [f"account.{account}" for account in random.sample(range(ACCOUNTS), 3)], leader=True
            )
        receipt = f"receipt.{number}.{self.operations}"
        transaction = Transaction().put(receipt, b"")
        for entry, change in zip((entry for entry in found if entry is not None), (-2, 1, 1), strict=True):
            value = b"%d" % (int(entry.value) + change)
            if random.random() < 0.5:
                transaction.update(entry.key, value, entry.revision)
            else:
                transaction.expect(entry.key, value=entry.value).put(entry.key, value)
        try:
            async with self.timed():
                self.transferred[receipt], *_ = await bucket.commit(transaction)
        except ConflictError:
            self.refused.append(receipt)
        except UnreachableError:
            self.refused.append(receipt)
            raise

    async def watch(self, bucket: Bucket, _: int) -> None:
        """Every revision from the first on, in one reading that survives what happens."""
        found: list[Entry] = []
        self.seen.append(found)
        async with await bucket.watch("put.>", "counter", history=True) as watcher:
            async for entry in watcher:
                if isinstance(entry, Entry):
                    found.append(entry)

    async def list(self, bucket: Bucket, _: int) -> None:
        """All keys that exist throughout."""
        async with self.timed():
            keys = [key async for key in bucket.keys("steady.*")]
        if len(keys) != STEADY or len({*keys}) != STEADY:
            self.violations.append(f"a listing had {len(keys)} keys, {len({*keys})} different")
        await asyncio.sleep(0.1)

    async def lease(self, bucket: Bucket, number: int) -> None:
        """Hold a lease for a moment."""
        with suppress(LeaseHeld, LeaseLost, WaitExpired, WrongRevision):
            taken = await acquire(bucket, "lease", f"client {number}", timedelta(seconds=2), wait=timedelta(seconds=2))
            begun = clock()
            await asyncio.sleep(0.1)
            self.held.append((begun, min(clock(), taken.deadline), taken.token))
            await taken.release()
        await asyncio.sleep(0.05)

    async def working(self, limit: float = 120) -> None:
        """Wait until writes of all kinds are acknowledged again."""
        wanted = [done + more for done, more in zip(self._done(), (30, 60, 15), strict=True)]
        deadline = time.monotonic() + limit
        while any(done < least for done, least in zip(self._done(), wanted, strict=True)):
            assert time.monotonic() < deadline, "no writes after the fault"
            await asyncio.sleep(0.05)

    def _done(self) -> list[int]:
        return [len(self.cas), sum(map(len, self.puts.values())), len(self.transferred)]

    async def check(self, client: Client) -> None:
        """Compare everything with what the bucket holds; all clients have ended."""
        await asyncio.sleep(1)  # what was sent before they ended is stored
        bucket = client.bucket(self.name)
        stored: dict[str, list[Entry]] = defaultdict(list)
        async for entry in bucket.history(">"):
            stored[entry.key].append(entry)
        self._check_puts(stored)
        self._check_counter(stored["counter"])
        self._check_watches(stored)
        created = [key for key, _ in self.created]
        self._require(len(created) == len({*created}), "two creations of one key succeeded")
        self._require(
            all(stored[key][0].revision == revision for key, revision in self.created if stored[key]),
            "a creation was reported at another revision",
        )
        self._check_transfers(stored)
        spans = sorted(self.held)
        overlaps = [pair for pair in itertools.pairwise(spans) if pair[1][0] < pair[0][1]]
        self._require(not overlaps, f"two held the lease: {overlaps[:2]}")
        self._require([token for *_, token in spans] == sorted({token for *_, token in spans}), "tokens do not rise")
        if self.violations:
            raise AssertionError("\n".join(self.violations))

    def _check_puts(self, stored: dict[str, list[Entry]]) -> None:
        for key, written in self.puts.items():
            numbers = [int(entry.value) for entry in stored[key]]
            self._require(len(numbers) == len({*numbers}), f"`{key}` was written twice: {numbers}")
            unknown = {number for number, _, acknowledged in written if not acknowledged}
            known = [number for number in numbers if number not in unknown]  # an unknown one may arrive later
            self._require(known == sorted(known), f"`{key}` was written out of order: {numbers}")
            at = {int(entry.value): entry.revision for entry in stored[key]}
            for number, revision, acknowledged in written:
                if acknowledged:
                    self._require(at.get(number) == revision, f"`{key}` lost {number}, or has it elsewhere")

    def _check_counter(self, entries: list[Entry]) -> None:
        expected = [before for before, _ in self.cas]
        self._require(len(expected) == len({*expected}), "two updates of one revision succeeded")
        value = int(entries[-1].value)
        self._require(
            len(self.cas) <= value <= len(self.cas) + self.unknown + len(self.violations) + 2, f"counter {value}"
        )

    def _check_transfers(self, stored: dict[str, list[Entry]]) -> None:
        total = sum(int(stored[f"account.{number}"][-1].value) for number in range(ACCOUNTS))
        self._require(total == ACCOUNTS * EACH, f"the accounts hold {total}")
        for receipt, revision in self.transferred.items():
            self._require([entry.revision for entry in stored[receipt]] == [revision], f"`{receipt}` is elsewhere")
        self._require(not any(stored[receipt] for receipt in self.refused), "a refused transfer was stored")

    def _check_watches(self, stored: dict[str, list[Entry]]) -> None:
        for found in self.seen:
            revisions = [entry.revision for entry in found]
            self._require(revisions == sorted({*revisions}), "a watch showed a revision twice, or out of order")
            there = {entry.revision for key in stored for entry in stored[key] if key.startswith("put.")}
            shown = {entry.revision for entry in found if entry.key.startswith("put.")}
            last = max(revisions, default=0)
            missing = {revision for revision in there if revision <= last} - shown
            self._require(not missing, f"a watch missed {len(missing)} revisions")

    def _require(self, holds: bool, text: str) -> None:
        if not holds:
            self.violations.append(text)
