"""Puts and loads."""

from bench.case import BEFORE, SAME, Aim, Prepared, case
from bench.harness import Bench
from bench.measure import AtMost


@case("puts", "put {count} of 100 B one by one, library", count=5000, seconds=12, rounds=3, aims=(SAME,))
def puts(bench: Bench, count: int) -> Prepared:
    """Puts awaited one by one."""
    name = bench.bucket("PUTS")
    return {
        **bench.both("kvctl put", lambda tree: bench.work("bucket", "put", name, count, tree=tree)),
        "nats-py kv.put": bench.work("nats_py", "put", name, count),
    }


@case(
    "put-many",
    "`put_many` of {count}, library",
    count=100_000,
    seconds=20,
    rounds=3,
    aims=(Aim(0.4, "nats-py publish_async"),),
)
def put_many(bench: Bench, count: int) -> Prepared:
    """Puts through a window of acknowledgements."""
    name = bench.bucket("PUTS")
    return {
        **bench.both("kvctl put_many", lambda tree: bench.work("bucket", "put_many", name, count, tree=tree)),
        "nats-py publish_async": AtMost(2, bench.work("nats_py", "put_many", name, count)),
    }


@case(
    "load", "`load` of {count} rows, whole process", count=1_000_000, seconds=75, rounds=2, warmup=0,
    aims=(Aim(0.63, BEFORE),),
)  # fmt: skip
def load(bench: Bench, count: int) -> Prepared:
    """A complete load of a file, beside the shortest script that writes the same rows."""
    name, file = bench.bucket("LOAD"), bench.rows(count)
    rival = bench.work("nats_py", "load", name, file)
    return {**bench.kvctl("load", name, file), "json and nats-py publish_async": AtMost(1, rival)}
