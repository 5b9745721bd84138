"""The way of a key through topology files, forwards and backwards."""

from itertools import pairwise
from typing import Any

import pytest

from kvctl.documents.parser import Document
from kvctl.errors import BucketNotFound, RefusedError
from kvctl.topology.model.file import read_topology
from kvctl.topology.views import trace
from kvctl.topology.views.drawing import Drawing, Edge, Node, of_topology
from kvctl.topology.views.key_state import TraceState
from kvctl.topology.views.trace import flat, follow, origins, predicted, replicas

FILE: dict[str, Any] = {
    "buckets": {"ORDERS": {}, "STOCK": {}, "ALONE": {}},
    "mirrors": {"COPY": {"origin": "ORDERS"}, "COPY2": {"origin": "COPY"}, "ALL_COPY": {"origin": "ALL"}},
    "aggregates": {
        "NEW": {"origins": [{"bucket": "ORDERS", "keys": ["NEW.>", "HOT.*"], "prefix": "n"}]},
        "ALL": {
            "origins": [{"bucket": "NEW", "prefix": "o"}, {"bucket": "STOCK", "map": {"*.*": "s.$2", "x.y.*": "x.$1"}}]
        },
        "FAR": {"origins": [{"bucket": "REMOTE", "domain": "hub", "prefix": "r"}, "COPY"]},
    },
}


def graph_of(file: dict[str, Any]) -> Drawing:
    return of_topology(read_topology(Document({"version": 1, **file}, "t.yaml")))


def ways(name: str, key: str, file: dict[str, Any] = FILE) -> list[tuple[str, int, str, str | None, str]]:
    """Return role, depth, name, key, and `filtered out` or the end of each stop but the start."""
    found = flat(predicted(graph_of(file), name, key))
    return [
        (role, depth, item.node.name, item.key, str(item.state or item.end))
        for role, depth, _, item in found
        if role != "start"
    ]


def test_key_goes_to_mirrors_and_aggregates_under_its_name_in_each():
    assert ways("ORDERS", "NEW.7") == [
        ("replica", 1, "COPY", "NEW.7", ""),
        ("replica", 2, "COPY2", "NEW.7", ""),
        ("replica", 2, "FAR", "NEW.7", ""),
        ("replica", 1, "NEW", "n.7", ""),
        ("replica", 2, "ALL", "o.n.7", ""),
        ("replica", 3, "ALL_COPY", "o.n.7", ""),
    ]
    assert ways("ALONE", "k") == []


def test_key_that_no_filter_takes_ends_there():
    assert ways("ORDERS", "OLD.1")[3:] == [("replica", 1, "NEW", None, "filtered out")]
    assert ways("STOCK", "a.b.c") == [("replica", 1, "ALL", None, "filtered out")]


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("COPY2", "NEW.7", [(1, "COPY", "NEW.7"), (2, "ORDERS", "NEW.7")]),
        ("ALL_COPY", "o.n.7", [(1, "ALL", "o.n.7"), (2, "NEW", "n.7"), (3, "ORDERS", "NEW.7"), (3, "ORDERS", "HOT.7")]),
        ("ALL", "o.n.7.8", [(1, "NEW", "n.7.8"), (2, "ORDERS", "NEW.7.8")]),
        ("ALL", "s.lon", [(1, "STOCK", "*.lon")]),
        ("ALL", "x.1", [(1, "STOCK", "x.y.1")]),
        ("ALL", "none", []),
        ("FAR", "r.1", [(1, "COPY", "r.1"), (2, "ORDERS", "r.1"), (1, "REMOTE", "1")]),
    ],
)
def test_key_came_from_every_key_that_lands_there(name, key, expected):
    found = [(depth, at, text) for role, depth, at, text, _ in ways(name, key) if role == "origin"]
    assert found == expected


def test_several_keys_are_followed_back_as_a_filter():
    file = {
        "buckets": {"A": {}},
        "aggregates": {
            "B": {"origins": [{"bucket": "A", "keys": ["x.>"], "prefix": "b"}]},
            "C": {"origins": [{"bucket": "B", "map": {"b.*.*": "c.$2"}}]},
            "D": {"origins": [{"bucket": "B", "map": {"b.*.>": "d.$1"}}]},
        },
    }
    assert ways("C", "c.1", file) == [("origin", 1, "B", "b.*.1", ""), ("origin", 2, "A", "x.*.1", "")]
    assert ways("D", "d.1", file) == [("origin", 1, "B", "b.1.>", ""), ("origin", 2, "A", "x.1.>", "")]


def test_cycle_ends_where_it_returns():
    file = {
        "aggregates": {
            "A": {"origins": [{"bucket": "B", "prefix": "a"}]},
            "B": {"origins": [{"bucket": "A", "prefix": "b"}]},
        }
    }
    assert ways("A", "a.b.a.b.k", file) == [
        ("origin", 1, "B", "b.a.b.k", ""),
        ("origin", 2, "A", "a.b.k", "cycle"),
        ("replica", 1, "B", "b.a.b.a.b.k", ""),
        ("replica", 2, "A", "a.b.a.b.a.b.k", "cycle"),
    ]


def test_stream_on_two_ways_is_followed_once():
    file = {
        "buckets": {"A": {}},
        "mirrors": {"M": {"origin": "A"}, "T_COPY": {"origin": "T"}},
        "aggregates": {"T": {"origins": ["A", {"stream": "M", "bucket": "A"}]}},
    }
    found = ways("A", "k", file)
    assert [(name, end) for _, _, name, _, end in found] == [("M", ""), ("T", ""), ("T_COPY", ""), ("T", "above")]


def test_trace_has_a_limit(monkeypatch):
    monkeypatch.setattr(trace, "MAX_STOPS", 3)
    streams = [Node(f"n{at}", f"n{at}", f"n{at}", "mirror") for at in range(6)]
    edges = tuple(Edge(one.id, other.id) for one, other in pairwise(streams))
    found = follow(Drawing(tuple(streams), edges), streams[0], "$KV.n0.k", replicas)
    depth = 0
    while found:
        (stop,) = found
        depth, found = depth + 1, stop.onward
    assert (depth, stop.end) == (4, "limit")


def test_unknown_transform_is_not_predicted():
    source = {"name": "KV_A", "subject_transforms": [{"src": "$KV.A.*", "dest": "$KV.B.{{partition(3,1)}}"}]}
    nodes = (Node("KV_A", "A", "KV_A", "bucket"), Node("KV_B", "B", "KV_B", "aggregate"))
    graph = Drawing(nodes, (Edge("KV_A", "KV_B", source=source),))
    for step, at in ((replicas, 0), (origins, 1)):
        (stop,) = follow(graph, nodes[at], f"$KV.{nodes[at].name}.k", step)
        assert (stop.subject, "partition(3,1)" in stop.evidence) == (None, True)
    (_, (_, _, _, there)) = flat(predicted(graph, "A", "k"))
    assert there.state is TraceState.UNKNOWN


def test_subject_outside_of_the_bucket_has_no_key():
    nodes = (Node("KV_A", "A", "KV_A", "bucket"), Node("KV_B", "B", "KV_B", "aggregate"))
    graph = Drawing(nodes, (Edge("KV_A", "KV_B", source={"name": "KV_A"}),))
    (_, (_, _, _, there)) = flat(predicted(graph, "A", "k"))
    assert (there.key, there.subject) == (None, "$KV.A.k")


def test_name_means_a_bucket_before_a_stream_out_of_view():
    nodes = (
        Node("hub/KV_A", "A", "KV_A", "outside", domain="hub"),
        Node("KV_A", "A", "KV_A", "bucket"),
        Node("KVT_T", "T", "KVT_T", "table"),
        Node("KV_GONE", "GONE", "KV_GONE", "missing"),
    )
    assert predicted(Drawing(nodes, ()), "A", "k").start.node.id == "KV_A"
    assert predicted(Drawing(nodes[:1], ()), "A", "k").start.node.id == "hub/KV_A"
    with pytest.raises(RefusedError, match="`T` is a table, not a bucket"):
        predicted(Drawing(nodes, ()), "T", "k")
    for name in ("GONE", "NONE"):
        with pytest.raises(BucketNotFound):
            predicted(Drawing(nodes, ()), name, "k")
