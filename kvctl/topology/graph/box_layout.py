"""Where a picture of a graph has its boxes: columns from origins to replicas, a band for each place. [pure]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from kvctl.topology.graph.graph import (
    MISSING,
    OUTSIDE,
    Edge,
    Graph,
    Node,
)

MONO, SANS, BOLD = 0.602, 0.58, 0.68
"""Width of a character, in parts of its height."""
TITLE, KIND, ROW = 13.0, 11.0, 11.0
"""Sizes of text: names, kinds, what is said of an origin."""
LINE = 16.0
PADDING = 12.0
BOX_GAP, COLUMN_GAP, BAND_GAP, HEADING, MARGIN = 18.0, 84.0, 18.0, 26.0, 20.0
LONGEST = 44
"""Characters of a text before it is cut."""
_LANE = 10.0

KIND_WORDS = {OUTSIDE: "out of view", MISSING: "does not exist"}


@dataclass(slots=True)
class Port:
    """Where an edge ends: what a replica's box says of one origin."""

    edge: Edge
    origin: str
    """Its name."""
    lines: list[str]
    """The rules."""
    y: float = 0.0
    """The middle of its first line."""


@dataclass(slots=True, eq=False)
class Box:
    """A node, or the room that an edge takes on its way past the boxes of a column."""

    node: Node | None
    ports: list[Port] = field(default_factory=list)
    column: int = 0
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = _LANE

    @property
    def middle(self) -> float:
        """Where edges leave it."""
        return self.y + self.height / 2


@dataclass(slots=True)
class Band:
    """One place, with all that is in it."""

    heading: str
    y: float = 0.0
    height: float = 0.0


@dataclass(slots=True)
class Layout:
    """The whole picture; coordinates in pixels."""

    boxes: dict[str, Box]
    bands: list[Band]
    lanes: dict[int, list[Box]]
    """By the number of an edge: the room on its way."""
    width: float = 0.0
    height: float = 0.0


def layout(graph: Graph) -> Layout:
    """Place all nodes of a graph; the same graph always the same way."""
    names = {node.id: node.name for node in graph.nodes}
    boxes = {node.id: _box(node, graph, names) for node in graph.nodes}
    for at, column in _columns(graph).items():
        boxes[at].column = column
    placed = Layout(boxes, [], {})
    bands = ((where, [boxes[node.id] for node in nodes]) for where, nodes in graph.groups.items())
    # The places of origins come first.
    inside = dict(sorted(bands, key=lambda band: (min(box.column for box in band[1]), band[0])))
    for number, edge in enumerate(graph.edges):
        passed = range(boxes[edge.origin].column + 1, boxes[edge.replica].column)
        placed.lanes[number] = [Box(None, column=column) for column in passed]
        where = next(node.where for node in graph.nodes if node.id == edge.replica)
        inside[where] += placed.lanes[number]
    _set_columns(placed, [box for members in inside.values() for box in members])
    origins = _origins(graph, placed)
    _set_bands(placed, inside, origins)
    _set_bands(placed, inside, origins)  # now that it is known where the origins in other bands are
    return placed


def cut(text: str, longest: int = LONGEST) -> str:
    """The text with its middle left out where it is too long."""
    if len(text) <= longest:
        return text
    half = (longest - 1) // 2
    return f"{text[: longest - 1 - half]}…{text[-half:]}"


def _box(node: Node, graph: Graph, names: dict[str, str]) -> Box:
    ports = [
        Port(edge, cut(names[edge.origin]), [cut(text) for text in edge.words])
        for edge in graph.edges
        if edge.replica == node.id
    ]
    widths = [len(cut(node.name)) * TITLE * MONO, len(KIND_WORDS.get(node.kind, node.kind)) * KIND * SANS]
    widths += [(len(port.origin) + len(port.edge.health) + 5) * ROW * MONO for port in ports]
    widths += [(len(text) + 2) * ROW * MONO for port in ports for text in port.lines]
    lines = sum(1 + len(port.lines) for port in ports)
    height = 2 * PADDING + TITLE + LINE + (lines * LINE + PADDING / 2 if ports else 0)
    return Box(node, ports, width=max(widths) + 2 * PADDING, height=height)


def _columns(graph: Graph) -> dict[str, int]:
    """Each node right of all its origins; edges that close a circle do not count."""
    replicas: dict[str, list[str]] = {node.id: [] for node in graph.nodes}
    for edge in graph.edges:
        replicas[edge.origin].append(edge.replica)
    fed = {edge.replica for edge in graph.edges}
    columns: dict[str, int] = {}

    def place(at: str, column: int, above: tuple[str, ...]) -> None:
        if at in above or columns.get(at, -1) >= column:
            return
        columns[at] = column
        for replica in replicas[at]:
            place(replica, column + 1, (*above, at))

    for node in [*(node for node in graph.nodes if node.id not in fed), *graph.nodes]:
        if node.id not in columns:
            place(node.id, 0, ())
    return columns


def _set_columns(placed: Layout, boxes: Iterable[Box]) -> None:
    """Where each column begins, as wide as its widest box."""
    columns: dict[int, list[Box]] = {}
    for box in boxes:
        columns.setdefault(box.column, []).append(box)
    x = MARGIN + PADDING
    for column in sorted(columns):
        width = max(box.width for box in columns[column])
        for box in columns[column]:
            box.x, box.width = x, width
        x += width + COLUMN_GAP
    placed.width = max(x - COLUMN_GAP, 0) + PADDING + MARGIN


def _set_bands(placed: Layout, inside: Mapping[str, list[Box]], origins: dict[Box, list[Box]]) -> None:
    """Stack the bands, and in each its boxes."""
    placed.bands, y = [], MARGIN
    for where, members in inside.items():
        heading = where if len(inside) > 1 else ""
        above = HEADING if heading else 0.0
        height = above + _stack(members, y + above, origins)
        placed.bands.append(Band(heading, y, height))
        placed.width = max(placed.width, len(heading) * KIND * BOLD + 2 * (MARGIN + PADDING))
        y += height + BAND_GAP
    placed.height = max(y - BAND_GAP, 0) + MARGIN


def _origins(graph: Graph, placed: Layout) -> dict[Box, list[Box]]:
    """By box: those left of it that lead to it."""
    origins: dict[Box, list[Box]] = {}
    for number, edge in enumerate(graph.edges):
        way = [placed.boxes[edge.origin], *placed.lanes[number], placed.boxes[edge.replica]]
        for left, right in pairwise(way):
            if left.column < right.column:
                origins.setdefault(right, []).append(left)
    return origins


def _stack(members: list[Box], top: float, origins: dict[Box, list[Box]]) -> float:
    """Set the boxes of one band below each other, near what leads to them; returns the height that they take."""
    columns: dict[int, list[Box]] = {}
    for box in members:
        columns.setdefault(box.column, []).append(box)
    heights = {
        column: sum(box.height + BOX_GAP for box in boxes) - BOX_GAP + 2 * PADDING for column, boxes in columns.items()
    }
    height = max(heights.values())
    for column in sorted(columns):
        y = top + PADDING + (height - heights[column]) / 2
        for box in sorted(columns[column], key=lambda box: _wish(box, origins)):
            box.y = y
            y += box.height + BOX_GAP
            _set_ports(box)
    return height


def _wish(box: Box, origins: dict[Box, list[Box]]) -> tuple[float, str]:
    """The height at which a box would have its shortest edges; those of the left column come by name."""
    left = origins.get(box, [])
    name = box.node.name if box.node else ""
    return (sum(other.middle for other in left) / len(left) if left else 0.0, name)


def _set_ports(box: Box) -> None:
    y = box.y + PADDING + TITLE + LINE + PADDING / 2 + LINE / 2
    for port in box.ports:
        port.y = y
        y += LINE * (1 + len(port.lines))
