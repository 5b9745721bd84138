"""Audits beside the bare reading of both sides, and plans over many buckets: time and memory.

In a process of its own: `python -m bench.topologies WORK URL NAME COUNT`; prints the seconds.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import kvctl

if TYPE_CHECKING:
    from bench.harness import Bench

KVCTL = str(Path(sys.executable).with_name("kvctl"))
AUDITED, LARGE, SMALL, PLANNED = 100_000, 1_000_000, 10_000, 500


def audits(bench: Bench) -> None:
    """An audit of 100,000 keys, and the memory per key at a million."""
    for kind in ("mirror", "aggregate"):
        name = _replicated(bench, kind, AUDITED)
        bench.compare(f"audit {AUDITED:,} keys, {kind}, library", "1.5x of the listing", {
            "kvctl audit": bench.library("topologies", "audit", name, AUDITED),
            "listing both sides": bench.library("topologies", "listing", name, AUDITED),
        })  # fmt: skip
        peaks = {}
        for count in (SMALL, LARGE):
            name = _replicated(bench, kind, count)
            runs = [bench.process(KVCTL, "topology", "audit", name, timeout=600) for _ in range(2)]
            peaks[count] = max(run.peak for run in runs)
            seconds, peak = min(run.seconds for run in runs), peaks[count] / 2**20
            title = f"audit {count:,} keys, {kind}, whole process"
            cells = (title, "kvctl topology audit", f"{seconds:.2f} s", "", "", "", f"{peak:.0f} MiB", "")
            bench.lines.append(f"| {' | '.join(cells)} |")
        cost = (peaks[LARGE] - peaks[SMALL]) / (LARGE - SMALL)
        bench.lines.append(f"| memory a key, {kind} | kvctl topology audit | {cost:.0f} B | | | | | at most 200 B |")


def plans(bench: Bench) -> None:
    """A plan over 500 buckets that match the file."""
    names = [f"PLAN{number}" for number in range(PLANNED)]
    bench.process(sys.executable, "-m", "bench.topologies", "buckets", bench.server.url, "PLAN", str(PLANNED))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "topology.yaml"
        file.write_text("version: 1\nbuckets:\n" + "".join(f"  {name}: {{history: 3}}\n" for name in names))
        bench.compare(f"plan over {PLANNED} buckets, whole process", "2 s", {
            "kvctl topology plan": lambda: bench.process(KVCTL, "topology", "plan", "-f", str(file)),
        })  # fmt: skip


def _replicated(bench: Bench, kind: str, count: int) -> str:
    """Create a bucket of `count` keys and a replica at the first use; return the replica's name."""
    origin = bench.bucket(f"AUDIT{count}", count)
    name = f"{kind.upper()}{count}"
    bench.process(KVCTL, kind, "create", name, "--origin", origin, "--wait-for", "10m", timeout=600)
    return name


async def audit(client: kvctl.Client, name: str) -> None:
    """The command's work, without the process around it."""
    from kvctl.topology.audit.audit import audit as compare
    from kvctl.topology.discover import replicas
    from kvctl.topology.discover.inventory import survey

    (replica,) = replicas.named(replicas.in_view(await survey({"": client.api})), [name])
    (outcome,) = await compare(replica)
    assert outcome.consistent, (outcome.error, outcome.counts)


async def listing(client: kvctl.Client, name: str) -> None:
    """Origin and replica, every entry with its value, without processing."""
    origin = "AUDIT" + name.removeprefix("MIRROR").removeprefix("AGGREGATE")
    for bucket in (origin, name):
        async with aclosing(client.bucket(bucket).entry_batches(deleted=True)) as batches:
            async for _ in batches:
                pass


async def buckets(client: kvctl.Client, name: str, count: int) -> None:
    """Many small buckets."""
    for number in range(count):
        await client.create_bucket(f"{name}{number}", history=3)


async def _timed(work: str, url: str, name: str, count: str) -> None:
    async with kvctl.connect(url) as client:
        begun = time.perf_counter()
        await (buckets(client, name, int(count)) if work == "buckets" else globals()[work](client, name))
        print(time.perf_counter() - begun)


if __name__ == "__main__":
    asyncio.run(_timed(*sys.argv[1:]))
