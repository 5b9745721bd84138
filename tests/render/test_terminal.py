"""Which streams are coloured, and how. Messages and questions are shown by processes in tests/cli/app/test_frame.py."""

import io

import pytest

from kvctl.render.terminal import paint, wants_color


class Tty(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("choice", "environ", "tty", "colored"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"FORCE_COLOR": ""}, True, True),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colour(choice, environ, tty, colored):
    assert wants_color(Tty() if tty else io.StringIO(), choice, environ) is colored


def test_no_colour_without_a_stream():
    closed = io.StringIO()
    closed.close()
    assert not wants_color(None, "auto", {})
    assert not wants_color(closed, "auto", {})


def test_paint():
    assert paint("x", "bold red") == "\x1b[1;31mx\x1b[0m"
    assert paint("x", "") == "x"
