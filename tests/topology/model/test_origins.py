"""Mirrors and aggregates as stream configurations, and back."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvctl.errors import UsageError
from kvctl.topology.model.notation import parse_origin
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin

HOUR = 3600 * 10**9


def test_aggregate_of_adr_8_renders_as_in_adr_8():
    stream = Aggregate("NEW_ORDERS", (Origin("ORDERS", keys=("NEW.>",)),), deny_purge=True).to_stream()
    assert {name: stream[name] for name in ("subjects", "deny_delete", "deny_purge", "sources")} == {
        "subjects": [],
        "deny_delete": True,
        "deny_purge": True,
        "sources": [
            {
                "name": "KV_ORDERS",
                "opt_start_seq": 1,
                "subject_transforms": [{"src": "$KV.ORDERS.NEW.>", "dest": "$KV.NEW_ORDERS.>"}],
            }
        ],
    }


def test_replicas_accept_rollups_unless_purges_are_denied():
    for build in (
        lambda **more: Mirror("M", Origin("B"), **more),
        lambda **more: Aggregate("A", (Origin("B"),), **more),
    ):
        erasing, denying = build().to_stream(), build(deny_purge=True).to_stream()
        assert (erasing["allow_rollup_hdrs"], erasing.get("deny_purge", False)) == (True, False)
        assert (denying["allow_rollup_hdrs"], denying["deny_purge"]) == (False, True)


def test_aggregate_is_read_only_by_default_and_has_no_duplicate_window():
    reading, writing = Aggregate("A", (Origin("B"),)), Aggregate("A", (Origin("B"),), writable=True)
    assert reading.to_stream()["subjects"] == []
    assert writing.to_stream()["subjects"] == ["$KV.A.>"]
    assert not writing.to_stream().get("duplicate_window")


def test_mirror_inherits_ttl_history_and_per_key_ttl():
    origin = {"name": "KV_B", "max_age": HOUR, "max_msgs_per_subject": 7, "allow_msg_ttl": True, "allow_direct": True}
    stream = Mirror("M", Origin("B")).to_stream(origin)
    assert {name: stream[name] for name in ("max_age", "max_msgs_per_subject", "allow_msg_ttl", "mirror_direct")} == {
        "max_age": HOUR,
        "max_msgs_per_subject": 7,
        "allow_msg_ttl": True,
        "mirror_direct": True,
    }
    assert Mirror("M", Origin("B"), history=9).to_stream(origin)["max_msgs_per_subject"] == 9


@pytest.mark.parametrize(("ages", "expected"), [((HOUR, 2 * HOUR), 2 * HOUR), ((HOUR, 0), 0), ((), 0)])
def test_aggregate_inherits_longest_ttl_if_all_origins_have_one(ages, expected):
    found = [{"name": "KV_B", "max_age": age, "max_msgs_per_subject": 3} for age in ages]
    assert Aggregate("A", (Origin("B"),)).to_stream(found)["max_age"] == expected


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Mirror("KV_M", Origin("B")),
        lambda: Mirror("M", Origin("B", prefix="p")),
        lambda: Mirror("M", Origin("B", keys=("a.>", "a.b"))).to_stream(),
        lambda: Aggregate("A", ()),
        lambda: Aggregate("A", (Origin("B"), Origin("B"))).to_stream(),
        lambda: Aggregate("A", (Origin("B", keys=("a.>", "a.b")),)).to_stream(),
        lambda: Origin(),
        lambda: Origin("a b"),
        lambda: Origin("B", keys=("a..b",)),
    ],
)
def test_invalid_replica_is_a_usage_error(wrong):
    with pytest.raises(UsageError):
        wrong()


_token = st.sampled_from(["a", "b-1", "NEW", "x_y"])
_filter = st.builds(
    lambda head, tail: ".".join([*head, *tail]),
    st.lists(st.one_of(_token, st.just("*")), min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)
_origin = st.builds(
    Origin,
    st.sampled_from(["B", "C_1"]),
    stream=st.sampled_from(["", "M"]),
    keys=st.one_of(st.just(()), st.tuples(_filter)),
    prefix=st.sampled_from(["", "p", "p.q"]),
    external=st.sampled_from([None, External.of_domain("hub"), External("X.API", "D.x")]),
)


@given(st.lists(_origin, min_size=1, max_size=3, unique_by=lambda origin: origin.bucket))
@settings(max_examples=200)
def test_live_configuration_round_trips(origins):
    aggregate = Aggregate("A", tuple(origins), history=3, ttl=timedelta(hours=1), metadata={"a": "b"})
    stream = aggregate.to_stream()
    assert Aggregate.from_stream(stream).to_stream() == stream
    mirror = Mirror("M", Origin("B", keys=("a.>", "b")), max_bytes=5, cluster="c", tags=("t",))
    assert Mirror.from_stream(mirror.to_stream()).to_stream() == mirror.to_stream()


def test_transforms_read_back_in_shortest_notation():
    origins = (
        Origin("B", keys=("NEW.>", "OLD.>"), prefix="p"),
        Origin("C", maps=(("*.*", "stock.$2.$1"),)),
        Origin("D", stream="M", external=External("X.API", "D.x")),
    )
    assert Aggregate.from_stream(Aggregate("A", origins).to_stream()).origins == origins


@pytest.mark.parametrize(
    ("spec", "origin"),
    [
        ("ORDERS", Origin("ORDERS")),
        (
            "bucket=ORDERS,keys=NEW.>,prefix=orders.new,domain=hub",
            Origin("ORDERS", keys=("NEW.>",), prefix="orders.new", external=External("$JS.hub.API")),
        ),
        ("stream=M,bucket=B", Origin("B", stream="M")),
        ("stream=M", Origin(stream="M")),
        ("bucket=B,keys=a,keys=b.>,map=*.*:$2.$1", Origin("B", keys=("a", "b.>"), maps=(("*.*", "$2.$1"),))),
        ("bucket=B,api=X.API,deliver=D.x", Origin("B", external=External("X.API", "D.x"))),
    ],
)
def test_spec_is_parsed_as_in_the_contract(spec, origin):
    assert parse_origin(spec) == origin


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "a b",
        "bucket=",
        "bucket=B,",
        "bucket=B,what=1",
        "keys=a",
        "bucket=B,bucket=C",
        "bucket=B,map=a",
        "bucket=B,domain=hub,api=X.API",
        "bucket=B,deliver=D",
        "bucket=B,domain=a.b",
        "bucket=B,api=X..API",
        "bucket=B,keys=a..b",
        "bucket=B,x",
    ],
)
def test_invalid_spec_is_a_usage_error(spec):
    with pytest.raises(UsageError):
        parse_origin(spec)
