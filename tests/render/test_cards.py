"""Cards and reports, as text."""

import re
import time

import pytest

from kvctl.render.cards import Card, Sentence, TextReport, folded, report_text
from kvctl.render.fields import bar_text, columns, health_text, last_seen_text, number_text, spark_text
from kvctl.render.text_table import DetailsWriter
from kvctl.render.view import Column, View, document
from kvctl.units import format_age

BAR = Column("part", "", text=bar_text, bar=True, yields=1)
LINKS = columns("replica state lag part", part=BAR)


def links(*rows: tuple[str, str, int]) -> View:
    """A table of replicas, with bars."""
    return View(
        columns=LINKS, rows=[dict(zip(("replica", "state", "lag"), row, strict=True), part=0.3) for row in rows]
    )


REPORT = TextReport(
    [
        Card([("ORDERS", "bold"), ("  bucket", "dim")], [links(("EU", "ok", 0), ("US", "behind", 1204))]),
        Card([("ST\x1bOCK", "bold")], [links(("A_LONGER_NAME", "offline", 5)), [("no more", "dim")]]),
    ],
    [
        Sentence("2 origins"),
        Sentence("US is behind, and this needs two lines", "▲", "yellow"),
        Sentence("kvctl doctor"),
    ],
)


def test_tables_with_the_same_columns_share_widths_and_headings():
    assert report_text(REPORT, width=None, color=False).split("\n") == [
        "ORDERS  bucket",
        "  replica        state      behind",
        "  ────────────────────────────────",
        "  EU             ✓ ok            0",
        "  US             ▲ behind    1,204",
        "",
        "ST\\x1bOCK",
        "  A_LONGER_NAME  ✗ offline       5",
        "  no more",
        "",
        "2 origins",
        "▲ US is behind, and this needs two lines",
        "  kvctl doctor",
        "",
    ]


def test_bars_are_for_terminals_and_yield_first():
    assert "A_LONGER_NAME  ✗ offline       5  ━━━───────" in report_text(REPORT, width=60, color=False)
    assert "━" not in report_text(REPORT, width=40, color=False)


def test_sentences_are_wrapped_below_their_first_word():
    assert "▲ US is behind, and\n  this needs two lines\n" in report_text(REPORT, width=22, color=False)


def test_states_and_names_have_colour():
    shown = report_text(REPORT, width=80, color=True)
    assert "\x1b[1mORDERS\x1b[0m" in shown
    assert "\x1b[33m▲ behind\x1b[0m" in shown


def test_a_document_with_a_title_is_a_card():
    row = {"name": "ORDERS", "values": 5000, "bytes": 2048, "ttl": None, "history": 5}
    view = document(
        row, title=lambda row: [(row["name"], "bold")], groups=[columns("values bytes"), columns("ttl history")]
    )
    writer = DetailsWriter(view, width=80, color=False)
    assert writer.rows([row]).decode() == "ORDERS\n\n  entries 5,000 · size 2.0 KiB\n  history 5\n"
    assert DetailsWriter(view, width=20, color=False).rows([row]).decode() == (
        "ORDERS\n\n  entries 5,000\n  size 2.0 KiB\n  history 5\n"
    )


@pytest.mark.parametrize(
    ("part", "bar"),
    [(0, "──────────"), (0.001, "━─────────"), (0.5, "━━━━━─────"), (1, "━━━━━━━━━━"), (2, "━━━━━━━━━━")],
)
def test_bars(part, bar):
    assert bar_text(part) == bar


def test_texts_of_values():
    assert spark_text([0, 7, 14]) == "▁▅█"
    assert spark_text([]) == ""
    shown = {state: health_text(state) for state in ("ok", "behind", "unconfirmed", "stalled")}
    assert shown == {"ok": "✓ ok", "behind": "▲ behind", "unconfirmed": "? unconfirmed", "stalled": "✗ stalled"}
    assert number_text(10006) == "10,006"


def test_ages_have_one_unit_wherever_they_come_from():
    now = time.time_ns()
    for seconds in (3, 61, 481, 900, 3700, 90_000, 40_000_000):
        shown = last_seen_text(seconds)
        assert shown == format_age(now - seconds * 10**9, now)
        assert len(re.findall(r"\d+", shown)) == 1


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_the_width_is_that_of_the_text_whatever_the_terminal_is(term, monkeypatch):
    monkeypatch.setenv("TERM", term)
    report = TextReport([Card([("t" * 150, "")], [links(("n" * 130, "ok", 0))])], [Sentence("s" * 150)])
    lines = report_text(report, width=None, color=False).splitlines()
    assert [len(line) for line in lines if line[:1] in ("t", "s")] == [150, 150]
    assert max(map(len, report_text(report, width=120, color=False).splitlines())) == 120


def test_long_lines_are_folded_below_their_first_word():
    text = "+ bucket `B`\n    history  5 → 4, and more\n└─▶ M  mirror, cluster lon\n"
    assert folded(text, width=40, color=False) == text
    assert folded(text, width=20, color=False).splitlines() == [
        "+ bucket `B`",
        "    history  5 → 4,",
        "    and more",
        "└─▶ M  mirror,",
        "    cluster lon",
    ]
    assert "\x1b[32m" in folded("\x1b[32m+ bucket\x1b[0m\n", width=5, color=True)
