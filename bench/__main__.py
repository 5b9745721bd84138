"""Run benchmarks against an embedded server: `python -m bench [CASE...] [--rounds N] [--write bench/RESULTS.md]`.

Everything is compared within one run, in turn: kvctl, nats-py's own API, and the `nats` CLI when it is on PATH.
"""

import argparse
import os
import platform
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench import version_cases
from bench.bulk import bulk as compare_bulk
from bench.consuming import consume as compare_consuming
from bench.harness import KVCTL, NATS, PYTHON, ROOT, Bench
from bench.measure import Run, Series, run
from bench.pipeline import pipeline as compare_pipeline
from bench.scale import scale
from bench.table_cases import million_entries
from bench.table_cases import tables as compare_tables
from bench.topologies import audits, plans
from bench.transactions import transactions
from kvctl.server import run_server


def one_shot_get(bench: Bench) -> None:
    """A complete `kvctl get` process."""
    name = bench.bucket("SMALL", 1000)
    key = f"k.{7:018d}"
    contenders = {
        "kvctl get": lambda: bench.process(KVCTL, "get", name, key),
        "leanest nats-py script": lambda: bench.process(
            PYTHON, "-m", "bench.rivals", "get", bench.server.url, name, key
        ),
    }
    if NATS:
        contenders["nats kv get --raw"] = lambda: bench.process(NATS, "kv", "get", "--raw", name, key)
    bench.compare(
        "one-shot get, whole process", "no slower than the script", contenders, rounds=max(bench.rounds * 3, 15)
    )


def puts(bench: Bench) -> None:
    """Single puts and bulk puts."""
    name = bench.bucket("PUTS")
    for work, count, aim, rival in (("put", 5000, "", "kv.put"), ("put_many", 100_000, "2.5x", "publish_async")):
        bench.compare(f"{work}, {count:,} of 100 B", aim, {
            f"kvctl {work}": bench.library("ours", work, name, count),
            f"nats-py {rival}": bench.library("rivals", work, name, count),
        })  # fmt: skip


def gets(bench: Bench) -> None:
    """Single gets, and many at once beside them."""
    name = bench.bucket("K100", 100_000)
    bench.compare("get, 5,000 one by one", "", {
        "kvctl get": bench.library("ours", "gets", name, 5000),
        "nats-py kv.get": bench.library("rivals", "gets", name, 5000),
        "kvctl get_many": bench.library("ours", "get_many", name, 5000),
    })  # fmt: skip


def many_gets(bench: Bench) -> None:
    """Named keys, all at once."""
    name = bench.bucket("K100", 100_000)
    for count in (1000, 100_000):
        bench.compare(f"get {count:,} keys of 100 B", "200,000 keys a second", {
            "kvctl get_many": bench.library("ours", "get_many", name, count),
            "nats-py kv.get, 100 in flight": bench.library("rivals", "get_many", name, count),
        })  # fmt: skip
    names = [f"k.{number:018d}" for number in range(1000)]
    bench.compare("get 1,000 keys, whole process", "", {
        "kvctl get of 1,000 keys": lambda: bench.process(KVCTL, "get", name, *names, "-o", "ndjson"),
        "kvctl get of one": lambda: bench.process(KVCTL, "get", name, names[0]),
    })  # fmt: skip


def listing(bench: Bench) -> None:
    """Key names: library, and complete processes at 100,000 and 1,000,000."""
    name = bench.bucket("K100", 100_000)
    bench.compare("list 100,000 keys, library", "4x", {
        "kvctl key_batches": bench.library("ours", "keys", name, 100_000),
        "nats-py kv.keys": bench.library("rivals", "keys", name, 100_000),
    })  # fmt: skip
    _whole_listing(bench, "100,000", name, "as fast as nats kv ls", bench.rounds)


def million(bench: Bench) -> None:
    """A million keys, and the memory per key."""
    small, large = bench.bucket("K10", 10_000), bench.bucket("K1M", 1_000_000)
    ours = _whole_listing(bench, "1,000,000", large, "ahead of nats kv ls, 150 B a key", 3)
    floor = max(bench.process(KVCTL, "keys", small).peak for _ in range(3))
    cost = (ours.peak - floor) / 990_000
    bench.lines.append(f"| memory a key, 1,000,000 over 10,000 | kvctl keys | {cost:.0f} B | | | | | at most 150 B |")


def _whole_listing(bench: Bench, count: str, name: str, aim: str, rounds: int) -> Series:
    contenders = {"kvctl keys": lambda: bench.process(KVCTL, "keys", name)}
    if NATS:
        contenders["nats kv ls"] = lambda: bench.process(NATS, "kv", "ls", name)
    return bench.compare(f"list {count} keys, whole process", aim, contenders, rounds=rounds)[0]


def watching(bench: Bench) -> None:
    """Reading all entries by a watch."""
    name = bench.bucket("K100", 100_000)
    bench.compare("watch 100,000 entries, library", "", {
        "kvctl watch": bench.library("ours", "watch", name, 100_000),
        "nats-py watchall": bench.library("rivals", "watch", name, 100_000),
    })  # fmt: skip
    contenders = {"kvctl watch --until-current": lambda: bench.process(KVCTL, "watch", name, "--until-current")}
    if NATS:
        contenders["nats kv watch, until 100,000 lines"] = lambda: _until_lines(
            (NATS, "kv", "watch", name), 100_000, bench.env
        )
    bench.compare("watch 100,000 entries, whole process", "", contenders)


def _until_lines(command: tuple[str, ...], count: int, env: dict[str, str]) -> Run:
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as process:
        assert process.stdout is not None
        lines = 0
        while lines < count and (chunk := process.stdout.read1(1 << 16)):
            lines += chunk.count(b"\n")
        seconds = time.perf_counter() - begun
        process.kill()
    return Run(seconds, 0, 0, b"")


def resume(bench: Bench) -> None:
    """The first update after a server's return, from the moment its port answers."""

    def first_update(*command: str) -> Callable[[], Run]:
        def timed() -> Run:
            with run_server() as server:
                env = {**bench.env, "NATS_URL": server.url}
                run((KVCTL, "bucket", "add", "R"), env=env)
                run((KVCTL, "put", "R", "before", "1"), env=env)
                words = [word.replace("URL", server.url) for word in command]
                with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as process:
                    assert process.stdout is not None
                    while b"current" not in process.stdout.readline():
                        pass
                    server.kill()
                    time.sleep(1)
                    server.start()
                    begun = time.perf_counter()
                    run((KVCTL, "put", "R", "after", "1"), env=env)
                    process.stdout.readline()
                    seconds = time.perf_counter() - begun
                    process.send_signal(signal.SIGKILL)
            return Run(seconds, 0, 0, b"")

        return timed

    bench.compare("first update after a restart, the put included", "0.5 s", {
        "kvctl watch": first_update(KVCTL, "watch", "R", "-o", "ndjson"),
        "nats-py watchall": first_update(PYTHON, "-m", "bench.rivals", "follow", "URL", "R", "-"),
    }, rounds=3)  # fmt: skip


def bulk(bench: Bench) -> None:
    """Load and dump."""
    compare_bulk(bench, _until_lines)


def consume(bench: Bench) -> None:
    """Consuming messages."""

    def timed(who: str, bucket: str, acks: str) -> Callable[[], Run]:
        command = (PYTHON, "-m", "bench.consuming", who, bench.server.url, bucket, "100000", acks)

        def once() -> Run:
            whole = bench.process(*command, keep=True)
            return replace(whole, seconds=float(whole.output))

        return once

    compare_consuming(bench, timed)


def txn(bench: Bench) -> None:
    """Transactions."""
    transactions(bench, KVCTL)


def tables(bench: Bench) -> None:
    """Tables beside buckets."""
    compare_tables(bench, KVCTL)


def pipeline(bench: Bench) -> None:
    """The pipeline on Spark."""
    compare_pipeline(bench)


def versions(bench: Bench) -> None:
    """Versioned buckets."""
    version_cases.staging(bench)
    version_cases.commits(bench)
    version_cases.reads(bench)


CASES = (
    one_shot_get, puts, gets, many_gets, listing, watching, consume, txn, bulk, tables, versions, resume, million,
    million_entries, audits, plans, pipeline, scale,
)  # fmt: skip
COLUMNS = ("work", "contender", "median", "spread", "time over ours", "processor", "peak memory", "aim")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def main() -> None:
    """Run the cases asked for, all by default, and print or write the table."""
    names = {case.__name__: case for case in CASES}
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="small sizes, to see that all works (versions)")
    parser.add_argument("--write", type=Path, help="put the table into this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(names):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    subprocess.run((PYTHON, "-m", "compileall", "-q", f"{ROOT}/kvctl", f"{ROOT}/bench"), check=False)
    with run_server() as server:
        bench = Bench(server, arguments.rounds, smoke=arguments.smoke)
        for name in arguments.cases or names:
            names[name](bench)
    version = re.sub(
        r"\s+", " ", f"Python {platform.python_version()}, {os.cpu_count()} cores, loopback, file storage, R1"
    )
    table = "\n".join(
        [HEAD, *bench.lines, "", f"{version}. Contenders ran in turn; medians, with the spread as noise."]
    )
    print(table)
    if arguments.write:
        arguments.write.write_text(f"# Results\n\n{table}\n")


if __name__ == "__main__":
    main()
