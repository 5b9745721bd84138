"""Replication as a drawing: nodes and edges of live servers, or of a topology file. [pure]"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
from kvctl.topology.survey.graph import OUTSIDE, Inventory, Link, Node, Place, node_id, outside, reach

_OTHERS = (Kind.TABLE, Kind.REPOSITORY, Kind.STREAM, Kind.INCOMPLETE)
"""Kinds of nodes that are drawn only with links, or if they are named."""
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
        if self.standing is None:
            return "bad" if self.offline else ""
        return _TONES.get(self.standing.state, "bad")

    @property
    def health(self) -> str:
        """The state in words, with the lag if there is one."""
        if self.standing is None:
            return str(Health.OFFLINE) if self.offline else ""
        lag = self.standing.lag
        return str(self.standing.state) + (f", lag {lag}" if lag else "")


@dataclass(frozen=True, slots=True)
class Drawing:
    """Nodes and edges in a stable order, and the buckets without links."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    alone: tuple[str, ...] = field(default=())
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
    if edge.offline:
        known["state"] = str(Health.OFFLINE)
    return {"origin": edge.origin, "replica": edge.replica, **rules_json(edge.source, edge.reader), **known}
