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
    assert run("topology", "graph", "-f", "-", "-o", "name", stdin=FILE).out.split() == [
        "CONFIG",
        "NEW",
        "ORDERS",
        "ORDERS_NYC",
        "STOCK",
    ]


def test_graph_with_an_unknown_format_is_a_usage_error(run, tmp_path):
    refused = run("topology", "graph", "--format", "png")
    assert (refused.exit_code, refused.err.splitlines()[0]) == (2, "error: `png` is not a graph format")
    assert run("topology", "graph", "-f", str(tmp_path / "none")).exit_code == 2


def rules_of(origin: str, src: str, dest: str, aggregate: str) -> list[dict[str, str]]:
    """Return the one transform of a source of `source`."""
    return [{"src": f"$KV.{origin}.{src}", "dest": f"$KV.{aggregate}.{dest}"}]


@pytest.fixture
def replicas(raw):
    """Replicas by raw JSON, on the shared server."""
    return Replicas(raw)


def test_graph_of_live_replicas_shows_their_state(run, server, raw, replicas, unique):
    origin, mirror, aggregate, alone = unique("O"), unique("M"), unique("A"), unique("ALONE")
    raw.create_bucket(origin)
    raw.create_bucket(alone)
    raw.put(origin, "a.1", b"v")
    replicas.mirror(mirror, origin)
    replicas.aggregate(aggregate, source(origin, aggregate, "a.>", "b.>"), source("NOBODY", aggregate))
    until(lambda: replicas.info(mirror)["state"]["messages"])
    until(lambda: replicas.subjects(f"KV_{aggregate}"))
    shown = run("topology", "graph", origin, "-s", server.url, tty=True, env={"NO_COLOR": ""})
    assert "\x1b[32mok\x1b[0m" in shown.out
    assert "a.> → b.>" in shown.out
    everything = json.loads(run("topology", "graph", "-o", "json", aggregate, "-s", server.url).out)
    states = {
        edge["origin"]: (edge["state"], edge["keys"], edge["prefix"], edge["map"], edge["transforms"])
        for edge in everything["edges"]
    }
    assert states == {
        f"KV_{origin}": ("ok", ["a.>"], "b", None, rules_of(origin, "a.>", "b.>", aggregate)),
        "KV_NOBODY": ("missing origin", [], None, None, rules_of("NOBODY", ">", ">", aggregate)),
    }
    assert run("topology", "graph", unique("NONE"), "-s", server.url).exit_code == 3
    assert alone in run("topology", "graph", "-s", server.url).out
