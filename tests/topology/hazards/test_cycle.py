"""Cycles among streams, and links that only look like cycles."""

from typing import Any

from kvctl.topology.hazards.cycle import Replication, beginning_with, cycles, doubled, hazard


def reading(reader: str, origin: str, src: str = ">", dest: str = ">") -> Replication:
    """Parse `edge/A`, `hub/B`: place and bucket; keys for subjects."""
    (here, to), (there, of) = reader.split("/"), origin.split("/")
    rule: dict[str, Any] = {"src": f"$KV.{of}.{src}", "dest": f"$KV.{to}.{dest}"}
    return Replication((here, f"KV_{to}"), (there, f"KV_{of}"), {"name": f"KV_{of}", "subject_transforms": [rule]})


def test_chain_is_not_a_cycle():
    assert cycles([reading("a/C", "a/B"), reading("a/B", "a/A"), reading("b/D", "a/B")]) == []


def test_cycle_through_places_is_found_once():
    (circle,) = cycles([reading("a/X", "b/Y"), reading("b/Y", "c/Z"), reading("c/Z", "a/X"), reading("a/W", "a/X")])
    assert set(circle) == {("a", "KV_X"), ("b", "KV_Y"), ("c", "KV_Z")}
    text = hazard(beginning_with(circle, ("b", "KV_Y"))).evidence
    assert text.startswith("`Y` in `b` <- `Z` in `c` <- `X` in `a` <- `Y` in `b`: ")


def test_exchange_of_disjoint_keys_is_not_a_cycle():
    assert cycles([reading("a/X", "b/Y", "y.>", "y.>"), reading("b/Y", "a/X", "x.>", "x.>")]) == []
    assert cycles([reading("a/X", "b/Y", "y.>", "x.>"), reading("b/Y", "a/X", "x.>", "y.>")]) != []


def test_growing_prefix_is_a_cycle():
    assert cycles([reading("a/X", "b/Y"), reading("b/Y", "a/X", ">", "back.>")]) != []


def test_cycle_through_a_mirror_is_found():
    whole = Replication(("b", "M"), ("a", "KV_X"), {"name": "KV_X"})
    back = Replication(
        ("a", "KV_X"), ("b", "M"), {"name": "M", "subject_transforms": [{"src": "$KV.X.>", "dest": "$KV.X.>"}]}
    )
    (circle,) = cycles([whole, back])
    assert len(circle) == 3


def test_origin_read_twice_in_one_place_is_found():
    readings = [reading("a/X", "a/B"), reading("a/X", "a/P"), reading("a/P", "a/Q"), reading("a/Q", "a/B")]
    assert doubled(readings, ("a", "KV_X")) == (("a", "KV_B"), ("a", "KV_P"))
    assert doubled(readings[1:], ("a", "KV_X")) is None
    apart = [reading("a/X", "a/B"), reading("a/X", "b/P"), reading("b/P", "a/B")]
    assert doubled(apart, ("a", "KV_X")) is None
