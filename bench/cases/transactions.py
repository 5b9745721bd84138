"""Transactions, beside single puts: no other client writes several keys atomically."""

import json

from bench.case import SAME, START, Prepared, case
from bench.harness import Bench
from bench.measure import Contender


@case("txn-1000", "transaction of {count} keys, library", count=1000, seconds=12, rounds=3, aims=(SAME,))
@case("txn-1", "transaction of one key, library", count=1, seconds=5, rounds=3, unit="round trips")
def txn(bench: Bench, count: int) -> Prepared:
    """The median of ten, without and with a condition on each value."""
    name = _bucket(bench)
    return {
        **bench.both("kvctl commit", lambda tree: bench.work("bucket", "txn", name, count, tree=tree)),
        "nats-py kv.put, one by one": bench.work("nats_py", "put", name, count),
        "kvctl commit, a condition each": bench.work("bucket", "txn_values", name, count),
    }


@case("txn-process", "`txn` of {count} keys, whole process", count=1000, seconds=5, aims=(START,))
def txn_process(bench: Bench, count: int) -> Prepared:
    """A complete `kvctl txn`, beside one put."""
    name, file = _bucket(bench), bench.folder() / "txn.json"
    file.write_text(json.dumps({"then": [{"put": f"k.{n}", "value": "v" * 100} for n in range(count)]}))
    return {**bench.kvctl("txn", name, "-f", str(file)), **_one(bench, name)}


def _one(bench: Bench, name: str) -> dict[str, Contender]:
    return {"kvctl put of one": lambda: bench.process(bench.ours.kvctl, "put", name, "k", "v" * 100)}


def _bucket(bench: Bench) -> str:
    return bench.once("TXN", lambda: bench.process(bench.ours.kvctl, "bucket", "add", "TXN", "--atomic"))
