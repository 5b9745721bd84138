"""The pipeline on Spark, beside commands and single processes without it."""

import json
import os
import shutil
import socket
import time
from itertools import count as counter
from pathlib import Path
from urllib.request import urlopen

from bench.case import BEFORE, NOISE, SAME, Aim, Prepared, Table, case, grown
from bench.harness import Bench, Tree
from bench.measure import AtMost, Contender, Run
from kvctl.server import run_server

MILLION = 1_000_000
BARE = "pyarrow and a bare socket"
READER = "the source without Spark"
FIRST, SECOND, THIRD = "first time", "second time", "third time"
PARTITIONS = (1, 4, 16, 64)
SETTLE_S = 180.0


@case(
    "export-one", "`pipeline export` of one row, with an empty cache directory", seconds=60, rounds=2, warmup=0,
    quick=False, aims=(Aim(0.34, BEFORE), Aim(NOISE, FIRST, ours=SECOND), Aim(NOISE, SECOND, ours=THIRD)),
)  # fmt: skip
def export_one(bench: Bench, _: int) -> Prepared:
    """Three exports, one right after the other.

    What the first leaves behind may still run beside the second, which may take 1.1 of its time for noise alone.
    """

    def first(tree: Tree) -> Contender:
        def timed() -> Run:
            for other in bench.trees:
                _settle(_cache(bench, other))
            shutil.rmtree(_cache(bench, tree), ignore_errors=True)
            return _export_one(bench, tree)

        return timed

    before = {BEFORE: AtMost(1, first(bench.before))} if bench.before else {}
    again = lambda: _export_one(bench, bench.ours)  # noqa: E731
    return {FIRST: first(bench.ours), SECOND: again, THIRD: AtMost(2, again), **before}


@case(
    "export", "`pipeline export` of {count}, whole process", count=MILLION, seconds=75, rounds=2, warmup=0,
    aims=(Aim(1.5, "kvctl dump", plus=4), SAME),
)  # fmt: skip
def export(bench: Bench, count: int) -> Prepared:
    """A complete export, Spark's start included, beside a dump into a file."""
    name, folder = bench.keys(count), bench.folder()
    command = ("pipeline", "export", name, "--overwrite", "--to")
    return {
        **bench.both(
            "kvctl pipeline export", lambda tree: _kvctl(bench, tree, *command, str(folder / tree.name)), slow=True
        ),
        "kvctl dump": lambda: bench.process(bench.ours.kvctl, "dump", name, "--to", str(folder / "dump.ndjson")),
    }


@case(
    "spark-write", "{count} acknowledged rows written by Spark, 2 cores", count=MILLION, seconds=150, rounds=2,
    warmup=0, quick=False, aims=(Aim(1.3, BARE), SAME),
)  # fmt: skip
def write(bench: Bench, count: int) -> Prepared:
    """Parquet into an empty bucket, in a warm session.

    The bare process reads with pyarrow and sends over a blocking socket, a thousand puts a write, at most 8,000 without
    acknowledgement, which it only counts: it neither retries nor knows which row failed. With nats-py, see `load`.
    """
    folder, numbers = str(bench.folder()), counter()
    bench.tell("spark", "rows", folder, count)

    def contender(work: str, tree: Tree) -> Contender:
        def timed() -> Run:
            name = bench.bucket(f"W{next(numbers)}")
            os.sync()  # what earlier runs left to write
            done = _work(bench, tree, work, folder, name)()
            bench.process(bench.ours.kvctl, "bucket", "rm", name, "--yes")
            return done

        return timed

    return {
        **bench.both("nats-kv sink", lambda tree: contender("write", tree)),
        BARE: contender("write_bare", bench.ours),
    }


@case(
    "spark-audit", "audit of {count} keys of a mirror, whole process", count=MILLION, seconds=120, rounds=2,
    warmup=0, quick=False, aims=(Aim(1.5, "kvctl topology audit"), SAME),
)  # fmt: skip
def audit(bench: Bench, count: int) -> Prepared:
    """A complete audit by Spark, beside the one without."""
    name, mirror = bench.keys(count), mirrored(bench, count)
    return {
        **bench.both(
            "kvctl pipeline audit", lambda tree: _kvctl(bench, tree, "pipeline", "audit", name, mirror), slow=True
        ),
        "kvctl topology audit": lambda: bench.process(bench.ours.kvctl, "topology", "audit", mirror),
    }


@case(
    "spark-read", "{count} keys into Parquet by Spark, 2 cores", count=MILLION, seconds=100, rounds=1, warmup=0,
    quick=False, aims=(Aim(1.2, READER),),
)  # fmt: skip
def read(bench: Bench, count: int) -> Prepared:
    """A bucket into Parquet, in a warm session.

    The process without Spark reads and decodes with the source's own modules, and writes one file.
    """
    name = bench.keys(count)
    return {
        **bench.both("nats-kv source", lambda tree: _work(bench, tree, "read", name)),
        READER: _work(bench, bench.ours, "read_bare", name),
    }


@case(
    "spark-stream", "{count} changes replayed into Parquet by Spark", count=MILLION, seconds=50, rounds=1, warmup=0,
    quick=False,
)  # fmt: skip
def stream(bench: Bench, count: int) -> Prepared:
    """A capture, which also hashes and syncs its files."""
    name = bench.keys(count)
    return {
        "pipeline capture": _work(bench, bench.ours, "capture", name),
        READER: _work(bench, bench.ours, "read_bare", name),
    }


@case("spark-messages", "messages sent for a divided read of {count} rows", count=20_000, seconds=15)
def messages(bench: Bench, count: int) -> Prepared:
    """A read by the source without Spark, counted by the server itself (`out_msgs` of its monitoring).

    Answers to requests are among them. Half of the rows have gaps of one revision between them.
    """
    port = free_port()
    with run_server(name="messages", arguments=("-m", str(port))) as server:
        bench.process(bench.ours.kvctl, "bucket", "add", "B", env={**bench.env, "NATS_URL": server.url})
        bench.tell("spark", "gaps", "B", count, url=server.url)

        def sent() -> int:
            with urlopen(f"http://127.0.0.1:{port}/varz") as answer:
                return int(json.load(answer)["out_msgs"])

        rows, verdicts = [], []
        for parts in PARTITIONS:
            before = sent()
            bench.tell("spark", "read_divided", "B", parts, count, url=server.url)
            found = sent() - before
            rows.append((f"{parts}", f"{found:,}", f"{found / count:.2f}"))
            verdicts.append(
                grown(
                    "messages of a divided read", "messages", (f"{count:,} rows", count), (f"{parts} tasks", found), 1.2
                )
            )
    return Table(("tasks", "messages", "per row"), rows, verdicts)


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def mirrored(bench: Bench, count: int, kind: str = "mirror") -> str:
    """Return a mirror or an aggregate of the shared bucket with so many keys."""
    origin, name = bench.keys(count), f"{kind.upper()}{count}"
    command = (bench.ours.kvctl, kind, "create", name, "--origin", origin, "--wait-for", "10m")
    return bench.once(name, lambda: bench.process(*command, timeout=600))


def _kvctl(bench: Bench, tree: Tree, *words: str) -> Contender:
    """Return a complete command that starts Spark with what an earlier one cached."""
    return lambda: bench.process(tree.kvctl, *words, env=warmed(bench, tree), timeout=900, children=True)


def _work(bench: Bench, tree: Tree, *words: object) -> Contender:
    return lambda: bench.work("spark", *map(str, words), tree=tree, env=warmed(bench, tree))()


def warmed(bench: Bench, tree: Tree) -> dict[str, str]:
    """Return the environment with a cache that an export has filled, once nothing works on it any more."""
    if not _cache(bench, tree).exists():
        _export_one(bench, tree)
    _settle(_cache(bench, tree))
    return {**bench.env, "XDG_CACHE_HOME": str(_cache(bench, tree)), "KVCTL_SPARK_ARCHIVE": "off"}


def _export_one(bench: Bench, tree: Tree) -> Run:
    name, env = bench.bucket("ONE", 1), {**bench.env, "XDG_CACHE_HOME": str(_cache(bench, tree))}
    if bench.quick:  # nobody waits for the class archive
        env["KVCTL_SPARK_ARCHIVE"] = "off"
    command = (tree.kvctl, "pipeline", "export", name, "--to", str(bench.place / "one"), "--overwrite")
    return bench.process(*command, env=env, children=True)


def _cache(bench: Bench, tree: Tree) -> Path:
    return bench.place / f"cache-{tree.name}"


def _settle(cache: Path) -> None:
    """Wait until no process works on this cache directory."""
    wanted, deadline = f"XDG_CACHE_HOME={cache}\0".encode(), time.monotonic() + SETTLE_S
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
