"""A trace as a value: a key in one stream, its origins and its replicas. [pure]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvctl.errors import BucketNotFound, RefusedError
from kvctl.jetstream.direct.direct_get import StoredMessage
from kvctl.kv.entry import from_message
from kvctl.kv.stream_kind import Kind
from kvctl.topology.model.notation import rules_json
from kvctl.topology.survey.graph import MISSING, Node
from kvctl.topology.views.drawing import Graph
from kvctl.topology.views.key_state import KeyState
from kvctl.topology.views.route import Stop, follow, key_of, origins, replicas, subject_of
from kvctl.units import format_time

_KINDS = (Kind.BUCKET, Kind.AGGREGATE, Kind.MIRROR)
_FOREIGN = (Kind.TABLE, Kind.REPOSITORY)


@dataclass(frozen=True, slots=True)
class Traced:
    """A key in one stream of a trace."""

    stop: Stop
    key: str | None
    """Key, or a filter if there are several candidates; None if clients do not find it, or if it does not come here."""
    words: tuple[Mapping[str, Any], ...] = ()
    """What the replication between this stop and the one before takes, and where that lands, as `rules_json`."""
    state: KeyState | None = None
    """None: from a file."""
    evidence: str = ""
    message: StoredMessage | None = None
    """The last message, if it was read."""
    onward: tuple[Traced, ...] = ()
    """Its own origins, or its own replicas."""

    @property
    def node(self) -> Node:
        """The stream."""
        return self.stop.node

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the JSON object, without what follows."""
        place = {name: value for name, value in self.node.to_json().items() if name != "id"}
        entry = from_message("", 0, self.message) if self.message else None
        return {
            **place,
            "key": self.key,
            "subject": self.stop.subject,
            "state": None if self.state is None else str(self.state),
            "evidence": self.evidence or None,
            "revision": entry.revision if entry else None,
            "created": format_time(entry.created_ns) if entry else None,
            "operation": str(entry.operation) if entry else None,
            **self._rules(),
            "end": self.stop.end or None,
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
class Trace:
    """A key in one stream, with where it came from and where it goes."""

    start: Traced
    origins: tuple[Traced, ...]
    replicas: tuple[Traced, ...]
    offline: tuple[str, ...] = ()
    """Streams that do not answer and whose configuration is unknown: any of them may replicate the key."""

    @property
    def exists(self) -> bool:
        """True if a stream holds an entry of the key, or may hold one."""
        nothing = (KeyState.ABSENT, KeyState.FILTERED_OUT)
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


def flat(trace: Trace) -> Iterator[tuple[str, int, str | None, Traced]]:
    """Yield role, depth, name of the stop before, and stop: origins, the start, replicas, each before its own."""

    def below(role: str, items: Sequence[Traced], via: str, depth: int) -> Iterator[tuple[str, int, str, Traced]]:
        for item in items:
            yield role, depth, via, item
            yield from below(role, item.onward, item.node.name, depth + 1)

    name = trace.start.node.name
    yield from below(ORIGIN, trace.origins, name, 1)
    yield START, 0, None, trace.start
    yield from below(REPLICA, trace.replicas, name, 1)


def start_of(graph: Graph, name: str) -> Node:
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


def traced(graph: Graph, stop: Stop, **found: Any) -> Traced:
    """Return a stop with its key and the replication that leads to it."""
    key = None if stop.subject is None else key_of(graph, stop.node, stop.subject)
    streams = {node.id: node.stream for node in graph.nodes}
    words = tuple(rules_json(edge.source, streams[edge.replica]) for edge in stop.edges)
    return Traced(stop, key, words, **found)


def predicted(graph: Graph, name: str, key: str) -> Trace:
    """Return where a key goes and came from by configuration alone. Raises BucketNotFound, RefusedError."""
    node = start_of(graph, name)
    subject = subject_of(graph, node, key)

    def predict(stop: Stop) -> Traced:
        state = None
        if stop.subject is None:
            state = KeyState.UNKNOWN if stop.unknown else KeyState.FILTERED_OUT
        onward = tuple(map(predict, stop.onward))
        return traced(graph, stop, state=state, evidence=stop.unknown, onward=onward)

    before, after = (follow(graph, node, subject, step) for step in (origins, replicas))
    return Trace(predict(Stop(node, subject)), tuple(map(predict, before)), tuple(map(predict, after)))


def _nested(item: Traced, what: str) -> dict[str, Any]:
    return {**item.to_json(), what: [_nested(other, what) for other in item.onward]}
