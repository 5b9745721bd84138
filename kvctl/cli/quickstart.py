"""A tour of the main job, each command printed before it runs."""

import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from datetime import timedelta
from typing import IO

from kvctl.cli.app.command import command, group
from kvctl.cli.app.session import Interrupted, Session
from kvctl.errors import KvctlError
from kvctl.render.terminal import paint
from kvctl.units import format_duration

app = group()

_PATIENCE = 20.0


@command(app, "quickstart", examples=["kvctl quickstart", "kvctl quickstart --context test"], see=["server run"])
def quickstart(session: Session) -> None:
    """See it work, against a server of its own.

    Starts a NATS server on a free port, makes buckets, writes, reads, watches, and prints each command before it runs,
    as you could type it. A few seconds later the server is gone, with everything on it.

    With --server or --context it uses that server, makes buckets of new names there, and deletes them at the end.
    """
    options = session.options
    signal.signal(signal.SIGTERM, _interrupted)
    if options.server is not None or options.context is not None:
        _require_server(session)
        number = os.urandom(3).hex()
        _walk(Tour(session, _arguments(options.connection_flags())), f"orders-{number}", f"sessions-{number}")
    else:
        _on_own_server(session)


def _interrupted(number: int, _frame: object) -> None:
    raise Interrupted(number)


def _require_server(session: Session) -> None:
    """Raises UnreachableError before the first command would, so that the tour does not begin."""
    import asyncio

    from kvctl.connection import connect

    async def reach() -> None:
        await (await connect(session.context)).close()

    asyncio.run(reach())


def _on_own_server(session: Session) -> None:
    from kvctl.server import run_server

    with run_server() as server, _environment(NATS_URL=server.url):
        tour = Tour(session)
        tour.say("A server of our own, with its data in a temporary directory; `kvctl server run` gives you one")
        tour.show(f"export NATS_URL={server.url}")
        tour.end()
        _walk(tour, "orders", "sessions")
    tour.say("The server is gone, and everything on it. What next:")
    tour.list(
        ("kvctl server run", "a server that stays, on the usual port"),
        ("kvctl context add prod --server URL --select", "your own servers, by name"),
        ("kvctl --help", "all commands; `kvctl help` lists the topics"),
        ("kvctl help guarantees", "what you can rely on, and what not"),
        ("kvctl completion --help", "keys and buckets at the press of TAB"),
    )


def _walk(tour: "Tour", orders: str, sessions: str) -> None:
    try:
        _use(tour, orders, sessions)
    except BaseException:
        for bucket in (orders, sessions):
            tour.quietly("bucket", "delete", bucket, "--yes")
        raise


def _use(tour: "Tour", orders: str, sessions: str) -> None:
    tour.say("Buckets hold keys. This one keeps the last five values of each, the other forgets after an hour")
    tour.run("bucket", "add", orders, "--history", "5")
    tour.run("bucket", "add", sessions, "--ttl", "1h", "--storage", "memory")
    tour.run("bucket", "ls")
    tour.say("A write prints its revision: one number for the whole bucket, which only grows")
    tour.run("put", orders, "NEW.7", "two of these")
    tour.run("put", orders, "NEW.8", "one of those")
    tour.value("get", orders, "NEW.7")
    tour.say("Keys are tokens with dots between; `*` stands for one token, `>` for all that follow")
    tour.run("get", orders, "NEW.*")
    tour.say("Earlier values are kept, and can be read")
    tour.run("put", orders, "NEW.7", "three of these")
    tour.run("history", orders, "NEW.7")
    tour.value("get", orders, "NEW.7", "--revision", "1")
    tour.say("An update names the revision it has seen. The key has moved on since 1, so this is a conflict")
    tour.run("update", orders, "NEW.7", "four of these", "1", code=4)
    tour.run("update", orders, "NEW.7", "four of these", "3")
    tour.say("A watch, in the background: first what is there, then what changes")
    with tour.background("watch", orders, "--count", "4") as watch:
        watch.pass_on(2)
        tour.run("put", orders, "NEW.9", "a dozen")
        watch.pass_on(1)
        tour.run("delete", orders, "NEW.8")
        watch.pass_on(1)
    tour.say("A key that is not there is exit code 3, and it can come back")
    tour.run("get", orders, "NEW.8", code=3)
    tour.run("revert", orders, "NEW.8", "2")
    tour.say("For scripts: exact bytes and tab-separated lines in a pipe, and JSON")
    tour.run("get", orders, "NEW.8", "-o", "json")
    tour.say("What deletes much asks first; `--yes` answers")
    tour.run("bucket", "delete", sessions, "--yes")
    tour.run("bucket", "delete", orders, "--yes")


def _arguments(flags: Mapping[str, object]) -> list[str]:
    """Shared options as a command line has them."""
    arguments = []
    for name, value in flags.items():
        text = format_duration(value) if isinstance(value, timedelta) else str(value)
        arguments += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return arguments


class Tour:
    """Prints and runs commands; `arguments` are added to each of them."""

    def __init__(self, session: Session, arguments: Sequence[str] = ()) -> None:
        self._session = session
        self._arguments = list(arguments)
        self._unseen = ["--color", session.options.color]

    def say(self, text: str) -> None:
        """A comment."""
        if not self._session.options.quiet:
            self._print(f"# {text}", "dim")

    def list(self, *lines: tuple[str, str]) -> None:
        """Commands and what they are for, below a comment."""
        width = max(len(line) for line, _ in lines)
        for line, purpose in lines:
            self.say(f"  {line:{width}}  {purpose}")

    def show(self, line: str) -> None:
        """A command line as it would be typed."""
        self._print(f"$ {line}", "bold")

    def end(self) -> None:
        """A blank line."""
        self._print("")

    def run(self, *command: str, code: int = 0) -> None:
        """Print a command and run it; another exit code than `code` ends the tour. Raises KvctlError."""
        from kvctl.cli.app.main import main

        self.show(self._line(command))
        with redirect_stderr(sys.stdout):  # what goes wrong on purpose is part of the tour
            found = main([*command, *self._arguments, *self._unseen])
        if found >= 128:
            raise Interrupted(found - 128)
        if found != code:
            raise KvctlError(f"`{self._line(command)}` ended with exit code {found} instead of {code}")
        if code:
            self.say(f"exit code {code}")
        self.end()

    def value(self, *command: str) -> None:
        """`run` for a command that prints a value: in a pipe that has no newline of its own."""
        self.run(*command)
        if not self._session.terminal.is_terminal:
            self.end()

    def quietly(self, *command: str) -> None:
        """Run a command that clears up, and say nothing."""
        line = [sys.executable, "-m", "kvctl", *command, *self._arguments]
        subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    @contextmanager
    def background(self, *command: str) -> "Iterator[Background]":
        """Print a command and run it beside those that follow, until it ends by itself."""
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

    def _print(self, text: str, style: str = "") -> None:
        colored = style and text and self._session.terminal.colored
        self._session.write(f"{paint(text, style) if colored else text}\n".encode())


class Background:
    """A command that runs beside the tour; its output is passed on line by line, when it is its turn."""

    def __init__(self, session: Session, stream: IO[bytes], *, headings: int) -> None:
        self._session = session
        self._stream = stream
        self._headings = headings
        self._read = b""

    def pass_on(self, lines: int) -> None:
        """Wait for so many lines and print them; before the first, the heading. Raises KvctlError."""
        wanted, self._headings = lines + self._headings, 0
        while self._read.count(b"\n") < wanted:
            ready, _, _ = select.select([self._stream], [], [], _PATIENCE)
            data = os.read(self._stream.fileno(), 65536) if ready else b""
            if not data:
                raise KvctlError(f"The command in the background has stopped: {self._read.decode()}".strip())
            self._read += data
        *complete, self._read = self._read.split(b"\n", wanted)
        self._session.write(b"".join(line + b"\n" for line in complete) + b"\n")


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """These variables, and no others that say how to connect."""
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
