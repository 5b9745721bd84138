"""Connection that lasts from one of Spark's calls to the next, in the process that plans a streaming query."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import kvctl
from kvctl.errors import Away
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read.worker_connection import connected

CONNECT_DEADLINE_S = 15.0
"""Seconds to wait for an unreachable server."""
RETRY_PAUSE_S = 0.2

T = TypeVar("T")
Work = Callable[[kvctl.Client], Coroutine[Any, Any, T]]


class LastingConnection:
    """Connection created at its first use, kept alive by its own thread, and recreated when it was lost."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = AsyncExitStack()
        self._client: kvctl.Client | None = None

    def ask(self, work: Work[T]) -> T:
        """Return the result of the work; repeated while the server is unreachable. Raises NoServer, and as the work."""
        deadline = time.monotonic() + CONNECT_DEADLINE_S
        while True:
            try:
                return self._carry_out(work)
            except Away:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_PAUSE_S)

    def close(self) -> None:
        """Close the connection; another `ask` opens one again."""
        if self._loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop).result(CONNECT_DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop = None

    def _carry_out(self, work: Work[T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="kvctl-connection", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(self._with_client(work), self._loop).result()

    async def _with_client(self, work: Work[T]) -> T:
        if self._client is None or self._client.connection.closed:
            await self._disconnect()
            self._client = await self._stack.enter_async_context(connected(self._options))
        return await work(self._client)

    async def _disconnect(self) -> None:
        self._client = None
        await self._stack.aclose()
