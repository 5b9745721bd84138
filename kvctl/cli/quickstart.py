"""`kvctl quickstart`: a tour of the main commands, each printed before it runs."""

import asyncio
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from datetime import timedelta
from typing import IO, Annotated

from typer import Option

from kvctl import connection
from kvctl import server as kvctl_server
from kvctl.cli.app import main
from kvctl.cli.app.command import command
from kvctl.cli.app.session import Interrupted, Session
from kvctl.errors import KvctlError, UsageError
from kvctl.render.terminal import paint
from kvctl.units import format_duration

_PATIENCE = 20.0
"""Seconds to wait for output or the end of a background command."""


_EXAMPLES = ["kvctl quickstart", "kvctl quickstart --step", "kvctl quickstart --context test"]


@command("quickstart", examples=_EXAMPLES, see=["server run", "help topologies"])
def quickstart(
    session: Session, step: Annotated[bool, Option("--step", help="Wait for Enter after each part")] = False
) -> None:
    """Run a short tour on a temporary server.

    Starts a NATS server on a free port, creates buckets, replicates them, draws and audits the replication, reads,
    updates and watches keys, and prints each command before it runs, as you would type it. The server and its data are
    deleted at the end.

    With --server or --context the tour uses that server, creates buckets with unique names and deletes them at the end.
    """
    if step and not sys.stdin.isatty():
        raise UsageError("`--step` waits for Enter, and standard input is not a terminal")
    options = session.options
    signal.signal(signal.SIGTERM, _interrupted)
    if options.server is not None or options.context is not None:
        _require_server(session)
        tour = Tour(session, _arguments(options.connection_flags()), step=step)
        _walk(tour, f"-{os.urandom(3).hex()}")
    else:
        _on_own_server(session, step)


def _interrupted(number: int, _frame: object) -> None:
    raise Interrupted(number)


def _require_server(session: Session) -> None:
    """Raise UnreachableError if the server does not answer, before the tour begins."""

    async def reach() -> None:
        await (await connection.connect(session.context)).close()

    asyncio.run(reach())


def _on_own_server(session: Session, step: bool) -> None:
    with kvctl_server.run_server() as server, _environment(NATS_URL=server.url):
        tour = Tour(session, step=step)
        tour.say("A local server with its data in a temporary directory; start your own with `kvctl server run`")
        tour.show(f"export NATS_URL={server.url}")
        if not step and session.terminal.is_terminal:
            tour.say("With `--step` the tour waits for Enter after each part")
        tour.end()
        _walk(tour, "")
    tour.say("The server and its data were deleted. Next steps:")
    tour.list(
        ("kvctl server run", "start a server on the default port"),
        ("kvctl server run --lab supercluster", "start two clusters, and replicate between them"),
        ("kvctl help topologies", "describe buckets and their replicas in a file, plan and apply it"),
        ("kvctl context add prod --server URL --select", "save your servers under names"),
        ("kvctl --help", "list all commands; `kvctl help` lists the topics"),
        ("kvctl help guarantees", "read what is guaranteed and what is not"),
        ("kvctl completion --help", "complete buckets and keys with TAB"),
    )


def _walk(tour: "Tour", suffix: str) -> None:
    orders, returns, copy, shop = (name + suffix for name in ("orders", "returns", "orders-copy", "shop"))
    try:
        _replicate(tour, orders, returns, copy, shop)
        _use(tour, orders)
        tour.say("Destructive commands ask for confirmation; `--yes` skips the prompt")
        tour.run("aggregate", "delete", shop, "--yes")
        tour.run("mirror", "delete", copy, "--yes")
        tour.run("bucket", "delete", orders, "--yes")
        tour.run("bucket", "delete", returns, "--yes")
    except BaseException:
        for kind, name in (("aggregate", shop), ("mirror", copy), ("bucket", orders), ("bucket", returns)):
            tour.quietly(kind, "delete", name, "--yes")
        raise


def _replicate(tour: "Tour", orders: str, returns: str, copy: str, shop: str) -> None:
    tour.say("Buckets hold keys. The first keeps five revisions of each key")
    tour.run("bucket", "add", orders, "--history", "5")
    tour.run("bucket", "add", returns)
    tour.say("A write prints its revision: a number that increases with every write to the bucket")
    tour.run("put", orders, "NEW.7", "two of these")
    tour.run("put", orders, "NEW.8", "one of those")
    tour.run("put", returns, "8", "broken")
    tour.say("A mirror is a copy of a bucket near its readers, an aggregate merges buckets into one")
    tour.run("mirror", "create", copy, "--origin", orders)
    tour.run("aggregate", "create", shop, "--origin", f"bucket={orders},keys=NEW.>,prefix=new",
             "--origin", f"bucket={returns},prefix=returned")  # fmt: skip
    tour.run("get", shop, "new.>")
    tour.run("topology", "graph", orders, returns)
    tour.say("A lag of 0 proves nothing, so an audit compares every key with the origins")
    tour.run("topology", "audit", copy, shop)


def _use(tour: "Tour", orders: str) -> None:
    tour.say("Keys are tokens separated by dots; `*` matches one token, `>` matches all that follow")
    tour.value("get", orders, "NEW.7")
    tour.run("get", orders, "NEW.*")
    tour.say("Earlier values are kept and can be read")
    tour.run("put", orders, "NEW.7", "three of these")
    tour.run("history", orders, "NEW.7")
    tour.value("get", orders, "NEW.7", "--revision", "1")
    tour.say("An update names the revision it expects. The key has changed since revision 1: a conflict")
    tour.run("update", orders, "NEW.7", "four of these", "1", code=4)
    tour.run("update", orders, "NEW.7", "four of these", "3")
    tour.say("A watch in the background shows the current entries first, then every change")
    with tour.background("watch", orders, "--count", "4") as watch:
        watch.pass_on(2)
        tour.run("put", orders, "NEW.9", "a dozen")
        watch.pass_on(1)
        tour.run("delete", orders, "NEW.8")
        watch.pass_on(1)
    tour.say("A key that does not exist gives exit code 3. A deleted key can be restored")
    tour.run("get", orders, "NEW.8", code=3)
    tour.run("revert", orders, "NEW.8", "2")
    tour.say("Scripts get exact bytes and tab-separated lines in a pipe, or JSON")
    tour.run("get", orders, "NEW.8", "-o", "json")


def _arguments(flags: Mapping[str, object]) -> list[str]:
    """Format shared options as command-line arguments."""
    arguments = []
    for name, value in flags.items():
        text = format_duration(value) if isinstance(value, timedelta) else str(value)
        arguments += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return arguments


class Tour:
    """Tour that prints commands and runs them; `arguments` are appended to each."""

    def __init__(self, session: Session, arguments: Sequence[str] = (), *, step: bool = False) -> None:
        self._session = session
        self._step = step
        self._parts = 0
        self._arguments = list(arguments)
        self._unseen = ["--color", session.options.color]

    def say(self, text: str) -> None:
        """Print a comment, which begins a part of the tour."""
        self._parts += 1
        if self._step and self._parts > 1:
            self._wait()
        self._comment(text)

    def list(self, *lines: tuple[str, str]) -> None:
        """Print commands with their purposes as comments."""
        width = max(len(line) for line, _ in lines)
        for line, purpose in lines:
            self._comment(f"  {line:{width}}  {purpose}")

    def _wait(self) -> None:
        """Wait for Enter; the end of input ends the tour as Ctrl-C does."""
        print("Press Enter to continue", end="", file=sys.stderr, flush=True)
        if not sys.stdin.readline():
            raise Interrupted(signal.SIGINT)

    def show(self, line: str) -> None:
        """Print a command line as it would be typed."""
        self._print(f"$ {line}", "bold")

    def end(self) -> None:
        """Print a blank line."""
        self._print("")

    def run(self, *command: str, code: int = 0) -> None:
        """Print a command and run it. Raises KvctlError if it exits with another code than `code`."""
        self.show(self._line(command))
        with redirect_stderr(sys.stdout):  # expected errors are part of the tour
            found = main.main([*command, *self._arguments, *self._unseen])
        if found >= 128:
            raise Interrupted(found - 128)
        if found != code:
            raise KvctlError(f"`{self._line(command)}` exited with code {found} instead of {code}")
        if code:
            self._comment(f"exit code {code}")
        self.end()

    def value(self, *command: str) -> None:
        """Print and run a command that prints a value, which has no final newline in a pipe."""
        self.run(*command)
        if not self._session.terminal.is_terminal:
            self.end()

    def quietly(self, *command: str) -> None:
        """Run a clean-up command without output; ignore its exit code."""
        line = [sys.executable, "-m", "kvctl", *command, *self._arguments]
        subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    @contextmanager
    def background(self, *command: str) -> "Iterator[Background]":
        """Print a command and run it in the background. Raises KvctlError if it outlives the block."""
        self.show(f"{self._line(command)} &")
        shown = ["-o", self._session.output, "--color", "always" if self._session.terminal.colored else "never"]
        line = [sys.executable, "-m", "kvctl", *command, *self._arguments, *shown]
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        try:
            yield Background(self._session, process.stdout, headings=int(self._session.output == "table"))
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            raise KvctlError(f"`{self._line(command)}` did not end") from None
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def _line(self, command: Sequence[str]) -> str:
        return shlex.join(["kvctl", *command, *self._arguments])

    def _comment(self, text: str) -> None:
        if not self._session.options.quiet:
            self._print(f"# {text}", "dim")

    def _print(self, text: str, style: str = "") -> None:
        colored = style and text and self._session.terminal.colored
        self._session.write(f"{paint(text, style) if colored else text}\n".encode())


class Background:
    """Background command whose output is printed on demand, line by line."""

    def __init__(self, session: Session, stream: IO[bytes], *, headings: int) -> None:
        self._session = session
        self._stream = stream
        self._headings = headings
        self._read = b""

    def pass_on(self, lines: int) -> None:
        """Wait for a number of lines and print them, the first time with the heading. Raises KvctlError."""
        wanted, self._headings = lines + self._headings, 0
        while self._read.count(b"\n") < wanted:
            ready, _, _ = select.select([self._stream], [], [], _PATIENCE)
            data = os.read(self._stream.fileno(), 65536) if ready else b""
            if not data:
                raise KvctlError(f"The background command ended early: {self._read.decode()}".strip())
            self._read += data
        *complete, self._read = self._read.split(b"\n", wanted)
        self._session.write(b"".join(line + b"\n" for line in complete) + b"\n")


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set these variables and unset all other `NATS_` variables within the block."""
    before = {name: value for name, value in os.environ.items() if name.startswith("NATS_")}
    for name in before:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)
