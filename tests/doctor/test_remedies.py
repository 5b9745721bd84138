"""Remedies of hazards are commands that work as printed."""

from typing import Any

import pytest

from kvctl.doctor.remedies import remedy
from kvctl.topology.hazards.replica_hazards import of_replica

HOUR = 3600 * 10**9
B = {"name": "KV_B", "max_age": HOUR, "max_msgs_per_subject": 1, "allow_direct": True}
C = {"name": "KV_C", "max_age": HOUR, "max_msgs_per_subject": 1, "allow_direct": True}


def offered(config: dict[str, Any], *origins: dict[str, Any]) -> dict[str, str]:
    """Return the remedies of a replica's hazards, by hazard."""
    base = {"max_msgs_per_subject": 1, "max_age": HOUR, "allow_direct": True, "deny_delete": True}
    whole = {**base, **config}
    name = whole["name"].removeprefix("KV_")
    return {hazard.name: remedy(hazard, name, whole, origins) for hazard in of_replica(whole, origins)}


@pytest.mark.parametrize(
    ("age", "hazard", "force"),
    [(0, "ttl-not-inherited", " --force lossy-edit"), (2 * HOUR, "ttl-not-inherited", " --force lossy-edit"),
     (HOUR // 2, "shorter-ttl", "")],
)  # fmt: skip
def test_ttl_remedy_that_shortens_is_forced(age, hazard, force):
    config = {"name": "M", "mirror": {"name": "KV_B"}, "mirror_direct": True, "max_age": age}
    assert offered(config, B)[hazard] == f"`kvctl bucket edit M --ttl 1h{force}`"


def reading(name: str, dest: str, **more: Any) -> dict[str, Any]:
    return {"name": f"KV_{name}", "subject_transforms": [{"src": f"$KV.{name}.>", "dest": dest}], **more}


def test_aggregate_with_all_keys_outside_is_recreated():
    sources = [reading("B", "$KV.X.>", external={"api": "$JS.hub.API"})]
    wanted = "`kvctl aggregate delete A` and `kvctl aggregate create A --origin bucket=B,domain=hub`"
    assert offered({"name": "KV_A", "sources": sources}, B)["outside-prefix"] == wanted


def test_single_origin_outside_is_added_again():
    sources = [reading("B", "$KV.X.>"), reading("C", "$KV.A.c.>")]
    wanted = "`kvctl aggregate remove-origin A B` and `kvctl aggregate add-origin A B`"
    assert offered({"name": "KV_A", "sources": sources}, B, C)["outside-prefix"] == wanted
