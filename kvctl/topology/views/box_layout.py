"""Layout of boxes in a picture of a graph: columns from origins to replicas, a band for each place. [pure]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from kvctl.topology.survey.graph import Node
from kvctl.topology.views.drawing import Edge, Graph

MONO, SANS, BOLD = 0.602, 0.58, 0.68
"""Width of a character, relative to its height."""
TITLE, KIND, ROW = 13.0, 11.0, 11.0
"""Text sizes: names, kinds, notes on an origin."""
LINE = 16.0
PADDING = 12.0
BOX_GAP, COLUMN_GAP, BAND_GAP, HEADING, MARGIN = 18.0, 84.0, 18.0, 26.0, 20.0
MAX_TEXT_CHARS = 44
"""Characters of a text before it is shortened."""
_LANE = 10.0


@dataclass(slots=True)
class Port:
    """End of an edge: the notes on one origin in a replica's box."""

    edge: Edge
    origin: str
    """Name of the origin."""
    lines: list[str]
    """The rules."""
    y: float = 0.0
    """The middle of its first line."""


@dataclass(slots=True, eq=False)
class Box:
    """A node, or the space for an edge that passes the boxes of a column."""

    node: Node | None
    ports: list[Port] = field(default_factory=list)
    column: int = 0
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = _LANE

    @property
    def middle(self) -> float:
        """Height at which edges leave it."""
        return self.y + self.height / 2


@dataclass(slots=True)
class Band:
    """One place with its boxes."""

    heading: str
    y: float = 0.0
    height: float = 0.0


@dataclass(slots=True)
class Layout:
    """The complete picture; coordinates in pixels."""

    boxes: dict[str, Box]
    bands: list[Band]
    lanes: dict[int, list[Box]]
    """Spaces on the way of an edge, by its number."""
    width: float = 0.0
    height: float = 0.0


def layout(graph: Graph) -> Layout:
    """Place all nodes of a graph; the same graph gives the same layout."""
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
    _set_bands(placed, inside, origins)  # now with the positions of origins in other bands
    return placed


def cut(text: str, longest: int = MAX_TEXT_CHARS) -> str:
    """Return the text, shortened in the middle if it is too long."""
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
    widths = [len(cut(node.name)) * TITLE * MONO, len(node.words) * KIND * SANS]
    widths += [(len(port.origin) + len(port.edge.health) + 5) * ROW * MONO for port in ports]
    widths += [(len(text) + 2) * ROW * MONO for port in ports for text in port.lines]
    lines = sum(1 + len(port.lines) for port in ports)
    height = 2 * PADDING + TITLE + LINE + (lines * LINE + PADDING / 2 if ports else 0)
    return Box(node, ports, width=max(widths) + 2 * PADDING, height=height)


def _columns(graph: Graph) -> dict[str, int]:
    """Return the column of each node, right of all its origins; edges that close a cycle do not count."""
    replicas: dict[str, list[str]] = {node.id: [] for node in graph.nodes}
    for edge in graph.edges:
        replicas[edge.origin].append(edge.replica)
    replicating = {edge.replica for edge in graph.edges}
    columns: dict[str, int] = {}

    def place(at: str, column: int, above: tuple[str, ...]) -> None:
        if at in above or columns.get(at, -1) >= column:
            return
        columns[at] = column
        for replica in replicas[at]:
            place(replica, column + 1, (*above, at))

    for node in [*(node for node in graph.nodes if node.id not in replicating), *graph.nodes]:
        if node.id not in columns:
            place(node.id, 0, ())
    return columns


def _set_columns(placed: Layout, boxes: Iterable[Box]) -> None:
    """Set the position of each column, as wide as its widest box."""
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
    """Stack the bands, and the boxes in each."""
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
    """Return for each box the boxes to the left that lead to it."""
    origins: dict[Box, list[Box]] = {}
    for number, edge in enumerate(graph.edges):
        way = [placed.boxes[edge.origin], *placed.lanes[number], placed.boxes[edge.replica]]
        for left, right in pairwise(way):
            if left.column < right.column:
                origins.setdefault(right, []).append(left)
    return origins


def _stack(members: list[Box], top: float, origins: dict[Box, list[Box]]) -> float:
    """Stack the boxes of one band, near those that lead to them, and return the height."""
    columns: dict[int, list[Box]] = {}
    for box in members:
        columns.setdefault(box.column, []).append(box)
    heights = {
        column: sum(box.height + BOX_GAP for box in boxes) - BOX_GAP + 2 * PADDING for column, boxes in columns.items()
    }
    height = max(heights.values())
    for column in sorted(columns):
        y = top + PADDING + (height - heights[column]) / 2
        for box in sorted(columns[column], key=lambda box: _preferred(box, origins)):
            box.y = y
            y += box.height + BOX_GAP
            _set_ports(box)
    return height


def _preferred(box: Box, origins: dict[Box, list[Box]]) -> tuple[float, str]:
    """Return the height at which a box has its shortest edges; boxes of the left column are sorted by name."""
    left = origins.get(box, [])
    name = box.node.name if box.node else ""
    return (sum(other.middle for other in left) / len(left) if left else 0.0, name)


def _set_ports(box: Box) -> None:
    y = box.y + PADDING + TITLE + LINE + PADDING / 2 + LINE / 2
    for port in box.ports:
        port.y = y
        y += LINE * (1 + len(port.lines))
