"""Transactions of 1, 100 and 1,000 keys; compared with single puts, as nothing else writes several keys atomically."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.harness import Bench

COUNTS = (1, 100, 1000)


def transactions(bench: Bench, kvctl: str) -> None:
    """In the library, and as complete processes with a condition on each key."""
    name = "TXN"
    bench.process(kvctl, "bucket", "add", name, "--atomic")
    for count in COUNTS:
        bench.compare(f"txn of {count:,} keys of 100 B, library", "", {
            "kvctl commit": bench.library("ours", "txn", name, count),
            "kvctl commit, a value condition each": bench.library("ours", "txn_values", name, count),
            "nats-py kv.put, one by one": bench.library("rivals", "put", name, count),
        })  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        for count in COUNTS:
            file = Path(directory, f"{count}.json")
            changes = [{"put": f"k.{number}", "value": "v" * 100} for number in range(count)]
            file.write_text(json.dumps({"then": changes}))
            bench.compare(f"txn of {count:,} keys, whole process", "", {
                "kvctl txn": lambda file=file: bench.process(kvctl, "txn", name, "-f", str(file)),
                "kvctl put of one": lambda: bench.process(kvctl, "put", name, "k", "v" * 100),
            })  # fmt: skip
