"""The graph of a topology file. [pure]"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kvctl.jetstream.stream_source import sources_of
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.stream_kind import Kind
from kvctl.topology.file.document import Topology
from kvctl.topology.graph.graph import (
    OUTSIDE,
    Edge,
    Graph,
    Node,
    chosen,
    node_id,
    outside,
)
from kvctl.topology.graph.rules import rules_of
from kvctl.topology.model import Aggregate, Mirror, Origin


def of_topology(topology: Topology, names: Collection[str] = ()) -> Graph:
    """Return the graph of a file, with origins that are not in it. Raises BucketNotFound."""
    nodes = {node.id: node for node in _nodes_of_file(topology)}
    edges = []
    replicas: dict[str, Mirror | Aggregate] = {**topology.mirrors, **topology.aggregates}
    for name, replica in replicas.items():
        reader = next(node for node in nodes.values() if node.name == name and node.kind != OUTSIDE)
        for origin, source in zip(_origins(replica), sources_of(replica.to_stream()), strict=True):
            read = _origin_in_file(topology, nodes, reader, origin)
            nodes.setdefault(read.id, read)
            edges.append(Edge(read.id, reader.id, rules_of(source, reader.stream), source=source))
    return chosen(nodes, edges, names, complete=True)


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
            yield Node(node_id(place, stream), name, stream, str(kind), place or None, domain, cluster=item.cluster)


def _origins(replica: Mirror | Aggregate) -> tuple[Origin, ...]:
    return (replica.origin,) if isinstance(replica, Mirror) else replica.origins


def _origin_in_file(topology: Topology, nodes: Mapping[str, Node], reader: Node, origin: Origin) -> Node:
    """Return the node of an origin: the one in the file, unless it is elsewhere."""
    names = {origin.source_stream, origin.stream or origin.bucket}
    external = origin.external
    for node in nodes.values():
        same_place = (node.context or "") == (reader.context or "")
        meant = same_place if external is None else not same_place or node.domain == external.domain
        if meant and {node.stream, node.name} & names and node.kind != OUTSIDE:
            return node
    stream, name = origin.source_stream, origin.stream.removeprefix(STREAM_PREFIX) or origin.bucket
    if external is not None:
        return outside(external, stream, name)
    place = reader.context or ""
    return Node(node_id(place, stream), name, stream, OUTSIDE, reader.context, reader.domain)
