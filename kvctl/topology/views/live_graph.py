"""The graph of live servers. [pure]"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from kvctl.jetstream.stream_info import Source, StreamInfo
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.stream_kind import Kind, bucket_name, kind_of
from kvctl.topology.health.health import ReplicaHealth
from kvctl.topology.model import External
from kvctl.topology.survey.inventory import Inventory, Link, Place, kind_in
from kvctl.topology.views.graph import MISSING, Edge, Graph, Node, chosen, node_id, outside, reach
from kvctl.topology.views.rules import rules_of


def of_inventory(inventory: Inventory, found: Iterable[ReplicaHealth], names: Collection[str] = ()) -> Graph:
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
    return chosen(nodes, edges, names)


def configured(inventory: Inventory) -> tuple[Graph, dict[Edge, Link]]:
    """Return the graph of all streams in view without their health, and the link of each edge."""
    nodes = {node.id: node for place in inventory.places.values() for node in _nodes_of(place)}
    edges = {_edge(nodes, link): link for link in inventory.links}
    return Graph(tuple(nodes.values()), tuple(edges)), edges


def _edge(nodes: dict[str, Node], link: Link, standing: ReplicaHealth | None = None) -> Edge:
    """Return the edge of a link, and add its nodes."""
    replica, origin = nodes_of_link(link)
    for node in (origin, replica):
        nodes.setdefault(node.id, node)
    return Edge(origin.id, replica.id, rules_of(link.source, replica.stream), standing, source=link.source)


def nodes_of_link(link: Link) -> tuple[Node, Node]:
    """Return the replica and the origin of a link."""
    return _node(link.place, link.info), _origin_node(link)


def around(inventory: Inventory, names: Collection[str]) -> Inventory:
    """Return the inventory with only those links that lead to the named streams or from them; all without names."""
    ends = [tuple(node.id for node in nodes_of_link(link)) for link in inventory.links]
    edges = [Edge(origin, replica) for replica, origin in ends]
    start = {node.id for link in inventory.links for node in nodes_of_link(link) if node.name in names}
    kept = reach(start, edges)
    links = [link for link, ends_of in zip(inventory.links, ends, strict=True) if not names or kept.issuperset(ends_of)]
    return Inventory(inventory.places, tuple(links))


def _nodes_of(place: Place) -> list[Node]:
    """Return the buckets, mirrors and aggregates, and unreachable streams with names like theirs."""
    infos = (*place.infos.values(), *place.offline.values())
    found = [_node(place, info) for info in infos if kind_in(place, info) is not None]
    return [*found, *(_unseen(place, stream) for stream in place.unknown)]


def _unseen(place: Place, stream: str) -> Node:
    """Return a stream whose configuration is unknown: it does not exist, or its servers do not answer."""
    name, context, offline = stream.removeprefix(STREAM_PREFIX), place.name or None, stream in place.unreachable
    kind = (Kind.MIRROR if stream in place.clues else Kind.UNKNOWN) if offline else MISSING
    return Node(
        node_id(place.name, stream), name, stream, str(kind), context, place.domain,
        cluster=place.cluster_of(stream), offline=offline,
    )  # fmt: skip


def _node(place: Place, info: StreamInfo) -> Node:
    config, stream = info["config"], info["config"]["name"]
    kind = _kind(info, place)
    return Node(
        node_id(place.name, stream), bucket_name(config, kind), stream,
        str(kind), place.name or None, place.domain,
        cluster=place.cluster_of(stream), offline=stream in place.offline,
    )  # fmt: skip


def _kind(info: StreamInfo, place: Place | None) -> Kind:
    found = kind_in(place, info) if place else kind_of(info["config"])
    return found or (Kind.MIRROR if info["config"].get("mirror") else Kind.STREAM)


def _origin_node(link: Link) -> Node:
    source = Source.parse(link.source)
    stream = source.name
    if link.origin is not None and link.origin_place is not None:
        return _node(link.origin_place, link.origin)
    if not source.api:
        if stream in link.place.offline:
            return _node(link.place, link.place.offline[stream])
        return _unseen(link.place, stream)
    node = outside(External(source.api), stream, stream.removeprefix(STREAM_PREFIX))
    if link.origin is None:
        return node
    return replace(node, kind=str(_kind(link.origin, None)), cluster=_cluster(link.origin))


def _cluster(info: StreamInfo) -> str | None:
    return (info.get("cluster") or {}).get("name") or None
