"""Runs a command's coroutine until it ends or a signal ends it."""

import asyncio
import signal
from collections.abc import Awaitable
from types import FrameType

from kvctl.cli.session import Interrupted, Session
from kvctl.render.terminal import Terminal


def run_until_signal(session: Session, work: Awaitable[int | None]) -> int | None:
    """The command's result; what its session opened is closed.

    SIGINT and SIGTERM cancel the work, so that it can put its things in order; a second one ends it at once.
    """
    with asyncio.Runner() as runner:
        interrupts = _Interrupts(runner.get_loop(), session.terminal)
        try:
            return runner.run(interrupts.guard(session, work))
        except asyncio.CancelledError:
            if interrupts.received:
                raise Interrupted(interrupts.received) from None
            raise
        finally:
            interrupts.restore()


class _Interrupts:
    def __init__(self, loop: asyncio.AbstractEventLoop, terminal: Terminal) -> None:
        self.received = 0
        self._loop = loop
        self._terminal = terminal
        self._task: asyncio.Task[int | None] | None = None
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}

    async def guard(self, session: Session, work: Awaitable[int | None]) -> int | None:
        self._task = asyncio.current_task()
        try:
            if self.received:
                raise asyncio.CancelledError
            return await work
        finally:
            await session.close()

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received or self._terminal.blocked:
            raise Interrupted(number)
        self.received = number
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
