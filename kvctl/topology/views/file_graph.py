"""The graph of a topology file. [pure]"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.stream_kind import Kind
from kvctl.topology.file.document import Topology
from kvctl.topology.model import Aggregate, Mirror, Origin
from kvctl.topology.plan.origin_place import unseen
from kvctl.topology.views.graph import OUTSIDE, Edge, Graph, Node, chosen, node_id, outside
from kvctl.topology.views.rules import rules_of


def of_topology(topology: Topology, names: Collection[str] = ()) -> Graph:
    """Return the graph of a file, with origins that are not in it. Raises BucketNotFound."""
    nodes = {node.id: node for node in _nodes_of_file(topology)}
    edges = []
    locator = unseen(topology)
    replicas: dict[str, Mirror | Aggregate] = {**topology.mirrors, **topology.aggregates}
    for name, replica in replicas.items():
        reader = nodes[node_id(*locator.where(name))]
        for origin in (replica.origin,) if isinstance(replica, Mirror) else replica.origins:
            found = locator.locate(reader.context or "", origin)
            read = nodes[node_id(*found.where)] if found.where else _out_of_view(reader, found.origin)
            nodes.setdefault(read.id, read)
            source = found.origin.to_mirror() if isinstance(replica, Mirror) else found.origin.to_source(name)
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


def _out_of_view(reader: Node, origin: Origin) -> Node:
    """Return the node of an origin that is not in the file."""
    stream, name = origin.source_stream, origin.stream.removeprefix(STREAM_PREFIX) or origin.bucket
    if origin.external is not None:
        return outside(origin.external, stream, name)
    return Node(node_id(reader.context or "", stream), name, stream, OUTSIDE, reader.context, reader.domain)
