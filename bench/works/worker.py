"""The frame of the scripts in this folder: runs the work named on the command line, prints what it took as JSON.

The scripts run with the interpreter of the tree they measure, so they import nothing of `bench` but this.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import processes

IDLE_S = 2
"""Seconds in which waiting times are measured without other work."""
SAMPLER_SHARE = 0.03
"""Share of a core that sampling may take of a block whose time is measured."""


class Clock:
    """Wall and processor seconds of repeated blocks."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    @contextmanager
    def block(self) -> Iterator[None]:
        """Measure a block."""
        begun, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds.append(time.perf_counter() - begun)
        self.cpu.append(time.process_time() - cpu)

    def medians(self) -> dict[str, float]:
        """Return the medians."""
        return {"seconds": statistics.median(self.seconds), "cpu": statistics.median(self.cpu)}


def serve(*works: Callable[..., Any]) -> None:
    """Run an asynchronous work with a connected client of kvctl; a work that measures itself returns its figures."""
    work, url, arguments = _asked(works)
    asyncio.run(_connected(work, url, arguments))


def serve_plain(*works: Callable[..., Any]) -> None:
    """Run a work that connects by itself, with the URL, and returns its figures."""
    work, url, arguments = _asked(works)
    told = asyncio.run(work(url, *arguments)) if asyncio.iscoroutinefunction(work) else work(url, *arguments)
    print(json.dumps(told or {}))


@contextmanager
def family() -> Iterator[dict[str, float]]:
    """Measure a block with the processor time and the peak memory of this process and its descendants."""
    told: dict[str, float] = {}
    own = os.getpid()
    with processes.Sampler(own, SAMPLER_SHARE) as sampler:
        begun, cpu = time.perf_counter(), processes.processor(own)
        yield told
        told["seconds"] = time.perf_counter() - begun
        told["cpu"] = max(processes.processor(own) - cpu, 0)
        sampler.sample()
    told["peak"] = sampler.peak


async def waits(
    put: Callable[[int], Awaitable[object]], get: Callable[[int], Awaitable[object]], beside: str, *command: str
) -> dict[str, dict[str, float]]:
    """Return 99th percentiles of a writer and a reader of random numbers: idle, then while another process works."""
    idle = await _while(asyncio.sleep(IDLE_S), put, get)
    busy = await _while(_process(*command), put, get)
    found = {f"{what} beside {beside}": _p99(times) for what, times in busy.items()}
    return found | {f"{what} idle": _p99(times) for what, times in idle.items()}


async def _while(
    block: Awaitable[None], put: Callable[[int], Awaitable[object]], get: Callable[[int], Awaitable[object]]
) -> dict[str, list[float]]:
    """Return the seconds of all puts and gets, each awaited one after the other, until the block ends."""
    taken: dict[str, list[float]] = {"put": [], "get": []}

    async def again(times: list[float], work: Callable[[int], Awaitable[object]]) -> None:
        while True:
            number = random.getrandbits(32)
            begun = time.perf_counter()
            await work(number)
            times.append(time.perf_counter() - begun)

    tasks = [asyncio.create_task(again(taken["put"], put)), asyncio.create_task(again(taken["get"], get))]
    await block
    for task in tasks:
        task.cancel()
    failures = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in failures), failures
    return taken


async def _process(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0


def _p99(times: list[float]) -> dict[str, float]:
    return {"seconds": sorted(times)[len(times) * 99 // 100]}


def _asked(works: tuple[Callable[..., Any], ...]) -> tuple[Callable[..., Any], str, list[Any]]:
    name, url, *words = sys.argv[1:]
    return {work.__name__: work for work in works}[name], url, [int(w) if w.isdigit() else w for w in words]


async def _connected(work: Callable[..., Any], url: str, arguments: list[Any]) -> None:
    import kvctl

    async with kvctl.connect(url) as client:
        clock = Clock()
        with clock.block():
            told = await work(client, *arguments)
        print(json.dumps(clock.medians() | (told or {})))
