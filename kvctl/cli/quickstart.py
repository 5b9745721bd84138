"""`kvctl quickstart`: a tour of the main commands on a temporary server, each printed before it runs."""

import os
import shlex
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from kvctl import server as kvctl_server
from kvctl.cli.app import main
from kvctl.cli.app.command import command
from kvctl.cli.app.help_page import wrapped_command
from kvctl.cli.app.session import Interruption, Session
from kvctl.errors import KvctlError, UsageError
from kvctl.render.terminal import paint

WIDTH = 80
"""Width of comments and commands, in terminal columns."""
_AFTERWARDS = {
    "kvctl server run": "start a server on the default port",
    "kvctl server run --lab supercluster": "start two clusters to replicate between",
    "kvctl help topologies": "read about mirrors and aggregates",
    "kvctl help deploying": "plan and apply a file of buckets",
    "kvctl context add prod --server URL": "save your servers under names",
    "kvctl help": "list all commands and topics",
    "kvctl help guarantees": "read what is guaranteed and what is not",
    "kvctl completion install": "complete buckets and keys with TAB",
}


@command("quickstart", examples=["kvctl quickstart"], see=["server run", "help topologies"])
def quickstart(session: Session) -> None:
    """Run a short tour on a temporary server.

    Starts a NATS server on a free port, creates buckets, replicates them, draws and audits the replication, reads,
    updates and watches keys, and prints each command before it runs, as you would type it. The server and its data are
    deleted at the end.
    """
    if session.options.server is not None or session.options.context is not None:
        raise UsageError("The tour runs on a server of its own", hint="Leave out `--server` and `--context`")
    signal.signal(signal.SIGTERM, _interrupt)
    tour = Tour(session)
    with kvctl_server.run_server() as server, _environment(NATS_URL=server.url):
        tour.say("A local server with its data in a temporary directory; start your own with `kvctl server run`")
        tour.show(f"export NATS_URL={server.url}")
        tour.end()
        _replicate(tour)
        _use(tour)
        _delete(tour)
    tour.say("The server and its data were deleted. Next steps:")
    width = max(map(len, _AFTERWARDS))
    for line, purpose in _AFTERWARDS.items():
        tour.say(f"  {line:{width}}  {purpose}")


def _interrupt(number: int, _frame: object) -> None:
    raise Interruption(number)


def _replicate(tour: "Tour") -> None:
    tour.say("Buckets hold keys. The first keeps five revisions of each key")
    tour.run("bucket add orders --history 5")
    tour.run("bucket add returns")
    tour.say("A write prints its revision: a number that increases with every write to the bucket")
    tour.run("put orders NEW.7 'two of these'")
    tour.run("put orders NEW.8 'one of those'")
    tour.run("put returns 8 broken")
    tour.say("A mirror is a copy of a bucket near its readers, an aggregate merges buckets into one")
    tour.run("mirror create orders-copy --origin orders")
    tour.run(
        "aggregate create shop --origin 'bucket=orders,keys=NEW.>,prefix=new' --origin bucket=returns,prefix=returned"
    )
    tour.run("get shop 'new.>'")
    tour.run("topology graph orders returns")
    tour.say("A lag of 0 proves nothing, so an audit compares every key with the origins")
    tour.run("topology audit orders-copy shop")


def _use(tour: "Tour") -> None:
    tour.say("Keys are tokens separated by dots; `*` matches one token, `>` matches all that follow")
    tour.run("get orders NEW.7", value=True)
    tour.run("get orders 'NEW.*'")
    tour.say("Earlier values are kept and can be read")
    tour.run("put orders NEW.7 'three of these'")
    tour.run("history orders NEW.7")
    tour.run("get orders NEW.7 --revision 1", value=True)
    tour.say("An update names the revision it expects. The key has changed since revision 1: a conflict")
    tour.run("update orders NEW.7 'four of these' 1", code=4)
    tour.run("update orders NEW.7 'four of these' 3")
    tour.run("delete orders NEW.8")
    tour.say("A watch shows the current entries first, then every change; here it ends before the changes")
    tour.run("watch orders --until-current")
    tour.say("A key that does not exist gives exit code 3. A deleted key can be restored")
    tour.run("get orders NEW.8", code=3)
    tour.run("revert orders NEW.8 2")
    tour.say("Scripts get exact bytes and tab-separated lines in a pipe, or JSON")
    tour.run("get orders NEW.8 -o json")


def _delete(tour: "Tour") -> None:
    tour.say("Destructive commands ask for confirmation; `--yes` skips the prompt")
    for line in ("aggregate delete shop", "mirror delete orders-copy", "bucket delete orders", "bucket delete returns"):
        tour.run(f"{line} --yes")


class Tour:
    """Tour that prints commands and runs them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._unseen = ["--color", session.options.color]

    def say(self, text: str) -> None:
        """Print a comment."""
        if not self._session.options.quiet:
            for line in textwrap.wrap(text, WIDTH - len("# ")):
                self._print(f"# {line}", "dim")

    def show(self, line: str) -> None:
        """Print a command line as it would be typed."""
        for number, part in enumerate(wrapped_command(line, WIDTH - len("$ "))):
            self._print(part if number else f"$ {part}", "bold")

    def end(self) -> None:
        """Print a blank line."""
        self._print("")

    def run(self, line: str, *, code: int = 0, value: bool = False) -> None:
        """Print a command and run it. Raises KvctlError if it exits with another code than `code`.

        A `value` has no final newline in a pipe.
        """
        self.show(f"kvctl {line}")
        with redirect_stderr(sys.stdout):  # expected errors are part of the tour
            found = main.main([*shlex.split(line), *self._unseen])
        if found >= 128:
            raise Interruption(found - 128)
        if found != code:
            raise KvctlError(f"`kvctl {line}` exited with code {found} instead of {code}")
        if code:
            self.say(f"exit code {code}")
        if value and not self._session.terminal.is_terminal:
            self.end()
        self.end()

    def _print(self, text: str, style: str = "") -> None:
        colored = style and text and self._session.terminal.colored
        self._session.write(f"{paint(text, style) if colored else text}\n".encode())


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
