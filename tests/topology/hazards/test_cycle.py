"""Cycles among streams, and links that only look like cycles."""

from typing import Any

from kvctl.topology.hazards.cycle import (
    Replication,
    beginning_with,
    cycles,
    doubled,
    hazard,
    republications,
    republishing,
)


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


def republished(name: str, dest: str = "", src: str = "") -> dict[str, Any]:
    """Return a bucket, and its republishing into another as keys; without `dest` none."""
    route = {"src": src or f"$KV.{name}.>", "dest": dest} if dest else None
    return {"name": f"KV_{name}", "subjects": [f"$KV.{name}.>"], "republish": route}


def places(*configs: dict[str, Any], place: str | None = None) -> dict[tuple[str | None, str], dict[str, Any]]:
    return {(place, config["name"]): config for config in configs}


def test_republishing_is_an_edge():
    there_and_back = places(republished("A", "$KV.B.>"), republished("B", "$KV.A.>"))
    (found,) = cycles(republications(there_and_back))
    assert set(found) == {(None, "KV_A"), (None, "KV_B")}
    one_way = republications(places(republished("A", "$KV.B.>"), republished("B")))
    assert cycles(one_way) == []
    (text,) = republishing(one_way, (None, "KV_A"))
    assert text.startswith("`A` republishes into `B` (`$KV.B.>`)")
    assert republications(places(republished("A", "copies.>"), republished("B"))) == []
    apart = places(republished("A", "$KV.B.>"), place="x") | places(republished("B", "$KV.A.>"), place="y")
    assert republications(apart) == []


def test_republishing_of_disjoint_keys_is_not_a_cycle():
    into_b = republished("A", "$KV.B.x.>", "$KV.A.x.>")
    assert cycles(republications(places(into_b, republished("B", "$KV.A.y.>", "$KV.B.y.>")))) == []
    assert cycles(republications(places(into_b, republished("B", "$KV.A.x.>", "$KV.B.x.>")))) != []


def test_cycle_through_republishing_and_an_aggregate_is_found():
    edges = republications(places(republished("G", "$KV.A.>"), republished("A")))
    whole = Replication((None, "KV_G"), (None, "KV_A"), reading("a/G", "a/A").source)
    assert cycles([*edges, whole]) != []
