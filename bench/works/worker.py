"""The frame of the scripts in this folder: runs the work named on the command line, prints what it took as JSON.

The scripts run with the interpreter of the tree they measure, so they import nothing of `bench` but this.
"""

import asyncio
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


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
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.25):
            peak = max(peak, sum(_memory(pid) for pid in _family()))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begun, cpu = time.perf_counter(), sum(map(_cpu, _family()))
    yield told
    told["seconds"] = time.perf_counter() - begun
    told["cpu"] = max(sum(map(_cpu, _family())) - cpu, 0)
    done.set()
    watcher.join()
    told["peak"] = max(peak, sum(map(_memory, _family())))


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


def _family() -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(") ")[2].split()[1])
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _memory(pid: int) -> int:
    """Return the proportional share of resident bytes."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0) * 1024
    return 0


def _cpu(pid: int) -> float:
    """Return the processor seconds of a process and of its children that have ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0
