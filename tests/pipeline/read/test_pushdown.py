"""Which of a query's filters the server answers, and what it is asked for them."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from kvctl.pipeline.read.pushdown import LATEST, MAX_NAMED_KEYS, Narrowing

NOW = datetime(2026, 1, 31, 12, 0, 0, 7, tzinfo=UTC)
NOW_US = int(NOW.timestamp()) * 10**6 + 7


def narrowed(*filters: tuple[str, str, Any]) -> tuple[Narrowing, list[bool]]:
    wanted, exact = Narrowing(), []
    for kind, column, value in filters:
        wanted, handled = wanted.with_filter(kind, column, value)
        exact.append(handled)
    return wanted, exact


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        ("EqualTo", "key", "a b"), ("EqualTo", "key", "a.*"), ("EqualTo", "key", ""), ("EqualTo", "key", "_kv.x"),
        ("In", "key", ["a", "b*"]), ("In", "key", [f"k{n}" for n in range(MAX_NAMED_KEYS + 1)]),
        ("GreaterThan", "key", "a"),
        ("StringEndsWith", "key", "a"), ("EqualTo", "value", b"x"), ("EqualTo", "operation", "PUT"),
        ("EqualNullSafe", "revision", None), ("EqualTo", "revision", True), ("In", "revision", [1]),
        ("IsNotNull", "value", None), ("IsNull", "key", None), ("EqualTo", "created", datetime(2026, 1, 1)),
        ("StringStartsWith", "key", "abc"), ("StringStartsWith", "key", "a..b"), ("EqualTo", "", "x"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_exactly_changes_nothing(kind, column, value):
    assert narrowed((kind, column, value)) == (Narrowing(), [False])


def test_keys_by_name_are_exact():
    assert narrowed(("EqualTo", "key", "a.b"))[1] == [True]
    wanted, exact = narrowed(("In", "key", ["a", "b", None, "c"]), ("EqualNullSafe", "key", "b"))
    assert (wanted.keys, exact) == ({"b"}, [True, True])
    assert narrowed(("EqualTo", "key", "a"), ("EqualTo", "key", "b"))[0].filters(()) is None
    assert narrowed(("In", "key", ["a.x", "b.x"]))[0].filters(("a.>",)) == ("a.x",)


def test_a_prefix_is_cut_at_a_dot_and_handed_back():
    wanted, exact = narrowed(("StringStartsWith", "key", "users.ann"), ("StringStartsWith", "key", "users.a"))
    assert (wanted.filters(()), exact) == (("users.>",), [False, False])
    assert narrowed(("StringStartsWith", "key", "a."), ("StringStartsWith", "key", "a.b.c"))[0].prefix == "a.b."
    assert wanted.filters(("x",)) == ("x",)


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        ("EqualTo", (5, 5)), ("GreaterThan", (6, LATEST)), ("GreaterThanOrEqual", (5, LATEST)), ("LessThan", (1, 4)),
        ("LessThanOrEqual", (1, 5)),
    ],
)  # fmt: skip
def test_revisions_are_exact(kind, bounds):
    wanted, exact = narrowed((kind, "revision", 5))
    assert ((wanted.first, wanted.last), exact) == (bounds, [True])


def test_revisions_that_exclude_each_other_leave_nothing():
    assert narrowed(("GreaterThan", "revision", 5), ("LessThan", "revision", 5))[0].filters(()) is None


def test_times_narrow_to_the_microsecond_and_are_handed_back():
    east = NOW.astimezone(timezone(timedelta(hours=5)))
    wanted, exact = narrowed(("GreaterThan", "created", east), ("LessThanOrEqual", "created", NOW + timedelta(hours=1)))
    assert (wanted.since_us, wanted.until_us) == (NOW_US + 1, NOW_US + 3600 * 10**6)
    assert exact == [False, False]


def test_columns_that_are_never_null():
    assert narrowed(("IsNotNull", "key", None), ("IsNotNull", "created", None))[1] == [True, True]
