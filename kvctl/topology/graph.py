"""What reads from what, as nodes and edges: of live servers, or of a file. [pure]"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvctl.errors import BucketNotFound
from kvctl.kv.kinds import Kind, bucket_name, kind_of
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.topology.document import Topology
from kvctl.topology.model import Aggregate, External, Mirror, Origin, dollars
from kvctl.topology.standing import Standing, State
from kvctl.topology.subjects import Transform, parse
from kvctl.topology.world import Link, Place, StreamInfo, World, reads

OUTSIDE, MISSING = "outside", "missing"
"""Kinds of nodes that are no streams in view: what cannot be looked at from here, and what does not exist."""

ARROW = "→"

_TONES = {State.OK: "good", State.UNCONFIRMED: "doubtful", State.BEHIND: "doubtful"}


@dataclass(frozen=True, slots=True)
class Node:
    """A bucket, mirror, aggregate or other stream."""

    id: str
    name: str
    """As users type it."""
    stream: str
    kind: str
    """A Kind, OUTSIDE or MISSING."""
    context: str | None = None
    """As a topology file calls it."""
    domain: str | None = None
    api: str | None = None
    """Prefix of the account that it is in, where that is another one."""
    cluster: str | None = None

    @property
    def where(self) -> str:
        """Where it is, in words; empty where there is nothing to say."""
        domain = self.domain and self.domain != self.context and f"domain {self.domain}"
        account = self.api and f"account behind {self.api}"
        cluster = self.cluster and f"cluster {self.cluster}"
        return ", ".join(part for part in (self.context, domain, account, cluster) if part)


@dataclass(frozen=True, slots=True)
class Edge:
    """A replica reading from an origin; data flows from `origin` to `replica`, which are ids of nodes."""

    origin: str
    replica: str
    rules: tuple[tuple[str, str], ...] = ()
    """Filters, and where their keys land: empty where they keep their names. Without any, all keys come as they are."""
    standing: Standing | None = None
    """How the replica stands; None for what is drawn from a file."""

    @property
    def words(self) -> list[str]:
        """The rules as people read them."""
        return [f"{src} {ARROW} {dest}" if dest else src for src, dest in self.rules]

    @property
    def tone(self) -> str:
        """`good`, `doubtful`, `bad`, or empty where nothing is known."""
        return _TONES.get(self.standing.state, "bad") if self.standing else ""

    @property
    def health(self) -> str:
        """The state in words, with the lag where there is one."""
        if self.standing is None:
            return ""
        lag = self.standing.upstream.lag
        return str(self.standing.state) + (f", lag {lag}" if lag else "")


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes and edges in a steady order, and the buckets that have nothing to do with each other."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    alone: tuple[str, ...] = field(default=())
    """Names of what replicates nothing and is not replicated, where that is not drawn."""

    @property
    def groups(self) -> dict[str, list[Node]]:
        """The nodes by where they are, in words."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(node.where, []).append(node)
        return dict(sorted(found.items()))

    def to_json(self) -> dict[str, Any]:
        """As JSON output shows it."""
        return {"nodes": [_node_json(node) for node in self.nodes], "edges": [_edge_json(edge) for edge in self.edges]}


def nodes_of_link(link: Link) -> tuple[Node, Node]:
    """The replica and the origin of a link."""
    return _node(link.place, link.info), _origin_node(link)


def around(world: World, names: Collection[str]) -> World:
    """The same with those links alone that lead to the named streams or from them; all without names."""
    ends = [tuple(node.id for node in nodes_of_link(link)) for link in world.links]
    edges = [Edge(origin, replica) for replica, origin in ends]
    start = {node.id for link in world.links for node in nodes_of_link(link) if node.name in names}
    kept = _around(start, edges)
    links = [link for link, ends_of in zip(world.links, ends, strict=True) if not names or kept.issuperset(ends_of)]
    return World(world.places, tuple(links))


def of_world(world: World, standings: Iterable[Standing], names: Collection[str] = ()) -> Graph:
    """The graph of live servers: what replicates or is replicated, or what leads to and from the named ones alone.

    Raises BucketNotFound.
    """
    nodes = {node.id: node for place in world.places.values() for node in _nodes_of(place)}
    edges = []
    for standing in standings:
        replica, origin = nodes_of_link(standing.link)
        for node in (origin, replica):
            nodes.setdefault(node.id, node)
        edges.append(Edge(origin.id, replica.id, rules_of(standing.link.source), standing))
    return _chosen(nodes, edges, names)


def of_topology(topology: Topology, names: Collection[str] = ()) -> Graph:
    """The graph of a file: all that stands in it, and the origins that do not. Raises BucketNotFound."""
    nodes = {node.id: node for node in _nodes_of_file(topology)}
    edges = []
    replicas: dict[str, Mirror | Aggregate] = {**topology.mirrors, **topology.aggregates}
    for name, replica in replicas.items():
        reader = next(node for node in nodes.values() if node.name == name and node.kind != OUTSIDE)
        for origin, source in zip(_origins(replica), reads({"config": replica.to_stream()}), strict=True):
            read = _origin_in_file(topology, nodes, reader, origin)
            nodes.setdefault(read.id, read)
            edges.append(Edge(read.id, reader.id, rules_of(source)))
    return _chosen(nodes, edges, names, whole=True)


def rules_of(source: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """A source's filters and destinations in keys; none where all keys keep their names."""
    rules = parse(source.get("subject_transforms") or ())
    if source.get("filter_subject"):
        rules.append(Transform(source["filter_subject"], ""))
    found = []
    for rule in rules:
        src, dest = _keys(rule.src), dollars(_keys(rule.dest or rule.src))
        found.append((src, "" if _plain(src) == dest else dest))
    return () if found == [(">", "")] else tuple(found)


def rules_json(rules: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """The rules as JSON output shows them."""
    return [{"keys": src, "land": dest or _plain(src)} for src, dest in rules]


def _chosen(nodes: Mapping[str, Node], edges: list[Edge], names: Collection[str], *, whole: bool = False) -> Graph:
    linked = {end for edge in edges for end in (edge.origin, edge.replica)}
    kept, alone = set(nodes) if whole or not edges else linked, set(nodes) - linked
    if names:
        kept, alone = _around({_named(nodes, name) for name in names}, edges), set()
    order = sorted((nodes[at] for at in kept), key=lambda node: (node.where, node.name, node.id))
    inside = sorted(
        (edge for edge in edges if {edge.origin, edge.replica} <= kept),
        key=lambda edge: (nodes[edge.origin].name, nodes[edge.replica].name, edge.origin, edge.replica, edge.rules),
    )
    return Graph(tuple(order), tuple(inside), tuple(sorted(nodes[at].name for at in alone - kept)))


def _around(start: set[str], edges: Iterable[Edge]) -> set[str]:
    """What leads to these nodes, and what they lead to."""
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
        raise BucketNotFound(f"Bucket `{name}` does not exist", hint="`kvctl bucket ls` lists those that do")
    return found


# -- live streams --------------------------------------------------------------------------------------------


def _nodes_of(place: Place) -> list[Node]:
    """What is a bucket, a mirror or an aggregate, and what cannot be looked at but is named like one."""
    known = {stream: info["config"] for stream, info in place.infos.items()}
    found = [_node(place, info) for info in place.infos.values() if kind_of(info["config"], known) is not None]
    hidden = [
        Node(_id(place.name, stream), stream.removeprefix(STREAM_PREFIX), stream, Kind.UNREACHABLE, place.name or None)
        for stream in place.unreachable
        if stream.startswith(STREAM_PREFIX)
    ]
    return [*found, *(replace(node, domain=place.domain) for node in hidden)]


def _node(place: Place, info: StreamInfo) -> Node:
    config, stream = info["config"], info["config"]["name"]
    kind = _kind(info, place)
    return Node(
        _id(place.name, stream), bucket_name(config, kind), stream, str(kind), place.name or None, place.domain,
        cluster=_cluster(info),
    )  # fmt: skip


def _kind(info: StreamInfo, place: Place | None) -> Kind:
    known = {stream: other["config"] for stream, other in place.infos.items()} if place else {}
    found = kind_of(info["config"], known)
    return found or (Kind.MIRROR if info["config"].get("mirror") else Kind.STREAM)


def _origin_node(link: Link) -> Node:
    stream = link.source["name"]
    external = link.source.get("external") or {}
    name = stream.removeprefix(STREAM_PREFIX)
    if link.origin is not None and link.origin_place is not None:
        return _node(link.origin_place, link.origin)
    if not external.get("api"):
        kind = Kind.UNREACHABLE if stream in link.place.unreachable else MISSING
        return Node(_id(link.place.name, stream), name, stream, str(kind), link.place.name or None, link.place.domain)
    domain = External(external["api"]).domain
    node = Node(
        _id(domain or external["api"], stream), name, stream, OUTSIDE, domain=domain,
        api=None if domain else external["api"],
    )  # fmt: skip
    if link.origin is None:
        return node
    return replace(node, kind=str(_kind(link.origin, None)), cluster=_cluster(link.origin))


def _cluster(info: StreamInfo) -> str | None:
    return (info.get("cluster") or {}).get("name") or None


def _id(place: str, stream: str) -> str:
    return f"{place}/{stream}" if place else stream


def _keys(subject: str) -> str:
    """A subject of a bucket as its keys; others stay whole."""
    return subject.split(".", 2)[2] if subject.startswith(SUBJECT_PREFIX) and subject.count(".") > 1 else subject


def _plain(src: str) -> str:
    """A filter as the destination under which its keys keep their names."""
    number = 0
    tokens = []
    for token in src.split("."):
        number += token == "*"
        tokens.append(f"${number}" if token == "*" else token)
    return ".".join(tokens)


# -- files ---------------------------------------------------------------------------------------------------


def _nodes_of_file(topology: Topology) -> Iterable[Node]:
    for kind, found in (
        (Kind.BUCKET, topology.buckets),
        (Kind.AGGREGATE, topology.aggregates),
        (Kind.MIRROR, topology.mirrors),
    ):
        for name, item in found.items():
            place = topology.place_of(name)
            stream = name if kind is Kind.MIRROR else STREAM_PREFIX + name
            domain = topology.contexts.get(place, {}).get("domain")
            yield Node(_id(place, stream), name, stream, str(kind), place or None, domain, cluster=item.cluster)


def _origins(replica: Mirror | Aggregate) -> tuple[Origin, ...]:
    return (replica.origin,) if isinstance(replica, Mirror) else replica.origins


def _origin_in_file(topology: Topology, nodes: Mapping[str, Node], reader: Node, origin: Origin) -> Node:
    """The node that is meant: what stands in the file, unless it is said to be elsewhere than that."""
    names = {origin.source_stream, origin.stream or origin.bucket}
    external = origin.external
    for node in nodes.values():
        same_place = (node.context or "") == (reader.context or "")
        meant = same_place if external is None else not same_place or node.domain == external.domain
        if meant and {node.stream, node.name} & names and node.kind != OUTSIDE:
            return node
    stream, name = origin.source_stream, origin.stream.removeprefix(STREAM_PREFIX) or origin.bucket
    if external is None:
        place = reader.context or ""
        return Node(_id(place, stream), name, stream, OUTSIDE, reader.context, reader.domain)
    domain = external.domain
    return Node(_id(domain or external.api, stream), name, stream, OUTSIDE, domain=domain,
                api=None if domain else external.api)  # fmt: skip


# -- JSON ----------------------------------------------------------------------------------------------------


def _node_json(node: Node) -> dict[str, Any]:
    names = ("id", "name", "stream", "kind", "context", "domain", "api", "cluster")
    return {name: getattr(node, name) for name in names}


def _edge_json(edge: Edge) -> dict[str, Any]:
    standing = edge.standing
    known = {
        "state": str(standing.state),
        "evidence": standing.evidence or None,
        "lag": standing.upstream.lag,
        "active": standing.upstream.active,
        "error": standing.upstream.error,
    } if standing else dict.fromkeys(("state", "evidence", "lag", "active", "error"))  # fmt: skip
    return {"origin": edge.origin, "replica": edge.replica, "rules": rules_json(edge.rules), **known}
