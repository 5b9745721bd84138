"""Subjects that seem to differ, kept on the disk."""

import tracemalloc
from collections.abc import Iterator

from kvctl.pipeline.jobs.audit_digests import Suspects

MANY = 20_000


def test_suspects_use_constant_memory():
    def rows() -> Iterator[tuple[bytes, int, bytes | None]]:
        return ((b"$KV.bucket.some.longer.key.%09d" % number, 0, None) for number in range(MANY))

    tracemalloc.start()
    try:
        assert sum(1 for _ in Suspects(rows())) == MANY
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
