"""A trace: the way of one key through a graph of replication, backwards and forwards, as values and as text. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

from kvctl.errors import BucketNotFound, RefusedError
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.kv.entry import from_message
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.kv.stream_kind import Kind
from kvctl.topology.model.notation import rules_json, with_rules_text
from kvctl.topology.model.subjects import KeyMapping, UnknownTransform
from kvctl.topology.survey.graph import MISSING, Node
from kvctl.topology.views.drawing import WIDTH, Drawing, Edge, Line, Span, title
from kvctl.topology.views.key_state import TraceState
from kvctl.units import format_age, format_time

MAX_STOPS = 10_000
"""Stops of one trace in each direction; their number can grow exponentially with the streams."""
MAX_MIRRORS = 8
"""Mirrors that are followed to the bucket whose keys they hold."""

ABOVE, CYCLE, LIMIT = "above", "cycle", "limit"
"""Reasons why a way ends: its rest is shown elsewhere, it returns to a stream, or the trace is too large."""


_KINDS = (Kind.BUCKET, Kind.AGGREGATE, Kind.MIRROR)
_FOREIGN = (Kind.TABLE, Kind.REPOSITORY)


@dataclass(frozen=True, slots=True)
class Stop:
    """A stream on the way of a key."""

    node: Node
    subject: str | None
    """The key's subject in the stream; backwards a filter if several keys land in one place. None: filtered out."""
    key: str | None
    """Key, or a filter; None if clients do not find it, or if it does not come here."""
    edges: tuple[Edge, ...] = ()
    """The replication between this stop and the one before; several if none of them takes the key."""
    state: TraceState | None = None
    """None: from a file, which does not show it."""
    evidence: str = ""
    message: StoredMessage | None = None
    """The last message, if it was read."""
    end: str = ""
    """Reason why the way is not followed from here on; empty if it is."""
    onward: tuple[Stop, ...] = ()
    """Its own origins, or its own replicas."""

    @property
    def words(self) -> list[dict[str, Any]]:
        """What the replication between this stop and the one before takes, and where that lands."""
        return [rules_json(edge.source, edge.reader) for edge in self.edges]

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the JSON object, without what follows."""
        place = {name: value for name, value in self.node.to_json().items() if name != "id"}
        entry = from_message("", 0, self.message) if self.message else None
        return {
            **place,
            "key": self.key,
            "subject": self.subject,
            "state": None if self.state is None else str(self.state),
            "evidence": self.evidence or None,
            "revision": entry.revision if entry else None,
            "created": format_time(entry.created_ns) if entry else None,
            "operation": str(entry.operation) if entry else None,
            **self._rules(),
            "end": self.end or None,
        }

    def _rules(self) -> dict[str, Any]:
        """Return what the replication between this stop and the one before takes, and where that lands."""
        words = self.words
        if len(words) < 2:
            return dict(words[0]) if words else dict.fromkeys(("keys", "prefix", "map", "transforms"))
        maps = {src: dest for item in words for src, dest in (item["map"] or {}).items()}
        return {
            "keys": [text for item in words for text in item["keys"] or ([] if item["map"] else [">"])],
            "prefix": None,
            "map": maps or None,
            "transforms": [rule for item in words for rule in item["transforms"]],
        }


@dataclass(frozen=True, slots=True)
class KeyTrace:
    """A key in one stream, with where it came from and where it goes."""

    start: Stop
    origins: tuple[Stop, ...]
    replicas: tuple[Stop, ...]
    offline: tuple[str, ...] = ()
    """Streams that do not answer and whose configuration is unknown: any of them may replicate the key."""

    @property
    def exists(self) -> bool:
        """True if a stream holds an entry of the key, or may hold one."""
        nothing = (TraceState.ABSENT, TraceState.FILTERED_OUT)
        return bool(self.offline) or any(
            item.message is not None or item.state not in nothing for _, _, _, item in flat(self)
        )

    @property
    def known(self) -> bool:
        """True if an entry of the key was read somewhere, or the trace is from a file."""
        return self.start.state is None or any(item.message is not None for _, _, _, item in flat(self))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        origins = [_nested(item, "origins") for item in self.origins]
        return {
            **self.start.to_json(),
            "origins": origins,
            "replicas": [_nested(item, "replicas") for item in self.replicas],
            "offline": list(self.offline),
        }


ORIGIN, START, REPLICA = "origin", "start", "replica"
"""Roles of stops in a flat trace."""


def flat(trace: KeyTrace) -> Iterator[tuple[str, int, str | None, Stop]]:
    """Yield role, depth, name of the stop before, and stop: origins, the start, replicas, each before its own."""

    def below(role: str, items: Sequence[Stop], via: str, depth: int) -> Iterator[tuple[str, int, str, Stop]]:
        for item in items:
            yield role, depth, via, item
            yield from below(role, item.onward, item.node.name, depth + 1)

    name = trace.start.node.name
    yield from below(ORIGIN, trace.origins, name, 1)
    yield START, 0, None, trace.start
    yield from below(REPLICA, trace.replicas, name, 1)


def start_of(graph: Drawing, name: str) -> Node:
    """Return the stream that a name means, of the account in use if possible. Raises BucketNotFound, RefusedError."""
    found = sorted(
        (node for node in graph.nodes if node.name == name),
        key=lambda node: (node.kind in _FOREIGN, node.id != node.stream, node.kind not in _KINDS),
    )
    if not found or found[0].kind == MISSING:
        raise BucketNotFound(f"Bucket `{name}` does not exist", hint="List buckets with `kvctl bucket ls`")
    if found[0].kind in _FOREIGN:
        raise RefusedError(f"`{name}` is a {found[0].kind}, not a bucket")
    return found[0]


def predicted(graph: Drawing, name: str, key: str) -> KeyTrace:
    """Return where a key goes and came from by configuration alone. Raises BucketNotFound, RefusedError."""
    node = start_of(graph, name)
    subject = subject_of(graph, node, key)
    before, after = (follow(graph, node, subject, step) for step in (origins, replicas))
    return KeyTrace(Stop(node, subject, key_of(graph, node, subject)), before, after)


Step = Callable[[Drawing, Node, str], list[Stop]]
"""Function from a subject in a stream to the next stops."""


def replicas(graph: Drawing, node: Node, subject: str) -> list[Stop]:
    """Return the replicas of a stream, each with the place where the subject lands."""
    nodes = {other.id: other for other in graph.nodes}
    found: dict[str, list[Stop]] = {}
    for edge in graph.edges:
        if edge.origin == node.id:
            found.setdefault(edge.replica, []).append(_landed(graph, nodes[edge.replica], edge, subject))
    return [stop for name in sorted(found, key=lambda id: nodes[id].name) for stop in _taken(found[name])]


def origins(graph: Drawing, node: Node, subject: str) -> list[Stop]:
    """Return the streams that a subject, or the subjects of a filter, may have come from."""
    nodes = {other.id: other for other in graph.nodes}
    stops = []
    for edge in graph.edges:
        if edge.replica == node.id:
            try:
                sources = KeyMapping.of(dict(edge.source)).origins(subject)
            except UnknownTransform as error:
                stops.append(_unpredicted(nodes[edge.origin], edge, error))
            else:
                there = nodes[edge.origin]
                stops += [Stop(there, source, key_of(graph, there, source), (edge,)) for source in sources]
    return stops


def follow(graph: Drawing, node: Node, subject: str, step: Step) -> tuple[Stop, ...]:
    """Return all stops that lead from a subject in a stream, each stream's own only once."""
    return _Follower(graph, step).stops(node, subject, (node.id,))


def subject_of(graph: Drawing, node: Node, key: str) -> str:
    """Return the subject under which a stream holds a key."""
    return f"{SUBJECT_PREFIX}{key_space(graph, node)}.{key}"


def key_of(graph: Drawing, node: Node, subject: str) -> str | None:
    """Return the key by which clients find a subject in a stream; None if they do not."""
    head = f"{SUBJECT_PREFIX}{key_space(graph, node)}."
    return subject.removeprefix(head) if subject.startswith(head) else None


def key_space(graph: Drawing, node: Node) -> str:
    """Return the bucket under whose name a stream's keys are stored: for a mirror, that of its origin."""
    nodes = {other.id: other for other in graph.nodes}
    for _ in range(MAX_MIRRORS):
        origin = next((edge.origin for edge in graph.edges if edge.replica == node.id), None)
        if origin is None or (node.stream.startswith(STREAM_PREFIX) and node.kind != "mirror"):
            break
        node = nodes[origin]
    return node.stream.removeprefix(STREAM_PREFIX)


def _landed(graph: Drawing, node: Node, edge: Edge, subject: str) -> Stop:
    try:
        landed = KeyMapping.of(dict(edge.source)).land(subject.encode("utf-8", "surrogateescape"))
    except UnknownTransform as error:
        return _unpredicted(node, edge, error)
    if landed is None:
        return Stop(node, None, None, (edge,), TraceState.FILTERED_OUT)
    there = landed.decode("utf-8", "surrogateescape")
    return Stop(node, there, key_of(graph, node, there), (edge,))


def _unpredicted(node: Node, edge: Edge, error: UnknownTransform) -> Stop:
    return Stop(node, None, None, (edge,), TraceState.UNKNOWN, error.message)


def _taken(stops: list[Stop]) -> Iterable[Stop]:
    """Return the stops that the key reaches, or may reach; if there are none, one with everything that filters it."""
    reached = [stop for stop in stops if stop.state is not TraceState.FILTERED_OUT]
    return reached or [replace(stops[0], edges=tuple(edge for stop in stops for edge in stop.edges))]


class _Follower:
    """Repeated steps, with the subjects of streams that were followed."""

    def __init__(self, graph: Drawing, step: Step) -> None:
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


def _nested(item: Stop, what: str) -> dict[str, Any]:
    return {**item.to_json(), what: [_nested(other, what) for other in item.onward]}


# -- text ----------------------------------------------------------------------------------------------------

_GOOD = (TraceState.HELD, TraceState.ARRIVED)
_NEUTRAL = (TraceState.FILTERED_OUT, TraceState.ABSENT)
_BAD = (TraceState.LINK_DOWN, TraceState.OFFLINE, TraceState.STALE, TraceState.MISSING)
_ENDS = {ABOVE: " (above)", CYCLE: " (cycle)", LIMIT: " (and more)"}
_SHORTEST_TEXT = 20
"""Columns that evidence has at least, however deep its stop is."""


def text(trace: KeyTrace) -> list[Line]:
    """Return the trace as lines of spans."""
    lines = [_title(trace.start), *_details(trace.start, "  ")]
    for heading, arrow, stops in (("Comes from", "◀─ ", trace.origins), ("Goes to", "─▶ ", trace.replicas)):
        if stops:
            lines += [[], [(heading, "bold")], *_tree(stops, arrow, "")]
    return lines


def _tree(stops: Sequence[Stop], arrow: str, margin: str) -> Iterator[Line]:
    for stop in stops:
        last = stop is stops[-1]
        yield [(margin + ("└" if last else "├") + arrow, "dim"), *_title(stop)]
        inner = margin + ("    " if last else "│   ")
        yield from ([(inner, "dim"), *line] for line in _details(stop, "  ", len(inner)))
        yield from _tree(stop.onward, arrow, inner)


def _title(stop: Stop) -> Line:
    """Return name, kind and place of a stream, the key and its state there."""
    line = title(stop.node, several=True)
    if stop.subject is not None:
        line.append((f"  {stop.key or stop.subject}", ""))
    if (state := _state(stop))[0]:
        line.append(state)
    return [*line, (_ENDS.get(stop.end, ""), "dim")]


def _state(stop: Stop) -> Span:
    if stop.state is None:
        return "", ""
    entry = from_message("", 0, stop.message) if stop.message else None
    at = f", revision {entry.revision}, {format_age(entry.created_ns)}" if entry else ""
    return f"  {stop.state}{at}", _style(stop.state)


def _style(state: TraceState) -> str:
    if state in _GOOD:
        return "green"
    if state in _NEUTRAL:
        return "dim"
    return "red" if state in _BAD else "yellow"


def _details(stop: Stop, indent: str, margin: int = 0) -> Iterator[Line]:
    """Return the rules that take the key, or that do not, and the evidence of the state."""
    if stop.key is None and stop.subject is not None:
        yield [(f"{indent}clients of `{stop.node.name}` do not find this subject", "red")]
    for words in stop.words:
        row = with_rules_text(words, stop.node.stream)
        if stop.state is TraceState.FILTERED_OUT:
            yield [(f"{indent}takes {row['taken']}", "dim")]
        elif row["taken"]:
            yield [(f"{indent}{row['taken']}" + (f" → {row['lands_as']}" if row["lands_as"] else ""), "dim")]
    style = "" if stop.state is None else _style(stop.state)
    for line in wrap(stop.evidence, max(WIDTH - margin - len(indent), _SHORTEST_TEXT)):
        yield [(indent + line, style)]
