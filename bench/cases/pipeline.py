"""The pipeline on Spark, beside commands and single processes without it."""

import os
import shutil
import time
from itertools import count as counter
from pathlib import Path

from bench.case import BEFORE, SAME, Aim, Prepared, case
from bench.harness import Bench, Tree
from bench.measure import AtMost, Contender, Run, run

MILLION = 1_000_000
FIRST, SECOND, THIRD = "first time", "second time", "third time"


@case(
    "export", "`pipeline export` of {count}, whole process", count=MILLION, seconds=190, rounds=2, warmup=0,
    aims=(Aim(1.5, "kvctl dump", plus=4), SAME),
)  # fmt: skip
def export(bench: Bench, count: int) -> Prepared:
    """A complete export, Spark's start included, beside a dump into a file."""
    name, folder = bench.keys(count), bench.folder()
    return {
        **bench.both("kvctl pipeline export", lambda tree: _exported(bench, tree, name, folder / tree.name)),
        "kvctl dump": lambda: bench.process(bench.ours.kvctl, "dump", name, "--to", str(folder / "dump.ndjson")),
    }


@case(
    "export-one", "`pipeline export` of one row, with an empty cache directory", seconds=150, rounds=2, warmup=0,
    aims=(Aim(0.34, BEFORE), Aim(1, FIRST, ours=SECOND), Aim(1, SECOND, ours=THIRD)),
)  # fmt: skip
def export_one(bench: Bench, _: int) -> Prepared:
    """Three exports, one right after the other; what the first leaves behind may still run beside the second."""
    name, place = bench.bucket("ONE", 1), bench.folder()

    def again(tree: Tree) -> Contender:
        return lambda: _export(bench, tree, name, place / "one", place / f"cache-{tree.name}")

    def first(tree: Tree) -> Contender:
        def timed() -> Run:
            _settle(str(place))
            shutil.rmtree(place / f"cache-{tree.name}", ignore_errors=True)
            return again(tree)()

        return timed

    return {FIRST: first(bench.ours), SECOND: again(bench.ours), THIRD: again(bench.ours)} | (
        {BEFORE: first(bench.before)} if bench.before else {}
    )


@case(
    "spark-write", "{count} acknowledged rows written by Spark, 2 cores", count=MILLION, seconds=170, rounds=2,
    warmup=0, aims=(Aim(1.3, "one bare process"),),
)  # fmt: skip
def write(bench: Bench, count: int) -> Prepared:
    """Parquet into an empty bucket, in a warm session."""
    folder, numbers = str(bench.folder()), counter()
    bench.tell("spark", "rows", folder, count)

    def contender(work: str, *options: str, tree: Tree | None = None) -> Contender:
        def timed() -> Run:
            name = bench.bucket(f"W{time.time_ns()}-{next(numbers)}")
            done = bench.work("spark", work, folder, name, *options, tree=tree)()
            bench.process(bench.ours.kvctl, "bucket", "rm", name, "--yes")
            return done

        return timed

    return {
        **bench.both("nats-kv sink", lambda tree: contender("write", tree=tree)),
        "one bare process": contender("write_bare"),
        "nats-kv sink, ifDifferent": AtMost(1, contender("write", "ifDifferent=true")),
    }


@case(
    "spark-audit", "audit of {count} keys of a mirror, whole process", count=MILLION, seconds=240, rounds=2,
    warmup=0, aims=(Aim(1.5, "kvctl topology audit"), SAME),
)  # fmt: skip
def audit(bench: Bench, count: int) -> Prepared:
    """A complete audit by Spark, beside the one without."""
    name, mirror = bench.keys(count), mirrored(bench, count)
    return {
        **bench.kvctl("pipeline", "audit", name, mirror, timeout=900, children=True),
        "kvctl topology audit": lambda: bench.process(bench.ours.kvctl, "topology", "audit", mirror),
    }


@case(
    "spark-read", "{count} keys into Parquet by Spark, 2 cores", count=MILLION, seconds=80, rounds=1, warmup=0,
    quick=False, aims=(Aim(1.2, "one bare process"),),
)  # fmt: skip
def read(bench: Bench, count: int) -> Prepared:
    """A bucket into Parquet, in a warm session."""
    name = bench.keys(count)
    return {
        **bench.both("nats-kv source", lambda tree: bench.work("spark", "read", name, tree=tree)),
        "one bare process": bench.work("spark", "read_bare", name),
        "nats-kv source, key and revision": bench.work("spark", "read", name, "columns=key,revision"),
    }


@case(
    "spark-stream",
    "{count} changes replayed into Parquet by Spark",
    count=MILLION,
    seconds=90,
    rounds=1,
    warmup=0,
    quick=False,
)
def stream(bench: Bench, count: int) -> Prepared:
    """A stream into Spark's file sink, and a capture, which also hashes and syncs its files."""
    name = bench.keys(count)
    return {
        **bench.both("nats-kv stream", lambda tree: bench.work("spark", "replay", name, tree=tree)),
        "pipeline capture": bench.work("spark", "capture", name),
        "one bare process": bench.work("spark", "read_bare", name),
    }


@case(
    "spark-load",
    "`pipeline load` of {count}, whole process",
    count=MILLION,
    seconds=75,
    rounds=1,
    warmup=0,
    quick=False,
)
def load(bench: Bench, count: int) -> Prepared:
    """An export into a bucket, beside a load of a dump."""
    source, target, folder = bench.keys(count), bench.bucket("LOAD"), bench.folder()
    _exported(bench, bench.ours, source, folder / "export")()
    rows = bench.rows(count)
    return {
        **bench.kvctl("pipeline", "load", str(folder / "export"), "--into", target, children=True),
        "kvctl load": lambda: bench.process(bench.ours.kvctl, "load", target, rows),
    }


@case("spark-start", "Spark session and first count", seconds=40, rounds=2, warmup=0, quick=False)
def start(bench: Bench, _: int) -> Prepared:
    """A session of kvctl's, beside one as in pyspark's guide."""
    return {
        **bench.both("kvctl", lambda tree: bench.work("spark", "start", tree=tree)),
        "pyspark as it comes": bench.work("spark", "start_bare"),
    }


def mirrored(bench: Bench, count: int, kind: str = "mirror") -> str:
    """Return a mirror or an aggregate of the shared bucket with so many keys."""
    origin, name = bench.keys(count), f"{kind.upper()}{count}"
    command = (bench.ours.kvctl, kind, "create", name, "--origin", origin, "--wait-for", "10m")
    return bench.once(name, lambda: bench.process(*command, timeout=600))


def _exported(bench: Bench, tree: Tree, name: str, folder: Path) -> Contender:
    return lambda: _export(bench, tree, name, folder, bench.place / f"cache-{tree.name}")


def _export(bench: Bench, tree: Tree, name: str, folder: Path, cache: Path) -> Run:
    env = {**bench.env, "XDG_CACHE_HOME": str(cache)}
    command = (tree.kvctl, "pipeline", "export", name, "--to", str(folder), "--overwrite")
    return run(command, env=env, timeout=900, children=True)


def _settle(cache: str, patience: float = 120) -> None:
    """Wait until no process works on a cache directory that begins like this."""
    wanted, deadline = f"XDG_CACHE_HOME={cache}".encode(), time.monotonic() + patience
    while time.monotonic() < deadline and any(wanted in _environment(path) for path in _processes()):
        time.sleep(0.5)


def _processes() -> list[Path]:
    own = str(os.getpid())
    return [path for path in Path("/proc").glob("[0-9]*/environ") if path.parent.name != own]


def _environment(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
