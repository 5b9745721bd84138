"""The pipeline on Spark, beside commands and single processes without it."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from itertools import count as counter
from pathlib import Path
from urllib.request import urlopen

from bench.case import BEFORE, NOISE, SAME, STEADY, Aim, Prepared, Table, Verdict, case, grown
from bench.harness import Bench, Tree
from bench.measure import AtMost, Contender, Run
from kvctl.server import run_server

MILLION, TEN_MILLION = 1_000_000, 10_000_000
ONE = "export of one row"
SAME_COST = ("load", "commit", "capture --once")
ONCE_S = 0.3
"""The most seconds that a capture may take in a session that runs."""
LONG_S = 3600
BARE = "pyarrow and a bare socket"
READER = "the source without Spark"
PARQUET = "pipeline export --format parquet"
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
    "spark-one", "jobs of one row, whole process", seconds=150, rounds=3, warmup=0, quick=False,
    aims=tuple(Aim(1.3, ONE, ours=f"{name} of one row") for name in SAME_COST),
)  # fmt: skip
def one_row(bench: Bench, _: int) -> Prepared:
    """The fixed cost of each job, beside that of an export.

    `load` and `commit` read that export. A capture begins a table, a commit a repository.
    """
    name, folder, numbers = bench.bucket("ONE", 1), bench.folder(), counter()
    table = str(folder / "table")

    def commit() -> Run:
        repository = f"ONE{next(numbers)}"
        bench.process(bench.ours.kvctl, "repo", "init", repository)
        return job("commit", f"{repository}@main", "--from", table, "-m", "one")()

    def job(*words: str) -> Contender:
        return _kvctl(bench, bench.ours, "pipeline", *words)

    return {
        ONE: job("export", name, "--overwrite", "--to", table),
        "load of one row": job("load", table, "--into", name),
        "commit of one row": commit,
        "capture --once of one row": lambda: job(
            "capture", name, "--once", "--to", str(folder / f"capture{next(numbers)}")
        )(),
        "audit of one row": job("audit", name, mirrored(bench, 1)),
    }


@case("spark-once", "capture of a change in a session that runs", seconds=30, quick=False)
def once(bench: Bench, _: int) -> Prepared:
    """Ten captures into a table, each after a put, with all of a job but the start of Spark."""
    told = bench.tell("spark", "capture_once", bench.bucket("ONCE", 1), 10, env=warmed(bench, bench.ours))
    took = told["seconds"]
    rows = [("capture --once, median of 10", f"{took:.2f} s"), ("slowest", f"{told['slowest']:.2f} s")]
    verdict = Verdict(
        "capture of a change in a session that runs", f"{took:.2f} s", aim=f"{ONCE_S} s", met=took <= ONCE_S,
        over=took / ONCE_S,
    )  # fmt: skip
    return Table(("", "seconds"), rows, [verdict])


@case(
    "export", "`pipeline export` of {count}, whole process", count=MILLION, seconds=75, rounds=2, warmup=0,
    aims=(Aim(1.5, "kvctl dump", also=ONE), SAME),
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
        ONE: lambda: _export_one(bench, bench.ours),
    }


@case(
    "spark-load", "`pipeline load` of {count}, whole process", count=MILLION, seconds=120, rounds=2, warmup=0,
    quick=False, aims=(Aim(1.4, "kvctl load", also=ONE),),
)  # fmt: skip
def load(bench: Bench, count: int) -> Prepared:
    """An export into an empty bucket, beside a load of the same rows as JSON lines."""
    table, numbers = str(bench.folder() / "table"), counter()
    dump = f"{table}.ndjson"
    _kvctl(bench, bench.ours, "pipeline", "export", bench.keys(count), "--to", table)()
    bench.process(bench.ours.kvctl, "dump", bench.keys(count), "--to", dump)

    def emptied(command: Callable[[str], Run]) -> Contender:
        def timed() -> Run:
            name = bench.bucket(f"LOAD{next(numbers)}")
            os.sync()
            done = command(name)
            bench.process(bench.ours.kvctl, "bucket", "rm", name, "--yes")
            return done

        return timed

    return {
        "kvctl pipeline load": emptied(
            lambda name: _kvctl(bench, bench.ours, "pipeline", "load", table, "--into", name)()
        ),
        "kvctl load": emptied(lambda name: bench.process(bench.ours.kvctl, "load", name, dump)),
        ONE: lambda: _export_one(bench, bench.ours),
    }


@case(
    "spark-write", "{count} acknowledged rows written by Spark, 2 cores", count=MILLION, seconds=150, rounds=2,
    warmup=0, quick=False, aims=(Aim(1.5, BARE), SAME),
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
    warmup=0, quick=False, aims=(Aim(1.4, "kvctl topology audit", also=ONE), SAME),
)  # fmt: skip
def audit(bench: Bench, count: int) -> Prepared:
    """A complete audit by Spark, beside the one without."""
    name, mirror = bench.keys(count), mirrored(bench, count)
    return {
        **bench.both(
            "kvctl pipeline audit", lambda tree: _kvctl(bench, tree, "pipeline", "audit", name, mirror), slow=True
        ),
        "kvctl topology audit": lambda: bench.process(bench.ours.kvctl, "topology", "audit", mirror),
        ONE: lambda: _export_one(bench, bench.ours),
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
    "spark-capture", "{count} revisions captured into a Delta table", count=MILLION, seconds=80, rounds=2, warmup=0,
    quick=False, aims=(Aim(1.5, PARQUET),),
)  # fmt: skip
def captured(bench: Bench, count: int) -> Prepared:
    """A capture into a new table beside an export of the same entries, both in a warm session."""
    name = bench.keys(count)
    return {
        "pipeline capture": _work(bench, bench.ours, "capture", name),
        PARQUET: _work(bench, bench.ours, "export_parquet", name),
    }


@case(
    "spark-workers", "`pipeline export` by two tasks at a time", count=MILLION, seconds=80, rounds=2,
    warmup=0, quick=False,
)  # fmt: skip
def workers(bench: Bench, count: int) -> Prepared:
    """Ranges of half a million revisions, by one core of Spark and by two, beside the server on the same cores."""
    count = TEN_MILLION if bench.ten_million else count
    name, folder = bench.keys(count), bench.folder()
    command = ("pipeline", "export", name, "--on-evicted", "fail", "--overwrite", "--to", str(folder / "table"))
    return {
        f"{count:,} keys by {master}": _kvctl(bench, bench.ours, *command, "--master", master, timeout=LONG_S)
        for master in ("local[2]", "local[1]")
    }


@case("spark-memory", "peak memory of jobs, driver and executors", count=MILLION, seconds=300, quick=False)
def spark_memory(bench: Bench, count: int) -> Prepared:
    """Complete commands, each once, with all their processes: the JVM, its Python workers, and the command.

    Pages that processes share count once. The JVM takes what it is given before it collects: a gigabyte of heap.
    """
    counts = (count, TEN_MILLION) if bench.ten_million else (count // 10, count)
    few, many = (_peaks(bench, one) for one in counts)
    names = [f"{one:,} rows" for one in counts]
    rows = [(f"`pipeline {name}`", f"{few[name]:.0f} MiB", f"{many[name]:.0f} MiB") for name in many]
    verdicts = [
        grown(f"`pipeline {name}`, peak memory", "MiB", (names[0], few[name]), (names[1], many[name]), STEADY)
        for name in many
    ]
    return Table(("", *names), rows, verdicts)


def _peaks(bench: Bench, count: int) -> dict[str, float]:
    """Return the peak memory of each job in MiB."""
    folder, bucket, peaks = bench.folder(), bench.keys(count), {}
    table, copy, repository = str(folder / "table"), bench.bucket(f"COPY{count}"), f"MEMORY{count}"
    bench.process(bench.ours.kvctl, "repo", "init", repository)
    for job in (
        ("export", bucket, "--to", table),
        ("load", table, "--into", copy),
        ("commit", f"{repository}@main", "--from", table, "-m", "all"),
        ("capture", bucket, "--once", "--to", str(folder / "capture")),
        ("audit", bucket, mirrored(bench, count)),
    ):
        peaks[job[0]] = _kvctl(bench, bench.ours, "pipeline", *job, timeout=LONG_S)().peak / 2**20
    return peaks


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


def _kvctl(bench: Bench, tree: Tree, *words: str, timeout: float = 900) -> Contender:
    """Return a complete command that starts Spark with what an earlier one cached."""
    return lambda: bench.process(tree.kvctl, *words, env=warmed(bench, tree), timeout=timeout, children=True)


def _work(bench: Bench, tree: Tree, *words: object) -> Contender:
    return lambda: bench.work("spark", *map(str, words), tree=tree, env=warmed(bench, tree))()


def warmed(bench: Bench, tree: Tree) -> dict[str, str]:
    """Return the environment with a cache that an export has filled, once nothing works on it any more."""
    if not _cache(bench, tree).exists():
        _export_one(bench, tree)
    _settle(_cache(bench, tree))
    return {**bench.env, "XDG_CACHE_HOME": str(_cache(bench, tree))}


def _export_one(bench: Bench, tree: Tree) -> Run:
    name, env = bench.bucket("ONE", 1), {**bench.env, "XDG_CACHE_HOME": str(_cache(bench, tree))}
    command = (tree.kvctl, "pipeline", "export", name, "--to", str(bench.place / "one"), "--overwrite")
    return bench.process(*command, env=env, timeout=900, children=True)


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
