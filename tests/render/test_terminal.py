"""Which streams are coloured, and how. Messages and questions are shown by processes in tests/cli/app/test_frame.py."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.render.markdown import styled
from kvctl.render.table_layout import cell_width, wrapped
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


def test_markdown_for_terminals():
    assert styled("# Title\n\nUse `kvctl get` **now**\n\n    # not `this`\n") == (
        "\x1b[1mTitle\x1b[0m\n\nUse \x1b[36m`kvctl get`\x1b[0m \x1b[1mnow\x1b[0m\n\n    # not `this`\n"
    )


@pytest.mark.parametrize(
    ("text", "width", "indent", "lines"),
    [
        ("hint: use it", 20, 6, ["hint: use it"]),
        ("hint: use `kvctl bucket ls` to see", 20, 6, ["hint: use `kvctl", "      bucket ls` to", "      see"]),
        ("hint: use `kvctl ls` to see", 20, 6, ["hint: use `kvctl ls`", "      to see"]),
        ("hint: or use `kvctl ls` to see", 20, 6, ["hint: or use", "      `kvctl ls` to", "      see"]),
        ("error: " + "x" * 30, 20, 7, ["error:", "       " + "x" * 30]),
        ("a  b\n  - one two three\n\nend ", 10, 0, ["a  b", "  - one", "  two", "  three", "", "end "]),
        ("漢字 漢字 漢字", 9, 0, ["漢字 漢字", "漢字"]),
        ("\x1b[31merror:\x1b[0m ab cd", 9, 7, ["\x1b[31merror:\x1b[0m ab", "       cd"]),
    ],
)
def test_messages_are_wrapped_at_words(text, width, indent, lines):
    assert wrapped(text, width, indent).split("\n") == lines


@given(st.text("ab `漢\n"), st.integers(20, 60))
def test_wrapped_messages_keep_their_words_and_fit(text, width):
    lines = wrapped(text, width, 6)
    assert lines.split() == text.split()
    assert all(cell_width(line.rstrip(" ")) <= width or len(line.split()) == 1 for line in lines.split("\n"))
    assert wrapped(text.replace(" ", ""), width, 6) == text.replace(" ", "")
