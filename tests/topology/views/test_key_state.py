"""States of a key in a replica, from plain readings of both sides."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvctl.jetstream import stream_info
from kvctl.topology.audit.verdict import DELETED, Ages, EntrySource, LastEntry
from kvctl.topology.survey.graph import Upstream
from kvctl.topology.views.key_state import KeyReading, Passage, TraceState, inherited, judge, of_start

VALUE, OTHER = b"value", b"other"
NOW = 10**18
CONNECTED = Upstream(stream_info.Source("KV_O"), 0, 0.1, None)
HERE = EntrySource("KV_O", 5, "$KV.O.k")


def held(revision: int, mark: bytes = VALUE, source: EntrySource | None = None, **more: Any) -> KeyReading:
    return KeyReading(LastEntry(mark, revision, NOW - 10**9, source, **more))


NOTHING, ORIGIN = KeyReading(), held(5)
GONE = KeyReading(error="does not answer", offline=True)
DENIED = KeyReading(error="permission denied")


def passage(here: KeyReading, there: KeyReading = ORIGIN, **more: Any) -> Passage:
    found = Passage("O", "KV_O", "$KV.O.k", there, here, CONNECTED, False, 5, Ages(0, True), NOW)
    return replace(found, **more)


MIRROR = {"mirror": True}
BEHIND = {"arrived": 4}
ERROR = {"arrived": 4, "upstream": CONNECTED._replace(error="stream not found (10059)")}


@pytest.mark.parametrize(
    ("found", "state", "evidence"),
    [
        (passage(held(9, source=HERE)), TraceState.ARRIVED, ""),
        (passage(held(9, source=HERE._replace(sequence=6))), TraceState.ARRIVED, ""),
        (passage(held(9, source=HERE._replace(subject=""))), TraceState.ARRIVED, ""),
        (passage(held(5), **MIRROR), TraceState.ARRIVED, ""),
        (passage(held(6), **MIRROR), TraceState.ARRIVED, ""),
        (passage(held(9, DELETED, HERE), held(5, DELETED)), TraceState.DELETED, ""),
        (passage(held(4), **MIRROR, **BEHIND), TraceState.ON_ITS_WAY, "at revision 4 of 5"),
        (passage(NOTHING, **BEHIND), TraceState.ON_ITS_WAY, "at revision 4 of 5"),
        (passage(held(9, source=HERE._replace(sequence=4)), **BEHIND), TraceState.ON_ITS_WAY, "at revision 4 of 5"),
        (passage(NOTHING, **ERROR), TraceState.LINK_DOWN, "stream not found (10059)"),
        (
            passage(NOTHING, arrived=0, upstream=CONNECTED._replace(last_seen=None)),
            TraceState.LINK_DOWN,
            "it was never connected",
        ),
        (
            passage(NOTHING, arrived=0, upstream=CONNECTED._replace(last_seen=822.6)),
            TraceState.LINK_DOWN,
            "no message from the origin for 13m43s",
        ),
        (passage(held(9)), TraceState.OVERWRITTEN, "by a client of the aggregate"),
        (passage(held(9, source=EntrySource("KV_P", 1, "$KV.P.k"))), TraceState.OVERWRITTEN, "by `P`"),
        (passage(held(9, source=EntrySource("KV_O", 7, "$KV.O.l"))), TraceState.OVERWRITTEN, "by `l` of `O`"),
        (passage(held(9, source=EntrySource("KV_O", 7, "other"))), TraceState.OVERWRITTEN, "by `other` of `O`"),
        (
            passage(held(9, source=EntrySource("KV_P", 1, "$KV.P.k")), arrived=None),
            TraceState.UNKNOWN,
            "an entry of `P` hides whether revision 5 has arrived",
        ),
        (passage(NOTHING, arrived=None), TraceState.UNKNOWN, "its progress cannot be read"),
        (passage(NOTHING, ages=Ages(10**9, False)), TraceState.EXPIRED, "after 1s"),
        (passage(NOTHING, held(5, ttl=timedelta(seconds=1))), TraceState.EXPIRED, "after 1s"),
        (
            passage(NOTHING, ages=Ages(2 * 10**9, False)),
            TraceState.MISSING,
            "caught up, but lacks the key; run `kvctl topology audit O`",
        ),
        (passage(NOTHING), TraceState.MISSING, "caught up, but lacks the key; run `kvctl topology audit O`"),
        (passage(NOTHING, held(5, DELETED)), TraceState.DELETED, "the marker has expired here"),
        (
            passage(held(9, source=HERE._replace(sequence=3))),
            TraceState.MISSING,
            "caught up, but holds revision 3 instead of 5; run `kvctl topology audit O`",
        ),
        (passage(held(9, source=HERE), NOTHING), TraceState.KEPT, "`O` no longer holds its revision 5"),
        (passage(held(9, DELETED, HERE), NOTHING), TraceState.DELETED, ""),
        (passage(NOTHING, NOTHING), TraceState.ABSENT, ""),
        (passage(held(9), NOTHING), TraceState.ABSENT, ""),
        (passage(held(7, OTHER), earlier_instance="old", **MIRROR), TraceState.STALE, "old"),
        (passage(held(5, OTHER), earlier_instance="old", **MIRROR), TraceState.STALE, "old"),
        (passage(held(5), earlier_instance="old", **MIRROR), TraceState.ARRIVED, ""),
        (passage(held(7), NOTHING, earlier_instance="old", **MIRROR), TraceState.STALE, "old"),
        (passage(GONE), TraceState.OFFLINE, "does not answer"),
        (passage(DENIED), TraceState.UNKNOWN, "permission denied"),
        (passage(NOTHING, DENIED), TraceState.UNKNOWN, "permission denied"),
        (passage(NOTHING, GONE), TraceState.LINK_DOWN, "does not answer"),
        (passage(held(9, source=HERE), GONE), TraceState.ARRIVED, "revision 5 of `O`: does not answer"),
    ],
)
def test_state_of_a_key_follows_from_both_sides(found, state, evidence):
    assert judge(found) == (state, evidence)


def test_state_where_a_trace_begins_is_that_of_its_entry():
    readings = (ORIGIN, held(5, DELETED), NOTHING, GONE, DENIED)
    states = [of_start(reading)[0] for reading in readings]
    assert states == [TraceState.HELD, TraceState.DELETED, TraceState.ABSENT, TraceState.OFFLINE, TraceState.UNKNOWN]


def test_entry_does_not_arrive_beyond_a_stream_without_it():
    arrived = (TraceState.ARRIVED, "")
    assert inherited(None, "A", arrived) == inherited(TraceState.ARRIVED, "A", arrived) == arrived
    assert inherited(TraceState.OVERWRITTEN, "A", arrived) == (TraceState.OVERWRITTEN, "in `A`")
    assert inherited(TraceState.ON_ITS_WAY, "A", (TraceState.ABSENT, "")) == (TraceState.ON_ITS_WAY, "in `A`")
    assert inherited(TraceState.MISSING, "A", (TraceState.OFFLINE, "x")) == (TraceState.OFFLINE, "x")
    assert inherited(TraceState.KEPT, "A", arrived) == arrived
