"""Group commit: writes of many tasks in one batch; what waits while batches are in flight goes together into the next.

A batch costs a server the same however little it holds: on one replica its syncs, on several also a round of consensus.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from kvctl.kv.transaction.transaction import LIMIT

JOINT_BYTES = 8 << 20
"""Maximum bytes of several tasks' writes in one batch; that of a single task may be larger."""

R = TypeVar("R")


class GroupedWrite(Generic[R]):
    """One task's atomic write, and its outcome."""

    def __init__(self, messages: int, size: int) -> None:
        self.messages = messages
        """Maximum number of messages it takes."""
        self.size = size
        """Bytes of its values."""
        self.done: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    def succeed(self, result: R) -> None:
        """Return the result to the task, unless it was cancelled."""
        if not self.done.done():
            self.done.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Raise the error in the task, unless it was cancelled."""
        if not self.done.done():
            self.done.set_exception(error)


W = TypeVar("W", bound=GroupedWrite[Any])


class GroupCommit(Generic[W]):
    """Groups writes into batches.

    `store` writes one batch, and gives each write its outcome; an error that it raises is that of all. `admission` is
    called for each batch: it returns a function that tells whether a further write is independent of those in it, and
    adds it then.
    """

    def __init__(
        self,
        store: Callable[[Sequence[W]], Awaitable[None]],
        admission: Callable[[], Callable[[W], bool]],
        *,
        in_flight: int = 1,
    ) -> None:
        self._store = store
        self._admission = admission
        self._in_flight = in_flight
        self._waiting: deque[W] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    def add(self, write: W) -> None:
        """Write with the next batch that has room; once it is being sent, cancelling its task does not stop it."""
        self._waiting.append(write)
        # A callback would forget a worker too late: tasks that it has woken may come first, and wait forever.
        self._workers = {worker for worker in self._workers if not worker.done()}
        if len(self._workers) < self._in_flight:
            self._workers.add(asyncio.create_task(self._work()))

    async def _work(self) -> None:
        while batch := self._next():
            try:
                await self._store(batch)
            except BaseException as error:
                for write in batch:
                    write.fail(error)
                if not isinstance(error, Exception):
                    for write in self._waiting:
                        write.fail(error)
                    raise

    def _next(self) -> list[W]:
        """Return the writes that have waited longest, as far as they fit into one batch and are independent."""
        batch: list[W] = []
        admit = self._admission()
        messages = size = 0
        while self._waiting:
            write = self._waiting[0]
            if not write.done.done():  # else its task was cancelled
                messages, size = messages + write.messages, size + write.size
                if batch and (messages > LIMIT or size > JOINT_BYTES):
                    break
                if not admit(write):
                    break
                batch.append(write)
            self._waiting.popleft()
        return batch
