"""Memory and processor time of a process and its descendants, from /proc; nothing where that does not exist."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

SAMPLED_S = 0.25


def family(pid: int) -> set[int]:
    """Return a process and its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(") ")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def resident(pid: int) -> int:
    """Return the resident bytes of a process and its descendants; shared pages count once."""
    total = 0
    for member in family(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
            total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0) * 1024
    return total


def processor(pid: int) -> float:
    """Return the processor seconds of a process and its descendants, those that have ended included."""
    return sum(map(_processor, family(pid)))


class Sampler(threading.Thread):
    """Samples the peaks of both while a block runs, with at most this share of a core once a sample is taken.

    A sample of a JVM and its workers takes 80 ms: without a limit a quarter of a core, beside a rival's tenth.
    """

    def __init__(self, pid: int, share: float = 1) -> None:
        super().__init__(daemon=True)
        self.pid, self.share, self.peak, self.cpu, self.done = pid, share, 0, 0.0, threading.Event()

    def run(self) -> None:
        """Sample until the block ends."""
        pause = SAMPLED_S
        while not self.done.wait(pause):
            begun = time.thread_time()
            self.sample()
            pause = max(SAMPLED_S, (time.thread_time() - begun) / self.share)

    def sample(self) -> None:
        """Sample once."""
        self.peak, self.cpu = max(self.peak, resident(self.pid)), max(self.cpu, processor(self.pid))

    def __enter__(self) -> "Sampler":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join()


def _processor(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0
