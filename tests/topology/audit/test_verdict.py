"""Verdicts on the last entries of a key in a replica and in its origin."""

from datetime import timedelta

import pytest

from kvctl.jetstream.direct.direct_get import StoredMessage
from kvctl.topology.audit.comparison import DELETED, mark
from kvctl.topology.audit.verdict import Ages, Held, Source, Verdict, difference, held, judge, known_revision, source_of

A, B = mark(b"", b"a"), mark(b"", b"b")
HEADER = b"NATS/1.0\r\nNats-Stream-Source: KV_O:hash 7 $KV.O.> $KV.A.> $KV.O.k id\r\n\r\n"


def entry(said: bytes, revision: int, **settings: object) -> Held:
    """Return an entry of the epoch's first second."""
    return Held(said, revision, 10**9, **settings)  # type: ignore[arg-type]


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
    copied = entry(A, 40, source=Source("KV_O", 5, "$KV.O.k"))
    assert judge(copied, entry(A, 5), 5, 9, mirror=False) is Verdict.AGREES
    assert judge(copied, entry(B, 9), 5, 8, mirror=False) is Verdict.LATE
    assert judge(copied, entry(B, 9), 5, 9, mirror=False) is Verdict.STALE
    written = entry(A, 41)
    assert known_revision(written, "KV_O", mirror=False) == 0
    assert judge(written, entry(B, 9), 0, 9, mirror=False) is Verdict.DIFFERING
    assert difference(written, entry(DELETED, 9), 0) is Verdict.EXTRA


def test_source_of_an_entry_is_read_from_its_headers():
    assert source_of(HEADER) == Source("KV_O", 7, "$KV.O.k")
    assert source_of(b"") is None
    assert source_of(b"NATS/1.0\r\nNats-Stream-Source: KV_O 7\r\n\r\n") == Source("KV_O", 7, "")


def test_entry_expires_by_per_key_ttl_or_stream_ttl():
    header = b"NATS/1.0\r\nNats-TTL: 2s\r\n\r\n"
    message = StoredMessage("KV_O", "$KV.O.k", 3, 10**9, header, b"a")
    found = held(message)
    assert found is not None
    assert (found.ttl, found.revision, found.lives) == (timedelta(seconds=2), 3, True)
    ends = [found.ends(Ages(age, own=True)) for age in (0, 10**9, 10**10)]
    assert ends == [3 * 10**9, 2 * 10**9, 3 * 10**9]
    assert entry(A, 1).ends(Ages(0, own=True)) is None


def test_per_key_ttl_is_ignored_where_the_stream_does_not_allow_it():
    found = entry(A, 1, ttl=timedelta(seconds=2))
    assert (found.ends(Ages(0, own=False)), found.ends(Ages(10**10, own=False))) == (None, 11 * 10**9)
