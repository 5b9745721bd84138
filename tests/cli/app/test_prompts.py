"""Questions at a terminal: connections outlive the person's thinking, Ctrl-C ends them, the terminal is as before."""

import signal
import time

import pytest

from kvctl.server import run_server
from tests.cli.dialogue import Dialogue
from tests.support.raw import RawClient

HASTY = """
listen: 127.0.0.1:@client@
jetstream { store_dir: "@store@" }
ping_interval: "1s"
ping_max: 1
"""
"""A server that cuts a client that does not answer for two seconds."""


@pytest.fixture
def hasty():
    with run_server(config=HASTY) as server:
        with RawClient(server.url) as raw:
            raw.create_bucket("B")
        yield server


@pytest.fixture
def asked(hasty):
    """kvctl at its question."""
    with Dialogue("bucket", "delete", "B", "-s", hasty.url) as dialogue:
        dialogue.hear("[y/N]")
        yield dialogue


def left(url: str) -> list[str]:
    with RawClient(url) as raw:
        return raw.api("STREAM.NAMES")["streams"] or []


@pytest.mark.parametrize(("answer", "code", "streams"), [("y", 0, []), ("n", 1, ["KV_B"])])
def test_a_connection_outlives_a_long_thought(hasty, asked, answer, code, streams):
    time.sleep(5)
    asked.say(answer)
    assert asked.end() == code, asked.hear()
    assert b"Stale" not in hasty.log(100).encode()
    assert left(hasty.url) == streams


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_question_and_leaves_the_terminal_as_it_was(hasty, number):
    with Dialogue("bucket", "delete", "B", "-s", hasty.url) as asked:
        before = asked.modes()
        asked.hear("[y/N]")
        begun = time.monotonic()
        asked.process.send_signal(number)
        assert asked.end() == 128 + number, asked.hear()
        assert time.monotonic() - begun < 30
        assert asked.modes() == before
    assert left(hasty.url) == ["KV_B"]


def test_the_end_of_input_is_a_no(asked):
    asked.press(b"\x04")
    assert asked.end() == 1
