"""Questions at a terminal: connections outlive the person's thinking, Ctrl-C ends them, the terminal is as before."""

import os
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from typing import Any

import pytest

from kvctl.server import run_server
from tests.cli.conftest import open_terminal
from tests.support.raw import RawClient

HASTY = """
listen: 127.0.0.1:@client@
jetstream { store_dir: "@store@" }
ping_interval: "1s"
ping_max: 1
"""
"""A server that cuts a client that does not answer for two seconds."""


class Asked:
    """kvctl on a terminal, as far as its question."""

    def __init__(self, *args: str) -> None:
        self.master, slave = open_terminal()
        self.before = termios.tcgetattr(slave)
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
        env = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
        self.process = subprocess.Popen([sys.executable, "-m", "kvctl", *args], env=env, **streams)
        self.slave = slave
        self.seen = b""

    def until(self, text: bytes) -> None:
        """Wait for the text on the terminal."""
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            self.seen += os.read(self.master, 4096)

    def end(self) -> tuple[int, bytes]:
        """The exit code, and all that was seen."""
        code = self.process.wait(60)
        os.set_blocking(self.master, False)
        with suppress(BlockingIOError):
            self.seen += os.read(self.master, 65536)
        return code, self.seen

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)


@pytest.fixture
def hasty():
    with run_server(config=HASTY) as server:
        with RawClient(server.url) as raw:
            raw.create_bucket("B")
        yield server


@pytest.mark.parametrize("answer", [b"y\n", b"n\n"])
def test_a_connection_outlives_a_long_thought(hasty, answer):
    asked = Asked("bucket", "delete", "B", "-s", hasty.url)
    try:
        asked.until(b"[y/N]")
        time.sleep(5)
        os.write(asked.master, answer)
        code, seen = asked.end()
        assert code == (0 if answer == b"y\n" else 1), seen
        assert b"Stale" not in hasty.log(100).encode()
        with RawClient(hasty.url) as raw:
            left = raw.api("STREAM.NAMES")["streams"]
        assert left == ([] if answer == b"y\n" else ["KV_B"]) or (answer == b"y\n" and left is None)
    finally:
        asked.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_question_and_leaves_the_terminal_as_it_was(hasty, number):
    asked = Asked("bucket", "delete", "B", "-s", hasty.url)
    try:
        asked.until(b"[y/N]")
        begun = time.monotonic()
        asked.process.send_signal(number)
        code, seen = asked.end()
        assert code == 128 + number, seen
        assert time.monotonic() - begun < 30
        assert termios.tcgetattr(asked.slave) == asked.before
        with RawClient(hasty.url) as raw:
            assert raw.api("STREAM.NAMES")["streams"] == ["KV_B"]
    finally:
        asked.close()


def test_the_end_of_input_is_a_no(hasty):
    asked = Asked("bucket", "delete", "B", "-s", hasty.url)
    try:
        asked.until(b"[y/N]")
        os.write(asked.master, b"\x04")
        assert asked.end()[0] == 1
    finally:
        asked.close()
