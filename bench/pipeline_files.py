"""Exports, loads and audits as complete processes, Spark's start included, beside the commands without Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Run, run

if TYPE_CHECKING:
    from bench.harness import Bench

KEYS = 1_000_000
KVCTL = str(Path(sys.executable).with_name("kvctl"))


def files(bench: Bench, cache: Path, place: Path) -> None:
    """A bucket into files and back; `cache` has the archive of classes."""
    keys = bench.sized(KEYS)
    name, copy = bench.bucket("EXPORTED", keys), bench.bucket("LOADED")
    folder, dump = str(place / "export"), str(place / "dump.ndjson")

    def kvctl(*command: str) -> Callable[[], Run]:
        environment = {**bench.env, "XDG_CACHE_HOME": str(cache), "KVCTL_SPARK_ARCHIVE": "off"}
        return lambda: run((KVCTL, *command), env=environment, timeout=900)

    def export(*more: str) -> Callable[[], Run]:
        return kvctl("pipeline", "export", name, "--to", folder, "--overwrite", *more)

    bench.compare_slow(f"export {keys:,} keys of 100 B, whole process", "8 s", {
        "kvctl pipeline export": export(),
        "the same as JSON": export("--format", "json"),
        "the same as CSV": export("--format", "csv"),
        "kvctl dump": kvctl("dump", name, "--to", dump),
    })  # fmt: skip
    export()()
    bench.compare_slow(f"load {keys:,} keys of 100 B, whole process", "", {
        "kvctl pipeline load": kvctl("pipeline", "load", folder, "--into", copy),
        "kvctl load of a dump": kvctl("load", copy, dump),
    })  # fmt: skip
    bench.compare_slow(f"verify {keys:,} keys of 100 B, whole process", "", {
        "kvctl pipeline verify": kvctl("pipeline", "verify", folder),
        "sha256sum": lambda: run(("sha256sum", *_parts(folder)), env=dict(os.environ)),
    })  # fmt: skip
    mirror = "EXPORTED-MIRROR"
    kvctl("mirror", "create", mirror, "--origin", name, "--wait-for", "10m")()
    bench.compare_slow(f"audit {keys:,} keys of a mirror, whole process", "", {
        "kvctl pipeline audit": kvctl("pipeline", "audit", name, mirror),
        "kvctl topology audit": kvctl("topology", "audit", mirror),
    })  # fmt: skip


def _parts(folder: str) -> list[str]:
    return [str(path) for path in sorted(Path(folder).glob("part-*"))]
