"""Runs kvctl as a process, in pipes or on terminals, and shows what came of it in one block."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Protocol

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.amber import AmberSnapshotExtension
from syrupy.location import PyTestLocation
from syrupy.types import SnapshotIndex

from tests.cli.forkserver import Child, Forkserver

COLUMNS = 100
"""Width of the terminals that tests run on."""
MESSAGE_COLUMNS = 1000
"""Width of stderr's terminal, so that a message is one line whatever the length of the paths in it."""
FORKSERVER = Forkserver()
KVCTL = (sys.executable, "-m", "kvctl")


@dataclass(frozen=True)
class Result:
    """Result of a run. Compare it with `snapshot`, which sees `transcript`, or its parts by themselves."""

    args: tuple[str, ...]
    exit_code: int
    stdout: bytes
    stderr: bytes
    masks: Mapping[str, str] = field(default_factory=dict)

    @property
    def out(self) -> str:
        """stdout as text."""
        return self.stdout.decode("utf-8", "surrogateescape")

    @property
    def err(self) -> str:
        """stderr as text."""
        return self.stderr.decode("utf-8", "surrogateescape")

    def masked(self, masks: Mapping[str, str] | None = None, **named: str) -> "Result":
        """The same, where the transcript shows `{pattern: word}` and `WORD=text` as words."""
        words = {re.escape(text): word for word, text in named.items()}
        return replace(self, masks={**self.masks, **words, **(masks or {})})

    def transcript(self) -> str:
        """Command line, exit code if it is not 0, stdout and stderr, with what changes from run to run replaced."""
        text = f"$ kvctl {' '.join(self.args)}\n" + (f"exit code {self.exit_code}\n" if self.exit_code else "")
        text += "".join(
            f"{heading}{stream}" + ("" if stream.endswith("\n") else "(no newline)\n")
            for heading, stream in (("", self.out), ("----- stderr\n", self.err))
            if stream
        )
        for pattern, word in {**self.masks, **MASKS}.items():
            text = re.sub(pattern, word, text)
        return text.encode("utf-8", "backslashreplace").decode()


MASKS = {
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z": "TIME",
    r"127\.0\.0\.1:\d+": "127.0.0.1:PORT",
    r"\(\d\d:\d\d:\d\d\)": "(CLOCK)",
    r"\bcreated {2,}": "created  ",  # as wide as the ages below it
    r" in \d+\.\d s(?:, [\d,]+ rows/s)?": " in N s",
    # with the spaces that fill the column, and the rule above it: ages differ in length
    r"\b(?:AGE|just now|\d+[smh] ago|\d+ (?:day|year)s? ago)( ?) *": r"AGE\1",
    r"─{4,}": "───",
    r"\b\d+\.\d ms": "N ms",
    rf"{re.escape(gettempdir())}/[^\s`'\"]*": "PATH",
}
"""Pattern -> word, for every transcript."""


class Run(Protocol):
    """`run("bucket", "ls", stdin=b"", env={...}, tty=True)`"""

    def __call__(
        self,
        *args: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        tty: bool = False,
        timeout: float = 120,
    ) -> Result: ...


@pytest.fixture
def run():
    """Runs kvctl to its end, as a process of its own; with `tty`, each of its streams is a terminal."""
    return run_process


@pytest.fixture
def start():
    """Starts kvctl with pipes and leaves it running: `start("watch", bucket)`; killed when the test ends."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(*args: str, env: Mapping[str, str] | None = None, command: Sequence[str] = KVCTL, **settings: Any):
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen([*command, *args], env=_environment(env), **{**streams, **settings})
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def keyed(server, raw, unique):
    """A fresh bucket with a history of 5 and ttls per key, and kvctl run on it: `keyed("get", "B", "key")`."""
    from tests.cli.keyed import Keyed

    name = unique("KEYED")
    raw.create_bucket(name, max_msgs_per_subject=5, allow_msg_ttl=True, subject_delete_marker_ttl=3600 * 10**9)
    return Keyed(name, server.url, raw)


@pytest.fixture
def snapshot(snapshot, request):
    """The transcript of the test, one snapshot: `assert run(...) == snapshot` adds a block and compares up to there."""
    failed = request.session.testsfailed
    transcript = _Transcript(snapshot)
    yield transcript
    if request.session.testsfailed == failed:
        transcript.end()


class _Transcript:
    """What a test has shown so far, beside what it showed when its snapshot was written."""

    def __init__(self, snapshot: SnapshotAssertion) -> None:
        self._begun = snapshot.use_extension(_Begun)
        self._complete = snapshot.use_extension(_Complete)
        self._text = ""

    def __eq__(self, shown: object) -> bool:
        text = shown.transcript() if isinstance(shown, Result) else str(shown)
        self._text += text if text.endswith("\n") else f"{text}\n"
        assert self._text == self._begun
        return True

    __hash__ = None

    def end(self) -> None:
        """Compare as a whole; a test without comparisons has no snapshot."""
        assert not self._text or self._text == self._complete


class _Complete(AmberSnapshotExtension):
    """A file of transcripts, each as it is, under the name of its test."""

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: SnapshotIndex = 0) -> str:
        return test_location.snapshot_name

    def serialize(self, data: Any, **settings: Any) -> str:
        return data.removesuffix("\n")


class _Begun(_Complete):
    """The same, for a test that is not over."""

    def matches(self, *, serialized_data: str, snapshot_data: str) -> bool:
        return f"{snapshot_data}\n".startswith(f"{serialized_data}\n")


def run_process(
    *args: str,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    tty: bool = False,
    timeout: float = 120,
    command: list[str] | str = "kvctl.__main__",
) -> Result:
    """`run`, for use outside of tests; `command` is a module whose `main` runs, or another program's command line."""
    if tty:
        return _run_on_terminals(args, command, stdin, _environment({"NO_COLOR": "1", **(env or {})}), timeout)
    return _run_in_pipes(args, command, stdin, _environment(env), timeout)


def _begin(
    args: tuple[str, ...], command: list[str] | str, env: Mapping[str, str], streams: Sequence[int]
) -> "Child | subprocess.Popen[bytes]":
    if isinstance(command, str):
        return FORKSERVER.start(args, env, streams, command)
    return subprocess.Popen([*command, *args], stdin=streams[0], stdout=streams[1], stderr=streams[2], env=env)


def _command(args: tuple[str, ...]) -> list[str]:
    return [*KVCTL, *args]


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    here = str(Path(__file__).parents[2])
    return {**os.environ, "TERM": "xterm-256color", "PAGER": "cat", "PYTHONPATH": here, **(env or {})}


def _run_in_pipes(
    args: tuple[str, ...], command: list[str] | str, stdin: bytes, env: Mapping[str, str], timeout: float
) -> Result:
    (theirs_in, feed), (out, theirs_out), (err, theirs_err) = os.pipe(), os.pipe(), os.pipe()
    streams = (theirs_in, theirs_out, theirs_err)
    process = _begin(args, command, env, streams)
    feeding = threading.Thread(target=_feed, args=(feed, stdin))
    try:
        for descriptor in streams:
            os.close(descriptor)
        feeding.start()
        stdout, stderr = _drain(out, err, deadline=time.monotonic() + timeout)
        return Result(args, process.wait(60), stdout, stderr)
    finally:
        process.kill()
        process.wait(60)
        feeding.join()
        os.close(out)
        os.close(err)


def _feed(descriptor: int, data: bytes) -> None:
    with suppress(BrokenPipeError), open(descriptor, "wb") as pipe:
        pipe.write(data)


def _run_on_terminals(
    args: tuple[str, ...], command: list[str] | str, stdin: bytes, env: Mapping[str, str], timeout: float
) -> Result:
    """A terminal for each stream, so that stdout and stderr can be told apart."""
    pairs = [open_terminal(columns) for columns in (COLUMNS, COLUMNS, MESSAGE_COLUMNS)]
    process = _begin(args, command, env, [slave for _, slave in pairs])
    try:
        for _, slave in pairs:
            os.close(slave)
        os.write(pairs[0][0], stdin)
        stdout, stderr = _drain(pairs[1][0], pairs[2][0], deadline=time.monotonic() + timeout)
        return Result(args, process.wait(60), stdout, stderr)
    finally:
        process.kill()
        process.wait(60)
        for master, _ in pairs:
            os.close(master)


def open_terminal(columns: int = COLUMNS) -> tuple[int, int]:
    """A terminal's two ends, the master's first."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    modes = termios.tcgetattr(slave)
    modes[1] &= ~termios.OPOST  # newlines stay as they are written
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    return master, slave


def _drain(*masters: int, deadline: float) -> list[bytes]:
    output = dict.fromkeys(masters, b"")
    open_ones = set(masters)
    while open_ones and time.monotonic() < deadline:
        for master in select.select(list(open_ones), [], [], 0.1)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:  # Linux: nobody holds the other end any more
                data = b""
            output[master] += data
            if not data:
                open_ones.discard(master)
    return [output[master] for master in masters]
