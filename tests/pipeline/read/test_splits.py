"""Splits cover a read exactly once, are not empty, and have about the same size."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvctl.pipeline.read.splits import Revisions, cut_by_count, even, probes, runs


@given(st.sets(st.integers(1, 500), min_size=1), st.integers(1, 20), st.integers(0, 50))
def test_ranges_cover_every_message_once(held, parts, beyond):
    first, last = 1, 500 + beyond
    starts = probes(first, last, parts)
    left = [sum(1 for revision in held if revision >= start) for start in starts]
    found = cut_by_count(starts, left, last, parts)
    assert 1 <= len(found) <= parts
    assert all(before.last < after.first for before, after in pairwise(found))
    for part in found:
        assert part.expected == sum(1 for revision in held if part.first <= revision <= part.last) > 0
    assert sum(part.expected or 0 for part in found) == len(held)


def test_ranges_are_even_where_the_messages_are():
    starts = probes(1, 1000, 4)
    assert (starts[0], len(starts)) == (1, 16)
    held = range(501, 1001)
    left = [sum(1 for revision in held if revision >= start) for start in starts]
    assert [part.expected for part in cut_by_count(starts, left, 1000, 4)] == [125, 125, 125, 125]


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 10))
def test_even_ranges_cover_all_revisions_once(first, more, parts):
    found = even(first, first + more, parts)
    assert [revision for part in found for revision in range(part.first, part.last + 1)] == list(
        range(first, first + more + 1)
    )
    assert len(found) == min(parts, more + 1)


def test_nothing_is_cut_into_nothing():
    assert cut_by_count([1, 2], [0, 0], 2, 3) == []
    assert cut_by_count([5], [1], 9, 3) == [Revisions(5, 9, 1)]


@given(st.lists(st.integers(1, 100)), st.integers(1, 10))
def test_runs_keep_the_order_and_share_the_weight(weights, parts):
    items = list(range(len(weights)))
    found = runs(items, weights, parts)
    assert [item for run in found for item in run] == items
    assert all(found)
    assert len(found) <= parts
    heaviest = max((sum(weights[item] for item in run) for run in found), default=0)
    assert heaviest <= sum(weights) / parts + 2 * max(weights, default=0)
