"""A graph in the languages of Mermaid and Graphviz, with all names quoted. [pure]"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvctl.topology.survey.graph import Node
from kvctl.topology.views.drawing import Edge, Graph

COLORS = {"good": "#1a7f37", "doubtful": "#9a6700", "bad": "#cf222e", "": "#57606a"}
"""Colors of edges, readable on white and on dark pages."""

_SHAPES = {"bucket": ("[(", ")]"), "mirror": ("([", "])"), "aggregate": ("[[", "]]")}
_DOT_SHAPES = {"bucket": "cylinder", "mirror": "box", "aggregate": "component"}
# Letters and digits, and characters without a meaning in Mermaid, Markdown and HTML.
_MERMAID_SAFE = re.compile(r"[^\W_]|(?<=[^\W_])_(?=[^\W_])|[ .,:/$=()→-]")


def mermaid(graph: Graph) -> str:
    """Return a flow chart as GitHub and GitLab draw it."""
    ids = {node.id: f"n{number}" for number, node in enumerate(graph.nodes, 1)}
    lines = ["flowchart LR"]
    for number, (where, nodes) in enumerate(graph.groups.items(), 1):
        boxed = bool(where) and len(graph.groups) > 1
        lines += [f'  subgraph g{number}["{_entities(where)}"]'] if boxed else []
        lines += [f"{'    ' if boxed else '  '}{ids[node.id]}{_shape(node)}" for node in nodes]
        lines += ["  end"] if boxed else []
    for edge in graph.edges:
        label = "<br/>".join(_entities(text) for text in _label(edge))
        lines.append(f"  {ids[edge.origin]} -->" + (f'|"{label}"| ' if label else " ") + ids[edge.replica])
    lines += [
        f"  linkStyle {number} stroke:{COLORS[edge.tone]}" for number, edge in enumerate(graph.edges) if edge.tone
    ]
    absent = [ids[node.id] for node in graph.nodes if node.absent]
    if absent:
        lines += ["  classDef absent stroke-dasharray:4", f"  class {','.join(absent)} absent"]
    return "\n".join(lines) + "\n"


def dot(graph: Graph) -> str:
    """Return a directed graph for Graphviz: `dot -Tpdf`."""
    ids = {node.id: f"n{number}" for number, node in enumerate(graph.nodes, 1)}
    lines = ["digraph topology {", *_DOT_STYLE]
    for number, (where, nodes) in enumerate(graph.groups.items(), 1):
        boxed = bool(where) and len(graph.groups) > 1
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(where)}"] if boxed else []
        margin = "    " if boxed else "  "
        lines += [f"{margin}{ids[node.id]} [{_dot_node(node)}]" for node in nodes]
        lines += ["  }"] if boxed else []
    for edge in graph.edges:
        color = COLORS[edge.tone]
        attributes = f'label={_quoted(*_label(edge))} color="{color}" fontcolor="{color}"'
        lines.append(f"  {ids[edge.origin]} -> {ids[edge.replica]} [{attributes}]")
    return "\n".join([*lines, "}"]) + "\n"


_DOT_STYLE = (
    "  rankdir=LR",
    '  graph [fontname="Helvetica" fontsize=11 style="rounded" color="#8c959f" ranksep=1.2]',
    '  node [fontname="Helvetica" fontsize=11 margin="0.2,0.1"]',
    '  edge [fontname="Helvetica" fontsize=10]',
)


def _label(edge: Edge) -> Iterator[str]:
    yield from edge.words
    if edge.health and edge.health != "ok":
        yield edge.health


def _words(node: Node) -> tuple[str, str]:
    return node.name, node.words


def _shape(node: Node) -> str:
    begin, end = _SHAPES.get(node.kind, ("[", "]"))
    name, kind = map(_entities, _words(node))
    return f'{begin}"{name}<br/>{kind}"{end}'


def _entities(text: str) -> str:
    """Escape everything that could have a meaning as Mermaid's character number, `#35;`."""
    safe = {match.start() for match in _MERMAID_SAFE.finditer(text)}
    return "".join(char if at in safe else f"#{ord(char)};" for at, char in enumerate(text))


def _dot_node(node: Node) -> str:
    style = ' style="dashed"' if node.absent else ""
    return f"label={_quoted(*_words(node))} shape={_DOT_SHAPES.get(node.kind, 'box')}{style}"


def _quoted(*lines: str) -> str:
    """Return lines of text as a quoted string, with quotes, backslashes and HTML entities escaped for Graphviz."""
    harmless = (re.sub(r"[\x00-\x1f\x7f]", "\ufffd", line) for line in lines)
    escaped = (line.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for line in harmless)
    return '"' + "\\n".join(escaped) + '"'
