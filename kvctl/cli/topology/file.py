"""Topology files on the command line: the option, reading, and opening their contexts."""

import os
from typing import Annotated

import kvctl
from kvctl.cli.app.options import argument, option
from kvctl.cli.app.session import Session
from kvctl.documents import parser, variables
from kvctl.errors import UsageError
from kvctl.jetstream import api
from kvctl.topology.model import file as model_file
from kvctl.topology.survey import inventory

GivenFile = Annotated[str | None, argument("FILE", "Topology file, `-` for standard input, as with --file")]
OptionalFile = Annotated[str | None, option("--file -f", "FILE", "Topology file, `-` for standard input")]


def one_file(given: str | None, file: str | None, command: str) -> str:
    """Return the file of a command, an argument or an option. Raises UsageError."""
    if (given is None) == (file is None):
        raise UsageError("Give one topology file", hint=f"`kvctl topology {command} topology.yaml`")
    return given or file or ""


def content_of(session: Session, file: str) -> bytes:
    """Return what a file holds. Raises UsageError."""
    return session.read_input(file, missing="`kvctl topology export` writes a file of what exists")


def read_document(session: Session, file: str, content: bytes | None = None) -> "parser.Document":
    """Read the file as plain data with line numbers, and variables of the environment replaced. Raises UsageError.

    `content` is what it holds, if that was read before.
    """
    content = content_of(session, file) if content is None else content
    try:
        document = parser.parse(content, "standard input" if file == "-" else file)
    except UsageError as error:
        if b"${" in content:
            error.hint = error.hint or 'Quote a variable that stands inside `{...}` or `[...]`: `"${NAME}"`'
        raise
    return variables.expanded(document, os.environ)


def read_file(session: Session, file: str) -> "model_file.Topology":
    """Read the topology in a file. Raises UsageError."""
    return model_file.read_topology(read_document(session, file))


async def open_places(session: Session, topology: "model_file.Topology") -> "dict[str, api.Api]":
    """Open an API for each of the file's contexts; the empty name is the context in use, if the file uses it."""

    async def connect(context: "kvctl.Context") -> "kvctl.Client":
        for warning in context.warnings:
            session.warn(warning)
        return await session.connect(context)

    return await inventory.opened(topology, session.client, connect, session.options.connection_flags())
