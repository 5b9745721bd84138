"""Comparison of two readings: remaining suspects, and memory."""

import tracemalloc

from kvctl.topology.audit.comparison import DELETED, ORIGIN, REPLICA, Comparison, Marked, mark

A, B = mark(b"", b"a"), mark(b"", b"b")


def compared(origin: Marked, replica: Marked) -> Comparison:
    """Return both sides, one after the other."""
    found = Comparison()
    found.take(ORIGIN, origin)
    found.take(REPLICA, replica)
    return found


def test_missing_extra_and_differing_keys_are_suspects():
    origin = [(b"same", A), (b"other", A), (b"missing", A)]
    replica = [(b"extra", A), (b"other", B), (b"same", A)]
    assert compared(origin, replica).suspects() == [b"extra", b"missing", b"other"]


def test_deletion_equals_a_missing_key():
    assert compared([(b"k", DELETED), (b"l", DELETED)], [(b"l", DELETED), (b"m", DELETED)]).suspects() == []
    assert compared([(b"k", DELETED)], [(b"k", A)]).suspects() == [b"k"]
    for header in (b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n", b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n"):
        assert mark(header, b"", b"7") == DELETED


def test_key_of_two_origins_is_suspect_though_one_agrees():
    found = compared([(b"k", A), (b"k", B)], [(b"k", B)])
    assert found.suspects() == [b"k"]


def test_own_keys_of_replica_are_counted_unless_an_origin_has_them():
    found = compared([(b"k", A)], [(b"own", A), (b"k", B)])
    assert found.suspects(expected={b"own", b"k"}) == [b"k"]
    assert found.alone({b"own", b"k"}) == 1


def test_mark_contains_the_revision_of_mirrors():
    assert mark(b"", b"a", b"1") != mark(b"", b"a", b"2")


def test_few_keys_wait_when_sides_are_read_in_step():
    found = Comparison()
    for start in range(0, 10_000, 100):
        batch = [(b"%d" % number, A) for number in range(start, start + 100)]
        for side in (ORIGIN, REPLICA):
            found.take(side, batch)
            assert found.waiting <= 100
    assert (found.waiting, found.suspects()) == (0, [])


def test_waiting_key_takes_at_most_200_bytes():
    """Waiting keys have 20 bytes behind a prefix of 15."""
    count = 100_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = Comparison()
        found.take(ORIGIN, [(b"$KV.A_BUCKET.k.%018d" % number, mark(b"", b"%d" % number)) for number in range(count)])
        assert found.waiting == count
        assert (tracemalloc.get_traced_memory()[1] - before) / count < 300  # with the batch itself
        assert (tracemalloc.get_traced_memory()[0] - before) / count < 200
    finally:
        tracemalloc.stop()
