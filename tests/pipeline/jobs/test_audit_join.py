"""Subjects that seem to differ, kept on the disk."""

import tracemalloc
from collections.abc import Iterator

from kvctl.pipeline.jobs.audit_digests import Suspects

MANY = 20_000


def test_suspects_come_in_their_order_with_their_names():
    found = Suspects([(b"k.b", 0, None), (b"k.\xff", 1, b"o.\xfe"), (b"k.a", 2, b"o.a"), ("k.é".encode(), 0, None)])
    assert list(found) == ["k.a", "k.b", "k.é", "k.\udcff"]
    assert (found.name(2, "k.a"), found.name(1, "k.\udcff")) == ("o.a", "o.\udcfe")
    assert (found.name(1, "k.a"), found.name(0, "k.b"), found.name(0, "none")) == (None, None, None)


def test_suspects_use_constant_memory():
    def rows() -> Iterator[tuple[bytes, int, bytes | None]]:
        return ((b"$KV.bucket.some.longer.key.%09d" % number, 0, None) for number in range(MANY))

    tracemalloc.start()
    try:
        assert sum(1 for _ in Suspects(rows())) == MANY
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
