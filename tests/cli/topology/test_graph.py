"""`kvctl topology graph` as a process: formats, files and live servers."""

import json

import pytest

from tests.support.waiting import until
from tests.topology.conftest import Replicas, source

FILE = b"""
version: 1
buckets: {ORDERS: {cluster: lon}, CONFIG: {}}
mirrors: {ORDERS_NYC: {origin: ORDERS, cluster: nyc}}
aggregates: {NEW: {origins: [{bucket: ORDERS, keys: NEW.>, prefix: n}, {bucket: STOCK, domain: hub}]}}
"""


def test_graph_of_a_file_needs_no_server(run, snapshot):
    shown = run("topology", "graph", "-f", "-", stdin=FILE, tty=False)
    assert shown == snapshot
    assert run("topology", "graph", "-f", "-", "CONFIG", "-o", "json", stdin=FILE) == snapshot
    assert run("topology", "graph", "-f", "-", "--format", "svg", stdin=FILE).out.startswith("<svg ")
    names = run("topology", "graph", "-f", "-", "-o", "name", stdin=FILE).out
    assert names.split() == ["CONFIG", "NEW", "ORDERS", "ORDERS_NYC", "STOCK"]


def rules_of(origin: str, src: str, dest: str, aggregate: str) -> list[dict[str, str]]:
    """Return the one transform of a source of `source`."""
    return [{"src": f"$KV.{origin}.{src}", "dest": f"$KV.{aggregate}.{dest}"}]


@pytest.fixture
def replicas(raw):
    """Replicas by raw JSON, on the shared server."""
    return Replicas(raw)


def test_graph_of_live_replicas_shows_their_state(run, raw, replicas, unique):
    origin, mirror, aggregate, alone = unique("O"), unique("M"), unique("A"), unique("ALONE")
    raw.create_bucket(origin)
    raw.create_bucket(alone)
    raw.put(origin, "a.1", b"v")
    replicas.mirror(mirror, origin)
    replicas.aggregate(aggregate, source(origin, aggregate, "a.>", "b.>"), source("NOBODY", aggregate))
    until(lambda: replicas.info(mirror)["state"]["messages"])
    until(lambda: replicas.subjects(f"KV_{aggregate}"))
    shown = run("topology", "graph", origin, tty=True, env={"NO_COLOR": ""})
    assert "\x1b[32mok\x1b[0m" in shown.out
    assert "a.> → b.>" in shown.out
    everything = json.loads(run("topology", "graph", "-o", "json", aggregate).out)
    states = {
        edge["origin"]: (edge["state"], edge["keys"], edge["prefix"], edge["map"], edge["transforms"])
        for edge in everything["edges"]
    }
    assert states == {
        f"KV_{origin}": ("ok", ["a.>"], "b", None, rules_of(origin, "a.>", "b.>", aggregate)),
        "KV_NOBODY": ("missing origin", [], None, None, rules_of("NOBODY", ">", ">", aggregate)),
    }
    assert run("topology", "graph", unique("NONE")).exit_code == 3
    assert alone in run("topology", "graph").out
