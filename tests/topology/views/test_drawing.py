"""Graphs of replication: nodes and edges, and names escaped in every format."""

import re
import shutil
import subprocess
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvctl.documents.parser import Document
from kvctl.errors import BucketNotFound
from kvctl.kv.settings import Republish
from kvctl.topology.health.health import Health, ReplicaHealth
from kvctl.topology.model.file import read_topology
from kvctl.topology.model.notation import rules_json, rules_of, with_rules_text
from kvctl.topology.survey.graph import Inventory, Link, Place
from kvctl.topology.views import drawing
from kvctl.topology.views.drawing import Drawing, Edge, Node, of_inventory, of_topology, svg
from tests.topology.conftest import source
from tests.topology.plain import bucket, inventory

CONTRACT: dict[str, Any] = {
    "contexts": {"hub": {"context": "prod-hub"}, "edge": {"url": "nats://127.0.0.1:4223", "domain": "leaf"}},
    "buckets": {
        "ORDERS": {"history": 5, "cluster": "lon", "in": "hub"},
        "STOCK": {"cluster": "lon", "in": "hub"},
        "CONFIG": {"in": "hub"},
    },
    "mirrors": {
        "ORDERS_NYC": {"origin": "ORDERS", "cluster": "nyc", "in": "hub"},
        "ORDERS_SYD": {"origin": "ORDERS_NYC", "cluster": "syd", "in": "hub"},
    },
    "aggregates": {
        "EDGE": {
            "in": "edge",
            "origins": [
                {"bucket": "ORDERS", "domain": "hub", "keys": ["NEW.>"], "prefix": "orders.new"},
                {"bucket": "STOCK", "domain": "hub", "map": {"*.*": "stock.$2.$1"}},
                {"bucket": "PARTNER", "api": "PARTNER.API"},
            ],
        }
    },
}
HOSTILE = [
    'a]-->"<script>alert(1)</script>',
    "`*_x_*` #quot; &amp; %%",
    'x\\" ] ; subgraph\n end',
    "é\u202e\x1b[31m\x00",
]


def graph_of(file: dict[str, Any], *names: str) -> Drawing:
    return of_topology(read_topology(Document({"version": 1, **file}, "t.yaml")), names)


def lines_of(graph: Drawing) -> str:
    """Return the text, as in a pipe."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in drawing.text(graph))


def links(graph: Drawing) -> set[tuple[str, str]]:
    names = {node.id: node.name for node in graph.nodes}
    return {(names[edge.origin], names[edge.replica]) for edge in graph.edges}


class TestOfAFile:
    def test_graph_links_replicas_to_origins(self):
        graph = graph_of(CONTRACT)
        assert links(graph) == {
            ("ORDERS", "ORDERS_NYC"),
            ("ORDERS_NYC", "ORDERS_SYD"),
            ("ORDERS", "EDGE"),
            ("STOCK", "EDGE"),
            ("PARTNER", "EDGE"),
        }
        assert {node.name: (node.kind, node.where) for node in graph.nodes} == {
            "ORDERS": ("bucket", "context hub, cluster lon"),
            "STOCK": ("bucket", "context hub, cluster lon"),
            "CONFIG": ("bucket", "context hub"),
            "ORDERS_NYC": ("mirror", "context hub, cluster nyc"),
            "ORDERS_SYD": ("mirror", "context hub, cluster syd"),
            "EDGE": ("aggregate", "context edge, domain leaf"),
            "PARTNER": ("outside", "account behind PARTNER.API"),
        }
        words = {tuple(edge.words) for edge in graph.edges}
        assert words == {(), ("NEW.> → orders.new.>",), ("*.* → stock.$2.$1",)}

    def test_origin_elsewhere_is_not_a_bucket_of_the_same_name(self):
        graph = graph_of({"buckets": {"B": {}}, "aggregates": {"A": {"origins": [{"bucket": "B", "domain": "hub"}]}}})
        assert [(node.name, node.kind) for node in graph.nodes] == [
            ("A", "aggregate"),
            ("B", "bucket"),
            ("B", "outside"),
        ]

    def test_graph_of_a_name_has_its_origins_and_readers(self):
        assert {node.name for node in graph_of(CONTRACT, "ORDERS_NYC").nodes} == {"ORDERS", "ORDERS_NYC", "ORDERS_SYD"}
        assert {node.name for node in graph_of(CONTRACT, "CONFIG").nodes} == {"CONFIG"}
        with pytest.raises(BucketNotFound):
            graph_of(CONTRACT, "NONE")

    def test_as_text(self, snapshot):
        assert lines_of(graph_of(CONTRACT)) == snapshot

    def test_as_mermaid(self, snapshot):
        assert drawing.mermaid(graph_of(CONTRACT)) == snapshot

    def test_as_dot(self, snapshot):
        assert drawing.dot(graph_of(CONTRACT)) == snapshot

    def test_text_of_a_cycle_ends(self):
        graph = graph_of({"aggregates": {"A": {"origins": ["B"]}, "B": {"origins": ["A"]}}})
        assert lines_of(graph) == "A  aggregate\n└─▶ B  aggregate\n    └─▶ A  aggregate (above)\n"
        ElementTree.fromstring(svg(graph))


@pytest.mark.parametrize(
    ("taken", "reader", "rules"),
    [
        ({"name": "KV_B"}, "M", ()),
        ({"name": "M"}, "M2", ()),
        ({"name": "KV_B", "filter_subject": "$KV.B.a.*"}, "M", (("a.*", ""),)),
        ({"name": "KV_B", "subject_transforms": [{"src": "$KV.B.a.>", "dest": "$KV.B.b.>"}]}, "M", (("a.>", "b.>"),)),
        ({"name": "KV_B", "subject_transforms": [{"src": "$KV.B.>", "dest": "$KV.A.>"}]}, "KV_A", ()),
        (
            {"name": "KV_B", "subject_transforms": [{"src": "$KV.B.*.x", "dest": "$KV.A.{{wildcard(1)}}.x"}]},
            "KV_A",
            (("*.x", ""),),
        ),
        (
            {"name": "KV_B", "subject_transforms": [{"src": "$KV.B.*", "dest": "$KV.A.p.{{wildcard(1)}}"}]},
            "KV_A",
            (("*", "p.$1"),),
        ),
        ({"name": "KV_B"}, "KV_A", ((">", "$KV.B.>"),)),
        ({"name": "KV_B", "subject_transforms": [{"src": "$KV.B.>", "dest": "$KV.C.>"}]}, "KV_A", ((">", "$KV.C.>"),)),
    ],
)
def test_rules_show_keys_and_other_subjects_completely(taken, reader, rules):
    assert rules_of(taken, reader) == rules


@pytest.mark.parametrize(
    ("rules", "words", "shown"),
    [
        ([], ([], None, None), ("", "")),
        ([("$KV.B.>", "$KV.A.>")], ([], None, None), ("", "")),
        ([("$KV.B.>", "$KV.A.p.>")], ([], "p", None), (">", "p.>")),
        ([("$KV.B.a.>", "$KV.A.>")], (["a.>"], None, None), ("a.>", ">")),
        ([("$KV.B.a.*", "$KV.A.p.q.{{wildcard(1)}}")], (["a.*"], "p.q", None), ("a.*", "p.q.$1")),
        ([("$KV.B.a", "$KV.A.p.a"), ("$KV.B.b.>", "$KV.A.p.>")], (["a", "b.>"], "p", None), ("a, b.>", "p.a, p.>")),
        (
            [("$KV.B.a.>", "$KV.A.p.>"), ("$KV.B.b.>", "$KV.A.q.>")],
            ([], None, {"a.>": "p.>", "b.>": "q.>"}),
            ("a.>, b.>", "p.>, q.>"),
        ),
        (
            [("$KV.B.*.>", "$KV.A.{{wildcard(1)}}.{{wildcard(1)}}.>")],
            ([], None, {"*.>": "$1.$1.>"}),
            ("*.>", "$1.$1.>"),
        ),
        ([("$KV.B.>", "$KV.C.>")], ([], None, {">": "$KV.C.>"}), (">", "$KV.C.>")),
        (
            [("$KV.B.*", "$KV.A.{{partition(3,1)}}")],
            ([], None, {"*": "{{partition(3,1)}}"}),
            ("*", "{{partition(3,1)}}"),
        ),
    ],
)
def test_rules_of_an_aggregate_are_in_the_words_of_flags_and_files(rules, words, shown):
    transforms = [{"src": src, "dest": dest} for src, dest in rules]
    found = rules_json(
        {"name": "KV_B", **({"subject_transforms": transforms} if rules else {})}, "KV_A" if rules else "M"
    )
    assert found == {**dict(zip(("keys", "prefix", "map"), words, strict=True)), "transforms": transforms}
    row = with_rules_text(found, "KV_A" if rules else "M")
    assert (row["taken"], row["lands_as"]) == shown


def test_rules_of_a_mirror_have_filters_and_keep_names():
    found = rules_json({"name": "KV_B", "filter_subject": "$KV.B.a.>"}, "M")
    assert found == {"keys": ["a.>"], "prefix": None, "map": None, "transforms": [{"src": "$KV.B.a.>", "dest": ""}]}
    assert with_rules_text(found, "M")["lands_as"] == ""
    renaming = rules_json({"name": "KV_B", "subject_transforms": [{"src": "$KV.B.a.>", "dest": "$KV.B.b.>"}]}, "M")
    assert renaming["map"] == {"a.>": "b.>"}


def info(name: str, **config: Any) -> dict[str, Any]:
    live = config.pop("live", {})
    if name.startswith("KV_") and "sources" not in config:
        config["subjects"] = [f"$KV.{name[3:]}.>"]
    return {"config": {"name": name, "max_msgs_per_subject": 1, **config}, "state": {"last_seq": 7}, **live}


def live_graph(*names: str, unreachable: tuple[str, ...] = ()) -> Drawing:
    """Return a bucket with a healthy mirror and an unhealthy aggregate in two clusters, and an unlinked bucket."""
    origin = info("KV_ORDERS", live={"cluster": {"name": "lon"}})
    mirror = info("COPY", mirror={"name": "KV_ORDERS"}, live={"cluster": {"name": "nyc"}})
    sources = [
        source("ORDERS", "EDGE", "NEW.>"),
        source("GONE", "EDGE"),
        source("FAR", "EDGE", external={"api": "$JS.hub.API"}),
    ]
    states = [
        {**taken, "lag": 3, "active": active} for taken, active in zip(sources, (5 * 10**8, 5 * 10**8, -1), strict=True)
    ]
    aggregate = info("KV_EDGE", sources=sources, live={"cluster": {"name": "lon"}, "sources": states})
    table = info("KVT_config", metadata={"kvctl.kind": "table"})
    infos = {
        item["config"]["name"]: item for item in (origin, mirror, aggregate, info("KV_ALONE"), info("OTHER"), table)
    }
    place = Place("", None, None, infos, unreachable)  # type: ignore[arg-type]
    standings = [
        ReplicaHealth(Link(place, mirror, mirror["config"]["mirror"], place, origin), Health.OK),
        *(
            ReplicaHealth(Link(place, aggregate, taken, place if found else None, found), state, "in words")
            for taken, found, state in zip(
                sources,
                (origin, None, None),
                (Health.BEHIND, Health.MISSING_ORIGIN, Health.NEVER_CONNECTED),
                strict=True,
            )
        ),
    ]
    return of_inventory(Inventory({"": place}, tuple(item.link for item in standings)), standings, names)


class TestOfLiveServers:
    def test_graph_shows_origins_out_of_view_and_missing_ones(self):
        graph = live_graph()
        assert links(graph) == {("ORDERS", "COPY"), ("ORDERS", "EDGE"), ("GONE", "EDGE"), ("FAR", "EDGE")}
        assert {node.name: node.kind for node in graph.nodes if node.kind in ("outside", "missing")} == {
            "GONE": "missing",
            "FAR": "outside",
        }
        assert graph.alone == ("ALONE",)

    def test_graph_leaves_out_unlinked_buckets_unless_named(self):
        assert [node.name for node in live_graph("ALONE").nodes] == ["ALONE"]
        assert {node.name for node in live_graph("COPY").nodes} == {"ORDERS", "COPY"}

    def test_graph_shows_unreachable_streams(self):
        graph = live_graph(unreachable=("KV_GONE", "KV_HIDDEN", "EVENTS"))
        # Any of them may be a replica.
        assert {node.name for node in graph.nodes if node.kind == "unknown"} == {"GONE", "HIDDEN", "EVENTS"}

    def test_as_text_with_health(self, snapshot):
        assert lines_of(live_graph()) == snapshot

    def test_as_mermaid_with_health(self, snapshot):
        assert drawing.mermaid(live_graph()) == snapshot

    def test_as_json(self, snapshot):
        assert live_graph().to_json() == snapshot


def hostile(*texts: str) -> Drawing:
    """Return nodes, places, rules and evidence that contain these texts."""
    nodes = [Node(f"n{at}{text}", text, text, "bucket", cluster=text) for at, text in enumerate(texts)]
    source = {"name": texts[0]}
    error = {"description": texts[0], "err_code": 1}
    reader = info(texts[0], mirror=source, live={"mirror": {**source, "lag": 3, "active": 10**9, "error": error}})
    place = Place("", None, None, {texts[0]: reader})  # type: ignore[arg-type]
    standing = ReplicaHealth(Link(place, reader, source, None, None), Health.FAILING, texts[0])
    edges = [Edge(nodes[0].id, node.id, ((texts[0], texts[-1]),), standing) for node in nodes[1:]]
    return Drawing(tuple(nodes), tuple(edges))


class TestWhateverNamesHold:
    @given(st.lists(st.text(min_size=1) | st.sampled_from(HOSTILE), min_size=2, max_size=4))
    @settings(max_examples=60, deadline=None)
    def test_formats_escape_hostile_names(self, texts):
        graph = hostile(*texts)
        assert_mermaid(drawing.mermaid(graph), len(graph.nodes), len(graph.edges))
        assert_dot(drawing.dot(graph), len(graph.nodes), len(graph.edges))
        root = ElementTree.fromstring(svg(graph))
        assert {element.tag.partition("}")[2] for element in root.iter()} <= {
            *"""
            svg title style rect text tspan
        """.split()
        }

    @pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
    def test_graphviz_accepts_dot_output(self):
        subprocess.run(["dot", "-Tsvg"], input=drawing.dot(hostile(*HOSTILE)).encode(), check=True, capture_output=True)


_LABEL = r'"(?:[^\W_]|_|[ .,:/$=()→-]|#\d+;|<br/>)*"'
_STYLING = r"linkStyle \d+ stroke:#\w+|classDef absent [\w:-]+|class [n\d,]+ absent"
_NODE = rf"n\d+(?:\[\({_LABEL}\)\]|\(\[{_LABEL}\]\)|\[\[{_LABEL}\]\]|\[{_LABEL}\])"


def assert_mermaid(text: str, nodes: int, edges: int) -> None:
    """Every line has a known form, with labels of letters, harmless signs and character numbers."""
    found = {"node": 0, "edge": 0}
    for line in text.splitlines()[1:]:
        if re.fullmatch(rf"\s+{_NODE}", line):
            found["node"] += 1
        elif re.fullmatch(rf"\s+n\d+ -->(\|{_LABEL}\|)? n\d+", line):
            found["edge"] += 1
        else:
            assert re.fullmatch(rf"  (subgraph g\d+\[{_LABEL}\]|end|{_STYLING})", line), line
    assert found == {"node": nodes, "edge": edges}


def assert_dot(text: str, nodes: int, edges: int) -> None:
    """Outside quoted strings there are only the intended statements."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "Q", text, flags=re.DOTALL)
    assert "\n".join(line for line in bare.splitlines() if re.match(r"\s+n\d+ \[", line)).count("label=Q") == nodes
    assert len(re.findall(r"^  n\d+ -> n\d+ \[label=Q color=Q fontcolor=Q\]$", bare, re.MULTILINE)) == edges
    assert bare.count("{") == bare.count("}") == 1 + bare.count("subgraph")


class TestPicture:
    def test_picture_is_deterministic(self):
        assert svg(graph_of(CONTRACT)) == svg(graph_of(CONTRACT))

    def test_empty_graph_is_an_empty_picture(self):
        ElementTree.fromstring(svg(graph_of({})))
        assert lines_of(graph_of({})) == ""

    def test_picture_has_the_lines_of_the_text(self):
        root = ElementTree.fromstring(svg(live_graph()))
        lines = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert lines == [line for line in lines_of(live_graph()).splitlines() if line]


def test_republishing_into_a_bucket_is_drawn():
    one, other = bucket("A", republish=Republish("$KV.A.>", "$KV.B.x.>")), bucket("B")
    drawn = drawing.of_inventory(inventory(one, other), [])
    (edge,) = drawn.to_json()["edges"]
    assert (edge["origin"], edge["replica"], edge["state"]) == ("KV_A", "KV_B", "republished")
    assert any("republished" in text for line in drawing.text(drawn) for text, _ in line)
