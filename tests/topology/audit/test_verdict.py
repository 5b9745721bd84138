"""Verdicts on the last entries of a key in a replica and in its origin."""

import tracemalloc
from datetime import timedelta

import pytest

from kvctl.jetstream.direct_get import StoredMessage
from kvctl.topology.audit.verdict import (
    DELETED,
    ORIGIN,
    REPLICA,
    Ages,
    EntrySource,
    LastEntry,
    Marked,
    SideComparison,
    Verdict,
    difference,
    held,
    judge,
    known_revision,
    mark,
    source_of,
)

A, B = mark(b"", b"a"), mark(b"", b"b")
HEADER = b"NATS/1.0\r\nNats-Stream-Source: KV_O:hash 7 $KV.O.> $KV.A.> $KV.O.k id\r\n\r\n"


def entry(said: bytes, revision: int, **settings: object) -> LastEntry:
    """Return an entry of the epoch's first second."""
    return LastEntry(said, revision, 10**9, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replica", "origin", "arrived", "verdict"),
    [
        (entry(A, 5), entry(A, 5), 9, Verdict.AGREES),
        (None, None, 9, Verdict.AGREES),
        (entry(DELETED, 4), None, 9, Verdict.AGREES),
        (None, entry(DELETED, 4), 2, Verdict.AGREES),
        (entry(A, 5), entry(A, 9), 8, Verdict.LATE),
        (entry(A, 5), entry(A, 9), None, Verdict.LATE),
        (entry(A, 5), entry(B, 9), 9, Verdict.STALE),
        (entry(A, 5), entry(DELETED, 9), 9, Verdict.STALE),
        (None, entry(A, 9), 8, Verdict.LATE),
        (None, entry(A, 9), 9, Verdict.MISSING),
        (entry(A, 5), None, 9, Verdict.EXTRA),
        (entry(A, 5), entry(B, 5), 9, Verdict.DIFFERING),
        (entry(A, 8), entry(A, 5), 9, Verdict.DIFFERING),
    ],
)
def test_verdict_of_a_mirror(replica, origin, arrived, verdict):
    known = known_revision(replica, "KV_O", mirror=True)
    assert judge(replica, origin, known, arrived, mirror=True) is verdict


def test_verdict_of_an_aggregate_ignores_its_own_revisions():
    copied = entry(A, 40, source=EntrySource("KV_O", 5, "$KV.O.k"))
    assert judge(copied, entry(A, 5), 5, 9, mirror=False) is Verdict.AGREES
    assert judge(copied, entry(B, 9), 5, 8, mirror=False) is Verdict.LATE
    assert judge(copied, entry(B, 9), 5, 9, mirror=False) is Verdict.STALE
    written = entry(A, 41)
    assert known_revision(written, "KV_O", mirror=False) == 0
    assert judge(written, entry(B, 9), 0, 9, mirror=False) is Verdict.DIFFERING
    assert difference(written, entry(DELETED, 9), 0) is Verdict.EXTRA


def test_source_of_an_entry_is_read_from_its_headers():
    assert source_of(HEADER) == EntrySource("KV_O", 7, "$KV.O.k")
    assert source_of(b"") is None
    assert source_of(b"NATS/1.0\r\nNats-Stream-Source: KV_O 7\r\n\r\n") == EntrySource("KV_O", 7, "")


def test_entry_expires_by_per_key_ttl_or_stream_ttl():
    header = b"NATS/1.0\r\nNats-TTL: 2s\r\n\r\n"
    message = StoredMessage("KV_O", "$KV.O.k", 3, 10**9, header, b"a")
    found = held(message)
    assert (found.ttl, found.revision, found.lives) == (timedelta(seconds=2), 3, True)
    ends = [found.ends(Ages(age, own=True)) for age in (0, 10**9, 10**10)]
    assert ends == [3 * 10**9, 2 * 10**9, 3 * 10**9]
    assert entry(A, 1).ends(Ages(0, own=True)) is None


def test_per_key_ttl_is_ignored_where_the_stream_does_not_allow_it():
    found = entry(A, 1, ttl=timedelta(seconds=2))
    assert (found.ends(Ages(0, own=False)), found.ends(Ages(10**10, own=False))) == (None, 11 * 10**9)


A, B = mark(b"", b"a"), mark(b"", b"b")


def compared(origin: Marked, replica: Marked) -> SideComparison:
    """Return both sides, one after the other."""
    found = SideComparison()
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
    found = SideComparison()
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
        found = SideComparison()
        found.take(ORIGIN, [(b"$KV.A_BUCKET.k.%018d" % number, mark(b"", b"%d" % number)) for number in range(count)])
        assert found.waiting == count
        assert (tracemalloc.get_traced_memory()[1] - before) / count < 300  # with the batch itself
        assert (tracemalloc.get_traced_memory()[0] - before) / count < 200
    finally:
        tracemalloc.stop()
