"""Findings on replicas, by their health and their hazards; remedies are commands that work as printed."""

from typing import Any

import pytest

from kvctl.doctor.examination import of_standing, remedy_of
from kvctl.topology.hazards.hazards import of_replica
from kvctl.topology.health.health import Health, ReplicaHealth
from kvctl.topology.survey.graph import Link, Place


def standing(state: Health, evidence: str = "", age: int = 60) -> ReplicaHealth:
    source = {"name": "KV_B", "external": {"api": "$JS.hub.API"}}
    config: dict[str, Any] = {"name": "M", "mirror": source}
    info = {"config": config, "created": "2026-01-01T00:00:00Z", "ts": f"2026-01-01T00:{age // 60:02}:{age % 60:02}Z"}
    place = Place("", None, None, {"M": info})  # type: ignore[arg-type]  # where it is says nothing here
    return ReplicaHealth(Link(place, info, source, None, None), state, evidence)


@pytest.mark.parametrize(
    ("state", "severity", "check"),
    [
        (Health.STALLED, "error", "stalled"),
        (Health.SILENT, "error", "silent"),
        (Health.FAILING, "error", "failing"),
        (Health.NEVER_CONNECTED, "error", "unconnected"),
        (Health.MISSING_ORIGIN, "error", "missing-origin"),
        (Health.RECREATED_ORIGIN, "error", "recreated-origin"),
        (Health.MISSING_ENTRIES, "error", "missing-entries"),
        (Health.OFFLINE_ORIGIN, "error", "offline-origin"),
        (Health.OFFLINE, "error", "offline"),
        (Health.UNCONFIRMED, "note", "unconfirmed"),
    ],
)
def test_replica_problems_have_severity_and_remedy(state, severity, check):
    (finding,) = of_standing(standing(state, "at revision 1 of 2"))
    assert (str(finding.severity), finding.check, finding.subject) == (severity, check, "M")
    assert finding.remedy
    assert "`B`" in finding.evidence


def test_missing_export_is_named():
    (finding,) = of_standing(standing(Health.FAILING, "stream source consumer stalled on flow control (10228)"))
    assert "`$JS.FC.KV_B.>`" in finding.remedy
    abroad = standing(Health.STALLED, "at revision 0 of 2, and nothing arrives")
    assert "limits" in next(of_standing(abroad)).remedy  # in another domain there is nothing to export
    abroad.link.source["external"]["api"] = "ORIGIN.API"
    assert "deliver prefix" in next(of_standing(abroad)).remedy


@pytest.mark.parametrize("state", [Health.OK, Health.BEHIND])
def test_replica_that_catches_up_has_no_finding(state):
    assert list(of_standing(standing(state))) == []


def test_new_replica_may_still_be_connecting():
    assert list(of_standing(standing(Health.NEVER_CONNECTED, age=5))) == []


HOUR = 3600 * 10**9
B = {"name": "KV_B", "max_age": HOUR, "max_msgs_per_subject": 1, "allow_direct": True}


def offered(config: dict[str, Any], *origins: dict[str, Any]) -> dict[str, str]:
    """Return the remedies of a replica's hazards, by hazard."""
    base = {"max_msgs_per_subject": 1, "max_age": HOUR, "allow_direct": True, "deny_delete": True}
    whole = {**base, **config}
    name = whole["name"].removeprefix("KV_")
    return {hazard.name: remedy_of(hazard, name, whole, origins) for hazard in of_replica(whole, origins)}


@pytest.mark.parametrize(
    ("age", "hazard", "force"),
    [
        (0, "ttl-not-inherited", " --force lossy-edit"),
        (2 * HOUR, "ttl-not-inherited", " --force lossy-edit"),
        (HOUR // 2, "shorter-ttl", ""),
    ],
)
def test_ttl_remedy_that_shortens_is_forced(age, hazard, force):
    config = {"name": "M", "mirror": {"name": "KV_B"}, "mirror_direct": True, "max_age": age}
    assert offered(config, B)[hazard] == f"`kvctl bucket edit M --ttl 1h{force}`"


def test_aggregate_with_keys_outside_names_the_command():
    transforms = [{"src": "$KV.B.>", "dest": "$KV.X.>"}]
    sources = [{"name": "KV_B", "subject_transforms": transforms}]
    found = offered({"name": "KV_A", "sources": sources}, B)["outside-prefix"]
    assert found == "Remove the origin with `kvctl aggregate remove-origin A ORIGIN`, and add it again"
