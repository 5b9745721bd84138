"""A graph as a picture for a runbook: self-contained SVG, on white. [pure]"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from kvctl.topology.views.box_layout import (
    HEADING,
    KIND,
    LINE,
    MARGIN,
    PADDING,
    ROW,
    TITLE,
    Box,
    Layout,
    Port,
    cut,
    layout,
)
from kvctl.topology.views.diagram import COLORS
from kvctl.topology.views.drawing import Edge, Graph

_STYLE = """\
  text { font-family: 'DejaVu Sans', Helvetica, Arial, sans-serif; fill: #57606a }
  .name, .row { font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace }
  .name { font-weight: bold; fill: #1f2328 }
  .place { font-weight: bold; paint-order: stroke; stroke: #f6f8fa; stroke-width: 4px; stroke-linejoin: round }
  .band { fill: #f6f8fa; stroke: #d0d7de }
  .box { fill: #ffffff; stroke: #8c959f }
  .bucket { stroke: #0969da; stroke-width: 1.5 }
  .aggregate { stroke: #8250df; stroke-width: 1.5 }
  .mirror { stroke: #1b7c83; stroke-width: 1.5 }
  .absent { stroke-dasharray: 5 4 }
  .rule { stroke: #d8dee4 }
  .edge { fill: none; stroke-width: 1.5 }
"""
# Characters that XML cannot hold, even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg(graph: Graph) -> str:
    """Return the picture."""
    placed = layout(graph)
    width, height = _number(placed.width), _number(placed.height)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            "<title>Topology</title>",
            f"<style>\n{_STYLE}</style>",
            *_markers(),
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *_bands(placed),
            *(line for number, edge in enumerate(graph.edges) for line in _edge(placed, number, edge)),
            *_headings(placed),
            *(line for box in placed.boxes.values() for line in _box(box)),
            "</svg>",
            "",
        ]
    )


def _markers() -> Iterator[str]:
    yield "<defs>"
    for tone, color in COLORS.items():
        yield (
            f'<marker id="arrow-{tone or "plain"}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="M0 0.5 L7.5 4 L0 7.5 Z" fill="{color}"/></marker>'
        )
    yield "</defs>"


def _bands(placed: Layout) -> Iterator[str]:
    for band in placed.bands:
        if band.heading:
            yield _rect("band", MARGIN, band.y, placed.width - 2 * MARGIN, band.height)


def _headings(placed: Layout) -> Iterator[str]:
    """Draw the headings over the edges that pass, with a rim for legibility."""
    for band in placed.bands:
        if band.heading:
            yield _text("place", MARGIN + PADDING, band.y + HEADING - 8, KIND, band.heading)


def _edge(placed: Layout, number: int, edge: Edge) -> Iterator[str]:
    start, end = placed.boxes[edge.origin], placed.boxes[edge.replica]
    port = next(port for port in end.ports if port.edge is edge)
    points = [(start.x + start.width, start.middle)]
    for lane in placed.lanes[number]:
        points += [(lane.x, lane.middle), (lane.x + lane.width, lane.middle)]
    path = _path([*points, (end.x, port.y)]) if start.column < end.column else _way_back(start, end, port)
    tone = edge.tone or "plain"
    evidence = edge.standing.evidence if edge.standing else ""
    hint = f"<title>{_escaped(evidence)}</title>" if evidence else ""
    drawn = f'class="edge" d="{path}" stroke="{COLORS[edge.tone]}" marker-end="url(#arrow-{tone})"'
    yield f"<path {drawn}>{hint}</path>" if hint else f"<path {drawn}/>"


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return curves between columns, straight lines through lanes."""
    (x, y), *rest = points
    parts = [f"M{_number(x)} {_number(y)}"]
    for number, (to_x, to_y) in enumerate(rest):
        if number % 2:
            parts.append(f"L{_number(to_x)} {_number(to_y)}")
        else:
            bend = max(abs(to_x - x) / 2, 30)
            control = f"{_number(x + bend)} {_number(y)} {_number(to_x - bend)} {_number(to_y)}"
            parts.append(f"C{control} {_number(to_x)} {_number(to_y)}")
        x, y = to_x, to_y
    return " ".join(parts)


def _way_back(start: Box, end: Box, port: Port) -> str:
    """Return the path of an edge that closes a cycle, below the boxes."""
    x, y = start.x + start.width, max(start.y + start.height, end.y + end.height) + PADDING
    below = _number(y)
    there = f"C{_number(x + 30)} {_number(start.middle)} {_number(x + 30)} {below} {_number(x)} {below}"
    up = f"C{_number(end.x - 30)} {below} {_number(end.x - 30)} {_number(port.y)} {_number(end.x)} {_number(port.y)}"
    return f"M{_number(x)} {_number(start.middle)} {there} L{_number(end.x)} {below} {up}"


def _box(box: Box) -> Iterator[str]:
    node = box.node
    assert node is not None
    yield "<g>"
    yield f"<title>{_escaped(node.name)}</title>"
    kind = "absent" if node.absent else node.kind
    yield _rect(f"box {kind}", box.x, box.y, box.width, box.height)
    left, y = box.x + PADDING, box.y + PADDING + TITLE - 2
    yield _text("name", left, y, TITLE, cut(node.name))
    yield _text("kind", left, y + LINE, KIND, node.words)
    if box.ports:
        line = box.y + PADDING + TITLE + LINE + PADDING / 4
        yield f'<path class="rule" d="M{_number(box.x)} {_number(line)} H{_number(box.x + box.width)}"/>'
    for port in box.ports:
        yield from _port(port, left)
    yield "</g>"


def _port(port: Port, left: float) -> Iterator[str]:
    color, shift = COLORS[port.edge.tone], ROW / 3
    yield f'<circle cx="{_number(left + 3)}" cy="{_number(port.y)}" r="3.5" fill="{color}"/>'
    health = f'  <tspan fill="{color}">{_escaped(port.edge.health)}</tspan>' if port.edge.health else ""
    yield _text("row", left + 12, port.y + shift, ROW, port.origin, health)
    for number, line in enumerate(port.lines, 1):
        yield _text("row", left + 12, port.y + shift + number * LINE, ROW, line)


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    place = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
    return f'<rect class="{kind}" {place} rx="6"/>'


def _text(kind: str, x: float, y: float, size: float, text: str, span: str = "") -> str:
    place = f'x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}" xml:space="preserve"'
    return f'<text class="{kind}" {place}>{_escaped(text)}{span}</text>'


def _escaped(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


def _number(value: float) -> str:
    return f"{round(value, 1):g}"
