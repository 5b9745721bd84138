"""Replication as a drawing, of live servers or of a file: as text, as a picture of it, as Mermaid and DOT. [pure]"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from textwrap import wrap
from typing import Any, NamedTuple

from kvctl.jetstream.stream_info import sources_of
from kvctl.kv.resolve import missing
from kvctl.kv.stream_kind import Kind
from kvctl.topology.health.health import Health, ReplicaHealth
from kvctl.topology.model.file import Topology
from kvctl.topology.model.notation import Rules, rules_json, rules_of
from kvctl.topology.model.origins import Origin
from kvctl.topology.plan.change import ResourceChange
from kvctl.topology.plan.desired import DesiredState
from kvctl.topology.plan.location import unseen
from kvctl.topology.survey.graph import MISSING, OUTSIDE, Inventory, Link, Node, Place, node_id, outside, reach

_OTHERS = (Kind.TABLE, Kind.REPOSITORY, Kind.STREAM, Kind.INCOMPLETE)
"""Kinds of nodes that are drawn only with links, or if they are named."""
REPUBLISHED = "republished"
"""State of an edge by which a bucket republishes into another."""
_TONES = {Health.OK: "good", Health.UNCONFIRMED: "doubtful", Health.BEHIND: "doubtful"}


@dataclass(frozen=True, slots=True)
class Edge:
    """Replication from `origin` to `replica`, which are ids of nodes."""

    origin: str
    replica: str
    rules: Rules = ()
    standing: ReplicaHealth | None = None
    """Health of the replica; None if drawn from a file, or if only its origin is known."""
    offline: bool = False
    """True if the replica is known only by what its origin reports, because its servers do not answer."""
    source: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The source as the replica's configuration has it."""
    republished: bool = False
    """True if the origin republishes into the other bucket, which then is not its replica."""

    @property
    def reader(self) -> str:
        """Stream of the replica, with which its id ends."""
        return self.replica.rpartition("/")[2]

    @property
    def words(self) -> list[str]:
        """The rules in display form."""
        return [f"{src} → {dest}" if dest else src for src, dest in self.rules]

    @property
    def tone(self) -> str:
        """`good`, `doubtful`, `bad`, or empty if unknown."""
        if self.republished:
            return "doubtful"
        if self.standing is None:
            return "bad" if self.offline else ""
        return _TONES.get(self.standing.state, "bad")

    @property
    def health(self) -> str:
        """The state in words, with the lag if there is one."""
        if self.republished:
            return REPUBLISHED
        if self.standing is None:
            return str(Health.OFFLINE) if self.offline else ""
        lag = self.standing.lag
        return str(self.standing.state) + (f", lag {lag}" if lag else "")


class Drawing(NamedTuple):
    """Nodes and edges in a stable order, and the buckets without links."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    alone: tuple[str, ...] = ()
    """Names of buckets without links, if they are not drawn."""

    @property
    def groups(self) -> dict[str, list[Node]]:
        """The nodes by location, in words."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(node.where, []).append(node)
        return dict(sorted(found.items()))

    def to_json(self) -> dict[str, Any]:
        """Return the graph for JSON output."""
        edges = [_edge_json(edge) for edge in self.edges]
        states = [str(Health.OFFLINE) if node.offline else None for node in self.nodes]
        nodes = [{**node.to_json(), "state": state} for node, state in zip(self.nodes, states, strict=True)]
        return {"nodes": nodes, "edges": edges}


def of_inventory(inventory: Inventory, found: Iterable[ReplicaHealth], names: Collection[str] = ()) -> Drawing:
    """Return the graph of live servers: all linked nodes, or those that lead to and from the named ones.

    Raises BucketNotFound.
    """
    nodes = {node.id: node for place in inventory.places.values() for node in _nodes_of(place)}
    edges = [_edge(nodes, standing.link, standing) for standing in found]
    for place in inventory.places.values():
        edges += [
            Edge(node_id(place.name, clue.origin), node_id(place.name, stream), source=clue.source, offline=True)
            for stream, clue in place.clues.items()
            if stream not in place.offline
        ]
    for reader, origin, source in inventory.republications():
        ends = node_id(origin[0] or "", origin[1]), node_id(reader[0] or "", reader[1])
        if nodes.keys() >= {*ends}:
            edges.append(Edge(*ends, rules_of(dict(source), reader[1]), source=source, republished=True))
    return _chosen(nodes, edges, names)


def configured(inventory: Inventory) -> tuple[Drawing, dict[Edge, Link]]:
    """Return the graph of all streams in view without their health, and the link of each edge."""
    nodes = {node.id: node for place in inventory.places.values() for node in _nodes_of(place)}
    edges = {_edge(nodes, link): link for link in inventory.links}
    return Drawing(tuple(nodes.values()), tuple(edges)), edges


def of_topology(topology: Topology, names: Collection[str] = ()) -> Drawing:
    """Return the graph of a file, with origins that are not in it. Raises BucketNotFound."""
    locator = unseen(topology)
    changes = DesiredState(topology, locator).all()
    nodes = {node.id: node for node in (_node_of(change, locator.places[change.place].domain) for change in changes)}
    edges = []
    for change in changes:
        reader = nodes[node_id(*change.where)]
        for item, source in zip(change.located, sources_of(change.config), strict=True):
            origin = nodes[node_id(*item.where)] if item.where else _out_of_view(reader, item.origin)
            nodes.setdefault(origin.id, origin)
            edges.append(Edge(origin.id, reader.id, rules_of(source, reader.stream), source=source))
    return _chosen(nodes, edges, names, complete=True)


def _edge(nodes: dict[str, Node], link: Link, standing: ReplicaHealth | None = None) -> Edge:
    """Return the edge of a link, and add its nodes."""
    origin, replica = link.origin_node, link.node
    for node in (origin, replica):
        nodes.setdefault(node.id, node)
    return Edge(origin.id, replica.id, rules_of(link.source, replica.stream), standing, source=link.source)


def _nodes_of(place: Place) -> list[Node]:
    """Return the buckets, mirrors and aggregates, and unreachable streams with names like theirs."""
    return [*(place.node(stream) for stream in place.known if place.kind(stream)), *map(place.node, place.unknown)]


def _node_of(change: ResourceChange, domain: str | None) -> Node:
    place, stream = change.where
    cluster = (change.config.get("placement") or {}).get("cluster")
    return Node(node_id(place, stream), change.name, stream, str(change.kind), place or None, domain, cluster=cluster)


def _out_of_view(reader: Node, origin: Origin) -> Node:
    """Return the node of an origin that is not in the file."""
    stream, name = origin.source_stream, origin.name
    if origin.external is not None:
        return outside(origin.external, stream, name)
    return Node(node_id(reader.context or "", stream), name, stream, OUTSIDE, reader.context, reader.domain)


def _chosen(nodes: Mapping[str, Node], edges: list[Edge], names: Collection[str], *, complete: bool = False) -> Drawing:
    """Return the graph of linked nodes, of all (`complete`), or of those that lead to the names and from them.

    Raises BucketNotFound.
    """
    linked = {end for edge in edges for end in (edge.origin, edge.replica)}
    nodes = {
        at: node for at, node in nodes.items() if node.kind not in _OTHERS or node.id in linked or node.name in names
    }
    silent = {node.id for node in nodes.values() if node.kind == Kind.UNKNOWN}  # they may be replicas
    kept, alone = set(nodes) if complete or not edges else linked | silent, set(nodes) - linked
    if names:
        pairs = [(edge.origin, edge.replica) for edge in edges]
        kept, alone = reach({_named(nodes, name) for name in names}, pairs), set()
    order = sorted((nodes[at] for at in kept), key=lambda node: (node.where, node.name, node.id))
    inside = sorted(
        (edge for edge in edges if {edge.origin, edge.replica} <= kept),
        key=lambda edge: (nodes[edge.origin].name, nodes[edge.replica].name, edge.origin, edge.replica, edge.rules),
    )
    return Drawing(tuple(order), tuple(inside), tuple(sorted({nodes[at].name for at in alone - kept})))


def _named(nodes: Mapping[str, Node], name: str) -> str:
    found = next((node.id for node in nodes.values() if node.name == name), None)
    if found is None:
        raise missing(name, [node.name for node in nodes.values()])
    return found


def _edge_json(edge: Edge) -> dict[str, Any]:
    standing = edge.standing
    known: dict[str, Any] = dict.fromkeys(("state", "evidence", "lag", "last_seen", "error"))
    if standing is not None:
        known = {"state": str(standing.state), "evidence": standing.evidence or None, "lag": standing.lag}
        known |= {"last_seen": standing.last_seen, "error": standing.link.upstream.error}
    if edge.republished:
        known["state"] = REPUBLISHED
    if edge.offline:
        known["state"] = str(Health.OFFLINE)
    return {"origin": edge.origin, "replica": edge.replica, **rules_json(edge.source, edge.reader), **known}


Span = tuple[str, str]
"""Text and its style: `bold dim red green yellow`, or empty."""
Line = list[Span]

COLORS = {"good": "#1a7f37", "doubtful": "#9a6700", "bad": "#cf222e", "": "#57606a"}
"""Colors of edges, readable on white and on dark pages."""

STYLES = {"good": "green", "doubtful": "yellow", "bad": "red", "": ""}

WIDTH = 80
_ALIGNED_TO = 56
"""Columns before the states, unless lines are longer."""
_CHARACTER_PX, _LINE_PX, _MARGIN_PX = 8.4, 18, 16
_PICTURE_STYLE = f"""\
  text {{ font: 14px 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }}
  .bold {{ font-weight: bold }} .dim {{ fill: {COLORS[""]} }}
  .green {{ fill: {COLORS["good"]} }} .yellow {{ fill: {COLORS["doubtful"]} }} .red {{ fill: {COLORS["bad"]} }}"""
# Characters that XML cannot hold, even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNBROKEN: Any = {"break_long_words": False, "break_on_hyphens": False}


class _Row(NamedTuple):
    """A line, and the state after it, aligned with others."""

    spans: Line
    health: Span = ("", "")

    @property
    def length(self) -> int:
        return sum(len(text) for text, _ in self.spans)


def text(graph: Drawing) -> list[Line]:
    """Return the graph as lines of spans. A node with several origins appears under each, its own readers only once."""
    several = len(graph.groups) > 1
    rows: list[_Row] = []
    for tree in _trees(graph, several=several):
        rows += [*([_Row([])] if rows else []), *tree]
    lines = _aligned(rows)
    if graph.alone:
        names = wrap(", ".join(graph.alone), WIDTH, initial_indent="Alone: ", subsequent_indent="       ", **_UNBROKEN)
        lines += [*([[]] if lines else []), *([(line, "dim")] for line in names)]
    return lines


def svg(graph: Drawing) -> str:
    """Return the same lines as a picture for a runbook: self-contained, on white."""
    lines = text(graph)
    widths = [sum(len(words) for words, _ in line) * _CHARACTER_PX for line in lines]
    width, height = max(widths, default=0) + 2 * _MARGIN_PX, len(lines) * _LINE_PX + 2 * _MARGIN_PX
    rows = [
        f'<text x="{_MARGIN_PX}" y="{_MARGIN_PX + _LINE_PX * number - 4}" textLength="{length:g}">{_drawn(line)}</text>'
        for number, (line, length) in enumerate(zip(lines, widths, strict=True), 1)
        if line
    ]
    size = f'width="{width:g}" height="{height}"'
    root = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img" xml:space="preserve"'
    style = f"<title>Topology</title>\n<style>\n{_PICTURE_STYLE}\n</style>"
    return "\n".join([f"<svg {root} {size}>", style, f'<rect {size} fill="#ffffff"/>', *rows, "</svg>", ""])


def _drawn(line: Line) -> str:
    spans = ((escape(_NOT_XML.sub("\ufffd", words)), style) for words, style in line if words)
    return "".join(f'<tspan class="{style}">{words}</tspan>' if style else words for words, style in spans)


def _trees(graph: Drawing, *, several: bool) -> Iterator[list[_Row]]:
    shown: set[str] = set()
    replicas = {edge.replica for edge in graph.edges}
    readers: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        readers.setdefault(edge.origin, []).append(edge)
    nodes = {node.id: node for node in graph.nodes}
    roots = sorted((node for node in graph.nodes if node.id not in replicas), key=lambda node: node.name)
    # Nodes that only a cycle leads to come last, each cycle once.
    for root in [*roots, *graph.nodes]:
        if root.id not in shown:
            shown.add(root.id)
            yield [_Row(title(root, several)), *_below(nodes, readers, root, shown, several)]


def _below(
    nodes: Mapping[str, Node], readers: Mapping[str, list[Edge]], root: Node, shown: set[str], several: bool
) -> list[_Row]:
    """Return the lines of a node's readers, and of theirs."""
    rows: list[_Row] = []
    waiting = [(edge, "", edge is readers[root.id][-1]) for edge in reversed(readers.get(root.id, ()))]
    while waiting:
        edge, margin, last = waiting.pop()
        branch, inner = ("└─▶ ", "    ") if last else ("├─▶ ", "│   ")
        replica, again = nodes[edge.replica], edge.replica in shown
        above = [(" (above)", "dim")] if again else []
        rows.append(
            _Row([(margin + branch, "dim"), *title(replica, several), *above], (edge.health, STYLES[edge.tone]))
        )
        indent = f"{margin}{inner}  "
        details = [(words, "") for words in edge.words]
        details += [(words, STYLES[edge.tone]) for words in _evidence(edge, WIDTH - len(indent))]
        rows += [_Row([(indent, "dim"), span]) for span in details]
        if not again:
            shown.add(replica.id)
            below = margin + inner if len(margin) < _DEEPEST else margin
            further = readers.get(replica.id, [])
            waiting += [(other, below, other is further[-1]) for other in reversed(further)]
    return rows


_DEEPEST = 400
"""Characters of indentation after which it grows no more: else a chain is drawn by the square of its length."""


def _evidence(edge: Edge, width: int) -> list[str]:
    """Return the evidence of the state, if the line itself does not show it."""
    if edge.standing is None or edge.standing.state is Health.MISSING_ORIGIN:
        return []
    return wrap(edge.standing.evidence, max(width, 20), **_UNBROKEN)


def title(node: Node, several: bool) -> Line:
    """Return a node's name and kind, with its place if there are several."""
    where = f", {node.where}" if several and node.where else ""
    return [(node.name, "bold"), (f"  {node.words}{where}", "red" if node.offline or node.kind == MISSING else "dim")]


def _aligned(rows: list[_Row]) -> list[Line]:
    """Return the lines with aligned states, unless they are too long."""
    column = max((row.length for row in rows if row.health[0] and row.length <= _ALIGNED_TO), default=0)
    return [
        [*row.spans, (" " * (max(column - row.length, 0) + 2), ""), row.health] if row.health[0] else row.spans
        for row in rows
    ]


_SHAPES = {"bucket": ("[(", ")]"), "mirror": ("([", "])"), "aggregate": ("[[", "]]")}
_DOT_SHAPES = {"bucket": "cylinder", "mirror": "box", "aggregate": "component"}
# Letters and digits, and characters without a meaning in Mermaid, Markdown and HTML.
_MERMAID_SAFE = re.compile(r"[^\W_]|(?<=[^\W_])_(?=[^\W_])|[ .,:/$=()→-]")


def mermaid(graph: Drawing) -> str:
    """Return a flow chart as GitHub and GitLab draw it."""
    ids = {node.id: f"n{number}" for number, node in enumerate(graph.nodes, 1)}
    lines = ["flowchart LR"]
    for number, (where, nodes) in enumerate(graph.groups.items(), 1):
        boxed = bool(where) and len(graph.groups) > 1
        lines += [f'  subgraph g{number}["{_entities(where)}"]'] if boxed else []
        lines += [f"{'    ' if boxed else '  '}{ids[node.id]}{_shape(node)}" for node in nodes]
        lines += ["  end"] if boxed else []
    for edge in graph.edges:
        label = "<br/>".join(_entities(text) for text in _label(edge))
        lines.append(f"  {ids[edge.origin]} -->" + (f'|"{label}"| ' if label else " ") + ids[edge.replica])
    lines += [
        f"  linkStyle {number} stroke:{COLORS[edge.tone]}" for number, edge in enumerate(graph.edges) if edge.tone
    ]
    absent = [ids[node.id] for node in graph.nodes if node.absent]
    if absent:
        lines += ["  classDef absent stroke-dasharray:4", f"  class {','.join(absent)} absent"]
    return "\n".join(lines) + "\n"


def dot(graph: Drawing) -> str:
    """Return a directed graph for Graphviz: `dot -Tpdf`."""
    ids = {node.id: f"n{number}" for number, node in enumerate(graph.nodes, 1)}
    lines = ["digraph topology {", *_DOT_STYLE]
    for number, (where, nodes) in enumerate(graph.groups.items(), 1):
        boxed = bool(where) and len(graph.groups) > 1
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(where)}"] if boxed else []
        margin = "    " if boxed else "  "
        lines += [f"{margin}{ids[node.id]} [{_dot_node(node)}]" for node in nodes]
        lines += ["  }"] if boxed else []
    for edge in graph.edges:
        color = COLORS[edge.tone]
        attributes = f'label={_quoted(*_label(edge))} color="{color}" fontcolor="{color}"'
        lines.append(f"  {ids[edge.origin]} -> {ids[edge.replica]} [{attributes}]")
    return "\n".join([*lines, "}"]) + "\n"


_DOT_STYLE = (
    "  rankdir=LR",
    '  graph [fontname="Helvetica" fontsize=11 style="rounded" color="#8c959f" ranksep=1.2]',
    '  node [fontname="Helvetica" fontsize=11 margin="0.2,0.1"]',
    '  edge [fontname="Helvetica" fontsize=10]',
)


def _label(edge: Edge) -> Iterator[str]:
    yield from edge.words
    if edge.health and edge.health != "ok":
        yield edge.health


def _shape(node: Node) -> str:
    begin, end = _SHAPES.get(node.kind, ("[", "]"))
    return f'{begin}"{_entities(node.name)}<br/>{_entities(node.words)}"{end}'


def _entities(text: str) -> str:
    """Escape everything that could have a meaning as Mermaid's character number, `#35;`."""
    safe = {match.start() for match in _MERMAID_SAFE.finditer(text)}
    return "".join(char if at in safe else f"#{ord(char)};" for at, char in enumerate(text))


def _dot_node(node: Node) -> str:
    style = ' style="dashed"' if node.absent else ""
    return f"label={_quoted(node.name, node.words)} shape={_DOT_SHAPES.get(node.kind, 'box')}{style}"


def _quoted(*lines: str) -> str:
    """Return lines of text as a quoted string, with quotes, backslashes and HTML entities escaped for Graphviz."""
    harmless = (re.sub(r"[\x00-\x1f\x7f]", "\ufffd", line) for line in lines)
    escaped = (line.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for line in harmless)
    return '"' + "\\n".join(escaped) + '"'
