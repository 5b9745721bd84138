"""Stage any number of changes that appear on a branch together, or not at all.

They are written into an epoch of their own, which no branch has: without fences, at the speed of a plain bucket. At the
end one write puts that epoch on top of those that are sealed. Writers, commits, merges and resets that come before it
are complete then, and those that come later see all of it: each of them rewrites or checks the branch's record, and the
write is conditional on that.

Until then the epoch is reserved. What a killed process leaves there is invisible, and garbage collection clears it when
the reservation has expired. If a collection takes the epoch of a process that stood still for so long, the last write
fails, and nothing was staged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from kvctl.errors import ConflictError, KvctlError, NotFoundError
from kvctl.versions import refs
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.branch.staging import StagingWriter
from kvctl.versions.model import decode_staged, encode_staged
from kvctl.versions.store.protocol import Store, StoreFilling

FEW = 1000
"""Maximum number of changes that are staged in one batch, without an epoch of their own."""
FEW_BYTES = 4 << 20
KEYS_PER_REQUEST = 1000


class Load:
    """Changes that are staged together at the end; see `load`."""

    def __init__(self, store: Store, writer: StagingWriter, branch: str) -> None:
        self.epoch: str | None = None
        """The private epoch, if there is one by now."""
        self.few: dict[bytes, bytes | None] = {}
        """All changes, as long as they are few."""
        self._store = store
        self._writer = writer
        self._branch = branch
        self._size = 0
        self._stack = AsyncExitStack()
        self._filling: StoreFilling

    async def add(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Add changes; None deletes. Those of a later call replace those of an earlier one. Raises as `load`."""
        self._writer.check_all(changes.values())
        if self.epoch is None:
            self.few.update(changes)
            self._size += sum(len(value or b"") for value in changes.values())
            if len(self.few) <= FEW and self._size <= FEW_BYTES:
                return
            changes, self.few = self.few, {}
            await self._open()
        await self._filling.add({key: encode_staged(value) for key, value in changes.items()})

    async def added(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """Return the changes of these keys that were added so far."""
        if self.epoch is None:
            return {key: self.few[key] for key in keys if key in self.few}
        await self._filling.flush()
        found: dict[bytes, bytes | None] = {}
        partition, left = epochs.partition_of(self.epoch), list(keys)
        for start in range(0, len(left), KEYS_PER_REQUEST):
            some = left[start : start + KEYS_PER_REQUEST]
            held = await self._store.get_many([(partition, key) for key in some])
            found |= {key: decode_staged(one.value) for key, one in zip(some, held, strict=True) if one is not None}
        return found

    async def finish(self) -> None:
        """Wait until all changes are stored."""
        await self._stack.aclose()

    async def discard(self, error: BaseException) -> None:
        """Give up, and clear what is stored."""
        with suppress(KvctlError):
            await self._stack.__aexit__(type(error), error, None)
        if self.epoch is not None:
            await _release(self._store, self.epoch)

    async def _open(self) -> None:
        await refs.branch(self._store, self._branch)  # fails early if there is no such branch
        epoch = epochs.new_epoch()
        await epochs.reserve(self._store, epoch)
        self.epoch = epoch
        renewing = asyncio.create_task(_renew(self._store, epoch))
        self._stack.callback(renewing.cancel)
        self._filling = await self._stack.enter_async_context(self._store.fill(epochs.partition_of(epoch)))


@asynccontextmanager
async def load(store: Store, writer: StagingWriter, branch: str) -> AsyncIterator[Load]:
    """Stage any number of changes at the end of the block, together; if it raises an error, none.

    Raises BranchNotFound, UsageError, UnreachableError, ConflictError (nothing was staged), OutcomeUnknown.
    """
    changes = Load(store, writer, branch)
    try:
        yield changes
        await changes.finish()
    except BaseException as error:
        await changes.discard(error)
        raise
    if changes.epoch is not None:
        await _show(store, branch, changes.epoch)
    elif changes.few:
        await writer.put_many(branch, list(changes.few.items()))


async def _show(store: Store, branch: str, epoch: str) -> None:
    """Put a private epoch on top of the sealed ones, and of the current one unless that is empty."""
    for _ in range(branch_state.MAX_ATTEMPTS):
        try:
            own, record = await epochs.reserved(store, epoch), await refs.branch(store, branch)
        except (NotFoundError, ConflictError):
            await _release(store, epoch)
            raise
        held = record.branch.epoch
        current = held if await epochs.are_empty(store, [held]) else epochs.new_epoch()
        changes = [record.replaced(record.branch.on_top(epoch, current)), epochs.unreserved(epoch)]
        if await store.written([record.unchanged, own], changes):
            return
        await branch_state.pause()
    await _release(store, epoch)
    raise branch_state.busy(branch)


async def _release(store: Store, epoch: str) -> None:
    """Clear an epoch that no branch gets; a failure leaves it to garbage collection."""
    with suppress(KvctlError):
        await epochs.release(store, epoch)


async def _renew(store: Store, epoch: str) -> None:
    """Renew the reservation of an epoch for as long as it is used; what fails shows at the end."""
    while True:
        await asyncio.sleep(epochs.RENEWAL_S)
        with suppress(KvctlError):
            await epochs.renew(store, epoch)
