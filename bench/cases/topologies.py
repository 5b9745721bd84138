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


FEWER = "a quarter of them"
GROWTH = Aim(4.5, FEWER, processor=True)
"""The most that four times as much input may take; the square of its size would be 16."""


@case("chain", "`topology render` of {count} mirrors in a chain", count=4000, seconds=10, rounds=3, aims=(GROWTH,))
def chain(bench: Bench, count: int) -> Prepared:
    """A file in which each mirror replicates the one before, the last one first: time by size, not by its square."""
    (first, ours), *rest = bench.kvctl("topology", "render", "-f", _chain(bench, count)).items()
    (_, fewer), *_ = bench.kvctl("topology", "render", "-f", _chain(bench, count // 4)).items()
    return {first: ours, FEWER: fewer, **dict(rest)}


@case("filters", "`keys` with {count} filters", count=16_000, seconds=10, rounds=3, aims=(GROWTH,))
def filters(bench: Bench, count: int) -> Prepared:
    """Filters that overlap with none: they are compared by a tree, not each with all others."""
    name = bench.keys(1000)
    (first, ours), *rest = bench.kvctl("keys", name, *_filters(count)).items()
    (_, fewer), *_ = bench.kvctl("keys", name, *_filters(count // 4)).items()
    return {first: ours, FEWER: fewer, **dict(rest)}


def _chain(bench: Bench, count: int) -> str:
    file = bench.folder() / "chain.yaml"
    rows = "".join(f"  M{number}: {{origin: M{number - 1}}}\n" for number in range(count, 0, -1))
    file.write_text(f"version: 1\nbuckets: {{M0: {{history: 3}}}}\nmirrors:\n{rows}")
    return str(file)


def _filters(count: int) -> list[str]:
    return [f"f.{number}.>" for number in range(count)]


def _audit(bench: Bench, count: int, kind: str) -> Prepared:
    replica = mirrored(bench, count, kind)
    return {
        **bench.both("kvctl audit", lambda tree: bench.work("topology", "audit", replica, tree=tree)),
        "listing both sides": bench.work("topology", "listing", bench.keys(count), replica),
    }
