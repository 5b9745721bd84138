"""Offsets of a stream read, what is missing above one, and the partitions of a batch: plain values."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.errors import ConflictError, HistoryLost, StreamReplaced, UsageError
from kvctl.pipeline.read.offsets import (
    SMALLEST,
    Offset,
    StreamExtent,
    check,
    check_start,
    document_of,
    limits,
    offsets_of,
    ranges,
)

HOUR = 3600 * 10**9
LIFE = "2026-01-31T12:00:00.123456789Z"
READ = Offset(100, LIFE, 10 * HOUR)
STANDING = StreamExtent(bucket="orders", incarnation=LIFE, first=90, last=200, gaps=True, at_ns=12 * HOUR)


@given(st.integers(0, 10**12), st.integers(-10, 10**7), st.integers(1, 64), st.integers(1, 40))
def test_partitions_hold_every_revision_once_in_order(after, length, partitions, least):
    found = ranges(after, after + length, partitions, least)
    edges = [edge for part in found for edge in (part.first - 1, part.last)]
    assert min(least, max(length, 0)) <= len(found) <= max(partitions, least)
    assert length <= 0 or (edges[0], edges[-1]) == (after, after + length)
    assert edges[1:-1:2] == edges[2::2]
    assert len(found) <= least or all(part.last - part.first + 1 >= SMALLEST for part in found)
    assert all(part.first <= part.last for part in found)


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**6)), st.integers(1, 10**6))
def test_a_limit_is_shared_in_proportion_and_starves_no_bucket(available, most):
    found = limits(available, most)
    assert found.keys() == available.keys()
    assert sum(found.values()) <= most + len(available)
    assert all(found[name] >= 1 for name, number in available.items() if number)


@pytest.mark.parametrize("offset", [READ, Offset(0, LIFE)])
def test_an_offset_survives_its_checkpoint(offset):
    assert Offset.parse(offset.document()) == offset


def test_offsets_of_several_buckets_survive_and_do_not_mix_with_those_of_one():
    offsets = {"b": READ, "a": Offset(0, LIFE)}
    several, one = document_of(offsets, ""), document_of(offsets, "b")
    assert offsets_of(several, "") == offsets
    assert offsets_of(one, "b") == {"b": READ}
    assert one == READ.document()
    with pytest.raises(ConflictError, match="belongs to a query of several buckets, and this one is of one bucket"):
        offsets_of(several, "b")
    with pytest.raises(ConflictError, match="belongs to a query of one bucket"):
        offsets_of(one, "")


def test_offsets_of_a_newer_kvctl_are_refused_by_name():
    with pytest.raises(ConflictError, match="version 2"):
        Offset.parse({**READ.document(), "version": 2})


@pytest.mark.parametrize(
    "extent",
    [
        STANDING,
        replace(STANDING, first=101),
        replace(STANDING, first=150),
        replace(STANDING, first=101, last=100),
        replace(STANDING, first=150, expiry_ns=3 * HOUR),
        replace(STANDING, first=90, expiry_ns=HOUR, evicts=True),
        replace(STANDING, last=100),
    ],
    ids=["all there", "nothing missing", "history", "empty", "younger than the ttl", "below what was read", "no news"],
)
def test_what_newer_revisions_replaced_is_no_loss(extent):
    check(READ, extent)


@pytest.mark.parametrize(
    ("extent", "cause"),
    [
        (replace(STANDING, first=201), "they were purged or expired"),
        (replace(STANDING, first=150, evicts=True), "they may have been dropped from the full bucket"),
        (replace(STANDING, first=150, expiry_ns=HOUR), "they may have expired"),
    ],
)
def test_what_nothing_replaced_is_a_loss_unless_it_may_be_lost(extent, cause):
    with pytest.raises(HistoryLost, match=f"no longer holds revisions 101 to {extent.first - 1}: {cause}"):
        check(READ, extent)
    check(READ, extent, loss=False)


def test_below_the_beginning_nothing_is_lost():
    check(Offset(0, LIFE), replace(STANDING, first=201, evicts=True, expiry_ns=1))


def test_a_bucket_that_was_empty_can_lose_what_came_since():
    with pytest.raises(HistoryLost, match="revisions 1 to 200"):
        check(Offset(0, LIFE, 10 * HOUR), replace(STANDING, first=201))


@pytest.mark.parametrize("loss", [True, False])
def test_another_life_of_the_bucket_is_no_place_to_go_on(loss):
    with pytest.raises(StreamReplaced, match="was recreated at 2026-02-01T00:00:00Z"):
        check(READ, replace(STANDING, incarnation="2026-02-01T00:00:00Z"), loss=loss)
    with pytest.raises(StreamReplaced, match="ends at revision 99, but 100 was already read"):
        check(READ, replace(STANDING, last=99), loss=loss)


def test_a_query_may_start_with_the_next_revision_and_no_later():
    check_start(201, STANDING)
    with pytest.raises(UsageError, match="202 is above the last revision of bucket `orders`, 200"):
        check_start(202, STANDING)
