"""Contenders that are processes, warm themselves up, and report seconds and peak memory."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Run

if TYPE_CHECKING:
    from bench.harness import Bench


def warm(bench: Bench, module: str, work: str, *arguments: str) -> Callable[[], Run]:
    """`python -m bench.MODULE WORK URL ARGUMENT...`, which prints what `measured` does."""

    def timed() -> Run:
        command = (sys.executable, "-m", f"bench.{module}", work, bench.server.url, *arguments)
        whole = bench.process(*command, timeout=900, keep=True)
        seconds, peak = whole.output.split()[-2:]
        return replace(whole, seconds=float(seconds), peak=int(peak))

    return timed


@contextmanager
def measured() -> Iterator[None]:
    """Print the seconds of the block, and the peak memory of this process and its children."""
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, _memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - begun
        done.set()
        watcher.join()
        print(seconds, max(peak, _memory()))


def _memory() -> int:
    """Return the bytes of this process and its children; shared pages count once."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(") ")[2].split()[1])
    own = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in own} - own:
        own |= more
    total = 0
    for process in own:
        with suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total
