"""`kvctl help` on topics and commands, and `kvctl version`."""

import sys

from kvctl import __version__
from kvctl.cli.command import command, group
from kvctl.cli.session import Session
from kvctl.render.view import document

app = group()


@command(app, "version", examples=["kvctl version", "kvctl version -o json"])
def version(session: Session) -> None:
    """Show the version."""
    python = ".".join(map(str, sys.version_info[:3]))
    session.show(document({"version": __version__, "python": python}, name="version"))
