"""Streams that replicate from each other, or republish, in a cycle: every write circulates endlessly. [pure]"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kvctl.errors import RefusedError
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv.names import STREAM_PREFIX, meet
from kvctl.topology.hazards.hazards import CYCLE, Hazard, landing, name_of
from kvctl.topology.model.subjects import parse

Node = tuple[str | None, str]
"""A place (a domain, or the name of a context) and a stream."""


class Replication(NamedTuple):
    """Replication from one stream into another."""

    reader: Node
    origin: Node
    source: Mapping[str, Any]
    """The source as the reader's configuration has it."""


class _Flow(NamedTuple):
    """The subjects that one rule of a reading replicates, and where they land."""

    origin: Node
    takes: str
    reader: Node
    lands: str


def cycles(readings: Iterable[Replication]) -> list[list[Node]]:
    """Return the cycles among streams, each from a reader back to itself.

    Filters that let no entry pass twice break a cycle.
    """
    following: dict[Node, list[_Flow]] = {}
    flows = [flow for reading in readings for flow in _flows(reading)]
    for flow in flows:
        following.setdefault(flow.origin, []).append(flow)
    found: dict[frozenset[Node], list[Node]] = {}
    for flow in _circulating(flows, following):
        if cycle := _back_to(flow, following):
            found.setdefault(frozenset(cycle), cycle)
    return list(found.values())


def _circulating(flows: Sequence[_Flow], following: Mapping[Node, list[_Flow]]) -> list[_Flow]:
    """Return the flows between streams that lead to each other, whatever they take: others are part of no cycle."""
    readers = {node: [flow.reader for flow in own] for node, own in following.items()}
    group = _components(readers)
    return [flow for flow in flows if group[flow.origin] == group[flow.reader]]


def _components(beyond: Mapping[Node, Sequence[Node]]) -> dict[Node, int]:
    """Return a number for each node, the same for nodes that lead to each other (Tarjan's algorithm)."""
    index: dict[Node, int] = {}
    lowest: dict[Node, int] = {}
    group: dict[Node, int] = {}
    path: list[Node] = []
    for start in beyond:
        waiting = [] if start in index else [(start, iter(beyond[start]))]
        while waiting:
            node, others = waiting[-1]
            if node not in index:
                index[node] = lowest[node] = len(index)
                path.append(node)
            other = next((one for one in others if one not in group), None)
            if other is None:
                waiting.pop()
                if waiting:
                    above = waiting[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                while lowest[node] == index[node] and node not in group:
                    group[path.pop()] = index[node]
            elif other in index:
                lowest[node] = min(lowest[node], index[other])
            else:
                waiting.append((other, iter(beyond.get(other, ()))))
    return group


def republications(configs: Mapping[Node, StreamConfig]) -> list[Replication]:
    """Return the republishing of streams as replication into those of the same place that listen on its subjects."""
    found = []
    for origin, config in configs.items():
        if not (route := config.get("republish")):
            continue
        rule = {"src": route.get("src") or ">", "dest": route.get("dest") or ""}
        source = {"name": origin[1], "subject_transforms": [rule]}
        (lands,) = landing(source)
        for reader, other in configs.items():
            near = reader != origin and reader[0] == origin[0]
            if near and any(meet(lands, own) for own in other.get("subjects") or ()):
                found.append(Replication(reader, origin, source))
    return found


def republishing(readings: Iterable[Replication], node: Node) -> list[str]:
    """Return warnings about republishing of this stream into buckets, or into it."""
    return [
        f"`{name_of({'name': origin[1]})}` republishes into `{name_of({'name': reader[1]})}` "
        f"(`{landing(dict(source))[0]}`): no audit compares these copies, and a lost one is not sent again"
        for reader, origin, source in readings
        if node in (reader, origin) and reader[1].startswith(STREAM_PREFIX)
    ]


def doubled(readings: Iterable[Replication], reader: Node) -> tuple[Node, Node] | None:
    """Return an origin that a stream reads both directly and through another origin, and that other origin; else None.

    Servers check only within one account and domain.
    """
    near: dict[Node, list[Node]] = {}
    for reading in readings:
        if reading.reader[0] == reading.origin[0] == reader[0]:
            near.setdefault(reading.reader, []).append(reading.origin)
    direct = near.get(reader, [])
    for through in direct:
        for origin in _above(through, near):
            if origin in direct:
                return origin, through
    return None


def refuse_doubled(name: str, readings: Iterable[Replication], reader: Node) -> None:
    """Refuse an origin that a stream of this name reads twice, which servers take for a cycle. Raises RefusedError."""
    if (found := doubled(readings, reader)) is not None:
        twice, through = (name_of({"name": stream}) for _, stream in found)
        text = f"`{name}` would replicate `{twice}` twice, directly and through `{through}`"
        raise RefusedError(f"{text}: servers refuse that (10052)", hint="Remove one of the two origins")


def hazard(cycle: Sequence[Node], what: str = "") -> Hazard:
    """Return the hazard of a cycle; if it spans several places they are named, `what` before each."""
    several = len({place for place, _ in cycle}) > 1
    way = " <- ".join(
        f"`{name_of({'name': stream})}`" + (f" in {what}`{place}`" if several and place else "")
        for place, stream in cycle
    )
    return Hazard(CYCLE, f"{way}: every write would circulate endlessly")


def beginning_with(cycle: Sequence[Node], node: Node) -> list[Node]:
    """Return the same cycle beginning with another of its streams."""
    at = cycle.index(node)
    return [*cycle[at:], *cycle[1 : at + 1]]


def _flows(reading: Replication) -> list[_Flow]:
    source = dict(reading.source)
    taken = [rule.src for rule in parse(source.get("subject_transforms") or ())]
    taken = taken or [source.get("filter_subject") or ">"]
    return [
        _Flow(reading.origin, takes, reading.reader, lands) for takes, lands in zip(taken, landing(source), strict=True)
    ]


def _back_to(start: _Flow, following: Mapping[Node, list[_Flow]]) -> list[Node]:
    """Return the shortest way from a flow's end back to its origin, as readers and origins."""
    waiting = deque([start])
    before: dict[_Flow, _Flow | None] = {start: None}
    while waiting:
        last = waiting.popleft()
        for flow in following.get(last.reader, ()):
            if (flow != start and flow in before) or not meet(last.lands, flow.takes):
                continue
            if flow == start:
                way: list[Node] = [last.reader]
                step: _Flow | None = last
                while step is not None:
                    way.append(step.origin)
                    step = before[step]
                return way
            before[flow] = last
            waiting.append(flow)
    return []


def _above(node: Node, near: Mapping[Node, list[Node]]) -> set[Node]:
    """Return the direct and indirect origins of a stream."""
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        more = [origin for origin in near.get(waiting.pop(), ()) if origin not in found]
        found.update(more)
        waiting += more
    return found
