"""A command tree that exercises the frame: `python -m tests.cli.demo`."""

import asyncio
import os
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Any

import typer

from kvctl.cli.app import main as command_line
from kvctl.cli.app.command import Group, GroupEntry, build, command, group
from kvctl.cli.app.options import Confirm, Yes, duration, moment, size
from kvctl.cli.app.session import Session
from kvctl.errors import ConflictError, OutcomeUnknown
from kvctl.render import progress as progress_module
from kvctl.render.view import Column, View, age_text, document, size_text

group("thing part", "Parts of things")

THINGS = [
    Column("name", style="cyan"),
    Column("size", text=size_text, right=True),
    Column("created", "AGE", text=age_text),
    Column("description", flex=True),
]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HOSTILE = "a\x1b[31mb\u202ec\udcff\td\\e\nf"


@command("thing ls", examples=["kvctl thing ls", "kvctl thing ls -o json"], see=["thing show"])
async def ls(
    session: Session,
    count: Annotated[int, typer.Option("--count", metavar="N", help="How many")] = 2,
    hostile: Annotated[bool, typer.Option("--hostile", help="Names that no terminal should see")] = False,
) -> None:
    """List things.

    They are made up, one for each number up to --count, and each is ten times as large as the one before it.
    """
    rows = [
        {
            "name": HOSTILE if hostile else f"thing-{number}",
            "size": 2000 * 10**number,
            "created": "2026-01-02T03:04:05.000000006Z",
            "description": "Ünïcode 漢字 😀" if number % 2 else None,
        }
        for number in range(count)
    ]
    session.show(View(columns=THINGS, rows=rows, empty="No things"))


@command("thing show", examples=["kvctl thing show x"])
async def show(
    session: Session,
    name: str,
    rest: Annotated[list[str] | None, typer.Argument(metavar="REST")] = None,
    description: Annotated[str | None, typer.Option("--description", metavar="TEXT", help="Any text")] = None,
    ttl: Annotated[timedelta | None, duration("--ttl", help="How long")] = None,
    limit: Annotated[int | None, size("--limit", help="How large")] = None,
    since: Annotated[int | None, moment("--since", help="Since when")] = None,
) -> None:
    """Show what was given."""
    given = {
        "name": name,
        "rest": rest or [],
        "description": description,
        "ttl": ttl.total_seconds() if ttl else None,
        "limit": limit,
        "since": since is not None,
        "output": session.options.output,
        "server": session.options.server,
        "flags": {name: str(value) for name, value in session.options.connection_flags().items()},
    }
    parts = View(columns=[Column("part"), Column("lag", right=True)], rows=[{"part": "n1", "lag": 0}])
    session.show(document(given, sections=[("Parts", parts)]))


@command("thing rm", examples=["kvctl thing rm x --yes"])
async def rm(session: Session, name: str, yes: Yes = False, confirm: Confirm = None) -> None:
    """Delete a thing after asking."""
    if name == "dear":
        await session.confirm(f"Thing `{name}` is dear to others", typed_name=name, confirmed=confirm)
    else:
        await session.confirm(f"Delete thing `{name}`?", yes=yes)
    session.note(f"Deleted `{name}`")


@command("thing stream", examples=["kvctl thing stream"])
async def stream(
    session: Session,
    batches: int = 3,
    rows: int = 2,
    pause: float = 0,
    width: int = 1,
    endless: bool = False,
    ticks: bool = False,
) -> None:
    """Print batches of rows; with --ticks, say on stderr what is asked for, and at the end how alive the loop was."""
    ticking = Ticking()
    view = View(columns=[Column("name"), Column("text", flex=True)])
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(ticking.run())
        await session.stream(view, _batches(session, batches, rows, pause, width, ticks), endless=endless)
        task.cancel()
    if ticks:
        session.warn(f"ticks {ticking.count}")


class Ticking:
    """Counts tenths of seconds."""

    count = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self.count += 1


async def _batches(
    session: Session, batches: int, rows: int, pause: float, width: int, ticks: bool
) -> AsyncIterator[list[dict[str, Any]]]:
    try:
        for batch in range(batches):
            if ticks:
                session.warn(f"batch {batch}")
            yield [{"name": f"{batch}.{row}", "text": "x" * width} for row in range(rows)]
            await asyncio.sleep(pause)
    finally:
        if ticks:
            await asyncio.sleep(0)
            session.warn("source closed")


@command("thing large", examples=["kvctl thing large"])
async def large(session: Session) -> None:
    """Print more than a pipe holds, in one go."""
    session.show(View(columns=[Column("name")], rows=[{"name": "x" * 1000}] * 1000))


@command("thing work", examples=["kvctl thing work"])
async def work(session: Session, fail: str = "", seconds: float = 0.9, tell: bool = False, aside: bool = False) -> None:
    """Work for a while, say when it is cleaned up.

    With --aside, signals reach another thread, which does not interrupt the wait of the main one.
    """
    if aside:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    if not seconds:
        progress_module.DELAY = 600.0  # nothing is shown of what takes no time, however slow the machine is
    try:
        if tell:
            os.write(1, b"working\n")
        with session.progress("Working", 9) as progress:
            for _ in range(9):
                await asyncio.sleep(seconds / 9)
                progress.advance()
        _fail(fail)
    except asyncio.CancelledError:
        session.warn("cleaned up")
        raise


@command("thing compute", examples=["kvctl thing compute"])
async def compute(session: Session, expression: bool = False, clean: bool = False) -> None:
    """Compute without end and without looking at signals, in Python or in a regular expression."""
    os.write(1, b"working\n")
    try:
        if clean:
            await asyncio.sleep(600)
        if expression:
            re.match(r"(a|aa)+$", "a" * 90 + "b")
        while True:
            sum(range(1000))
    finally:
        while clean:
            sum(range(1000))


def _fail(how: str) -> None:
    if how == "conflict":
        raise ConflictError("Thing `x` exists\x1b[2J", hint="`kvctl thing show x` shows it")
    if how == "unknown":
        raise ExceptionGroup("several", [OutcomeUnknown("Nobody knows")])
    if how == "bug":
        raise KeyError("x")
    if how == "file":
        open("/no/such/file")  # noqa: SIM115


@command("thing code", examples=["kvctl thing code 8"])
def code(session: Session, number: int) -> int:
    """Exit with a code."""
    return number


@command("thing value", examples=["kvctl thing value -"])
async def value(session: Session, text: str = "", file: str = "") -> None:
    """Print a value."""
    session.value(session.read_input(file) if file else text.encode("utf-8", "surrogateescape"))


@command("thing trace", examples=["kvctl thing trace -v"])
def trace(session: Session) -> None:
    """Trace a request."""
    session.terminal.trace("$JS.API.STREAM.INFO.KV_x\x1b", 0.0012, "404 stream not found")


@command("thing part new", examples=["kvctl thing part new"])
def new(session: Session) -> None:
    """Make a part."""
    session.write(b"made\n")


ABOUT = "Things to try the frame with"
TREE = Group("kvctl", "The frame under test", {"thing": GroupEntry(ABOUT, lambda: build("thing", ABOUT), "Things")})


def main() -> int:
    """Run a command line of this process."""
    return command_line.main(tree=TREE)


if __name__ == "__main__":
    sys.exit(main())
