"""Metrics in the text format of Prometheus, read back by a small parser of that format."""

import re
from typing import Any

from kvctl.topology.health.metrics import Metric, exposition, metrics
from kvctl.topology.health.status import FIELDS, Row
from kvctl.topology.survey.graph import Inventory, Place

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


def row(**known: Any) -> Row:
    return {
        **dict.fromkeys(FIELDS),
        "replica": "M",
        "kind": "mirror",
        "origin": "O",
        "keys": [],
        "state": "ok",
        **known,
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


def test_offline_buckets_have_limits_and_no_sizes():
    def bucket(name: str) -> Any:
        config = {"name": f"KV_{name}", "subjects": [f"$KV.{name}.>"], "max_msgs_per_subject": 1, "max_bytes": 1000,
                  "max_msgs": -1, "placement": {"cluster": "nyc"}}  # fmt: skip
        return {"config": config, "state": {"messages": 2, "bytes": 90, "last_ts": "2026-01-01T00:00:00.5Z"},
                "cluster": {"name": "lon"}}  # fmt: skip

    place = Place("", None, None, {"KV_A": bucket("A")}, ("KV_B",), {"KV_B": bucket("B")})  # type: ignore[arg-type]
    samples = parsed(exposition(metrics([], Inventory({"": place}, ()))))
    assert values(samples, "kvctl_bucket_up", "bucket", "cluster") == {("A", "lon"): 1, ("B", "nyc"): 0}
    assert values(samples, "kvctl_bucket_limit_bytes", "bucket") == {("A",): 1000, ("B",): 1000}
    assert values(samples, "kvctl_bucket_size_bytes", "bucket") == {("A",): 90}
    assert values(samples, "kvctl_bucket_entries", "bucket") == {("A",): 2}
    assert values(samples, "kvctl_bucket_limit_entries", "bucket") == {}
    assert values(samples, "kvctl_bucket_last_write_timestamp_seconds", "bucket") == {("A",): 1767225600.5}
    assert metrics([], Inventory({"": place}, ()), lambda _: False)[-6].samples == []
