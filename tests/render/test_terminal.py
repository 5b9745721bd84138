"""Which streams are coloured, and how. Messages and questions are shown by processes in tests/cli/app/test_frame.py."""

import io

import pytest

from kvctl.errors import UsageError
from kvctl.phrases import lines
from kvctl.render.terminal import Terminal, paint, wants_color


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


@pytest.mark.parametrize(
    "foreign", ["a\n::error::b", "a`\n  ::error::b", "a\r::error::b", "a\u2028::error::b", "a\x85b"]
)
def test_a_foreign_text_begins_no_line_of_a_message(foreign, capsys):
    terminal = Terminal()
    terminal.report(UsageError(f"`{foreign}` is wrong", hint=f"Not `{foreign}`"))
    terminal.warn(f"`{foreign}`")
    terminal.note(foreign, always=True)
    terminal.result(foreign)
    printed = capsys.readouterr()
    assert [line for line in (printed.out + printed.err).splitlines() if "error::b" in line or "\x85" in line] == [
        line for line in (printed.out + printed.err).split("\n") if "error::b" in line or "\x85" in line
    ]
    assert len(printed.err.split("\n")) == 6
    assert len(printed.out.split("\n")) == 2


def test_own_lines_of_a_message_are_printed(capsys):
    Terminal().report(UsageError(lines("One", "two\nthree")))
    assert capsys.readouterr().err == "error: One\ntwo\\nthree\n"
