"""Timing whole processes in turn: A B A B ..., medians and pairwise ratios, with each process's own peak memory."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Run:
    """One finished process: wall seconds, processor seconds, peak resident bytes, and what it printed."""

    seconds: float
    cpu: float
    peak: int
    output: bytes


@dataclass
class Series:
    """The runs of one contender: wall seconds, processor seconds of its process, and the highest peak memory."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: int = 0

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds)


def run(command: Sequence[str], *, env: dict[str, str] | None = None, timeout: float = 120, keep: bool = False) -> Run:
    """Run to the end. Raises RuntimeError when it fails or takes too long."""
    # A small parent keeps the floor of the child's peak memory low: the kernel counts the fork's pages.
    with open(os.devnull, "wb") as null:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE if keep else null, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env
        )
        deadline = begun + timeout
        output = process.stdout.read() if process.stdout else b""
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.perf_counter() > deadline:
                process.kill()
                os.wait4(process.pid, 0)
                raise RuntimeError(f"{' '.join(command[:4])} took more than {timeout:g}s")
            time.sleep(0.0005)
        seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    errors = process.stderr.read() if process.stderr else b""
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command[:4])} exited {process.returncode}: {errors.decode(errors='replace')[-500:]}"
        )
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, output)


def in_turn(contenders: dict[str, Callable[[], Run]], rounds: int, warmup: int = 1) -> list[Series]:
    """Run all contenders in turn, `rounds` times after the warm-up; a contender that fails once is left out."""
    series = {name: Series(name) for name in contenders}
    for number in range(warmup + rounds):
        for name, contender in contenders.items():
            if name not in series:
                continue
            try:
                result = contender()
            except RuntimeError as error:
                print(f"  {name}: left out: {error}", file=sys.stderr)
                del series[name]
                continue
            if number < warmup:
                continue
            series[name].seconds.append(result.seconds)
            series[name].cpu.append(result.cpu)
            series[name].peak = max(series[name].peak, result.peak)
    return list(series.values())


def ratio(base: Series, other: Series) -> float:
    """Return the time of `other` divided by that of `base`: the median of the pairs."""
    return statistics.median(b / a for a, b in zip(base.seconds, other.seconds, strict=True))
