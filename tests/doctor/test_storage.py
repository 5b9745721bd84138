"""Findings on single buckets, from their infos."""

from typing import Any

import pytest

from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding, ordered
from kvctl.doctor.storage import examine, offline
from kvctl.kv.config import BucketConfig

MIRROR = {"name": "KV_M", "mirror": {"name": "KV_B"}, "max_msgs_per_subject": 1, "allow_direct": True}


def info(messages: int = 0, size: int = 0, cluster: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    config = BucketConfig("B").to_stream() | changes
    found: dict[str, Any] = {"config": config, "state": {"messages": messages, "bytes": size}}
    return found | ({"cluster": cluster} if cluster else {})


def said(infos: dict[str, Any], servers: int = 1) -> list[tuple[str, str]]:
    found = ordered(examine({infos["config"]["name"]: infos}, servers))
    assert {finding.subject for finding in found} <= {infos["config"]["name"].removeprefix("KV_")} | {"KV_B"}
    return [(str(finding.severity), finding.check) for finding in found]


def peers(*away: str, leader: str = "n1") -> dict[str, Any]:
    others = [{"name": name, "current": name not in away, "lag": 0} for name in ("n2", "n3")]
    return {"name": "c", "replicas": others, **({"leader": leader} if leader else {})}


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (info(), []),
        (info(9, 700, max_bytes=1000), []),
        (info(9, 800, max_bytes=1000), [("warning", "nearly-full")]),
        (info(9, 1000, max_bytes=1000), [("error", "nearly-full")]),
        (info(subject_transform={"src": ">", "dest": ">"}), []),
        (info(9, 900, max_bytes=1000, discard="old"), [("warning", "discards-old"), ("warning", "nearly-full")]),
        (info(9, 90, max_msgs=10), [("warning", "nearly-full")]),
        (info(allow_direct=False), [("warning", "no-direct-get")]),
        (info(allow_rollup_hdrs=False), [("warning", "no-rollup")]),
        (info(metadata={"kvctl.unfinished": "x"}), [("warning", "unfinished")]),
        (info(max_msgs_per_subject=-1), [("note", "no-bucket")]),
        ({**info(), "config": MIRROR}, [("note", "mirror-name")]),
        ({**info(), "config": MIRROR | {"name": "M", "deny_purge": True}}, [("note", "deny-purge")]),
        (info(subject_transform={"src": "$KV.B.>", "dest": "$KV.B.x.>"}), [("error", "renamed-keys")]),
        (info(subjects=[], sources=[{"name": "KV_O", "opt_start_seq": 1}]), []),
        (info(subjects=[], sources=[{"name": "KV_O"}]), [("warning", "no-first-entry")]),
        (
            {**info(subjects=[], sources=[{"name": "KV_O"}]), "sources": [{"name": "KV_O", "seq": 5}]},
            [("note", "no-first-entry")],
        ),
        (info(num_replicas=3, cluster=peers()), []),
        (info(num_replicas=3, cluster=peers("n2")), [("warning", "server-away")]),
        (info(cluster=peers("n2", "n3", leader="")), [("error", "no-leader")]),
    ],
)
def test_findings_of_a_bucket(stream, expected):
    assert said(stream) == expected


def test_single_stream_replica_is_a_finding_in_a_cluster():
    assert said(info(), servers=3) == [("warning", "one-replica")]
    assert said(info(), servers=2) == []
    assert said(info(num_replicas=3), servers=3) == []


def test_loss_of_quorum_is_announced():
    (finding,) = examine({"KV_B": info(num_replicas=3, cluster=peers("n2"))}, 3)
    assert finding.evidence == "`n2` of 3 servers is offline or far behind: if one more fails, writes stop"


@pytest.mark.parametrize(
    ("leader", "away", "text"),
    [
        ("", ["n2", "n3"], "`n2`, `n3` of 3 servers are offline: without a leader, writes and listings fail"),
        ("n1", ["n2", "n3"], "`n2`, `n3` of 3 servers are offline: without a leader, writes and listings fail"),
        ("", [], "It has no leader: writes and listings fail"),
    ],
)
def test_servers_without_a_majority_are_one_finding(leader, away, text):
    names = ("n2", "n3") if leader else ("n1", "n2", "n3")
    others = [{"name": name, "current": name not in away, "offline": name in away} for name in names]
    (finding,) = examine({"KV_B": info(num_replicas=3, cluster={"name": "c", "leader": leader, "replicas": others})}, 3)
    assert (finding.severity, finding.check, finding.evidence) == (ERROR, "no-leader", text)


def test_servers_are_counted_in_the_cluster_of_the_bucket():
    here, there = peers(), {"name": "far", "leader": "far1"}
    infos = {"KV_A": info(num_replicas=3, cluster=here), "KV_B": info(cluster=there)}
    assert list(examine(infos, 3, "c")) == []


@pytest.mark.parametrize(
    ("known", "cluster", "origin", "remedy", "evidence"),
    [
        (
            True,
            "nyc",
            None,
            "Start `n9`",
            "`M` in cluster `nyc` is offline: its only server `n9` does not answer, and nothing arrives from `B`",
        ),
        (
            False,
            "nyc",
            "KV_B",
            "Start its servers in cluster `nyc`",
            "`M`, a mirror of `B` in cluster `nyc`, is offline: its servers do not answer",
        ),
        (
            False,
            None,
            None,
            "Start its servers",
            "`M` is offline: its servers do not answer; it may be a mirror or an aggregate",
        ),
    ],
)
def test_offline_stream_has_its_cluster_and_remedy(known, cluster, origin, evidence, remedy):
    away = {"name": "other", "replicas": [{"name": "n9", "offline": True}]}
    finding = offline("M", {**info(cluster=away), "config": MIRROR} if known else None, cluster, origin)
    assert (finding.check, finding.subject, finding.evidence, finding.remedy) == ("offline", "M", evidence, remedy)


def test_findings_are_ordered_and_unique():
    note, warning, error = (Finding(severity, "c", "s", "e") for severity in (NOTE, WARNING, ERROR))
    assert ordered([note, warning, note, error]) == [error, warning, note]
