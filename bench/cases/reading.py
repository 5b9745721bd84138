"""Listings, watches and many keys at once."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

from bench.case import BEFORE, SAME, Aim, Prepared, case
from bench.cases.writing import LONGEST
from bench.harness import NATS, WORKS, Bench, Tree
from bench.measure import AtMost, Contender, Run, run, spent
from kvctl.server import run_server

LS, WATCH = "nats kv ls", "nats kv watch"


@case(
    "keys-1m", "`keys` of {count}, whole process", count=1_000_000, seconds=65, rounds=3, warmup=0, aims=(Aim(1, LS),)
)
@case("keys-100k", "`keys` of {count}, whole process", count=100_000, seconds=15, rounds=5, aims=(Aim(1.25, LS),))
def keys(bench: Bench, count: int) -> Prepared:
    """A complete listing of names."""
    name = bench.keys(count)
    return {**bench.kvctl("keys", name), **bench.nats(LS, "kv", "ls", name)}


@case(
    "watch", "`watch --until-current` of {count}, whole process", count=100_000, seconds=20, rounds=5,
    aims=(Aim(1.25, WATCH),),
)  # fmt: skip
def watch(bench: Bench, count: int) -> Prepared:
    """A complete reading of all entries as lines.

    `nats kv watch` never ends by itself, so it is stopped at the last line.
    """
    name = bench.keys(count)
    rival = {WATCH: lambda: _until_lines(bench, count, NATS, "kv", "watch", name)} if NATS else {}
    return {**bench.kvctl("watch", name, "--until-current"), **rival}


@case("get-many", "`get_many` of {count}, library", count=100_000, seconds=40, aims=(Aim(0.55, BEFORE),))
def get_many(bench: Bench, count: int) -> Prepared:
    """Named keys, all at once.

    nats-py has no bulk get; 100 of its gets are awaited together.
    """
    name = bench.keys(count)
    return {
        **bench.both("kvctl get_many", lambda tree: bench.work("bucket", "get_many", name, count, tree=tree)),
        "nats-py, 100 in flight": AtMost(1, bench.work("nats_py", "get_many", name, count)),
    }


@case("gets", "get {count} keys one by one, library", count=2000, seconds=15, aims=(SAME,))
def gets(bench: Bench, count: int) -> Prepared:
    """Gets awaited one by one."""
    name = bench.keys(bench.sized(100_000))
    return {
        **bench.both("kvctl get", lambda tree: bench.work("bucket", "get", name, count, tree=tree)),
        "nats-py kv.get": bench.work("nats_py", "get", name, count),
    }


@case(
    "keys-library",
    "list {count} keys, library",
    count=100_000,
    seconds=20,
    rounds=3,
    aims=(Aim(0.25, "nats-py kv.keys"),),
)
def keys_library(bench: Bench, count: int) -> Prepared:
    """Names in batches."""
    name = bench.keys(count)
    return {
        **bench.both("kvctl key_batches", lambda tree: bench.work("bucket", "keys", name, count, tree=tree)),
        "nats-py kv.keys": AtMost(2, bench.work("nats_py", "keys", name, count)),
    }


@case("watch-library", "watch {count} entries, library", count=100_000, seconds=20, rounds=3)
def watch_library(bench: Bench, count: int) -> Prepared:
    """All entries in batches."""
    name = bench.keys(count)
    return {
        **bench.both("kvctl watch", lambda tree: bench.work("bucket", "watch", name, count, tree=tree)),
        "nats-py watchall": AtMost(2, bench.work("nats_py", "watch", name, count)),
    }


@case("dump", "`dump` of {count}, whole process", count=200_000, seconds=50, rounds=3, aims=(SAME,))
def dump(bench: Bench, count: int) -> Prepared:
    """A complete dump, beside the shortest script that prints the same rows."""
    name = bench.keys(count)
    return {
        **bench.kvctl("dump", name),
        "json and nats-py watchall": AtMost(1, bench.work("nats_py", "dump", name)),
        **({WATCH: lambda: _until_lines(bench, count, NATS, "kv", "watch", name)} if NATS else {}),
    }


@case(
    "dump-mixed", "`dump` of {count}, values of 10 to 2,000 B, whole process", count=123_457, seconds=20, rounds=3,
    aims=(SAME,),
)  # fmt: skip
def dump_mixed(bench: Bench, count: int) -> Prepared:
    """A number of keys that no batch divides, and values of all sizes."""
    name, file = bench.bucket("MIXED"), bench.rows(count, LONGEST)
    bench.once("MIXED, loaded", lambda: bench.process(bench.ours.kvctl, "load", name, file))
    return bench.kvctl("dump", name)


@case("resume", "first update after a restart, the put included", seconds=30, rounds=2, warmup=0)
def resume(bench: Bench, _: int) -> Prepared:
    """From the moment the server's port answers again."""

    def theirs(url: str) -> tuple[str, ...]:
        return bench.ours.python, str(WORKS / "nats_py.py"), "follow", url, "R"

    def ours(tree: Tree) -> Contender:
        return _first_update(bench, lambda _: (tree.kvctl, "watch", "R", "-o", "ndjson"))

    return {**bench.both("kvctl watch", ours), "nats-py watchall": AtMost(1, _first_update(bench, theirs))}


def _until_lines(bench: Bench, count: int, *command: str) -> Run:
    """Read lines until there are so many, then kill the process."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=bench.env) as process:
        assert process.stdout is not None
        lines = 0
        while lines < count and (chunk := os.read(process.stdout.fileno(), 1 << 16)):
            lines += chunk.count(b"\n")
        seconds = time.perf_counter() - begun
        process.kill()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Run(seconds, *spent(usage))


def _first_update(bench: Bench, command: Callable[[str], tuple[str, ...]]) -> Contender:
    def timed() -> Run:
        with run_server() as server:
            env = {**bench.env, "NATS_URL": server.url}
            run((bench.ours.kvctl, "bucket", "add", "R"), env=env)
            run((bench.ours.kvctl, "put", "R", "before", "1"), env=env)
            follower = command(server.url)
            with subprocess.Popen(follower, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as process:
                assert process.stdout is not None
                while b"current" not in process.stdout.readline():
                    pass
                server.kill()
                time.sleep(1)
                server.start()
                begun = time.perf_counter()
                run((bench.ours.kvctl, "put", "R", "after", "1"), env=env)
                process.stdout.readline()
                found = Run(time.perf_counter() - begun)
                process.send_signal(signal.SIGKILL)
        return found

    return timed
