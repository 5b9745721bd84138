"""Tables for people."""

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.render.layout import fit
from kvctl.render.text_table import DRAWN_ROWS, DetailsWriter, TableWriter
from kvctl.render.view import Column, View, age_text, document, duration_text, elapsed_text, ordered, size_text

COLUMNS = [Column("name", style="cyan"), Column("bytes", "Size", text=size_text, right=True), Column("note", flex=True)]


def table(*batches: list[dict[str, object]], width: int | None = None, color: bool = False) -> str:
    """The table for batches of rows."""
    writer = TableWriter(View(columns=COLUMNS), width=width, color=color)
    return (writer.begin() + b"".join(map(writer.rows, batches)) + writer.end()).decode()


class TestTables:
    def test_line_up(self):
        assert table([{"name": "a", "bytes": 5}, {"name": "longer", "bytes": 2048, "note": "x"}]) == (
            "name       size  note\n"  #
            "─────────────────────\n"
            "a           5 B\n"
            "longer  2.0 KiB  x\n"
        )

    def test_count_wide_and_combining_characters(self):
        assert table([{"name": "漢字", "bytes": 1}, {"name": "e\u0301😀", "bytes": 1}]) == (
            "name  size  note\n"  #
            "────────────────\n"
            "漢字   1 B\n"
            "e\u0301😀    1 B\n"
        )

    def test_grow_with_later_batches(self):
        assert table(
            [{"name": "a", "bytes": 1}], [], [{"name": "longer", "bytes": 1}], [{"name": "b", "bytes": 1}]
        ) == (
            "name  size  note\n"  #
            "────────────────\n"
            "a      1 B\n"
            "longer   1 B\n"
            "b        1 B\n"
        )

    def test_cut_free_text_before_names(self):
        out = table([{"name": "n" * 30, "bytes": 1, "note": "x" * 50}], width=56)
        assert out.splitlines()[2] == "n" * 30 + "   1 B  " + "x" * 17 + "…"
        out = table([{"name": "n" * 60, "bytes": 1, "note": "x" * 50}], width=56)
        assert out.splitlines()[2] == "n" * 14 + "…" + "n" * 15 + "   1 B  " + "x" * 17 + "…"

    def test_are_whole_in_pipes(self):
        assert "x" * 500 in table([{"name": "n", "bytes": 1, "note": "x" * 500}])

    def test_colours_take_no_room(self):
        plain = table([{"name": "a", "bytes": 1, "note": "b"}])
        coloured = table([{"name": "a", "bytes": 1, "note": "b"}], color=True)
        assert coloured.splitlines()[2] == "\x1b[36ma\x1b[0m      1 B  b"
        assert plain.splitlines()[2] == "a      1 B  b"

    def test_style_by_value(self):
        columns = [Column("operation", style=lambda value: "red" if value == "DEL" else "")]
        writer = TableWriter(View(columns=columns), width=None, color=True)
        assert writer.rows([{"operation": "PUT"}, {"operation": "DEL"}]).endswith(b"PUT\n\x1b[31mDEL\x1b[0m\n")

    def test_escape_what_terminals_must_not_see(self):
        assert "a\\x1b\\n\\u202e" in table([{"name": "a\x1b\n\u202e", "bytes": 1}])


ORDER = "users.550e8400-e29b-41d4-a716-446655440000.sessions.650e8400-e29b-41d4-a716-446655440000"
STREAMED = [Column("revision", right=True), Column("key"), Column("value", flex=True)]


def row(key: str, value: str = "v", revision: int = 1) -> dict[str, Any]:
    """A row of a streamed table."""
    return {"revision": revision, "key": key, "value": value}


class TestStreamedTables:
    def lines(self, *batches: list[dict[str, Any]], width: int | None = 80) -> list[str]:
        writer = TableWriter(View(columns=STREAMED), width=width, color=False)
        return b"".join(map(writer.rows, batches)).decode().splitlines()

    @pytest.mark.parametrize("width", [80, 100, 140])
    def test_keep_a_row_on_one_line(self, width):
        rows = [row("a"), row(ORDER, "x" * 300), row("k" * 200), row("b", "y" * 300)]
        for lines in (self.lines(rows, width=width), self.lines(rows[:1], rows[1:], width=width)):
            assert len(lines) == 6
            assert max(map(len, lines)) <= width
            assert "…" in lines[3]
            assert re.search(r"users\.550e.*….*440000  x", lines[3])

    def test_a_long_key_moves_only_its_own_row(self):
        lines = self.lines([row("a")], [row(ORDER)], [row("b")])
        assert lines[2] == "       1  a    v"
        assert lines[3].startswith("       1  users.")
        assert lines[3].endswith("  v")
        assert lines[4] == "       1  b    v"

    def test_short_columns_grow(self):
        assert self.lines([row("a")], [row("orders.1")], [row("b")])[4] == "       1  b         v"

    def test_columns_stay_empty_for_later_rows_to_fill(self):
        assert self.lines([row("a", "")], [row("b", "v")])[0] == "revision  key  value"

    def test_are_complete_in_pipes(self):
        lines = self.lines([row("a")], [row("k" * 400, "x" * 400)], width=None)
        assert lines[3] == f"       1  {'k' * 400}  {'x' * 400}"


FIVE = [
    Column("name"),
    Column("history", right=True),
    Column("state", keep=True),
    Column("nothing"),
    Column("created"),
    Column("description", flex=True),
]


class TestCompleteTables:
    ROWS = (
        {"name": "orders", "history": 5, "state": "connected", "created": "3m ago", "description": "All of the orders"},
        {"name": "stock", "history": 1, "state": "ok", "created": "3m ago"},
    )

    def table(self, width: int | None) -> tuple[list[str], list[str]]:
        writer = TableWriter(View(columns=FIVE), width=width, color=False, complete=True)
        return writer.rows(self.ROWS).decode().splitlines(), writer.hidden

    def test_leave_out_what_no_row_fills(self):
        lines, hidden = self.table(None)
        assert lines[0] == "name    history  state      created  description"
        assert not hidden

    @pytest.mark.parametrize("complete", [True, False])
    def test_print_a_remark_below_its_row(self, complete):
        rows = [
            {"name": "a", "remark": "it has no entries, but `orders` has\x1b[31m five"},
            {"name": "b", "remark": None},
        ]
        writer = TableWriter(View(columns=[Column("name")], below="remark"), width=24, color=False, complete=complete)
        written = ["name", "────", "a", "  it has no entries, but", "  `orders` has\\x1b[31m", "  five", "b"]
        assert writer.rows(rows).decode().splitlines() == written
        assert TableWriter(View(columns=[Column("name")], below="remark"), width=None, color=False).rows(rows[1:]) == (
            "name\n────\nb\n".encode()
        )

    @pytest.mark.parametrize(
        ("width", "heading", "hidden"),
        [
            (80, "name    history  state      created  description", []),
            (51, "name    history  state      created", ["description"]),
            (34, "name    history  state", ["created", "description"]),
            (20, "name    state", ["history", "created", "description"]),
            (5, "name    state", ["history", "created", "description"]),
        ],
    )
    def test_hide_the_last_columns_that_may_be_hidden(self, width, heading, hidden):
        lines, left_out = self.table(width)
        assert (lines[0], left_out) == (heading, hidden)

    def test_keep_rows_on_one_line_whatever_their_characters(self):
        rows = [{"name": "\u200d\u1100\u1160👩\u200d👩\u200d👧🇩🇪e\u0301" * 5, "state": "☺️" * 9}]
        for width in range(10, 60):
            writer = TableWriter(View(columns=FIVE), width=width, color=False, complete=True)
            assert len(writer.rows(rows).decode().splitlines()) == 3

    def test_wrap_what_must_be_complete(self):
        columns = [Column("field"), Column("after", wrap=True)]
        writer = TableWriter(View(columns=columns), width=30, color=False, complete=True)
        rows = [{"field": "subjects", "after": "one two three four five six"}, {"field": "x", "after": "y" * 25}]
        assert writer.rows(rows).decode().splitlines() == [
            "field     after",
            "──────────────────────────────",
            "subjects  one two three four",
            "          five six",
            "x         yyyyyyyyyyyyyyyyyyyy",
            "          yyyyy",
        ]

    @given(
        st.lists(
            st.fixed_dictionaries(
                {"history": st.integers()},
                optional={
                    column.key: st.text("ab -漢😀\x1b", min_size=1, max_size=30) for column in FIVE if not column.right
                },
            ),
            min_size=1,
            max_size=3,
        ),
        st.none() | st.integers(40, 120),
    )
    def test_look_the_same_drawn_with_rich_and_without(self, rows, width):
        view = View(columns=FIVE)
        drawn = TableWriter(view, width=width, color=False, complete=True)
        light = TableWriter(view._replace(light=True), width=width, color=False, complete=True)
        assert drawn.rows(rows) == light.rows(rows)
        assert drawn.hidden == light.hidden

    def test_of_many_rows_do_not_take_long(self):
        rows = [{"name": f"stream{number}", "history": number} for number in range(20 * DRAWN_ROWS)]
        begun = time.process_time()
        writer = TableWriter(View(columns=FIVE), width=80, color=False, complete=True)
        assert len(writer.rows(rows).splitlines()) == len(rows) + 2
        assert time.process_time() - begun < 4

    def test_no_rows_no_heading(self):
        assert table([]) == ""

    def test_values_in_words(self):
        row = {"on": True, "off": False, "list": ["a", 1], "map": {"k": "v", "l": True}}
        columns = [Column(key) for key in row]
        line = TableWriter(View(columns=columns), width=None, color=False).rows([row]).decode().splitlines()[2]
        assert line == "yes  no   a, 1  k=v, l=yes"


class TestDetails:
    def test_names_and_values_without_the_empty_ones(self):
        row = {"name": "B", "max_age": 5400, "description": "", "tags": [], "limit": None, "zero": 0, "on": False}
        view = document(row, Column("name"), Column("max_age", "TTL", text=duration_text), *map(Column, list(row)[2:]))
        writer = DetailsWriter(view, width=None, color=False)
        assert writer.rows([row]).decode() == "Name  B\nTTL   1h30m\nZero  0\nOn    no\n"

    def test_sections_follow(self):
        parts = View(columns=[Column("name"), Column("lag", right=True)], rows=[{"name": "n1", "lag": 0}])
        place = document({"cluster": "lon"})
        view = document({"name": "B"}, sections=[("Replicas", parts), ("Sources", View(columns=[])), ("Place", place)])
        writer = DetailsWriter(view, width=None, color=False)
        out = (writer.rows(list(view.rows)) + writer.end()).decode()
        assert out == "Name  B\n\nReplicas\nname  lag\n─────────\nn1      0\n\nPlace\nCluster  lon\n"


class TestCells:
    def test_fit_shrinks_free_text_first(self):
        columns = [Column("a", flex=True), Column("b"), Column("c", right=True)]
        assert fit(columns, [60, 60, 10], 134) == [60, 60, 10]
        assert fit(columns, [60, 60, 10], 130) == [56, 60, 10]
        assert fit(columns, [60, 60, 10], 120) == [48, 58, 10]
        assert fit(columns, [60, 60, 10], 100) == [40, 46, 10]
        assert fit(columns, [60, 60, 10], 60) == [22, 24, 10]
        assert fit(columns, [60, 60, 10], 50) == [16, 24, 10]

    def test_huge_ones_are_cut_at_once(self):
        rows = [{"name": "n", "bytes": 1, "note": "漢" * 1_000_000}] * 50
        begun = time.process_time()
        assert len(table(rows, width=50)) < 51 * 50
        assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.04, "0.0 s"), (16.619, "16.6 s"), (59.96, "1m"), (125.3, "2m5s"), (3600, "1h")]
)
def test_elapsed_times_read_well(seconds, shown):
    assert elapsed_text(seconds) == shown


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("size", "bca"),
        ("-size", "cba"),
        ("name", "abc"),
        ("-name", "cba"),
        ("time", "cab"),
        ("-time", "bac"),
        ("no", "acb"),
    ],
)
def test_rows_are_ordered_by_a_field(by, names):
    rows = [
        {"name": "a", "size": None, "time": "2026-01-02T00:00:00Z"},
        {"name": "c", "size": 1, "time": "2026-01-03T00:00:00Z"},
        {"name": "b", "size": 20, "time": "2026-01-01T00:00:00Z"},
    ]
    view = View(columns=[Column("name"), Column("time", text=age_text)], rows=rows)
    assert "".join(row["name"] for row in ordered(view, by)) == names


def test_columns_that_say_nothing_are_left_out():
    columns = [Column("name"), Column("cluster", differs=True), Column("expires", rare=True)]
    rows = [{"name": "a", "cluster": "x", "expires": None}, {"name": "b", "cluster": "x", "expires": None}]

    def headings(*changed: dict[str, Any], complete: bool = True) -> list[str]:
        writer = TableWriter(View(columns=columns), width=80, color=False, complete=complete)
        return writer.rows([*rows, *changed]).decode().splitlines()[0].split()

    assert headings() == ["name"]
    assert headings(complete=False) == ["name", "cluster"]
    assert headings({"name": "c", "cluster": "y", "expires": 3}) == ["name", "cluster", "expires"]
