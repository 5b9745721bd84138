"""The way of one key through a graph of replication, forwards and backwards. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.topology.model.subjects import KeyMapping, UnknownTransform
from kvctl.topology.survey.graph import Node
from kvctl.topology.views.drawing import Edge, Graph

MAX_STOPS = 10_000
"""Stops of one trace in each direction; their number can grow exponentially with the streams."""
MAX_MIRRORS = 8
"""Mirrors that are followed to the bucket whose keys they hold."""

ABOVE, CYCLE, LIMIT = "above", "cycle", "limit"
"""Reasons why a way ends: its rest is shown elsewhere, it returns to a stream, or the trace is too large."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A stream on the way of a key."""

    node: Node
    subject: str | None
    """The key's subject in the stream; backwards a filter if several keys land in one place. None: filtered out."""
    edges: tuple[Edge, ...] = ()
    """The replication between this stop and the one before; several if none of them takes the key."""
    unknown: str = ""
    """Reason why it cannot be predicted whether the key comes here."""
    end: str = ""
    """Reason why the way is not followed from here on; empty if it is."""
    onward: tuple[Stop, ...] = ()


Step = Callable[[Graph, Node, str], list[Stop]]
"""Function from a subject in a stream to the next stops."""


def replicas(graph: Graph, node: Node, subject: str) -> list[Stop]:
    """Return the replicas of a stream, each with the place where the subject lands."""
    nodes = {other.id: other for other in graph.nodes}
    found: dict[str, list[Stop]] = {}
    for edge in graph.edges:
        if edge.origin == node.id:
            found.setdefault(edge.replica, []).append(_landed(nodes[edge.replica], edge, subject))
    return [stop for name in sorted(found, key=lambda id: nodes[id].name) for stop in _taken(found[name])]


def origins(graph: Graph, node: Node, subject: str) -> list[Stop]:
    """Return the streams that a subject, or the subjects of a filter, may have come from."""
    nodes = {other.id: other for other in graph.nodes}
    stops = []
    for edge in graph.edges:
        if edge.replica == node.id:
            try:
                sources = KeyMapping.of(dict(edge.source)).origins(subject)
            except UnknownTransform as error:
                stops.append(Stop(nodes[edge.origin], None, (edge,), unknown=error.message))
            else:
                stops += [Stop(nodes[edge.origin], source, (edge,)) for source in sources]
    return stops


def follow(graph: Graph, node: Node, subject: str, step: Step) -> tuple[Stop, ...]:
    """Return all stops that lead from a subject in a stream, each stream's own only once."""
    return _Follower(graph, step).stops(node, subject, (node.id,))


def subject_of(graph: Graph, node: Node, key: str) -> str:
    """Return the subject under which a stream holds a key."""
    return f"{SUBJECT_PREFIX}{key_space(graph, node)}.{key}"


def key_of(graph: Graph, node: Node, subject: str) -> str | None:
    """Return the key by which clients find a subject in a stream; None if they do not."""
    head = f"{SUBJECT_PREFIX}{key_space(graph, node)}."
    return subject.removeprefix(head) if subject.startswith(head) else None


def key_space(graph: Graph, node: Node) -> str:
    """Return the bucket under whose name a stream's keys are stored: for a mirror, that of its origin."""
    nodes = {other.id: other for other in graph.nodes}
    for _ in range(MAX_MIRRORS):
        origin = next((edge.origin for edge in graph.edges if edge.replica == node.id), None)
        if origin is None or (node.stream.startswith(STREAM_PREFIX) and node.kind != "mirror"):
            break
        node = nodes[origin]
    return node.stream.removeprefix(STREAM_PREFIX)


def _landed(node: Node, edge: Edge, subject: str) -> Stop:
    try:
        landed = KeyMapping.of(dict(edge.source)).land(subject.encode("utf-8", "surrogateescape"))
    except UnknownTransform as error:
        return Stop(node, None, (edge,), unknown=error.message)
    return Stop(node, None if landed is None else landed.decode("utf-8", "surrogateescape"), (edge,))


def _taken(stops: list[Stop]) -> Iterable[Stop]:
    """Return the stops that the key reaches; if it reaches none, one with everything that does not take it."""
    reached = [stop for stop in stops if stop.subject is not None or stop.unknown]
    return reached or [replace(stops[0], edges=tuple(edge for stop in stops for edge in stop.edges))]


class _Follower:
    """Repeated steps, with the subjects of streams that were followed."""

    def __init__(self, graph: Graph, step: Step) -> None:
        self._graph, self._step = graph, step
        self._followed: set[tuple[str, str]] = set()
        self._count = 0

    def stops(self, node: Node, subject: str, path: tuple[str, ...]) -> tuple[Stop, ...]:
        self._followed.add((node.id, subject))
        return tuple(self._continued(stop, path) for stop in self._step(self._graph, node, subject))

    def _continued(self, stop: Stop, path: tuple[str, ...]) -> Stop:
        if stop.subject is None:
            return stop
        self._count += 1
        if stop.node.id in path:
            return replace(stop, end=CYCLE)
        if (stop.node.id, stop.subject) in self._followed:
            return replace(stop, end=ABOVE)
        if self._count > MAX_STOPS:
            return replace(stop, end=LIMIT)
        return replace(stop, onward=self.stops(stop.node, stop.subject, (*path, stop.node.id)))
