"""Consumers: kvctl's consume beside nats-py's fetch, the same consumer for both."""

from bench.case import Aim, Prepared, case
from bench.harness import Bench
from bench.measure import AtMost

FETCH = "nats-py fetch(500)"


@case("consume", "consume {count} messages", count=100_000, seconds=15, rounds=3, aims=(Aim(0.25, FETCH),))
def consume(bench: Bench, count: int) -> Prepared:
    """Messages without acknowledgements."""
    return _consume(bench, count, "none")


@case(
    "consume-acks", "consume {count} messages, each acknowledged", count=100_000, seconds=17, rounds=3,
    aims=(Aim(0.25, FETCH),),
)  # fmt: skip
def consume_acks(bench: Bench, count: int) -> Prepared:
    """Messages with acknowledgements."""
    return _consume(bench, count, "explicit")


def _consume(bench: Bench, count: int, acks: str) -> Prepared:
    name = bench.keys(count)
    return {
        **bench.both("kvctl consume", lambda tree: bench.work("bucket", "consume", name, count, acks, tree=tree)),
        FETCH: AtMost(1, bench.work("nats_py", "consume", name, count, acks)),
    }
