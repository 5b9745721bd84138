"""Comparison of a mirror with its current origin, from two infos."""

from typing import Any

import pytest

from kvctl.topology.health.inspection import Lineage, lineage

EARLY, MADE, LATER, LATEST = (f"2026-01-01T00:00:0{number}Z" for number in range(1, 5))


def info(name: str, created: str, first: int, last: int, first_ts: str, **config: Any) -> dict[str, Any]:
    count = last - first + 1
    state = {"first_seq": first, "last_seq": last, "messages": count, "first_ts": first_ts}
    return {"config": {"name": name, **config}, "created": created, "state": state}


def mirror(first: int, last: int, first_ts: str, **mirror: Any) -> dict[str, Any]:
    return info("M", MADE, first, last, first_ts, mirror={"name": "KV_B", **mirror})


def origin(created: str, first: int, last: int, first_ts: str) -> dict[str, Any]:
    return info("KV_B", created, first, last, first_ts)


@pytest.mark.parametrize(
    ("there", "here", "evidence"),
    [
        (origin(LATER, 1, 3, LATER), mirror(1, 5, EARLY), "`M` is at revision 5, but `B` only at 3"),
        (origin(LATER, 1, 9, LATER), mirror(1, 9, EARLY), "`M` holds entries of 2026-01-01T00:00:01"),
        (origin(LATER, 1, 9, LATER), mirror(6, 9, LATEST), "`M` begins at revision 6, but `B` at 1"),
        (origin(EARLY, 1, 3, EARLY), mirror(1, 5, EARLY), "recreated or restored"),
    ],
    ids=["ahead", "older entries", "first entries missed", "rolled back"],
)
def test_recreated_origin_is_recognised(there, here, evidence):
    found = lineage(here, there)
    assert found.same is False
    assert evidence in found.evidence
    assert [hazard.name for hazard in found.hazards()] == ["recreated-origin"]


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (origin(EARLY, 1, 9, EARLY), mirror(3, 7, EARLY)),
        (origin(LATER, 1, 9, LATEST), mirror(1, 0, "0001-01-01T00:00:00Z")),
        (origin(LATER, 1, 9, LATEST), mirror(1, 9, LATEST)),
        (origin(LATER, 1, 9, LATEST), mirror(6, 9, LATEST, filter_subject="$KV.B.a")),
    ],
    ids=["behind", "made before its origin", "made before, and filled", "some keys alone"],
)
def test_mirror_of_current_instance_is_not_stale(there, here):
    assert lineage(here, there) == Lineage(True)


def test_mirror_of_restored_origin_is_undecided():
    found = lineage(mirror(1, 9, EARLY), origin(LATER, 1, 9, EARLY))
    assert (found.same, found.hazards()) == (None, [])
    assert "may hold old values" in found.evidence
