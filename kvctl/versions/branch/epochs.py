"""Epochs of staged changes: a branch's writes go into one, and a commit seals it so that no later write enters it.

An epoch that has changes is on the record of a branch, or it is reserved by a process that fills it before a branch
gets it. Any other is garbage: what takes epochs off a branch does that in one write, and clears them afterwards. A
reservation is a condition of the write that gives the epoch to a branch, and garbage collection removes it when it has
expired. So an epoch is never cleared under a branch, even if a server that is killed restores what was removed.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from operator import itemgetter

from kvctl.errors import ConflictError
from kvctl.versions import refs
from kvctl.versions.branch import branch_state
from kvctl.versions.model import DROPPED, Branch, StagedChange, decode_staged
from kvctl.versions.refs import BRANCHES, BranchRecord
from kvctl.versions.store.protocol import PredicateFailed, Store, StoreChange, StoreCondition, StoredValue, StoreEntry

RESERVED = b"reserved"
"""Partition of the reservations: the time of each, by epoch."""
RESERVATION_S, RENEWAL_S = 30.0, 5.0
"""Seconds after which garbage collection may take a reserved epoch, and after which a load renews its reservation."""
MAX_SEALED = 100
"""Number of sealed epochs, left by as many failed commits, that the next commit folds into one: reads look into each.

A commit in progress starts over when the epochs that it takes are folded.
"""

_EPOCHS = b"epoch/"
_KEY = itemgetter(0)


def new_epoch() -> str:
    """Return a new unique epoch name."""
    return secrets.token_hex(8)


def partition_of(epoch: str) -> bytes:
    """Return the partition of an epoch's changes."""
    return _EPOCHS + epoch.encode()


# -- changes -------------------------------------------------------------------------------------------


async def are_empty(store: Store, epochs: Sequence[str]) -> bool:
    """Return whether nothing is staged in any of these epochs."""
    for epoch in epochs:
        if not await store.is_empty(partition_of(epoch)):
            return False
    return True


async def changes_of(
    store: Store, record: BranchRecord, keys: Sequence[bytes]
) -> list[tuple[bytes, StoredValue | None]]:
    """Return each epoch's change of each of some keys as stored, newest epoch first; None for none."""
    names = [(epoch, key) for epoch in record.branch.epochs for key in keys]
    found = await store.get_many([(partition_of(epoch), key) for epoch, key in names])
    return [(key, one) for (_, key), one in zip(names, found, strict=True)]


async def batches(store: Store, epochs: Sequence[str]) -> AsyncGenerator[list[StoreEntry], None]:
    """Yield the newest change of each key in some epochs (oldest first), as stored, sorted by key.

    Holds some changes of each epoch, however large all of them are.
    """
    if len(epochs) == 1:
        async with aclosing(store.pages(partition_of(epochs[0]))) as alone:
            async for page in alone:
                yield page
        return
    async with AsyncExitStack() as stack:
        scans = [store.pages(partition_of(epoch), beside=len(epochs) - 1) for epoch in epochs]
        for scan in scans:
            stack.push_async_callback(scan.aclose)
        pages = [await anext(scan, []) for scan in scans]
        while ends := [page[-1].key for page in pages if page]:
            end, found = min(ends), dict[bytes, StoreEntry]()
            for number, page in enumerate(pages):
                if page and page[0].key <= end:
                    cut = bisect_right(page, end, key=_KEY)
                    found.update(zip(map(_KEY, page), page[:cut], strict=False))
                    pages[number] = page[cut:] or await anext(scans[number], [])
            yield sorted(found.values(), key=_KEY)


async def listed(
    store: Store, epochs: Sequence[str], take: Callable[[bytes], bytes | None] = decode_staged
) -> dict[bytes, StagedChange]:
    """Return the newest change of each key in some epochs (oldest first), its value as `take` returns it."""
    found: dict[bytes, StagedChange] = {}
    async with aclosing(batches(store, epochs)) as changes:
        async for some in changes:
            found.update((entry.key, StagedChange(take(entry.value), entry.revision)) for entry in some)
    return found


# -- moves ---------------------------------------------------------------------------------------------


async def sealed(store: Store, record: BranchRecord) -> BranchRecord | None:
    """Close the current epoch and open another; return the branch after that, None if it was moved."""
    after = record.branch.sealing(new_epoch())
    with suppress(PredicateFailed):
        (revision,) = await store.write([record.unchanged], [record.replaced(after)])
        return record._replace(branch=after, revision=revision)
    return None


async def dropped(
    store: Store, conditions: Sequence[StoreCondition], changes: Sequence[StoreChange], epochs: Sequence[str]
) -> bool:
    """Write changes that take epochs off a branch, and begin to clear these; return False if a condition fails."""
    if not await store.written(conditions, changes):
        return False
    for epoch in epochs:
        await store.clear_soon(partition_of(epoch))
    return True


def _all(_: bytes) -> bool:
    return True


async def fold(store: Store, record: BranchRecord, keep: Callable[[bytes], bool] = _all) -> bool:
    """Replace all sealed epochs by one with the keys to keep; return False if the branch was moved."""
    old, epoch, kept = record.branch.sealed, new_epoch(), False
    own = await reserve(store, epoch)
    async with store.fill(partition_of(epoch)) as filling, aclosing(batches(store, old)) as changes:
        async for some in changes:
            left = {entry.key: entry.value for entry in some if keep(entry.key)}
            await filling.add(left)
            kept = kept or bool(left)
    after = record.branch.folded(epoch) if kept else record.branch.without(old, DROPPED)
    done = await dropped(store, [record.unchanged, own], [record.replaced(after), unreserved(epoch)], old)
    if not done:
        await release(store, epoch)
    return done


async def reset(store: Store, branch: str) -> None:
    """Drop all staged changes. Raises BranchNotFound, ConflictError after too many retries."""
    for _ in range(branch_state.MAX_ATTEMPTS):
        record = await refs.branch(store, branch)
        after = record.branch.sealing(new_epoch())
        change = record.replaced(after.without(after.sealed, DROPPED))
        if await dropped(store, [record.unchanged], [change], after.sealed):
            return
        await branch_state.pause()
    raise branch_state.busy(branch)


async def reset_keys(store: Store, branch: str, start: bytes, selected: Callable[[bytes], bool]) -> int:
    """Drop the staged changes of keys, from `start` to the first key that is not selected.

    Returns the number of keys. All are dropped atomically. Raises as `reset`.
    """
    for _ in range(branch_state.MAX_ATTEMPTS):
        record = await refs.branch(store, branch)
        found = {epoch: await _selected(store, epoch, start, selected) for epoch in record.branch.epochs}
        keys = set().union(*found.values())
        if not keys and await branch_state.is_unchanged(store, record):
            return 0
        if found[record.branch.epoch]:
            await sealed(store, record)
        elif keys and await fold(store, record, lambda key: not selected(key)):
            return len(keys)
        else:
            await branch_state.pause()
    raise branch_state.busy(branch)


async def _selected(store: Store, epoch: str, start: bytes, selected: Callable[[bytes], bool]) -> set[bytes]:
    found: set[bytes] = set()
    async with aclosing(store.scan(partition_of(epoch), start, values=False)) as entries:
        async for entry in entries:
            if not selected(entry.key):
                break
            found.add(entry.key)
    return found


# -- reservations and garbage --------------------------------------------------------------------------


async def reserve(store: Store, epoch: str) -> StoreCondition:
    """Reserve an epoch before it is filled; return the condition that it still is, as long as nobody renews it."""
    return StoreCondition(
        RESERVED, epoch.encode(), await store.set(RESERVED, epoch.encode(), b"%d" % await store.now_ns())
    )


async def reserved(store: Store, epoch: str) -> StoreCondition:
    """Return the condition that an epoch is still reserved. Raises ConflictError if garbage collection has taken it."""
    if (found := await store.get(RESERVED, epoch.encode())) is None:
        raise ConflictError("A garbage collection removed the changes before they were complete", hint="Try again")
    return StoreCondition(RESERVED, epoch.encode(), found.revision)


async def renew(store: Store, epoch: str) -> None:
    """Renew a reservation. Raises ConflictError if garbage collection has taken the epoch."""
    own = await reserved(store, epoch)
    await store.written([own], [StoreChange(own.partition, own.key, b"%d" % await store.now_ns())])


def unreserved(epoch: str) -> StoreChange:
    """Return the change that removes a reservation, for the write that gives the epoch to a branch."""
    return StoreChange(RESERVED, epoch.encode(), None, traceless=True)


async def release(store: Store, epoch: str) -> None:
    """Clear a reserved epoch that no branch gets."""
    await store.clear(partition_of(epoch))
    await store.write([], [unreserved(epoch)])


async def collect(store: Store) -> int:
    """Clear all epochs that no branch has or gets; return their number."""
    for key, revision in (await _expired(store)).items():
        # The marker stays: a reservation that a killed server restored would let a branch get the cleared epoch.
        await store.written([StoreCondition(RESERVED, key, revision)], [StoreChange(RESERVED, key, None)])
    gone = await _garbage(store, ())
    for epoch in gone:
        await store.clear(partition_of(epoch))
    return len(gone)


async def uncollected(store: Store) -> list[str]:
    """Return the epochs that garbage collection would clear."""
    return await _garbage(store, (await _expired(store)).keys())


async def _expired(store: Store) -> dict[bytes, int]:
    """Return the expired reservations, with their revisions."""
    entries = [entry async for entry in store.scan(RESERVED)]
    now = await store.now_ns() if entries else 0
    return {entry.key: entry.revision for entry in entries if abs(now - int(entry.value)) >= RESERVATION_S * 1e9}


async def _garbage(store: Store, expired: Collection[bytes]) -> list[str]:
    """Return the epochs that have changes, but are neither on a branch nor reserved, or by an expired reservation.

    The order of reading matters: an epoch is reserved, or on a branch, before it has changes.
    """
    names = [name.removeprefix(_EPOCHS) for name in await store.partitions() if name.startswith(_EPOCHS)]
    held = await store.get_many([(RESERVED, name) for name in names])
    known = {epoch async for entry in store.scan(BRANCHES) for epoch in Branch.decode(entry.value).epochs}
    free = [name.decode() for name, one in zip(names, held, strict=True) if one is None or name in expired]
    return [epoch for epoch in free if epoch not in known and not await are_empty(store, [epoch])]
