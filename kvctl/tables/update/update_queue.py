"""Updates of one stream: a few batches in flight, and what waits for them goes together into the next.

A small batch costs a server as much as one of some hundred changes, and a stream applies its batches one after the
other. All changes of a joint batch are applied or none, and so those of each update; if it is refused, only the updates
that are to blame fail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from kvctl.tables.changes import Version
from kvctl.tables.update.batch import MAX_BATCH, Batch

IN_FLIGHT = 4
"""Batches in flight: more would only wait in the server, which accepts 50 for a stream."""
JOINT_BYTES = 8 << 20
"""Maximum bytes of several updates in one batch; that of a single update may be larger."""

Made = list[Version | None]


@dataclass(slots=True)
class Update:
    """A caller's batch, and its outcome."""

    batch: Batch
    absent: frozenset[str]
    """Places of removals without an entry: they must stay absent instead of being removed."""
    done: asyncio.Future[Made] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def ready(self) -> bool:
        """True if the messages of the batch can be sent as they are."""
        return not self.absent and not self.batch.guarded

    def succeed(self, made: Made) -> None:
        """Return the versions to the caller, unless it was cancelled."""
        if not self.done.done():
            self.done.set_result(made)

    def fail(self, error: BaseException) -> None:
        """Raise the error in the caller, unless it was cancelled."""
        if not self.done.done():
            self.done.set_exception(error)


class UpdateQueue:
    """Queue of updates; `store` applies a group of them, and gives each its outcome."""

    def __init__(self, store: Callable[[Sequence[Update]], Awaitable[None]]) -> None:
        self._store = store
        self._waiting: deque[Update] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    async def apply(self, update: Update) -> Made:
        """Apply the update, alone or together with others; once it is being sent, cancelling does not stop it."""
        self._waiting.append(update)
        # A callback would forget a worker too late: callers that it has woken may come first, and wait forever.
        self._workers = {worker for worker in self._workers if not worker.done()}
        if len(self._workers) < IN_FLIGHT:
            self._workers.add(asyncio.create_task(self._work()))
        return await update.done

    async def _work(self) -> None:
        while group := self._next():
            try:
                await self._store(group)
            except BaseException as error:
                for update in group:
                    update.fail(error)
                if not isinstance(error, Exception):
                    raise

    def _next(self) -> list[Update]:
        """Return the updates that have waited longest, as far as they fit into one batch and share no entry."""
        group: list[Update] = []
        subjects: set[bytes] = set()
        messages = size = 0
        while self._waiting:
            update = self._waiting[0]
            if not update.done.done():  # else its caller was cancelled
                messages, size = messages + len(update.batch.messages), size + update.batch.size
                full = messages > MAX_BATCH or size > JOINT_BYTES
                if group and (full or not subjects.isdisjoint(update.batch.subjects)):
                    break
                group.append(update)
                subjects |= update.batch.subjects
            self._waiting.popleft()
        return group
