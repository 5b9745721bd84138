"""Subjects that seem to differ, kept on the disk."""

import tracemalloc
from collections.abc import Iterator

from kvctl.pipeline.jobs.audit import Suspects

MANY = 20_000


def test_suspects_use_constant_memory():
    def rows() -> Iterator[tuple[str, int, str | None]]:
        return ((f"$KV.bucket.some.longer.key.{number:09}", 0, None) for number in range(MANY))

    tracemalloc.start()
    try:
        assert sum(1 for _ in Suspects(rows())) == MANY
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
