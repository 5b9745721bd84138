"""Versioned buckets: staged writes on one replica and three, commits, diffs, merges, reads, and waiting times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvctl.labs import run_lab

if TYPE_CHECKING:
    from bench.harness import Bench

SINGLE, MANY = 5_000, 200_000
BASES = (1_000, 100_000, 1_000_000)
CHANGES = (1, 1_000, 100_000)


def staging(bench: Bench) -> None:
    """Staged writes beside puts into a plain bucket, on one replica and on three."""
    single, many = bench.sized(SINGLE), bench.sized(MANY)
    name, bucket = _seeded(bench, "STAGED", 0), bench.bucket("PLAIN")
    bench.compare(f"stage {single:,} of 100 B, 16 tasks", "20,000 a second", {
        "repository put": bench.library("versions", "put_together", name, single),
        "bucket put": bench.library("versions", "bucket_together", bucket, single),
        "repository put on condition": bench.library("versions", "create_together", name, single // 5),
        "repository put, 1 task": bench.library("versions", "put", name, single),
    })  # fmt: skip
    bench.compare(f"stage {many:,} of 100 B, many at once", "40,000 a second", {
        "repository put_each": bench.library("versions", "load", name, many),
        "bucket put_many": bench.library("versions", "bucket_load", bucket, many),
    })  # fmt: skip
    with _on_three_servers(bench):
        name = _seeded(bench, "R3STAGED", 0)
        bench.compare(f"stage {single:,} of 100 B, 16 tasks, R3", "10,000 a second", {
            "repository put": bench.library("versions", "put_together", name, single),
            "repository put, 1 task": bench.library("versions", "put", name, single // 5),
            "repository put_each": bench.library("versions", "load", name, single),
        })  # fmt: skip
        _waits(bench, "longest_wait", name, single, "R3, coalesced")


def commits(bench: Bench) -> None:
    """Commits grow with the change, not with the base; a diff, a merge and reads on the largest."""
    names = {base: _seeded(bench, f"BASE{bench.sized(base)}", bench.sized(base)) for base in BASES}
    aims = {1: "15 ms on a million", 1_000: "0.5 s on a million", 100_000: "4 s on a million"}
    for change in CHANGES:
        count = bench.sized(change) if change > 1 else 1
        bench.compare(f"commit of {count:,} changed key{'s' * (count > 1)}", aims[change], {
            f"on {bench.sized(base):,}": bench.library("versions", "commit", names[base], count, timeout=600)
            for base in reversed(BASES) if base >= change
        }, rounds=3)  # fmt: skip
    largest = names[BASES[-1]]
    found = bench.told("versions", "written", largest, 10)
    bench.line("commit of 1 changed key", "objects written, at most", str(found["objects"]), aim="3, the tree's depth")
    bench.line("commit of 1 changed key", "bytes of them", f"{found['bytes']:,}", aim="200,000")
    bench.compare("diff of one change", "5 ms", {"repository diff": bench.library("versions", "diff", largest, 20)})
    bench.compare("merge of one change on both sides", "", {
        "repository merge": bench.library("versions", "merge", largest, 5),
    })  # fmt: skip
    _waits(bench, "waits", largest, bench.sized(100_000), "within 2x of idle at p99")


def reads(bench: Bench) -> None:
    """Gets at a ref beside those from a plain bucket."""
    base = bench.sized(BASES[-1])
    name, bucket = _seeded(bench, f"BASE{base}", base), bench.bucket("PLAIN")
    bench.compare(f"get, of {base:,} keys", "3 reads, then 1", {
        "repository get, committed, again": bench.library("versions", "get_again", name, 300),
        "the same, for the first time": bench.library("versions", "get_first", name, 300),
        "repository get, with what is staged": bench.library("versions", "get_staged", name, 300),
        "bucket get": bench.library("versions", "bucket_get", bucket, 300),
    })  # fmt: skip


def _seeded(bench: Bench, name: str, count: int) -> str:
    """A repository with one commit of `count` keys, created at its first use."""
    return bench.once(name, lambda: bench.library("versions", "seed", name, count, timeout=600)())


def _waits(bench: Bench, work: str, name: str, count: int, aim: str) -> None:
    for who, (middle, high, longest) in bench.told("versions", work, name, count).items():
        spread = f"p99 {high * 1000:.2f} ms, longest {longest * 1000:.0f} ms"
        bench.line(f"waits, {count:,} keys", who, f"{middle * 1000:.2f} ms", spread, aim)


@contextmanager
def _on_three_servers(bench: Bench) -> Iterator[None]:
    with run_lab("cluster") as lab:
        alone, bench.url = bench.url, lab.contexts["cluster"].url.split(",")[0]
        yield
        bench.url = alone
