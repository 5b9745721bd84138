"""Costs of buckets of ten thousand to ten million keys: memory and disk of the server, and time.

Each size has a server of its own. `python -m bench.scale URL COUNT` fills its bucket with random keys of 20 bytes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import run
from kvctl.server import Server, run_server

if TYPE_CHECKING:
    from bench.harness import Bench

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
KVCTL = str(Path(sys.executable).with_name("kvctl"))
SPREAD = 0x9E3779B97F4A7C15


def scale(bench: Bench) -> None:
    """All sizes, the largest takes ten minutes."""
    for size in SIZES:
        with run_server(name=f"scale-{size}") as server:
            for what, figure in _measured({**bench.env, "NATS_URL": server.url}, server, bench.sized(size)):
                bench.line(f"{size:,} keys of 100 B", what, figure)


def _measured(environment: dict[str, str], server: Server, count: int) -> list[tuple[str, str]]:
    idle, empty = _resident(server), _stored(server)
    run((KVCTL, "bucket", "add", "B"), env=environment)
    found = [_rate("written", count, (sys.executable, "-m", "bench.scale", server.url, str(count)), environment)]
    found.append(_each("server memory once written", _resident(server) - idle, count))
    found.append(_each("on disk", _stored(server) - empty, count))
    server.stop()
    begun = time.perf_counter()
    server.start()
    found.append(("restart, until it serves", f"{time.perf_counter() - begun:.2f} s"))
    for name in ("keys", "dump"):
        found.append(_rate(f"kvctl {name}", count, (KVCTL, name, "B"), environment))
    found.append(_each("server memory after that", _resident(server) - idle, count))
    one = min(run((KVCTL, "get", "B", _key(count // 2)), env=environment).seconds for _ in range(5))
    found.append(("kvctl get of one key, whole process", f"{one * 1000:.0f} ms"))
    folder = str(server.store.with_name("export"))
    export = (KVCTL, "pipeline", "export", "B", "--to", folder)
    found.append(_rate("kvctl pipeline export", count, export, environment))
    return found


def _rate(what: str, count: int, command: tuple[str, ...], environment: dict[str, str]) -> tuple[str, str]:
    done = run(command, env=environment, timeout=1800)
    return what, f"{done.seconds:.1f} s, {count / done.seconds:,.0f} a second, {done.peak / 2**20:.0f} MiB"


def _each(what: str, size: int, count: int) -> tuple[str, str]:
    return what, f"{size / 2**20:,.0f} MiB, {size / count:.0f} B a key"


def _resident(server: Server) -> int:
    """Bytes of the server's process."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


def _stored(server: Server) -> int:
    return sum(os.path.getsize(path) for path in server.store.rglob("*") if path.is_file())


def _key(number: int) -> str:
    return f"key.{number * SPREAD % 2**64:016x}"


async def fill(url: str, count: str) -> None:
    """Write `count` keys."""
    import kvctl

    async with kvctl.connect(url) as client:
        rows = ((_key(number), b"v" * 100) for number in range(int(count)))
        summary = await client.bucket("B").put_many(rows)
        assert summary.written == int(count), summary.failed[:3]


if __name__ == "__main__":
    asyncio.run(fill(*sys.argv[1:]))
