"""Versioned buckets: staging, commits, diffs, merges, reads, and waiting times."""

from bench.case import BEFORE, SAME, Aim, Prepared, case
from bench.harness import Bench, Tree, split
from bench.measure import AtMost, Contender
from kvctl.labs import run_lab

MILLION = 1_000_000


@case("stage", "stage {count} of 100 B, 16 tasks", count=5000, seconds=15, aims=(Aim(1, "bucket put"),))
def stage(bench: Bench, count: int) -> Prepared:
    """Staged writes of concurrent tasks, beside puts into a plain bucket."""
    return {
        **_both(bench, "repository put", "put_by_tasks", 0, count),
        "bucket put": bench.work("bucket", "put_by_tasks", bench.bucket("PLAIN"), count),
        "repository put, 1 task": AtMost(1, bench.work("repository", "put", seeded(bench, bench.ours, 0), count)),
    }


@case("stage-if", "stage {count} on condition, 16 tasks", count=1000, seconds=20, rounds=3, aims=(SAME,))
def stage_if(bench: Bench, count: int) -> Prepared:
    """Staged writes of concurrent tasks, each on condition that the key is absent."""
    return _both(bench, "repository put if absent", "create_by_tasks", 0, count)


@case(
    "stage-many", "stage {count} of 100 B, many at once", count=200_000, seconds=30, rounds=2, warmup=0,
    aims=(Aim(1.43, "bucket put_many"),),
)  # fmt: skip
def stage_many(bench: Bench, count: int) -> Prepared:
    """A bulk of staged writes, beside a bulk of puts."""
    return {
        **_both(bench, "repository put_each", "put_each", 0, count),
        "bucket put_many": bench.work("bucket", "put_many", bench.bucket("PLAIN"), count),
    }


@case("stage-r3", "stage {count} of 100 B, 16 tasks, R3", count=5000, seconds=25, rounds=3, aims=(Aim(0.37, BEFORE),))
def stage_replicated(bench: Bench, count: int) -> Prepared:
    """Staged writes of concurrent tasks on three servers, written together."""
    url = bench.open(run_lab("cluster")).contexts["cluster"].url.split(",")[0]
    for tree in bench.trees:
        bench.tell("repository", "seed", f"R3-{tree.name}", 0, 3, tree=tree, url=url)

    def work(tree: Tree, name: str) -> Contender:
        return bench.work("repository", name, f"R3-{tree.name}", count, tree=tree, url=url)

    return {
        **bench.both("repository put", lambda tree: work(tree, "put_by_tasks")),
        "repository put_each": work(bench.ours, "put_each"),
    }


@case(
    "commit-1", "commit of 1 key on {count}", count=MILLION, seconds=20, rounds=3, aims=(Aim(0.46, BEFORE),),
    unit="round trips",
)  # fmt: skip
def commit_one(bench: Bench, count: int) -> Prepared:
    """The median of 15 commits; on a thousand beside it, to see what the size costs."""
    return {
        **_both(bench, "repository commit", "commit", count, count, 1, 15),
        "on 1,000": bench.work("repository", "commit", seeded(bench, bench.ours, 1000), 1000, 1, 15),
    }


@case("commit-1000", "commit of 1,000 keys on {count}", count=MILLION, seconds=10, rounds=3, aims=(SAME,))
def commit_thousand(bench: Bench, count: int) -> Prepared:
    """The median of three commits."""
    return _both(bench, "repository commit", "commit", count, count, bench.sized(1000), 3)


@case(
    "commit-100k", "commit of {tenth} keys on {count}", count=MILLION, seconds=30, rounds=2, warmup=0,
    aims=(Aim(0.44, BEFORE),),
)  # fmt: skip
def commit_many(bench: Bench, count: int) -> Prepared:
    """One commit; staging is not counted."""
    return _both(bench, "repository commit", "commit", count, count, count // 10, 1)


@case(
    "diff", "diff of one change on {count}", count=MILLION, seconds=10, rounds=3, aims=(Aim(0.6, BEFORE),),
    unit="round trips",
)  # fmt: skip
def diff(bench: Bench, count: int) -> Prepared:
    """The median of 20 diffs, each in a fresh session."""
    for tree in bench.trees:
        bench.tell("repository", "commit", seeded(bench, tree, count), count, 1, 2, tree=tree)
    return _both(bench, "repository diff", "diff", count, 20)


@case("merge", "merge of one change on both sides", count=MILLION, seconds=12, rounds=3, unit="round trips")
def merge(bench: Bench, count: int) -> Prepared:
    """The median of five merges."""
    return _both(bench, "repository merge", "merge", count, count, 5)


@case(
    "repo-get", "get of a committed key of {count}, first time", count=MILLION, seconds=20, rounds=3,
    aims=(SAME,), unit="round trips",
)  # fmt: skip
def get(bench: Bench, count: int) -> Prepared:
    """Medians of 300 gets of random keys."""
    name = seeded(bench, bench.ours, count)
    return {
        **_both(bench, "repository get, new session", "get", count, count, "main@", "fresh"),
        "repository get, same session": bench.work("repository", "get", name, count, "main@", "same"),
        "repository get, with what is staged": bench.work("repository", "get", name, count, "main", "same"),
    }


@case(
    "commit-waits", "99th percentile beside a commit of {tenth} keys on {count}", count=MILLION,
    seconds=20, rounds=2, warmup=0, unit="round trips",
    aims=(
        Aim(2, "put idle", ours="put beside a commit"),
        Aim(2, "get idle", ours="get beside a commit"),
    ),
)  # fmt: skip
def waits(bench: Bench, count: int) -> Prepared:
    """Another process commits."""
    name = seeded(bench, bench.ours, count)
    return split(
        lambda: bench.tell("repository", "waits", name, count, count // 10),
        "put beside a commit", "put idle", "get beside a commit", "get idle",
    )  # fmt: skip


def _both(bench: Bench, title: str, work: str, base: int, *arguments: object) -> dict[str, Contender]:
    return bench.both(
        title, lambda tree: bench.work("repository", work, seeded(bench, tree, base), *arguments, tree=tree)
    )


def seeded(bench: Bench, tree: Tree, count: int) -> str:
    """Return the repository of this tree with one commit of so many keys; each tree has its own format."""
    name = f"R{count}-{tree.name}"
    return bench.once(name, lambda: bench.tell("repository", "seed", name, count, 1, tree=tree))
