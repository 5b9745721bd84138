"""Load and dump as complete processes: time beside others, and memory with a hundred times the keys."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Run

if TYPE_CHECKING:
    from bench.harness import Bench

KVCTL = str(Path(sys.executable).with_name("kvctl"))
NATS = shutil.which("nats")
BESIDE, SMALL, LARGE = 200_000, 10_000, 1_000_000


def bulk(bench: Bench, until_lines: Callable[[tuple[str, ...], int, dict[str, str]], Run]) -> None:
    """Load and dump: rates beside others', and peak memory at 10,000 and 1,000,000 keys."""
    with tempfile.TemporaryDirectory() as directory:
        _loads(bench, {count: _rows(directory, count) for count in (BESIDE, SMALL, LARGE)})
    _dumps(bench, until_lines)


def _rows(directory: str, count: int) -> str:
    path = os.path.join(directory, f"{count}.ndjson")
    with open(path, "w") as file:
        file.writelines(f'{{"key": "k.{number:018d}", "value": "{"v" * 100}"}}\n' for number in range(count))
    return path


def _loads(bench: Bench, files: dict[int, str]) -> None:
    name = bench.bucket("LOAD")
    bench.compare(f"load {BESIDE:,} rows of 100 B, whole process", "150,000 a second", {
        "kvctl load": lambda: bench.process(KVCTL, "load", name, files[BESIDE]),
        "json and nats-py publish_async": lambda: bench.process(
            sys.executable, "-m", "bench.rivals", "load", bench.server.url, name, files[BESIDE], timeout=300
        ),
    })  # fmt: skip
    runs = {count: bench.process(KVCTL, "load", name, files[count], timeout=300) for count in (SMALL, LARGE)}
    _scaled(bench, "load", runs)


def _dumps(bench: Bench, until_lines: Callable[[tuple[str, ...], int, dict[str, str]], Run]) -> None:
    name = bench.bucket("DUMP", BESIDE)
    contenders = {
        "kvctl dump": lambda: bench.process(KVCTL, "dump", name),
        "json and nats-py watchall": lambda: bench.process(
            sys.executable, "-m", "bench.rivals", "dump", bench.server.url, name, timeout=300
        ),
    }
    if NATS:
        contenders[f"nats kv watch, until {BESIDE:,} lines"] = lambda: until_lines(
            (NATS or "", "kv", "watch", name), BESIDE, bench.env
        )
    bench.compare(f"dump {BESIDE:,} entries of 100 B, whole process", "250,000 a second", contenders)
    buckets = {SMALL: bench.bucket("K10", SMALL), LARGE: bench.bucket("K1M", LARGE)}
    runs = {count: bench.process(KVCTL, "dump", bucket, timeout=300) for count, bucket in buckets.items()}
    _scaled(bench, "dump", runs)


def _scaled(bench: Bench, command: str, runs: dict[int, Run]) -> None:
    """Report the rate at a million keys, and the memory of ninety-nine percent of them."""
    small, large = runs[SMALL], runs[LARGE]
    rate, grown = LARGE / large.seconds, (large.peak - small.peak) / 2**20
    bench.lines.append(
        f"| {command} {LARGE:,}, whole process | kvctl {command} | {large.seconds:.2f} s, {rate:,.0f} a second | | | "
        f"{large.cpu:.2f} s | {large.peak / 2**20:.0f} MiB, {grown:.0f} more than at {SMALL:,} | at most 30 more |"
    )
    print("  " + bench.lines[-1], file=sys.stderr, flush=True)
