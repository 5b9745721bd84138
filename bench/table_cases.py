"""Tables beside plain buckets: writes, batches, many keys at once, and scans with their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.harness import Bench

SINGLE, TOGETHER = 2000, 100_000
FEW, MILLION = 10_000, 1_000_000


def tables(bench: Bench, kvctl: str) -> None:
    """In the library; the buckets' times are those of the same run."""
    bench.process(kvctl, "table", "create", "TABLE")
    bucket = bench.bucket("BESIDE")
    bench.compare(f"table put, {SINGLE:,} of 100 B", "", {
        "table put": bench.library("tables", "put", "TABLE", SINGLE),
        "bucket put": bench.library("ours", "put", bucket, SINGLE),
    })  # fmt: skip
    bench.compare(f"table put on condition, {SINGLE:,}", "1.2 times an update", {
        "table replace": bench.library("tables", "replace", "TABLE", SINGLE),
        "bucket update": bench.library("tables", "bucket_update", bucket, SINGLE),
    })  # fmt: skip
    bench.compare(f"table update, {TOGETHER:,} insertions", "45,000 a second, in flight 100,000", {
        "table update, 1,000 a batch": bench.library("tables", "batches_of_1000", "TABLE", TOGETHER),
        "the same, 8 in flight": bench.library("tables", "batches_in_flight", "TABLE", TOGETHER),
        "the same, 100 a batch": bench.library("tables", "batches_of_100", "TABLE", TOGETHER),
        "bucket put_many": bench.library("ours", "put_many", bucket, TOGETHER),
    })  # fmt: skip
    _scans(bench, bench.bucket("K100", TOGETHER), TOGETHER, bench.rounds)


def million_entries(bench: Bench) -> None:
    """A million entries: scans, and the memory per key."""
    _seeded(bench, FEW)
    floor = bench.library("tables", "scan_keys", f"SCAN{FEW}", FEW)().peak
    peak = _scans(bench, bench.bucket("K1M", MILLION), MILLION, 3)
    cost = (peak - floor) / (MILLION - FEW)
    bench.lines.append(f"| memory a key, 1,000,000 over 10,000 | table scan | {cost:.0f} B | | | | | at most 150 B |")


def _scans(bench: Bench, bucket: str, count: int, rounds: int) -> int:
    """The highest memory of a scan."""
    name = _seeded(bench, count)
    peak = 0
    for work, beside, aim in (
        ("get_all", "get_many", "100,000 a second"),
        ("scan_keys", "keys", "half the speed of `keys`"),
        ("scan_entries", "watch", ""),
        ("scan_all", "watch", ""),
    ):
        ours, *_ = bench.compare(f"table {work.replace('_', ' ')}, {count:,}", aim, {
            f"table {work}": bench.library("tables", work, name, count, timeout=600),
            f"bucket {beside}": bench.library("ours", beside, bucket, count, timeout=600),
        }, rounds=rounds)  # fmt: skip
        peak = max(peak, ours.peak if work.startswith("scan") else 0)
    return peak


def _seeded(bench: Bench, count: int) -> str:
    """A table with `count` entries of one family."""
    name = f"SCAN{count}"
    bench.library("tables", "seed", name, count, timeout=600)()
    return name
