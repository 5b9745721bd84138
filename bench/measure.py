"""Measurements of complete processes, in turn: A B A B ..., with each one's processor time and peak memory."""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from bench.works.processes import Sampler


@dataclass(frozen=True)
class Run:
    """One finished process: wall seconds, processor seconds, peak resident bytes, and its output."""

    seconds: float
    cpu: float = 0
    peak: int = 0
    output: bytes = b""


Contender = Callable[[], Run]


@dataclass(frozen=True)
class AtMost:
    """A slow contender that runs fewer rounds than the others, without warm-up."""

    rounds: int
    contender: Contender

    def __call__(self) -> Run:
        """Run it once."""
        return self.contender()


@dataclass
class Series:
    """The runs of one contender."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: int = 0
    failure: str = ""

    @property
    def median(self) -> float:
        """The median of the wall seconds."""
        return statistics.median(self.seconds)

    @property
    def median_cpu(self) -> float:
        """The median of the processor seconds."""
        return statistics.median(self.cpu)

    def add(self, run: Run) -> None:
        """Record a run."""
        self.seconds.append(run.seconds)
        self.cpu.append(run.cpu)
        self.peak = max(self.peak, run.peak)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 300,
    keep: bool = False,
    children: bool = False,
) -> Run:
    """Run a command to its end.

    `keep` keeps its output; `children` counts memory and processor time of its descendants too, sampled, as a JVM may
    outlive the command. Raises RuntimeError if it fails or takes too long.
    """
    words = " ".join((os.path.basename(command[0]), *map(str, command[1:5])))
    with tempfile.TemporaryFile() as errors:
        output = subprocess.PIPE if keep else subprocess.DEVNULL
        begun = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=env, cwd=cwd)
        killer = threading.Timer(timeout, process.kill)
        killer.start()
        try:
            with Sampler(process.pid) if children else nullcontext() as sampler:
                told = process.stdout.read() if process.stdout else b""
                _, status, usage = os.wait4(process.pid, 0)
                seconds = time.perf_counter() - begun
        except KeyboardInterrupt:
            process.kill()
            raise
        finally:
            killer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if seconds >= timeout:
            raise RuntimeError(f"{words} took more than {timeout:g} s")
        if process.returncode:
            errors.seek(0)
            reason = errors.read().decode(errors="replace").strip()[-500:]
            raise RuntimeError(f"{words} exited with {process.returncode}: {reason}")
    cpu, peak = spent(usage)
    if sampler:
        cpu, peak = max(cpu, sampler.cpu), max(peak, sampler.peak)
    return Run(seconds, cpu, peak, told)


def spent(usage: resource.struct_rusage) -> tuple[float, int]:
    """Return the processor seconds and the peak memory of a process that has ended."""
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def in_turn(contenders: Mapping[str, Contender], rounds: int, warmup: int = 1) -> list[Series]:
    """Run all contenders in turn, `rounds` times after the warm-up; one that fails is left out with its reason."""
    series = {name: Series(name) for name in contenders}
    for number in range(-warmup, rounds):
        for name, contender in contenders.items():
            one = series[name]
            most = contender.rounds if isinstance(contender, AtMost) else rounds
            if one.failure or number >= most or (number < 0 and most < rounds):
                continue
            try:
                result = contender()
            except RuntimeError as error:
                one.failure = str(error)
                print(f"  {name}: left out: {error}", file=sys.stderr)
                continue
            if number >= 0:
                one.add(result)
    return list(series.values())


def ratios(ours: Series, other: Series) -> list[float]:
    """Return our seconds divided by the other's, round by round."""
    return [a / b for a, b in zip(ours.seconds, other.seconds, strict=False)]
