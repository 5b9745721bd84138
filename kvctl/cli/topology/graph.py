"""`kvctl topology graph`: draw buckets and their replicas."""

from typing import Annotated

from kvctl.cli.app.command import command
from kvctl.cli.app.options import argument, bucket_names, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.records import GRAPH, NAME
from kvctl.cli.topology.file import OptionalFile, read_file
from kvctl.errors import UsageError
from kvctl.render.escapes import escape, utf8
from kvctl.render.fields import columns
from kvctl.render.terminal import paint
from kvctl.render.view import View, document
from kvctl.topology.health import health
from kvctl.topology.survey import inventory
from kvctl.topology.views import drawing

FORMATS = ("text", "mermaid", "dot", "svg")


@command(
    "topology graph",
    examples=[
        "kvctl topology graph",
        "kvctl topology graph ORDERS -o json",
        "kvctl topology graph -f topology.yaml --format mermaid",
        "kvctl topology graph --format svg > topology.svg",
    ],
    see=["help topologies", "topology status", "topology export"],
    prints=(NAME, GRAPH),
    in_pipe="table",
)
async def graph(
    session: Session,
    names: Annotated[
        list[str] | None, argument("BUCKET", "Buckets to draw, with their origins and replicas", bucket_names)
    ] = None,
    file: OptionalFile = None,
    format: Annotated[str, option("--format", "FORMAT", "text, mermaid, dot or svg", one_of(*FORMATS))] = "text",
) -> None:
    """Draw buckets and their replicas.

    Arrows lead from an origin to its replicas, labelled with the key filters and their destinations. Clusters, domains,
    contexts and accounts are shown separately. Origins that are not visible from here are drawn, too.

    Live replicas are drawn with their state, as in `kvctl topology status`. With --file, the file is drawn, without a
    server. A bucket without replicas is drawn only if it is named or in the file.

    Use mermaid for Markdown pages, dot for Graphviz, and svg for a self-contained picture.
    """
    if format not in FORMATS:
        raise UsageError(f"`{format}` is not a graph format", hint=f"Use one of {', '.join(FORMATS)}")
    drawn = await _graph(session, names or [], file)
    if session.options.output in ("json", "ndjson", "yaml"):
        session.show(document(drawn.to_json()))
    elif session.options.output == "name":
        session.show(View(columns=columns("name"), rows=[{"name": node.name} for node in drawn.nodes]))
    elif format == "text":
        if not drawn.nodes and not drawn.alone:
            session.note("No buckets")
        session.paragraphs("".join(painted(line, color=session.terminal.colored) for line in drawing.text(drawn)))
    else:
        session.write(_drawing(session, drawn, format))


async def _graph(session: Session, names: list[str], file: str | None) -> "drawing.Drawing":
    if file is not None:
        return drawing.of_topology(read_file(session, file), names)
    found = await inventory.survey({"": (await session.client()).api})
    return drawing.of_inventory(found, await health.check_health(found.around(names)), names)


def _drawing(session: Session, drawn: "drawing.Drawing", format: str) -> bytes:
    text = {"mermaid": drawing.mermaid, "dot": drawing.dot, "svg": drawing.svg}[format](drawn)
    return utf8(escape(text, keep="\n") if session.terminal.is_terminal else text)


def painted(line: "drawing.Line", *, color: bool) -> str:
    """Return a line for a terminal, escaped, and with colours if wanted."""
    texts = [(escape(text), style) for text, style in line]
    return "".join(paint(text, style) if color and style and text else text for text, style in texts).rstrip() + "\n"
