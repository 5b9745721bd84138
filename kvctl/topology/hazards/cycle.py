"""Streams that feed each other in a circle, so that a write goes round for ever. [pure]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.hazards.replica_hazards import CYCLE, landing, name_of
from kvctl.topology.subjects import meet, parse

Node = tuple[str | None, str]
"""A place (a domain, or the name of a context) and a stream."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One stream reading another one."""

    reader: Node
    origin: Node
    source: Mapping[str, Any]
    """As the reader's configuration has it."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """What one rule of a reading takes, and where it lands."""

    origin: Node
    takes: str
    reader: Node
    lands: str


def circles(readings: Iterable[Reading]) -> list[list[Node]]:
    """The circles among streams, each from a reader up to itself; filters that no entry passes twice make none."""
    following: dict[Node, list[_Flow]] = {}
    flows = [flow for reading in readings for flow in _flows(reading)]
    for flow in flows:
        following.setdefault(flow.origin, []).append(flow)
    found: dict[frozenset[Node], list[Node]] = {}
    for flow in flows:
        if circle := _back_to(flow, following):
            found.setdefault(frozenset(circle), circle)
    return list(found.values())


def doubled(readings: Iterable[Reading], reader: Node) -> tuple[Node, Node] | None:
    """An origin that a stream reads both itself and through another of its origins, and that other one; else None.

    Servers follow no further than one account and domain.
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


def hazard(circle: Sequence[Node], what: str = "") -> Hazard:
    """The hazard of a circle; where it goes through several places they are named, `what` before each."""
    several = len({place for place, _ in circle}) > 1
    way = " <- ".join(_shown(node, f" in {what}`{node[0]}`" if several and node[0] else "") for node in circle)
    return Hazard(CYCLE, f"{way}: every write would go round for ever")


def beginning_with(circle: Sequence[Node], node: Node) -> list[Node]:
    """The same circle from another of its streams."""
    at = circle.index(node)
    return [*circle[at:], *circle[1 : at + 1]]


def _flows(reading: Reading) -> list[_Flow]:
    source = dict(reading.source)
    taken = [rule.src for rule in parse(source.get("subject_transforms") or ())]
    taken = taken or [source.get("filter_subject") or ">"]
    return [
        _Flow(reading.origin, takes, reading.reader, lands) for takes, lands in zip(taken, landing(source), strict=True)
    ]


def _back_to(start: _Flow, following: Mapping[Node, list[_Flow]]) -> list[Node]:
    """The shortest way on which an entry of the flow comes back to where the flow begins, as readers and origins."""
    waiting: list[list[_Flow]] = [[start]]
    known = {start}
    while waiting:
        path = waiting.pop(0)
        for flow in following.get(path[-1].reader, ()):
            if not meet(path[-1].lands, flow.takes):
                continue
            if flow == start:
                return [path[-1].reader, *(step.origin for step in reversed(path))]
            if flow not in known:
                known.add(flow)
                waiting.append([*path, flow])
    return []


def _above(node: Node, near: Mapping[Node, list[Node]]) -> set[Node]:
    """What feeds a stream, directly and through others."""
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        more = [origin for origin in near.get(waiting.pop(), ()) if origin not in found]
        found.update(more)
        waiting += more
    return found


def _shown(node: Node, where: str) -> str:
    return f"`{name_of({'name': node[1]})}`{where}"
