"""Costs of ten thousand to ten million keys: time per key and peak memory of complete commands, and the server's."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.case import STEADY, Prepared, Table, Verdict, case, grown
from bench.cases.pipeline import warmed
from bench.harness import Bench
from bench.measure import Run, run
from bench.works.processes import resident
from kvctl.server import Server, run_server

SIZES = (10_000, 100_000, 1_000_000)
TEN_MILLION = 10_000_000
PATIENCE = 420
"""Seconds that a cell may take with its preparation, by an estimate; longer ones are left out."""
LINEAR = 1.25
"""The most that time per key may grow between the last two sizes."""
LOAD = "kvctl load"
"""Never left out: the others read what it wrote."""
STREAMS = (LOAD, "kvctl keys", "kvctl dump", "kvctl pipeline export", "kvctl table entries")
SPREAD = 0x9E3779B97F4A7C15


@dataclass
class Size:
    """What was measured at one size: each command's run, or the reason why there is none."""

    count: int
    runs: dict[str, Run] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    server: dict[str, str] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    """Seconds of each command with its preparation."""

    def each(self, name: str) -> tuple[str, float]:
        """Return the size, and a command's microseconds for each key."""
        return f"{self.count:,}", self.runs[name].seconds / self.count * 1e6

    def peak(self, name: str) -> tuple[str, float]:
        """Return the size, and a command's peak memory in MiB."""
        return f"{self.count:,}", self.runs[name].peak / 2**20


@case("scale", "costs of a key as the work grows", seconds=120)
def scale(bench: Bench, _: int) -> Prepared:
    """All commands at each size, each size with a server of its own.

    Complete commands, each once: seconds, time per key, peak memory (of all their processes). Keys of 20 random bytes,
    values of 100. `commit` records the bucket as one commit, `entries` scans a table in key order. A cell is left out
    if it would take more than seven minutes with its preparation, by the line through the last two sizes.
    """
    sizes: list[Size] = []
    for count in (*map(bench.sized, SIZES[bench.quick :]), *((TEN_MILLION,) if bench.ten_million else ())):
        with run_server(name=f"scale-{count}") as server:
            sizes.append(_Measured(bench, server, count, sizes).all())
    head = ("", *(f"{size.count:,} keys" for size in sizes))
    names = dict.fromkeys(name for size in sizes for name in (*size.runs, *size.left_out))
    commands = [(f"`{name}`", *(_cell(size, name) for size in sizes)) for name in names]
    servers = [(what, *(size.server[what] for size in sizes)) for what in sizes[0].server]
    return Table(head, commands + servers, verdicts(sizes))


class _Measured:
    """The measurements at one size."""

    def __init__(self, bench: Bench, server: Server, count: int, smaller: list[Size]) -> None:
        self.bench, self.server, self.smaller = bench, server, smaller
        self.size = Size(count)
        self.env = {**bench.env, "NATS_URL": server.url}
        self.folder = bench.folder()

    def all(self) -> Size:
        """Run every command."""
        idle, empty = resident(self.server.pid or 0), _stored(self.server)
        self._loaded(idle, empty)
        self._run("kvctl keys", "keys", "B")
        self._run("kvctl dump", "dump", "B")
        self._note("server memory after listing", resident(self.server.pid or 0) - idle)
        key = _key(self.size.count // 2)
        one = min(run((self.bench.ours.kvctl, "get", "B", key), env=self.env).seconds for _ in range(3))
        self.size.server["`kvctl get` of one key"] = f"{one * 1000:.0f} ms"
        if not self.bench.quick:
            self._run("kvctl pipeline export", "pipeline", "export", "B", "--to", str(self.folder / "export"))
        self._run(
            "kvctl repo commit --from", "repo", "commit", "R@main", "-m", "all", "--from", "B", prepare=self._repo
        )
        self._run("kvctl table entries", "table", "entries", "T", prepare=self._table)
        shutil.rmtree(self.folder, ignore_errors=True)
        return self.size

    def _loaded(self, idle: int, empty: int) -> None:
        rows = self.folder / "rows.ndjson"
        with rows.open("w") as file:
            file.writelines(f'{{"key": "{_key(n)}", "value": "{"v" * 100}"}}\n' for n in range(self.size.count))
        run((self.bench.ours.kvctl, "bucket", "add", "B"), env=self.env)
        self._run(LOAD, "load", "B", str(rows))
        rows.unlink()
        self._note("server memory, loaded", resident(self.server.pid or 0) - idle)
        self._note("on disk", _stored(self.server) - empty)
        self.server.stop()
        begun = time.perf_counter()
        self.server.start()
        self.size.server["restart, until it serves"] = f"{time.perf_counter() - begun:.1f} s"

    def _run(self, name: str, *words: str, prepare: Callable[[], None] | None = None) -> None:
        if name != LOAD and (reason := too_long(name, self.size.count, self.smaller)):
            self.size.left_out[name] = reason
            return
        begun = time.perf_counter()
        try:
            if prepare:
                prepare()
            env = {**self.env, **(_spark(self.bench) if "pipeline" in words else {})}
            done = run((self.bench.ours.kvctl, *words), env=env, timeout=4 * PATIENCE, children="pipeline" in words)
        except RuntimeError as error:
            self.size.left_out[name] = f"failed: {error}"
            return
        self.size.runs[name] = done
        self.size.took[name] = time.perf_counter() - begun

    def _note(self, what: str, size: int) -> None:
        self.size.server[what] = f"{size / 2**20:,.0f} MiB, {size / self.size.count:.0f} B a key"

    def _repo(self) -> None:
        run((self.bench.ours.kvctl, "repo", "init", "R"), env=self.env)

    def _table(self) -> None:
        self.bench.tell("table", "seed", "T", self.size.count, url=self.server.url)


def too_long(name: str, count: int, smaller: list[Size]) -> str:
    """Return why a command is left out at a size, if it is, by the line through the last two smaller ones."""
    if len(smaller) < 2:
        return ""
    small, large = smaller[-2:]
    if name not in small.took or name not in large.took:
        return large.left_out.get(name, "left out")
    slope = (large.took[name] - small.took[name]) / (large.count - small.count)
    seconds = large.took[name] + slope * (count - large.count)
    return f"left out: it would take about {seconds / 60:.0f} minutes" if seconds > PATIENCE else ""


def _cell(size: Size, name: str) -> str:
    if name not in size.runs:
        return size.left_out.get(name, "")
    return f"{size.runs[name].seconds:.1f} s, {size.each(name)[1]:.1f} us, {size.peak(name)[1]:.0f} MiB"


def verdicts(sizes: list[Size]) -> list[Verdict]:
    """Check that time per key stays as it is between the last sizes, and memory in commands that stream."""
    small, middle, large = sizes[0], sizes[-2], sizes[-1]
    found = []
    for name in large.runs:
        if name in middle.runs:
            found.append(grown(f"`{name}`, time per key", "us", middle.each(name), large.each(name), LINEAR))
        if name in STREAMS and name in small.runs:
            found.append(grown(f"`{name}`, peak memory", "MiB", small.peak(name), large.peak(name), STEADY))
    return found


def _spark(bench: Bench) -> dict[str, str]:
    """Return the settings that let Spark start with what an earlier command cached."""
    return {"XDG_CACHE_HOME": warmed(bench, bench.ours)["XDG_CACHE_HOME"]}


def _stored(server: Server) -> int:
    return sum(os.path.getsize(path) for path in Path(server.store).rglob("*") if path.is_file())


def _key(number: int) -> str:
    return f"key.{number * SPREAD % 2**64:016x}"
