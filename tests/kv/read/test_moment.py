"""Moments of a bucket's past, and the words in which what was lost is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvctl.errors import HistoryLost, UsageError
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.read.as_of import Past, _listed
from kvctl.kv.read.key_scan import KeyHistoryScan, Retention, Trace
from kvctl.kv.read.listing import KeyFilter
from kvctl.kv.read.moment import Moment, as_moment, parse_moment
from kvctl.kv.resolve import Binding


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1", "revision 1"),
        ("1042", "revision 1042"),
        ("9" * 19, "revision " + "9" * 19),
        ("2020-01-31T12:00:00Z", "6 years ago (2020-01-31 12:00:00)"),
        ("-15m", "15m ago"),
    ],
)
def test_moment_is_shown_as_it_is_written(text, shown):
    assert str(parse_moment(text)) == shown


@pytest.mark.parametrize("fields", [{}, {"revision": 1, "time_ns": 1}, {"revision": 0}, {"revision": -1}])
def test_moment_is_one_thing_and_revisions_count_from_1(fields):
    with pytest.raises(UsageError):
        Moment(**fields)


def test_moment_without_ago_stays_the_same():
    assert Moment(revision=7).at(10**12) == Moment(revision=7)
    assert Moment(ago=timedelta(seconds=3)).at(10**10) == Moment(time_ns=7 * 10**9)


def test_moment_of_a_datetime_has_its_microseconds():
    when = datetime(1970, 1, 1, 0, 0, 1, 7, tzinfo=UTC)
    assert as_moment(when) == Moment(time_ns=1_000_007_000)
    with pytest.raises(UsageError):
        as_moment(when.replace(tzinfo=None))


# -- what is lost ------------------------------------------------------------------------------------------

BINDING = Binding("B", "KV_B", "$KV.B.", None)  # type: ignore[arg-type]
CLOCK = ServerClock(0)


def past(**kept: Any) -> Past:
    return Past("B", BINDING, Moment(revision=7), 7, Retention(**{"history": 2} | kept), CLOCK)


def surveyed(of: Past, traces: dict[str, Trace]) -> KeyHistoryScan:
    survey = KeyHistoryScan(BINDING, of.revision, KeyFilter(()), of._kept)
    survey.complete = True  # and no revision is missing
    survey.traces = {b"$KV.B." + key.encode(): trace for key, trace in traces.items()}
    return survey


FOUND, NEWER, FULL = Trace(1, 3, found=3, living=True), Trace(1, 9), Trace(2, 9)


@pytest.mark.parametrize(
    ("dropped", "traces", "named", "lost"),
    [
        (None, {"a": FOUND, "b": NEWER}, None, None),
        (None, {"a": FOUND}, ["a", "never"], None),
        (None, {"a": FOUND, "b": FULL}, None, ["b"]),
        (None, {"a": FOUND, "b": FULL}, ["a", "b"], ["b"]),
        ("it is full", {"a": FOUND}, ["a"], None),
        ("it is full", {"a": FOUND}, ["a", "b"], ["b"]),
        ("it is full", {"a": FOUND, "b": NEWER}, ["a", "b"], ["b"]),
        ("it is full", {"a": FOUND}, None, []),
        ("it is full", {}, [], None),
    ],
)
async def test_lost_keys_are_those_whose_entries_may_have_been_dropped(dropped, traces, named, lost):
    seen = past(dropped=dropped)
    if lost is None:
        await seen._check(surveyed(seen, traces), named)
    else:
        with pytest.raises(HistoryLost) as caught:
            await seen._check(surveyed(seen, traces), named)
        assert caught.value.keys == lost


def test_message_of_lost_history_names_keys_moment_and_reason():
    assert past()._lost(["k"]).message == "Bucket `B` no longer holds what key `k` was at revision 7"
    assert past()._lost([], "it is full").message == (
        "Bucket `B` no longer holds all that it held at revision 7: it is full"
    )
    assert "`kvctl history B`" in (past()._lost([]).hint or "")


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (1, "key `0` was"),
        (2, "keys `0`, `1` were"),
        (10, "keys `0`, `1`, `2`, `3`, `4`, `5`, `6`, `7`, `8`, `9` were"),
        (11, "keys `0`, `1`, `2`, `3`, `4`, `5`, `6`, `7`, `8`, `9` and 1 more were"),
        (30, "keys `0`, `1`, `2`, `3`, `4`, `5`, `6`, `7`, `8`, `9` and 20 more were"),
    ],
)
def test_error_lists_at_most_ten_lost_keys(count, shown):
    assert _listed([str(number) for number in range(count)]) == shown
