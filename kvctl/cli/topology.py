"""Topology files: render."""

from typing import Annotated

import typer

from kvctl.cli.command import command, group
from kvctl.cli.session import Session
from kvctl.render.view import Column, View

app = group("topology", help="Buckets, mirrors and aggregates described in a file")

File = Annotated[str, typer.Option("--file", "-f", metavar="FILE", help="Topology file, `-` for standard input")]


@command(
    app,
    "render",
    examples=["kvctl topology render -f topology.yaml", "kvctl topology render -f topology.yaml -o yaml"],
    see=["help topologies", "mirror create", "aggregate create"],
)
def render(session: Session, file: File) -> None:
    """Print the stream configurations that a file describes, without a server.

    An array, in the server's own JSON. What mirrors and aggregates have from their origins is filled in as far as those
    stand in the file, too.
    """
    from kvctl import documents
    from kvctl.topology.document import read_topology

    source = "standard input" if file == "-" else file
    topology = read_topology(documents.parse(session.read_input(file), source))
    if session.options.output is None:
        session.output = "json"
    session.show(View(columns=[Column("name"), Column("subjects"), Column("mirror"), Column("sources")],
                      rows=topology.streams()))  # fmt: skip
