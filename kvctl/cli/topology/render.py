"""`kvctl topology render`, and the commands of the group."""

from kvctl.cli.app.command import command, group
from kvctl.cli.app.session import Session
from kvctl.cli.topology import (
    apply,
    audit,
    export,
    graph,
    plan,
    status,
    trace,
)
from kvctl.cli.topology.file import File, read_file
from kvctl.render.view import Column, View

app = group("topology", help="Buckets, mirrors and aggregates described in a file")


@command(
    app,
    "render",
    examples=["kvctl topology render -f topology.yaml", "kvctl topology render -f topology.yaml -o yaml"],
    see=["help topologies", "mirror create", "aggregate create"],
)
def render(session: Session, file: File) -> None:
    """Print the stream configurations that a file describes, without a server.

    The output is an array in the server's own JSON: exactly what `topology apply` creates on empty servers, origins
    before their replicas. If an origin is not in the file, the history and ttl that its replicas inherit are unknown; a
    warning names each.
    """
    from kvctl.topology.plan import rendered

    found = rendered.render(read_file(session, file))
    if session.options.output is None:
        session.output = "json"
    session.show(View(columns=[Column("name"), Column("subjects"), Column("mirror"), Column("sources")],
                      rows=found.streams))  # fmt: skip
    for warning in found.warnings:
        session.warn(warning)


app.entries.update(
    {
        **plan.app.entries,
        **apply.app.entries,
        **audit.app.entries,
        **export.app.entries,
        **graph.app.entries,
        **status.app.entries,
        **trace.app.entries,
    }
)
