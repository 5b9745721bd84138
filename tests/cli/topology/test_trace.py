"""`kvctl topology trace` as a process: from files and live, for people and programs."""

import json

from tests.support.waiting import until
from tests.topology.conftest import Replicas, source

FILE = b"""
version: 1
buckets: {ORDERS: {cluster: lon}, STOCK: {}}
mirrors: {ORDERS_NYC: {origin: ORDERS, cluster: nyc}, ALL_COPY: {origin: ALL}}
aggregates:
  NEW: {origins: [{bucket: ORDERS, keys: NEW.>, prefix: n}]}
  OLD: {origins: [{bucket: ORDERS, keys: [OLD.>, X.>]}]}
  ALL: {origins: [{bucket: NEW, prefix: o}, {bucket: STOCK, map: {"*.*": s.$2}}, {bucket: PARTNER, domain: hub}]}
"""


def test_trace_of_a_file_shows_where_a_key_goes_and_came_from(run, tmp_path, snapshot):
    file = tmp_path / "topology.yaml"
    file.write_bytes(FILE)
    for args in (("ORDERS", "NEW.7"), ("ALL", "s.lon"), ("ALL_COPY", "o.n.7")):
        assert run("topology", "trace", *args, "-f", str(file), tty=True) == snapshot
    assert run("topology", "trace", "ORDERS", "NEW.7", "-f", "-", stdin=FILE) == snapshot
    assert run("topology", "trace", "ALL_COPY", "s.lon", "-f", "-", "-o", "json", stdin=FILE) == snapshot
    named = run("topology", "trace", "ORDERS", "NEW.7", "-f", "-", "-o", "name", stdin=FILE).out.split()
    assert named == ["ORDERS", "NEW", "ALL", "ALL_COPY", "OLD", "ORDERS_NYC"]


def test_trace_exits_3_for_what_does_not_exist(run, raw, unique):
    bucket = unique("O")
    raw.create_bucket(bucket)
    assert run("topology", "trace", "NONE", "k", "-f", "-", stdin=FILE).exit_code == 3
    assert run("topology", "trace", unique("NONE"), "k").exit_code == 3
    missing = run("topology", "trace", bucket, "k")
    assert (missing.exit_code, missing.out) == (3, "")
    assert missing.err.startswith(f"error: Key `k` exists neither in `{bucket}` nor in its origins and replicas")


def test_trace_of_live_streams_shows_revisions_and_states(run, raw, unique):
    origin, mirror, aggregate, replicas = unique("O"), unique("M"), unique("A"), Replicas(raw)
    raw.create_bucket(origin)
    raw.put(origin, "other", b"v")
    raw.put(origin, "a.1", b"v")
    replicas.mirror(mirror, origin)
    replicas.aggregate(aggregate, source(origin, aggregate, "a.>", "b.>"))
    until(lambda: replicas.info(mirror)["state"]["messages"] == 2 and replicas.subjects(f"KV_{aggregate}"))
    shown = run("topology", "trace", origin, "a.1", tty=True, env={"NO_COLOR": ""})
    assert f"{aggregate}\x1b[0m\x1b[2m  aggregate\x1b[0m  b.1\x1b[32m  arrived, revision 1" in shown.out
    assert "a.> → b.>" in shown.out
    found = json.loads(run("topology", "trace", origin, "a.1", "-o", "json").out)
    rows = {row["name"]: (row["key"], row["state"], row["revision"], row["operation"]) for row in found["replicas"]}
    assert rows == {mirror: ("a.1", "arrived", 2, "PUT"), aggregate: ("b.1", "arrived", 1, "PUT")}
    assert (found["name"], found["key"], found["state"], found["revision"]) == (origin, "a.1", "held", 2)
    piped = run("topology", "trace", aggregate, "b.1", "-o", "tsv").out.splitlines()
    assert [line.split("\t")[:7] for line in piped] == [
        ["origin", "1", aggregate, origin, "a.1", "arrived", "2"],
        ["start", "0", "", aggregate, "b.1", "held", "1"],
    ]
    filtered = json.loads(run("topology", "trace", origin, "other", "-o", "json").out)
    states = {row["name"]: (row["key"], row["state"], row["keys"]) for row in filtered["replicas"]}
    assert states == {mirror: ("other", "arrived", []), aggregate: (None, "filtered out", ["a.>"])}
