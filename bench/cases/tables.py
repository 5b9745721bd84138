"""Tables beside the code before, and beside plain buckets."""

from bench.case import BEFORE, SAME, Aim, Prepared, case
from bench.harness import Bench, Tree
from bench.measure import Contender

BATCH = 1000


@case(
    "table-batches", "table batches of 1,000, one at a time, {count} entries", count=100_000, seconds=30, rounds=3,
    aims=(Aim(0.62, BEFORE),),
)  # fmt: skip
def batches(bench: Bench, count: int) -> Prepared:
    """Insertions in atomic batches."""
    return _updates(bench, count, 1)


@case(
    "table-flight", "table batches of 1,000, 8 in flight, {count} entries", count=100_000, seconds=25, rounds=3,
    aims=(Aim(0.45, BEFORE),),
)  # fmt: skip
def flight(bench: Bench, count: int) -> Prepared:
    """Insertions in atomic batches of several tasks."""
    return _updates(bench, count, 8)


@case(
    "table-small", "table updates of 10 changes, 32 in flight, {count} entries", count=10_000, seconds=15, rounds=3,
    aims=(SAME,),
)  # fmt: skip
def small(bench: Bench, count: int) -> Prepared:
    """Small batches of several tasks."""
    return _updates(bench, count, 32, 10)


@case(
    "table-streams", "table batches of 1,000, 8 in flight, {count} entries in 8 partition streams", count=100_000,
    seconds=25, rounds=3, aims=(SAME,),
)  # fmt: skip
def streams(bench: Bench, count: int) -> Prepared:
    """The same batches as `table-flight`, each in the next of 8 streams.

    A server writes each stream in a goroutine of its own, so this is the way past one of its cores.
    """

    def work(tree: Tree, streams: int) -> Contender:
        return bench.work("table", "update", _empty(bench, tree, streams), count, 8, BATCH, streams, tree=tree)

    return {**bench.both("8 partition streams", lambda tree: work(tree, 8)), "one stream": work(bench.ours, 1)}


@case("table-get-all", "table `get_all` of {count}", count=100_000, seconds=40, rounds=3, aims=(Aim(0.5, BEFORE),))
def get_all(bench: Bench, count: int) -> Prepared:
    """A thousand entries a call, beside named keys of a bucket."""
    bucket = bench.keys(count)
    return {
        **_both(bench, "table get_all", "get_all", count),
        "bucket get_many": bench.work("bucket", "get_many", bucket, count),
    }


@case("table-scan", "table scan of {count} entries", count=100_000, seconds=35, rounds=3, aims=(Aim(0.34, BEFORE),))
def scan(bench: Bench, count: int) -> Prepared:
    """All entries of a family in key order, beside a watch of a bucket."""
    bucket = bench.keys(count)
    return {
        **_both(bench, "table entries", "entries", count),
        "bucket watch": bench.work("bucket", "watch", bucket, count),
    }


@case("table-keys", "table scan of {count} keys", count=100_000, seconds=15, rounds=3, aims=(Aim(2, "bucket keys"),))
def keys(bench: Bench, count: int) -> Prepared:
    """All keys of a family in order, beside a listing of a bucket."""
    bucket = bench.keys(count)
    return {**_both(bench, "table keys", "keys", count), "bucket keys": bench.work("bucket", "keys", bucket, count)}


@case("table-put", "table put of {count} one by one", count=2000, seconds=10, rounds=3)
def put(bench: Bench, count: int) -> Prepared:
    """Unconditional puts, beside those of a bucket."""
    bucket = bench.bucket("PUTS")
    ours = bench.both("table put", lambda tree: bench.work("table", "put", _empty(bench, tree), count, tree=tree))
    return {**ours, "bucket put": bench.work("bucket", "put", bucket, count)}


@case(
    "table-replace", "table put on condition, {count} times", count=2000, seconds=12, rounds=3,
    aims=(Aim(1.2, "bucket update"),),
)  # fmt: skip
def replace(bench: Bench, count: int) -> Prepared:
    """Compare-and-set of one entry, beside that of a bucket's key."""
    bucket = bench.bucket("PUTS")
    ours = bench.both(
        "table replace", lambda tree: bench.work("table", "replace", _empty(bench, tree), count, tree=tree)
    )
    return {**ours, "bucket update": bench.work("bucket", "update", bucket, count)}


def _updates(bench: Bench, count: int, flight: int, size: int = BATCH) -> Prepared:
    def work(tree: Tree) -> Contender:
        return bench.work("table", "update", _empty(bench, tree), count, flight, size, tree=tree)

    return {
        **bench.both("table update", work),
        "bucket put_many": bench.work("bucket", "put_many", bench.bucket("PUTS"), count),
    }


def _both(bench: Bench, title: str, work: str, count: int) -> dict[str, Contender]:
    return bench.both(title, lambda tree: bench.work("table", work, seeded(bench, tree, count), count, tree=tree))


def seeded(bench: Bench, tree: Tree, count: int) -> str:
    """Return the table of this tree with so many entries of one family."""
    name = f"T{count}-{tree.name}"
    return bench.once(name, lambda: bench.tell("table", "seed", name, count, tree=tree))


def _empty(bench: Bench, tree: Tree, streams: int = 1) -> str:
    name = f"T-{tree.name}-{streams}"
    return bench.once(name, lambda: bench.tell("table", "create", name, streams, tree=tree))
