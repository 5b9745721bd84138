"""Connections on a Spark worker: from options to a connection, and from asynchronous code to Spark's calls.

Code here raises KvctlErrors as text that the driver recognises (kvctl.pipeline.error_transport).
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import kvctl
from kvctl.contexts import Context, resolve
from kvctl.errors import AuthenticationRefused, Away, KvctlError
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.options import SourceOptions, as_flags, without_flags

T = TypeVar("T")

TIMEOUT = timedelta(seconds=30)
"""Default timeout of a request: creating a consumer of a million keys takes a busy server longer than 5 s."""

AWAY_S = 60.0
"""Seconds that a task, a stream or a capture waits for a server that is away."""
AWAY_AGAIN_S = 20.0
"""The same for further attempts at a task: Spark makes three."""
RETRY_PAUSE_S = 0.2


def context_of(options: SourceOptions) -> Context:
    """Return the connection that the options select on this machine; without any, that of its environment.

    Raises ContextNotFound, UsageError.
    """
    flags = as_flags(options)
    if flags["timeout"] is None and not os.environ.get("NATS_TIMEOUT"):
        flags["timeout"] = TIMEOUT
    try:
        return resolve(flags, os.environ)
    except KvctlError as error:
        error.message = without_flags(error.message)
        error.args = (error.message,)
        error.hint = error.hint and without_flags(error.hint)
        raise


@asynccontextmanager
async def connected(options: SourceOptions) -> AsyncIterator[kvctl.Client]:
    """Connect a client with the options, which repeats safe requests that get no answer.

    In a task, which Spark would repeat at once and no more than a few times, a server that is away is waited for.
    Raises NoServer, AuthenticationRefused, and as `context_of`.
    """
    async with AsyncExitStack() as stack:
        client = await _patiently(lambda: stack.enter_async_context(kvctl.connect(context_of(options))), _patience_s())
        client.connection.repeats = 1
        yield client


async def _patiently(work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
    """Return the result of the work, which is repeated for some time while the server is away. Raises Away."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await work()
        except Away:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(RETRY_PAUSE_S)


def _patience_s() -> float:
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return 0
    return AWAY_AGAIN_S if task.attemptNumber() else AWAY_S


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine; KvctlErrors are marked for the driver. Works in notebooks, too, where a loop is running."""
    with crossing():
        if asyncio._get_running_loop() is None:
            return asyncio.run(work)
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(asyncio.run, work).result()


def iterate(begin: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
    """Yield the items of an asynchronous generator; if closed early, it is cleaned up before this returns."""
    with crossing(), _few_collections(), asyncio.Runner() as runner:
        items = begin()
        try:
            while True:
                try:
                    item = runner.run(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            runner.run(items.aclose())


@contextmanager
def _few_collections() -> Iterator[None]:
    """Run the cycle collector seldom: messages have no cycles, and scanning them takes a fifth of a read."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)


Work = Callable[[kvctl.Client], Coroutine[Any, Any, T]]


class LastingConnection:
    """Connection created at its first use, kept alive by its own thread, and recreated when it was lost."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = AsyncExitStack()
        self._client: kvctl.Client | None = None

    def ask(self, work: Work[T]) -> T:
        """Return the result of the work; repeated while the server is away. Raises Away, and as the work."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="kvctl-connection", daemon=True).start()
        asked = _patiently(lambda: self._with_client(work), AWAY_S)
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    def close(self) -> None:
        """Close the connection; another `ask` opens one again."""
        if self._loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop).result(AWAY_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop = None

    async def _with_client(self, work: Work[T]) -> T:
        fresh = self._client is None or self._client.connection.closed
        if fresh:
            await self._disconnect()
            self._client = await self._stack.enter_async_context(connected(self._options))
        assert self._client is not None
        try:
            return await work(self._client)
        except AuthenticationRefused:
            if fresh:
                raise
            await self._disconnect()
            return await self._with_client(work)  # with the credentials that its files have now

    async def _disconnect(self) -> None:
        self._client = None
        await self._stack.aclose()
