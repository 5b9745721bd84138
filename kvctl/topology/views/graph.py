"""Replication as nodes and edges. [pure]"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvctl.kv.resolve import missing
from kvctl.kv.stream_kind import Kind
from kvctl.topology.health.health import Health, ReplicaHealth
from kvctl.topology.model import External
from kvctl.topology.views.rules import Rules, rules_json

OUTSIDE, MISSING = "outside", "missing"
"""Kinds of nodes that are not streams in view: not readable from here, or not existing."""

_OTHERS = (Kind.TABLE, Kind.REPOSITORY, Kind.STREAM, Kind.INCOMPLETE)
"""Kinds of nodes that are drawn only with links, or if they are named."""
_KINDS = {OUTSIDE: "out of view", MISSING: "does not exist", str(Kind.UNKNOWN): ""}
_TONES = {Health.OK: "good", Health.UNCONFIRMED: "doubtful", Health.BEHIND: "doubtful"}


@dataclass(frozen=True, slots=True)
class Node:
    """A bucket, mirror, aggregate or other stream."""

    id: str
    name: str
    """Name, as users type it."""
    stream: str
    kind: str
    """A Kind, OUTSIDE or MISSING."""
    context: str | None = None
    """Name of its context in a topology file."""
    domain: str | None = None
    api: str | None = None
    """API prefix of its account, if it is another one."""
    cluster: str | None = None
    offline: bool = False
    """True if its servers do not answer."""

    @property
    def words(self) -> str:
        """Its kind in words, and whether it is offline."""
        kind = _KINDS.get(self.kind, self.kind)
        return ", ".join(part for part in (kind, "offline" if self.offline else "") if part)

    @property
    def absent(self) -> bool:
        """True if nothing but its name and configuration can be read."""
        return self.offline or self.kind in (OUTSIDE, MISSING)

    @property
    def where(self) -> str:
        """Location in words; may be empty."""
        context = self.context and f"context {self.context}"
        domain = self.domain and self.domain != self.context and f"domain {self.domain}"
        account = self.api and f"account behind {self.api}"
        cluster = self.cluster and f"cluster {self.cluster}"
        return ", ".join(part for part in (context, domain, account, cluster) if part)


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
class Graph:
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
        streams = {node.id: node.stream for node in self.nodes}
        edges = [_edge_json(edge, streams[edge.replica]) for edge in self.edges]
        states = [str(Health.OFFLINE) if node.offline else None for node in self.nodes]
        nodes = [{**node_json(node), "state": state} for node, state in zip(self.nodes, states, strict=True)]
        return {"nodes": nodes, "edges": edges}


def outside(external: External, stream: str, name: str) -> Node:
    """Return the node of a stream in another domain or account."""
    domain = external.domain
    where = domain or external.api
    return Node(node_id(where, stream), name, stream, OUTSIDE, domain=domain, api=None if domain else external.api)


def node_id(place: str, stream: str) -> str:
    """Return the id of a stream, unique among streams of its name elsewhere."""
    return f"{place}/{stream}" if place else stream


def chosen(nodes: Mapping[str, Node], edges: list[Edge], names: Collection[str], *, complete: bool = False) -> Graph:
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
        kept, alone = reach({_named(nodes, name) for name in names}, edges), set()
    order = sorted((nodes[at] for at in kept), key=lambda node: (node.where, node.name, node.id))
    inside = sorted(
        (edge for edge in edges if {edge.origin, edge.replica} <= kept),
        key=lambda edge: (nodes[edge.origin].name, nodes[edge.replica].name, edge.origin, edge.replica, edge.rules),
    )
    return Graph(tuple(order), tuple(inside), tuple(sorted({nodes[at].name for at in alone - kept})))


def reach(start: set[str], edges: Iterable[Edge]) -> set[str]:
    """Return these nodes, those that lead to them, and those that they lead to."""
    found = set(start)
    for here, there in (("replica", "origin"), ("origin", "replica")):
        waiting = list(start)
        while waiting:
            at = waiting.pop()
            more = {getattr(edge, there) for edge in edges if getattr(edge, here) == at} - found
            found |= more
            waiting += more
    return found


def _named(nodes: Mapping[str, Node], name: str) -> str:
    found = next((node.id for node in nodes.values() if node.name == name), None)
    if found is None:
        raise missing(name, [node.name for node in nodes.values()])
    return found


def node_json(node: Node) -> dict[str, Any]:
    """Return the JSON object of a node."""
    names = ("id", "name", "stream", "kind", "context", "domain", "api", "cluster")
    return {name: getattr(node, name) for name in names}


def _edge_json(edge: Edge, reader: str) -> dict[str, Any]:
    standing = edge.standing
    known = {
        "state": str(standing.state),
        "evidence": standing.evidence or None,
        "lag": standing.lag,
        "last_seen": standing.last_seen,
        "error": standing.upstream.error,
    } if standing else dict.fromkeys(("state", "evidence", "lag", "last_seen", "error"))  # fmt: skip
    if edge.offline:
        known["state"] = str(Health.OFFLINE)
    return {"origin": edge.origin, "replica": edge.replica, **rules_json(edge.source, reader), **known}
