"""Audits beside the bare reading of both sides, and plans over many buckets."""

from bench.case import START, Aim, Prepared, case
from bench.cases.pipeline import mirrored
from bench.harness import Bench

PLANNED = 500


@case(
    "audit-mirror", "audit of a mirror of {count} keys, library", count=100_000, seconds=15, rounds=3, warmup=0,
    aims=(Aim(1.5, "listing both sides"),),
)  # fmt: skip
def audit_mirror(bench: Bench, count: int) -> Prepared:
    """A comparison key by key."""
    return _audit(bench, count, "mirror")


@case(
    "audit-aggregate", "audit of an aggregate of {count} keys, library", count=100_000, seconds=20, rounds=3, warmup=0,
    aims=(Aim(1.5, "listing both sides"),),
)  # fmt: skip
def audit_aggregate(bench: Bench, count: int) -> Prepared:
    """A comparison key by key."""
    return _audit(bench, count, "aggregate")


@case("plan", "`topology plan` over {count} buckets, whole process", count=PLANNED, seconds=10, aims=(START,))
def plan(bench: Bench, count: int) -> Prepared:
    """A file that names every bucket; nothing differs."""
    bench.tell("bucket", "many_buckets", "PLAN", count)
    file = bench.folder() / "topology.yaml"
    rows = "".join(f"  PLAN{number}: {{history: 3}}\n" for number in range(count))
    file.write_text(f"version: 1\nbuckets:\n{rows}")
    return bench.kvctl("topology", "plan", "-f", str(file))


def _audit(bench: Bench, count: int, kind: str) -> Prepared:
    replica = mirrored(bench, count, kind)
    return {
        **bench.both("kvctl audit", lambda tree: bench.work("topology", "audit", replica, tree=tree)),
        "listing both sides": bench.work("topology", "listing", bench.keys(count), replica),
    }
