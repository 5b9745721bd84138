"""Group commit: writes of many tasks in one batch; while it is in flight, the next one collects.

A batch costs the same however little it holds: on one replica its syncs, on several also a round of consensus, during
which the leader refuses any other write that is checked against the same keys.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from kvctl.errors import KvctlError
from kvctl.versions.store.protocol import PredicateFailed

MOST_MESSAGES = 1000
MOST_BYTES = 8 << 20
"""Maximum bytes of several tasks' writes in one batch; a single task's write is never split."""


Revisions = Mapping[str, int]
"""Revisions of the changed keys."""


@dataclass(slots=True)
class PendingWrite:
    """One task's atomic write. Keys are partition and key as subject tokens."""

    conditions: Sequence[tuple[str, int]]
    changes: Mapping[str, bytes | None]
    """A value, or None to delete the key."""
    traceless: Set[str] = frozenset()
    """Keys whose deletion may be undone after a while."""
    done: asyncio.Future[Revisions] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def messages(self) -> int:
        """Return the maximum number of messages it takes."""
        return len(self.changes) + len(self.conditions)

    @property
    def size(self) -> int:
        """Return the bytes of its values."""
        return sum(len(value) for value in self.changes.values() if value)


class UnmetConditions(KvctlError):
    """Conditions of a batch do not hold; nothing was written."""

    def __init__(self, keys: Set[str]) -> None:
        super().__init__("A condition does not hold")
        self.keys = keys
        """Keys of the failing conditions; empty if not known."""


class GroupCommit:
    """Groups writes into batches; `store` writes one batch, and raises UnmetConditions or the error of the write."""

    def __init__(self, store: Callable[[Sequence[PendingWrite]], Awaitable[Revisions]]) -> None:
        self._store = store
        self._waiting: deque[PendingWrite] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def write(self, pending: PendingWrite) -> Revisions:
        """Write with the next batch that has room. Raises PredicateFailed, and what `store` raises."""
        self._waiting.append(pending)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await pending.done

    async def _work(self) -> None:
        while self._waiting:
            group = self._next_batch()
            try:
                revisions = await self._store(group)
            except UnmetConditions as error:
                self._retry_others(group, error.keys)
            except BaseException as error:
                _fail(group, error)
                if not isinstance(error, Exception):
                    _fail(self._waiting, error)
                    raise
            else:
                _complete(group, revisions)

    def _next_batch(self) -> list[PendingWrite]:
        """Return the writes that have waited longest, as far as they fit into one batch and are independent."""
        group: list[PendingWrite] = []
        checked: dict[str, int] = {}
        changed: dict[str, bytes | None] = {}
        messages = size = 0
        while self._waiting:
            pending = self._waiting[0]
            if pending.done.done():  # its task was cancelled
                self._waiting.popleft()
                continue
            messages, size = messages + pending.messages, size + pending.size
            if group and (messages > MOST_MESSAGES or size > MOST_BYTES or _conflicts(pending, checked, changed)):
                break
            group.append(self._waiting.popleft())
            checked.update(pending.conditions)
            changed.update(pending.changes)
        return group

    def _retry_others(self, group: Sequence[PendingWrite], failing: Set[str]) -> None:
        """Fail the writes whose conditions cannot hold, and retry the others."""
        lost = [
            pending for pending in group if not failing or any(key in failing for key, _ in pending.conditions)
        ] or group
        _fail(lost, PredicateFailed())
        self._waiting.extendleft(pending for pending in reversed(group) if not pending.done.done())


def _conflicts(pending: PendingWrite, checked: Mapping[str, int], changed: Mapping[str, bytes | None]) -> bool:
    """Return whether a write depends on others: it changes or checks their keys, or checks the same keys differently.

    Equal changes of a key that nobody checks are made once for all of them.
    """
    if any(key in checked or changed.get(key, value) != value for key, value in pending.changes.items()):
        return True
    return any(key in changed or checked.get(key, revision) != revision for key, revision in pending.conditions)


def _complete(writes: Sequence[PendingWrite], revisions: Revisions) -> None:
    for pending in writes:
        if not pending.done.done():
            pending.done.set_result(revisions)


def _fail(writes: Sequence[PendingWrite] | deque[PendingWrite], error: BaseException) -> None:
    for pending in writes:
        if not pending.done.done():
            pending.done.set_exception(error)
