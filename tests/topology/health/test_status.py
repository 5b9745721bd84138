"""Status rows, what changed in them, and their metrics, read back by a small parser of Prometheus' text format."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import kvctl
from kvctl.documents.parser import Document
from kvctl.errors import BucketNotFound
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.health.status import (
    FIELDS,
    GONE,
    Metric,
    ReplicaSelection,
    Row,
    changes,
    exposition,
    metrics,
    status,
)
from kvctl.topology.model.file import Topology, read_topology
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from kvctl.topology.survey.graph import Inventory, Place

Names = Callable[..., str]


def topology_of(**file: Any) -> Topology:
    return read_topology(Document({"version": 1, **file}, "t.yaml"))


async def test_status_of_origin_has_its_replicas(client, unique):
    origin, mirror, aggregate = unique("O"), unique("M"), unique("A")
    await (await client.create_bucket(origin)).put("k", b"v")
    await create_mirror(client, Mirror(mirror, Origin(origin)))
    await create_aggregate(client, Aggregate(aggregate, (Origin(origin, keys=("a.>",), prefix="p"),)))
    apis = {"": client.api}
    rows = {row["replica"]: row for row in await status(apis, ReplicaSelection([origin]))}
    assert set(rows) == {mirror, aggregate}
    assert [list(row) for row in rows.values()] == [list(FIELDS)] * 2
    assert [row["replica"] for row in await status(apis, ReplicaSelection([mirror]))] == [mirror]
    assert (rows[mirror]["state"], rows[mirror]["revision"], rows[mirror]["origin_revision"]) == ("ok", 1, 1)
    assert (rows[aggregate]["keys"], rows[aggregate]["prefix"], rows[aggregate]["map"]) == (["a.>"], "p", None)
    assert rows[aggregate]["transforms"] == [{"src": f"$KV.{origin}.a.>", "dest": f"$KV.{aggregate}.p.>"}]
    with pytest.raises(BucketNotFound):
        await status(apis, ReplicaSelection([unique("NONE")]))
    assert await status(apis, ReplicaSelection([await _alone(client, unique)])) == []


async def _alone(client: kvctl.Client, unique: Names) -> str:
    return (await client.create_bucket(unique("ALONE"))).name


async def test_status_of_file_has_its_replicas_by_context(leaf, unique):
    origin, mirror, other = unique("O"), unique("M"), unique("M")
    async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["leaf"]) as edge:
        await hub.create_bucket(origin)
        await create_mirror(edge, Mirror(mirror, Origin(origin, external=External.of_domain("hub"))))
        await create_mirror(hub, Mirror(other, Origin(origin)))
        file = topology_of(
            contexts={"hub": {}, "edge": {}},
            buckets={origin: {"in": "hub"}},
            mirrors={
                mirror: {"origin": origin, "origin_domain": "hub", "in": "edge"},
                other: {"origin": origin, "in": "edge"},
            },
        )
        rows = {
            row["replica"]: row for row in await status({"hub": hub.api, "edge": edge.api}, ReplicaSelection((), file))
        }
        await edge.delete_bucket(mirror)
        await hub.delete_bucket(other)
    assert {name: row["state"] for name, row in rows.items()} == {mirror: "ok", other: "absent"}
    where = ("context", "domain", "origin_context", "origin_domain")
    assert [rows[mirror][name] for name in where] == ["edge", "leaf", "hub", "hub"]


def row(replica: str = "M", **fields: Any) -> Row:
    return {
        **dict.fromkeys(FIELDS),
        "replica": replica,
        "stream": replica,
        "kind": "mirror",
        "origin": "O",
        "keys": [],
        "transforms": [],
        "state": "ok",
        **fields,
    }


def test_status_changes_ignore_moving_fields():
    before = [row("A", last_seen=0.1, revision=5), row("B"), row("C")]
    after = [row("A", last_seen=0.9, revision=5), row("B", state="stalled"), row("D")]
    assert changes([], before) == before
    assert changes(before, after) == [after[1], after[2], {**before[2], "state": GONE}]
    assert changes(after, after) == []


NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Return the samples by name and labels. Fails for anything that the format does not allow."""
    found: Samples = {}
    described: list[str] = []
    assert text.endswith("\n")
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            assert (what, NAME.fullmatch(name) is not None, bool(rest)) in {("HELP", True, True), ("TYPE", True, True)}
            if what == "HELP":
                assert name not in described, "its lines are not together"
                described.append(name)
            else:
                assert (name, rest) == (described[-1], "gauge")
            continue
        head, value = line.rsplit(" ", 1)
        name, brace, labels = head.partition("{")
        assert name == described[-1]
        pairs = parsed_labels(labels.removesuffix("}")) if brace else {}
        key = name, frozenset(pairs.items())
        assert key not in found, "it has two values"
        found[key] = float(value)
    return found


def parsed_labels(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match is not None, text
        assert match[1] not in found, text
        found[match[1]] = re.sub(r'\\[\\"n]', lambda escape: ESCAPED[escape[0]], match[2])
        at = match.end()
    return found


def values(samples: Samples, name: str, *labels: str) -> dict[Any, float]:
    """Return the values of one metric by the values of some of its labels."""
    return {
        tuple(dict(pairs).get(label) for label in labels): value for (of, pairs), value in samples.items() if of == name
    }


def test_labels_and_help_are_escaped():
    metric = Metric("kvctl_x", "A \\ and a\nline")
    metric.add({"name": 'a"b\\c\nd', "empty": "", "none": None}, 1.5)
    metric.add({}, None)
    text = exposition([metric, Metric("kvctl_unused", "Without samples")])
    assert text.splitlines()[0] == "# HELP kvctl_x A \\\\ and a\\nline"
    assert parsed(text) == {("kvctl_x", frozenset({("name", 'a"b\\c\nd')})): 1.5}


def test_state_is_one_of_all():
    rows = [row(state="stalled"), row(replica="N", state="offline")]
    found = values(parsed(exposition(metrics(rows, Inventory({}, ())))), "kvctl_replica_state", "replica", "state")
    assert {key for key, value in found.items() if value} == {("M", "stalled"), ("N", "offline")}
    assert set(found.values()) == {0, 1}
    assert ("M", "ok") in found


def test_entries_behind_are_left_out_where_they_are_unknown():
    rows = [
        row(replica="ok", revision=3, origin_revision=5, keys=["a.>"]),
        row(replica="late", state="behind", revision=3, origin_revision=5, lag=2, last_seen=0.25),
        row(replica="filtered", state="behind", revision=3, origin_revision=5, keys=["a.>"]),
        row(replica="offline", state="offline", origin_revision=5),
    ]
    samples = parsed(exposition(metrics(rows, Inventory({}, ()))))
    assert values(samples, "kvctl_replica_entries_behind", "replica") == {("ok",): 0, ("late",): 2}
    assert values(samples, "kvctl_replica_lag_messages", "replica") == {("late",): 2}
    assert values(samples, "kvctl_replica_last_seen_seconds", "replica") == {("late",): 0.25}
    assert values(samples, "kvctl_replica_origin_revision", "replica")[("offline",)] == 5


def test_sources_of_one_origin_are_told_apart():
    rows = [row(keys=["a.>"]), row(keys=["b.>"]), row(keys=["b.>"], prefix="p"), row(map={"b.>": "c.>"})]
    found = values(
        parsed(exposition(metrics(rows, Inventory({}, ())))), "kvctl_replica_entries_behind", "keys", "prefix"
    )
    assert set(found) == {("a.>", None), ("b.>", None), ("b.>", "p"), ("b.>:c.>", None)}


def test_offline_buckets_are_not_up():
    def bucket(name: str) -> Any:
        config = {"name": f"KV_{name}", "subjects": [f"$KV.{name}.>"], "max_msgs_per_subject": 1}
        return {"config": {**config, "placement": {"cluster": "nyc"}}, "cluster": {"name": "lon"}}

    place = Place("", None, None, {"KV_A": bucket("A")}, ("KV_B",), {"KV_B": bucket("B")})  # type: ignore[arg-type]
    samples = parsed(exposition(metrics([], Inventory({"": place}, ()))))
    assert values(samples, "kvctl_bucket_up", "bucket", "cluster") == {("A", "lon"): 1, ("B", "nyc"): 0}
    assert metrics([], Inventory({"": place}, ()), lambda _: False)[-1].samples == []
