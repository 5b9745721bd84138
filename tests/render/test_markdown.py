"""Markdown on terminals, and in reports, where texts of others stay texts."""

import pytest

from kvctl.render import markdown as report
from kvctl.render.markdown import styled


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ORDERS-NYC 1.5", "ORDERS-NYC 1.5"),
        ("a|b", "a&#124;b"),
        ("**x** _y_", "&#42;&#42;x&#42;&#42; &#95;y&#95;"),
        ("<img src=x>", "&#60;img src=x&#62;"),
        ("[a](b)", "&#91;a&#93;(b)"),
        ("ORDERS_NYC: _x", "ORDERS_NYC: &#95;x"),
        ("@team #12 `c`", "&#64;team &#35;12 &#96;c&#96;"),
        ("https://x www.x", "https&#58;//x www&#46;x"),
        ("&#64;", "&#38;&#35;64;"),
        ("a\nb\x1b[31m", "a b&#92;x1b&#91;31m"),
    ],
)
def test_characters_with_a_meaning_are_escaped(text, wanted):
    assert report.plain(text) == wanted


def test_backticks_become_code_and_an_odd_one_does_not():
    assert report.prose("`a|b` is <late>") == "<code>a&#124;b</code> is &#60;late&#62;"
    assert report.prose("it`s") == "it&#96;s"


def test_table_has_a_line_for_each_row():
    assert report.table(("A", "B"), [("x", None), (1, "y")]) == "| A | B |\n| --- | --- |\n| x |  |\n| 1 | y |\n"
    assert report.document(report.heading("H"), "", "text") == "### H\n\ntext\n"


def test_markdown_for_terminals():
    assert styled("# Title\n\nUse `kvctl get` **now**\n\n    # not `this`\n") == (
        "\x1b[1mTitle\x1b[0m\n\nUse \x1b[36m`kvctl get`\x1b[0m \x1b[1mnow\x1b[0m\n\n    # not `this`\n"
    )
