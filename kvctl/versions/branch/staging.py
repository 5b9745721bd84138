"""Write staged changes into a branch's epoch, which is cached until the store refuses a write with it.

Conditional writes depend on epoch, staged key and committed state together.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kvctl.errors import ConflictError, UsageError
from kvctl.versions import refs
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.model import decode_staged, encode_staged
from kvctl.versions.refs import BranchRecord
from kvctl.versions.store.protocol import ABSENT, PredicateFailed, Store, StoreChange, StoreCondition, StoredValue
from kvctl.versions.tree.chunks import object_id
from kvctl.versions.tree.objects import Objects

RECENT_KEYS = 16
"""Number of keys that a session remembers of what it staged."""

T = TypeVar("T")


class IdentityMismatch(ConflictError):
    """Key that is not in the expected state; `found` is its identity, None if absent."""

    def __init__(self, branch: str, key: str, found: str | None) -> None:
        state = "does not exist" if found is None else f"has identity {found}"
        super().__init__(f"`{key}` on `{branch}` {state}; nothing was written")
        self.found = found


class StagedMismatch(ConflictError):
    """Key whose staged value is not the expected one.

    `staged` is the revision of its staged value, None if it has none; `identity` that of its value, None if absent.
    """

    def __init__(self, branch: str, key: str, staged: int | None, identity: str | None) -> None:
        super().__init__(f"`{key}` on `{branch}` was staged again or is not staged; nothing was written")
        self.staged = staged
        self.identity = identity


@dataclass(frozen=True, slots=True)
class WrittenEpoch:
    """Epoch that this session staged changes into last, and the condition that a branch's writes still go there."""

    record: BranchRecord
    partition: bytes
    fence: StoreCondition
    keys: deque[bytes] = field(default_factory=lambda: deque(maxlen=RECENT_KEYS))
    """Keys that were staged last."""


class _KeyState(NamedTuple):
    """Key at a branch, with value None if absent; valid while the branch's record stays as read."""

    record: BranchRecord
    own: StoredValue | None
    """Its change in the epoch that writes go to."""
    newest: StoredValue | None
    """Its newest change in any epoch."""
    value: bytes | None

    @property
    def identity(self) -> str | None:
        """Hex hash of the value; None if absent."""
        return None if self.value is None else object_id(self.value).hex()


class StagingWriter:
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

    async def put(self, branch: str, key: bytes, value: bytes | None) -> int:
        """Stage a change unconditionally; None deletes. Returns and raises as `put_many`."""
        self.check(value)
        staged = encode_staged(value)
        return await self._staged(
            branch, (key,), lambda epoch: self._store.put_while(epoch.fence, epoch.partition, key, staged)
        )

    async def put_many(self, branch: str, changes: Sequence[tuple[bytes, bytes | None]]) -> list[int]:
        """Stage changes of distinct keys atomically and unconditionally; None deletes.

        Returns the revision of each change. Raises BranchNotFound, UsageError, ConflictError after too many retries.
        """
        self.check_all(value for _, value in changes)

        async def write(epoch: WrittenEpoch) -> list[int]:
            written = [StoreChange(epoch.partition, key, encode_staged(value)) for key, value in changes]
            return await self._store.write([epoch.fence], written)

        return await self._staged(branch, [key for key, _ in changes[-RECENT_KEYS:]], write)

    def epoch(self, branch: str) -> WrittenEpoch | None:
        """Return the epoch that this session staged changes into last; None if unknown."""
        return self._epochs.get(branch)

    async def _staged(self, branch: str, keys: Iterable[bytes], write: Callable[[WrittenEpoch], Awaitable[T]]) -> T:
        epoch = self._epochs.get(branch)
        for attempt in range(branch_state.MAX_ATTEMPTS):
            if epoch is None:
                epoch = await self._epoch_after(branch, None)
            epoch.keys.extend(keys)
            try:
                return await write(epoch)
            except PredicateFailed:
                if attempt:
                    await branch_state.pause()
                epoch = await self._epoch_after(branch, epoch)
        raise branch_state.busy(branch)

    async def _epoch_after(self, branch: str, refused: WrittenEpoch | None) -> WrittenEpoch:
        """Return an epoch other than the one refused; of many refused tasks, one asks. Raises BranchNotFound."""
        async with self._reading[branch]:
            known = self._epochs.get(branch)
            if known is None or known is refused:
                self._epochs.pop(branch, None)
                record = await refs.branch(self._store, branch)
                known = WrittenEpoch(record, epochs.partition_of(record.branch.epoch), record.unchanged)
                self._epochs[branch] = known
            return known


async def write_if(
    store: Store, objects: Objects, branch: str, key: str, value: bytes | None, identity: str | None
) -> int:
    """Stage a value, None for a deletion, if the key has this identity, None for an absent key.

    Returns its revision. Raises IdentityMismatch, BranchNotFound, ConflictError after too many retries.
    """

    def check(state: _KeyState) -> ConflictError | None:
        return None if state.identity == identity else IdentityMismatch(branch, key, state.identity)

    return await _write(store, objects, branch, key, value, check)


async def write_if_staged(
    store: Store, objects: Objects, branch: str, key: str, value: bytes | None, revision: int
) -> int:
    """Stage a value, None for a deletion, if the key's staged value has this revision, not merely an equal value.

    Raises StagedMismatch, and as `write_if`.
    """

    def check(state: _KeyState) -> ConflictError | None:
        staged = state.newest.revision if state.newest and state.value is not None else None
        return None if staged == revision else StagedMismatch(branch, key, staged, state.identity)

    return await _write(store, objects, branch, key, value, check)


async def _write(
    store: Store,
    objects: Objects,
    branch: str,
    key: str,
    value: bytes | None,
    check: Callable[[_KeyState], ConflictError | None],
) -> int:
    """Stage a value if `check` does not object to the key's state, else raise its error.

    Any change to the committed content rewrites the branch's record, so that this write is refused; and this write
    touches the branch's guard, so that operations that require no staged changes are refused.
    """
    name = key.encode()
    for _ in range(branch_state.MAX_ATTEMPTS):
        state = await _state_of(store, objects, branch, name)
        if (objection := check(state)) is not None:
            if await branch_state.is_unchanged(store, state.record):
                raise objection
            continue  # the reads are not consistent
        partition = epochs.partition_of(state.record.branch.epoch)
        own = StoreCondition(partition, name, state.own.revision if state.own else ABSENT)
        changes = [StoreChange(partition, name, encode_staged(value)), branch_state.touch(branch)]
        try:
            return (await store.write([state.record.unchanged, own], changes))[0]
        except PredicateFailed:
            await branch_state.pause()
    raise branch_state.busy(branch)


async def _state_of(store: Store, objects: Objects, branch: str, key: bytes) -> _KeyState:
    record = await refs.branch(store, branch)
    found = [one for _, one in await epochs.changes_of(store, record, [key])]
    newest = next((one for one in found if one is not None), None)
    if newest is not None:
        return _KeyState(record, found[0], newest, decode_staged(newest.value))
    committed = await objects.values_at(bytes.fromhex(record.branch.root), [key])
    return _KeyState(record, None, None, committed.get(key))
