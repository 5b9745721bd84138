"""Write staged changes into a branch's epoch, which is cached until the store refuses a write with it."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvctl.errors import UsageError
from kvctl.versions.branch import staging
from kvctl.versions.branch.staging import STAGING, StagingRecord
from kvctl.versions.model import encode_staged
from kvctl.versions.store.protocol import Change, Condition, Predicate, PredicateFailed, Store

RECENT_KEYS = 16
"""Number of keys that a session remembers of what it staged."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WrittenEpoch:
    """Epoch that this session staged changes into last, and the condition that a branch's writes still go there."""

    record: StagingRecord
    partition: bytes
    fence: Condition
    keys: deque[bytes] = field(default_factory=lambda: deque(maxlen=RECENT_KEYS))
    """Keys that were staged last."""


class Writer:
    """One session's writes to the branches of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._epochs: dict[str, WrittenEpoch] = {}
        self._reading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def largest(self) -> int:
        """Maximum bytes of a value."""
        return self._store.largest - len(encode_staged(b""))

    def check(self, value: bytes | None) -> None:
        """Check a value. Raises UsageError if it is too large."""
        if value is not None and len(value) >= self._store.largest:
            raise UsageError(f"The value has {len(value):,} bytes; the maximum is {self.largest:,}")

    def check_all(self, values: Iterable[bytes | None]) -> None:
        """Check values as `check`."""
        self.check(max((value for value in values if value is not None), key=len, default=None))

    async def put(self, branch: str, key: bytes, value: bytes | None) -> Predicate:
        """Stage a change unconditionally; None deletes. Returns and raises as `put_many`."""
        self.check(value)
        staged = encode_staged(value)
        return await self._staged(
            branch, (key,), lambda epoch: self._store.put_while(epoch.fence, epoch.partition, key, staged)
        )

    async def put_many(self, branch: str, changes: Sequence[tuple[bytes, bytes | None]]) -> list[Predicate]:
        """Stage changes of distinct keys atomically and unconditionally; None deletes.

        Returns for each change the predicate that holds until its key is staged again. Raises BranchNotFound,
        UsageError, ConflictError after too many retries.
        """
        self.check_all(value for _, value in changes)

        async def write(epoch: WrittenEpoch) -> list[Predicate]:
            written = [Change(epoch.partition, key, encode_staged(value)) for key, value in changes]
            return await self._store.write([epoch.fence], written)

        return await self._staged(branch, [key for key, _ in changes[-RECENT_KEYS:]], write)

    def epoch(self, branch: str) -> WrittenEpoch | None:
        """Return the epoch that this session staged changes into last; None if unknown."""
        return self._epochs.get(branch)

    async def _staged(self, branch: str, keys: Iterable[bytes], write: Callable[[WrittenEpoch], Awaitable[T]]) -> T:
        epoch = self._epochs.get(branch)
        for attempt in range(staging.MAX_ATTEMPTS):
            if epoch is None:
                epoch = await self._epoch_after(branch, None)
            epoch.keys.extend(keys)
            try:
                return await write(epoch)
            except PredicateFailed:
                if attempt:
                    await staging.pause()
                epoch = await self._epoch_after(branch, epoch)
        raise staging.busy(branch)

    async def _epoch_after(self, branch: str, refused: WrittenEpoch | None) -> WrittenEpoch:
        """Return an epoch other than the one refused; of many refused tasks, one asks. Raises BranchNotFound."""
        async with self._reading[branch]:
            known = self._epochs.get(branch)
            if known is None or known is refused:
                self._epochs.pop(branch, None)
                held = await staging.read(self._store, branch)
                fence = Condition(STAGING, branch.encode(), held.predicate)
                known = WrittenEpoch(held, staging.partition_of(held.staging.epoch), fence)
                self._epochs[branch] = known
            return known
