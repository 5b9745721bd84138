"""Tables for people."""

import time

from kvctl.render.text_table import (
    DetailsWriter,
    TableWriter,
    cell_width,
    cut,
    fit,
)
from kvctl.render.view import Column, View, document, duration_text, size_text

COLUMNS = [Column("name", style="cyan"), Column("bytes", "SIZE", text=size_text, right=True), Column("note", flex=True)]


def table(*batches: list[dict[str, object]], width: int | None = None, color: bool = False) -> str:
    """The table for batches of rows."""
    writer = TableWriter(View(columns=COLUMNS), width=width, color=color)
    return (writer.begin() + b"".join(map(writer.rows, batches)) + writer.end()).decode()


class TestTables:
    def test_line_up(self) -> None:
        assert table([{"name": "a", "bytes": 5}, {"name": "longer", "bytes": 2048, "note": "x"}]) == (
            "NAME       SIZE  NOTE\n"  #
            "a           5 B\n"
            "longer  2.0 KiB  x\n"
        )

    def test_count_wide_and_combining_characters(self) -> None:
        assert table([{"name": "漢字", "bytes": 1}, {"name": "e\u0301😀", "bytes": 1}]) == (
            "NAME  SIZE  NOTE\n"  #
            "漢字   1 B\n"
            "e\u0301😀    1 B\n"
        )

    def test_grow_with_later_batches(self) -> None:
        assert table(
            [{"name": "a", "bytes": 1}], [], [{"name": "longer", "bytes": 1}], [{"name": "b", "bytes": 1}]
        ) == (
            "NAME  SIZE  NOTE\n"  #
            "a      1 B\n"
            "longer   1 B\n"
            "b        1 B\n"
        )

    def test_cut_only_what_may_be_cut(self) -> None:
        out = table([{"name": "n" * 30, "bytes": 1, "note": "x" * 50}], width=50)
        assert out.splitlines()[1] == "n" * 30 + "   1 B  " + "x" * 11 + "…"
        out = table([{"name": "n" * 60, "bytes": 1, "note": "x" * 50}], width=50)
        assert out.splitlines()[1] == "n" * 60 + "   1 B  " + "x" * 7 + "…"

    def test_share_what_room_there_is(self) -> None:
        columns = [Column("a", flex=True), Column("b", flex=True), Column("c")]
        row = {"a": "a" * 60, "b": "b" * 40, "c": "c" * 10}
        line = TableWriter(View(columns=columns), width=50, color=False).rows([row]).decode().splitlines()[1]
        assert line == "a" * 17 + "…  " + "b" * 17 + "…  " + "c" * 10
        assert fit(columns, [60, 5, 10], 50) == [31, 5, 10]
        assert fit(columns, [60, 40, 10], 5) == [8, 8, 10]

    def test_are_whole_in_pipes(self) -> None:
        assert "x" * 500 in table([{"name": "n", "bytes": 1, "note": "x" * 500}])

    def test_colours_take_no_room(self) -> None:
        plain = table([{"name": "a", "bytes": 1, "note": "b"}])
        coloured = table([{"name": "a", "bytes": 1, "note": "b"}], color=True)
        assert coloured.splitlines()[1] == "\x1b[36ma\x1b[0m      1 B  b"
        assert plain.splitlines()[1] == "a      1 B  b"

    def test_style_by_value(self) -> None:
        columns = [Column("operation", style=lambda value: "red" if value == "DEL" else "")]
        writer = TableWriter(View(columns=columns), width=None, color=True)
        assert writer.rows([{"operation": "PUT"}, {"operation": "DEL"}]).endswith(b"PUT\n\x1b[31mDEL\x1b[0m\n")

    def test_escape_what_terminals_must_not_see(self) -> None:
        assert "a\\x1b\\n\\u202e" in table([{"name": "a\x1b\n\u202e", "bytes": 1}])

    def test_no_rows_no_heading(self) -> None:
        assert table([]) == ""

    def test_values_in_words(self) -> None:
        row = {"on": True, "off": False, "list": ["a", 1], "map": {"k": "v", "l": True}}
        columns = [Column(key) for key in row]
        line = TableWriter(View(columns=columns), width=None, color=False).rows([row]).decode().splitlines()[1]
        assert line == "yes  no   a, 1  k=v, l=yes"


class TestDetails:
    def test_names_and_values_without_the_empty_ones(self) -> None:
        row = {"name": "B", "max_age": 5400, "description": "", "tags": [], "limit": None, "zero": 0, "on": False}
        view = document(row, Column("name"), Column("max_age", "TTL", text=duration_text), *map(Column, list(row)[2:]))
        writer = DetailsWriter(view, width=None, color=False)
        assert writer.rows([row]).decode() == "Name  B\nTTL   1h30m\nZero  0\nOn    no\n"

    def test_sections_follow(self) -> None:
        parts = View(columns=[Column("name"), Column("lag", right=True)], rows=[{"name": "n1", "lag": 0}])
        place = document({"cluster": "lon"})
        view = document({"name": "B"}, sections=[("Replicas", parts), ("Sources", View(columns=[])), ("Place", place)])
        writer = DetailsWriter(view, width=None, color=False)
        out = (writer.rows(list(view.rows)) + writer.end()).decode()
        assert out == "Name  B\n\nReplicas\nNAME  LAG\nn1      0\n\nPlace\nCluster  lon\n"


class TestCells:
    def test_width(self) -> None:
        assert [cell_width(text) for text in ("", "abc", "漢", "e\u0301", "😀", "\u200d")] == [0, 3, 2, 1, 2, 0]

    def test_cut(self) -> None:
        assert cut("abcdef", 6) == "abcdef"
        assert cut("abcdef", 4) == "abc…"
        assert cut("漢字漢字", 4) == "漢…"
        assert cut("e\u0301" * 4, 3) == "e\u0301e\u0301…"

    def test_huge_ones_are_cut_at_once(self) -> None:
        rows = [{"name": "n", "bytes": 1, "note": "漢" * 1_000_000}] * 50
        begun = time.process_time()
        assert len(table(rows, width=50)) < 51 * 50
        assert time.process_time() - begun < 1
