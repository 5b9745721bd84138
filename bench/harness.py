"""The harness of the benchmarks: one server, seeded buckets, contenders in turn, and the lines of the report."""

import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.measure import Run, Series, in_turn, ratio, run
from kvctl.server import Server

PYTHON = sys.executable
KVCTL = str(Path(PYTHON).with_name("kvctl"))
NATS = shutil.which("nats")
ROOT = str(Path(__file__).parent.parent)


class Bench:
    """The server, the seeded buckets, and the lines of the report."""

    def __init__(self, server: Server, rounds: int, *, smoke: bool = False) -> None:
        self.server, self.rounds, self.smoke = server, rounds, smoke
        self.url = server.url
        self.lines: list[str] = []
        self.env = {**os.environ, "NATS_URL": server.url, "PYTHONPATH": ROOT, "XDG_CONFIG_HOME": tempfile.mkdtemp()}
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)
        self._sizes: dict[str, int] = {}

    def bucket(self, name: str, keys: int = 0) -> str:
        """Seed a bucket with `count` keys of 20 bytes and values of 100."""
        if name not in self._sizes:
            self.process(KVCTL, "bucket", "add", name)
            if keys:
                self.process(PYTHON, "-m", "bench.ours", "seed", self.server.url, name, str(keys), timeout=300)
            self._sizes[name] = keys
        return name

    def sized(self, count: int) -> int:
        """Return the count, or far fewer for a trial run."""
        return max(count // 1000, 100) if self.smoke else count

    def once(self, name: str, make: Callable[[], object]) -> str:
        """Return the fixture of this name, created at its first use."""
        if name not in self._sizes:
            make()
            self._sizes[name] = 0
        return name

    def told(self, module: str, work: str, name: str, count: int, timeout: float = 600) -> Any:
        """Run a process that prints its result as JSON."""
        command = (PYTHON, "-m", f"bench.{module}", work, self.url, name, str(count))
        return json.loads(self.process(*command, timeout=timeout, keep=True).output)

    def line(self, title: str, who: str, middle: str, spread: str = "", aim: str = "") -> None:
        """Report what was measured in another way."""
        self.lines.append(f"| {title} | {who} | {middle} | {spread} | | | | {aim} |")
        print("  " + self.lines[-1], file=sys.stderr, flush=True)

    def process(self, *command: str, timeout: float = 120, keep: bool = False) -> Run:
        """Run a command against the server."""
        return run(command, env=self.env, timeout=timeout, keep=keep)

    def library(self, module: str, work: str, bucket: str, count: int, timeout: float = 120) -> Callable[[], Run]:
        """A contender that measures inside its process; its processor time is that of the whole process."""

        def timed() -> Run:
            command = (PYTHON, "-m", f"bench.{module}", work, self.url, bucket, str(count))
            whole = self.process(*command, timeout=timeout, keep=True)
            return replace(whole, seconds=float(whole.output))

        return timed

    def compare_slow(self, title: str, aim: str, contenders: dict[str, Callable[[], Run]]) -> list[Series]:
        """Run slow contenders in turn, without warm-up and with at most three rounds."""
        return self.compare(title, aim, contenders, rounds=min(self.rounds, 3), warmup=0)

    def compare(
        self, title: str, aim: str, contenders: dict[str, Callable[[], Run]], rounds: int = 0, warmup: int = 1
    ) -> list[Series]:
        """Run contenders in turn; the first is ours, ratios are the others' time over ours."""
        print(f"{title} ...", file=sys.stderr, flush=True)
        series = in_turn(contenders, rounds or self.rounds, warmup)
        ours = series[0]
        for one in series:
            memory = f"{one.peak / 2**20:.0f} MiB" if one.peak else ""
            spread = f"{_time(min(one.seconds))} to {_time(max(one.seconds))}"
            relation = "" if one is ours else f"{ratio(ours, one):.2f}x"
            head, tail = (title, aim) if one is ours else ("", "")
            cpu = _time(statistics.median(one.cpu)) if any(one.cpu) else ""
            cells = (head, one.name, _time(one.median), spread, relation, cpu, memory, tail)
            self.lines.append(f"| {' | '.join(cells)} |")
            print("  " + self.lines[-1], file=sys.stderr, flush=True)
        return series


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.2f} ms"
