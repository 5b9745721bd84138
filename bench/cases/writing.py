"""Puts and loads."""

from bench.case import BEFORE, SAME, Aim, Prepared, case
from bench.harness import Bench, split
from bench.measure import AtMost

LONGEST = 2000
"""Bytes of the longest value, where sizes vary."""


@case("puts", "put {count} of 100 B one by one, library", count=2000, seconds=20, rounds=3, aims=(SAME,))
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
    "load", "`load` of {count} rows, whole process", count=1_000_000, seconds=100, rounds=2, warmup=0,
    aims=(Aim(0.63, BEFORE),),
)  # fmt: skip
def load(bench: Bench, count: int) -> Prepared:
    """A complete load of a file, beside the shortest script that writes the same rows.

    The script parses with `json` and sends with publish_async of nats-py, 4,000 pending.
    """
    name, file = bench.bucket("LOAD"), bench.rows(count)
    rival = bench.work("nats_py", "load", name, file)
    return {**bench.kvctl("load", name, file), "json and nats-py publish_async": AtMost(1, rival)}


@case(
    "load-mixed", "`load` of {count} rows, values of 10 to 2,000 B, whole process", count=123_457, seconds=20, rounds=2,
    aims=(SAME,),
)  # fmt: skip
def load_mixed(bench: Bench, count: int) -> Prepared:
    """A number of rows that no batch divides, and values of all sizes."""
    return bench.kvctl("load", bench.bucket("MIXED"), bench.rows(count, LONGEST))


@case("load-waits", "99th percentile beside a load of {count} rows", count=200_000, seconds=20, rounds=2, warmup=0)
def waits(bench: Bench, count: int) -> Prepared:
    """Another process loads into the same bucket."""
    name, file = bench.bucket("WAITS", 1000), bench.rows(count)
    return split(
        lambda: bench.tell("bucket", "waits", name, 1000, file),
        "put beside a load", "put idle", "get beside a load", "get idle",
    )  # fmt: skip
