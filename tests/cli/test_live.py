"""Live screens: `--watch` on a terminal."""

import pytest

from tests.cli.dialogue import Dialogue
from tests.support.raw import RawClient


def test_a_list_that_does_not_fit_says_so_and_keeps_its_last_line(own_server):
    with RawClient(own_server.url) as raw:
        for number in range(30):
            raw.create_bucket(f"B{number}")
    with Dialogue("bucket", "ls", "-w", "-s", own_server.url, COLUMNS="100", LINES="12") as dialogue:
        shown = dialogue.hear("q quits")
        dialogue.press(b"q")
        assert "B29" in dialogue.hear("B29")  # what stays is complete
        assert dialogue.end() == 0
    assert "B29" not in shown
    assert "… 23 more lines: the terminal is too low" in shown


def test_a_lost_server_is_reported_with_the_time_of_what_is_shown(own_server):
    with RawClient(own_server.url) as raw:
        raw.create_bucket("ORDERS")
    with Dialogue("bucket", "ls", "-w", "--interval", "200ms", "-s", own_server.url, COLUMNS="120") as dialogue:
        dialogue.hear("q quits")
        own_server.kill()
        shown = dialogue.hear("this screen shows the state of ")
        stale = dialogue.hear("q quits")[:8]
        for _ in range(8):  # more than a second
            dialogue.hear("this screen shows the state of ")
            assert dialogue.hear("q quits").count(stale) == 2
    assert "▲ Not connected to" in shown


@pytest.mark.parametrize("args", [["top"], ["bucket", "ls", "-w"], ["topology", "status", "-w"]])
def test_a_terminal_that_cannot_redraw_is_refused(run, server, args):
    refused = run(*args, "-s", server.url, tty=True, env={"TERM": "dumb"})
    assert (refused.exit_code, refused.out) == (2, "")
    assert "cannot be drawn on this terminal" in refused.err
