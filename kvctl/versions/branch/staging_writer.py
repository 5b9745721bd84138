"""Staging changes: written into a branch's epoch, which is known until the store refuses a write with it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvctl.errors import UsageError
from kvctl.versions.branch import staging
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.model import encode_staged
from kvctl.versions.store.protocol import (
    Change,
    Condition,
    Predicate,
    PredicateFailed,
    Store,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Epoch:
    """Where a branch's writes go, and the condition that they still do."""

    partition: bytes
    fence: Condition


class Writer:
    """One session's writes to the branches of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._epochs: dict[str, _Epoch] = {}
        self._reading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def largest(self) -> int:
        """Bytes that a value may have."""
        return self._store.largest - len(encode_staged(b""))

    def check(self, value: bytes | None) -> None:
        """Raises UsageError for a value that is too large."""
        if value is not None and len(value) >= self._store.largest:
            raise UsageError(f"The value is {len(value):,} bytes, {self.largest:,} are the most")

    async def put(self, branch: str, changes: Sequence[tuple[bytes, bytes | None]]) -> list[Predicate]:
        """Stage changes of distinct keys together, whatever is there; None deletes.

        Returns for each what holds until its key is staged again. Raises BranchNotFound, ConflictError when it is
        spent, UsageError.
        """
        for _, value in changes:
            self.check(value)

        async def write(epoch: _Epoch) -> list[Predicate]:
            written = [Change(epoch.partition, key, encode_staged(value)) for key, value in changes]
            return await self._store.write([epoch.fence], written)

        return await self._staged(branch, write)

    async def put_each(self, branch: str, changes: Mapping[bytes, bytes | None]) -> None:
        """Stage any number of changes, in no order and not together, sooner than `put` does. Raises as `put`.

        What was staged before a commit came in between stays in it: staged once more, it would replace what others have
        staged since.
        """
        for value in changes.values():
            self.check(value)
        left = {key: encode_staged(value) for key, value in changes.items()}

        async def write(epoch: _Epoch) -> None:
            try:
                await self._store.set_many(epoch.partition, left, fence=epoch.fence)
            except PredicateFailed as error:
                for key in error.written:
                    del left[key]
                raise

        await self._staged(branch, write)

    async def _staged(self, branch: str, write: Callable[[_Epoch], Awaitable[T]]) -> T:
        epoch = self._epochs.get(branch)
        for attempt in range(staging.TRIES):
            if epoch is None:
                epoch = await self._epoch_after(branch, None)
            try:
                return await write(epoch)
            except PredicateFailed:
                if attempt:
                    await staging.pause()
                epoch = await self._epoch_after(branch, epoch)
        raise staging.busy(branch)

    async def _epoch_after(self, branch: str, refused: _Epoch | None) -> _Epoch:
        """An epoch that is not the one refused; of many tasks that were, one asks. Raises BranchNotFound."""
        async with self._reading[branch]:
            known = self._epochs.get(branch)
            if known is None or known is refused:
                self._epochs.pop(branch, None)
                held = await staging.read(self._store, branch)
                fence = Condition(STAGING, branch.encode(), held.predicate)
                known = self._epochs[branch] = _Epoch(staging.partition_of(held.staging.epoch), fence)
            return known
