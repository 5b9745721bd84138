"""Reports in Markdown: texts of others stay texts."""

import pytest

from kvctl.render import markdown_report as report


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
