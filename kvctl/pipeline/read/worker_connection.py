"""Connections on a Spark worker: from options to a connection, and from asynchronous code to Spark's calls.

Code here raises KvctlErrors as text that the driver recognises (kvctl.pipeline.error_transport).
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import kvctl
from kvctl.contexts import Context, resolve
from kvctl.errors import KvctlError
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.options import SourceOptions, as_flags, without_flags

T = TypeVar("T")


def context_of(options: SourceOptions) -> Context:
    """Return the connection that the options select on this machine; without any, that of its environment.

    Raises ContextNotFound, UsageError.
    """
    try:
        return resolve(as_flags(options), os.environ)
    except KvctlError as error:
        error.message = without_flags(error.message)
        error.args = (error.message,)
        error.hint = error.hint and without_flags(error.hint)
        raise


@asynccontextmanager
async def connected(options: SourceOptions) -> AsyncIterator[kvctl.Client]:
    """Connect a client with the options. Raises NoServer, AuthenticationRefused, and as `context_of`."""
    async with kvctl.connect(context_of(options)) as client:
        yield client


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine; KvctlErrors are marked for the driver. Works in notebooks, too, where a loop is running."""
    with crossing():
        if asyncio._get_running_loop() is None:
            return _run(work)
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(_run, work).result()


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner() as runner:
        return runner.run(work)


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
