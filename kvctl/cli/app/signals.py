"""Run of a command's coroutine until it ends or a signal ends it."""

import asyncio
import logging
import signal
from collections.abc import Awaitable
from types import FrameType

from kvctl.cli.app.session import Interrupted, Session
from kvctl.render.terminal import Terminal


def run_until_signal(session: Session, work: Awaitable[int | None]) -> int | None:
    """Run the command, close its session and return the result.

    SIGINT, SIGTERM and SIGHUP cancel the command so that it can clean up; a second signal ends it immediately.
    """
    with asyncio.Runner() as runner:
        _keep_quiet(runner.get_loop(), session.terminal)
        interrupts = _Interrupts(runner.get_loop(), session.terminal)
        try:
            return runner.run(interrupts.guard(session, work))
        except asyncio.CancelledError:
            raise session.terminal.interruption or AssertionError("cancelled without a signal") from None
        finally:
            interrupts.restore()


def _keep_quiet(loop: asyncio.AbstractEventLoop, terminal: Terminal) -> None:
    """Silence logs of background tasks and the client library without `-v`, as the command reports its own error."""
    _keep_logs_quiet(terminal.verbose)
    if not terminal.verbose:
        loop.set_exception_handler(lambda loop, context: None)


def _keep_logs_quiet(verbose: bool) -> None:
    # asyncio logs this for every TLS connection that a server closes.
    logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.msg)
    if not verbose:
        logging.getLogger().addHandler(logging.NullHandler())


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interrupts:
    def __init__(self, loop: asyncio.AbstractEventLoop, terminal: Terminal) -> None:
        self._loop = loop
        self._terminal = terminal
        self._task: asyncio.Task[int | None] | None = None
        # Signals that the parent ignores stay ignored, as with nohup and background jobs of scripts.
        heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._handle) for number in heeded}

    async def guard(self, session: Session, work: Awaitable[int | None]) -> int | None:
        self._task = asyncio.current_task()
        try:
            if self._terminal.interruption is not None:
                raise self._terminal.interruption
            return await work
        finally:
            await session.close()

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._terminal.interruption is not None or self._terminal.blocked:
            raise Interrupted(number)
        self._terminal.interruption = Interrupted(number)
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
