"""A graph as lines of text: each origin, and under it what reads from it. [pure]"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from kvctl.topology.graph import MISSING, OUTSIDE, Edge, Graph, Node
from kvctl.topology.standing import State

Span = tuple[str, str]
"""Text, and how it is painted: `bold dim red green yellow`, or empty."""
Line = list[Span]

STYLES = {"good": "green", "doubtful": "yellow", "bad": "red", "": ""}

WIDTH = 80
_ALIGNED_TO = 56
"""Columns before the states, where the lines are not longer."""
_KINDS = {OUTSIDE: "out of view", MISSING: "does not exist"}


def text(graph: Graph) -> list[Line]:
    """The graph as lines of spans. What has several origins stands under each of them, its own readers only once."""
    several = len(graph.groups) > 1
    lines: list[Line] = []
    for tree in _trees(graph, several=several):
        lines += [*([[]] if lines else []), *tree]
    if graph.alone:
        lines += [*([[]] if lines else []), [("Alone: ", "dim"), (", ".join(graph.alone), "dim")]]
    return _aligned(lines)


def _trees(graph: Graph, *, several: bool) -> Iterator[list[Line]]:
    shown: set[str] = set()
    replicas = {edge.replica for edge in graph.edges}
    roots = sorted((node for node in graph.nodes if node.id not in replicas), key=lambda node: node.name)
    # Nodes that only a circle leads to come last, each circle once.
    for root in [*roots, *graph.nodes]:
        if root.id not in shown:
            yield [[*_title(root, several)], *_below(graph, root, shown, "", several)]


def _below(graph: Graph, node: Node, shown: set[str], margin: str, several: bool) -> list[Line]:
    """The lines of what reads from a node."""
    shown.add(node.id)
    nodes = {other.id: other for other in graph.nodes}
    edges = [edge for edge in graph.edges if edge.origin == node.id]
    lines: list[Line] = []
    for edge in edges:
        last = edge is edges[-1]
        again = edge.replica in shown
        replica = nodes[edge.replica]
        line = [(f"{margin}{'└' if last else '├'}─▶ ", "dim"), *_title(replica, several)]
        lines.append([*line, *([(" (above)", "dim")] if again else []), ("", "state"), _health(edge)])
        inner = margin + ("    " if last else "│   ")
        lines += [[(f"{inner}  ", "dim"), (words, "")] for words in edge.words]
        lines += [
            [(f"{inner}  ", "dim"), (part, STYLES[edge.tone])] for part in _evidence(edge, WIDTH - len(inner) - 2)
        ]
        if not again:
            lines += _below(graph, replica, shown, inner, several)
    return lines


def _evidence(edge: Edge, width: int) -> list[str]:
    """What shows the state, where the line itself does not say it."""
    if edge.standing is None or edge.standing.state is State.MISSING_ORIGIN:
        return []
    return wrap(edge.standing.evidence, max(width, 20), break_long_words=False, break_on_hyphens=False)


def _title(node: Node, several: bool) -> Line:
    kind = _KINDS.get(node.kind, node.kind)
    where = f", {node.where}" if several and node.where else ""
    return [(node.name, "bold"), (f"  {kind}{where}", "red" if node.kind in (MISSING, "unreachable") else "dim")]


def _health(edge: Edge) -> Span:
    return edge.health, STYLES[edge.tone]


def _aligned(lines: list[Line]) -> list[Line]:
    """The states below each other, where the lines are not too long."""
    heads = [sum(len(part) for part, _ in line[:-2]) for line in lines if _has_state(line)]
    column = max((length for length in heads if length <= _ALIGNED_TO), default=0)
    aligned = []
    for line in lines:
        if _has_state(line):
            *head, _, health = line
            gap = max(column - sum(len(part) for part, _ in head), 0) + 2
            line = [*head, (" " * gap, ""), health] if health[0] else head
        aligned.append(line)
    return aligned


def _has_state(line: Line) -> bool:
    return len(line) > 2 and line[-2] == ("", "state")
