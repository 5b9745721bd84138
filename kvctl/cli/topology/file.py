"""Topology files on the command line: the option, reading, and opening their contexts."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from kvctl.cli.app.session import Session
from kvctl.errors import UsageError

if TYPE_CHECKING:
    from kvctl.contexts import Context
    from kvctl.documents.parser import Document
    from kvctl.jetstream.api import Api
    from kvctl.kv.client import Client
    from kvctl.topology.model.file import Topology

File = Annotated[str, typer.Option("--file", "-f", metavar="FILE", help="Topology file, `-` for standard input")]
OptionalFile = Annotated[
    str | None, typer.Option("--file", "-f", metavar="FILE", help="Topology file, `-` for standard input")
]


def read_document(session: Session, file: str) -> "Document":
    """Read the file as plain data with line numbers, and variables of the environment replaced. Raises UsageError."""
    from kvctl.documents import parser, variables

    content = session.read_input(file)
    try:
        document = parser.parse(content, "standard input" if file == "-" else file)
    except UsageError as error:
        if b"${" in content:
            error.hint = error.hint or 'Quote a variable that stands inside `{...}` or `[...]`: `"${NAME}"`'
        raise
    return variables.expanded(document, os.environ)


def read_file(session: Session, file: str) -> "Topology":
    """Read the topology in a file. Raises UsageError."""
    from kvctl.topology.model.file import read_topology

    return read_topology(read_document(session, file))


async def open_places(session: Session, topology: "Topology") -> "dict[str, Api]":
    """Open an API for each of the file's contexts; the empty name is the context in use, if the file uses it."""
    from kvctl.topology.survey import accounts

    async def connect(context: "Context") -> "Client":
        for warning in context.warnings:
            session.warn(warning)
        return await session.connect(context)

    return await accounts.opened(topology, session.client, connect, session.options.connection_flags())
