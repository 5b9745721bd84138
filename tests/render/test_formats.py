"""Rows in every format for scripts: what another reader gets from them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from kvctl.render.escapes import raw_bytes
from kvctl.render.formats import WRITERS, FieldsWriter, JsonWriter, NdjsonWriter, TsvWriter, YamlWriter, render
from kvctl.render.view import Column, Row, View, document

TEXT = st.text(st.characters(exclude_categories=()))
BYTES = (
    st.text()
    .map(str.encode)
    .flatmap(lambda text: st.binary().map(lambda more: text + more))
    .map(lambda data: data.decode("utf-8", "surrogateescape"))
)
"""Text that stands for any bytes."""
VALUE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
ROW = st.dictionaries(
    st.sampled_from(["name", "a", "b%", 'c"']), VALUE | st.lists(VALUE) | st.dictionaries(TEXT, VALUE)
)
ROWS = st.lists(ROW, max_size=4)
UNIFORM = st.lists(st.fixed_dictionaries({"name": TEXT, "a": st.integers(), "b%": VALUE}), max_size=4)


def view(*keys: str, rows: Sequence[Row] = (), **settings: Any) -> View:
    """A view of some fields."""
    return View(columns=[Column(key) for key in keys or ("name", "a")], rows=rows, **settings)


def batched(kind: Any, rows: Sequence[Row], terminal: bool, *keys: str) -> bytes:
    """The output for rows that come one by one."""
    writer = kind(view(*keys), terminal=terminal)
    return writer.begin() + b"".join(writer.rows([row]) for row in rows) + writer.end()


class TestJson:
    @given(ROWS | UNIFORM, st.booleans())
    def test_is_the_rows_again(self, rows, terminal):
        whole = render(JsonWriter(view(), terminal=terminal), rows)
        assert json.loads(whole.decode()) == rows
        assert json.loads(batched(JsonWriter, rows, terminal).decode()) == rows

    @given(ROWS | UNIFORM, st.booleans())
    def test_lines_are_the_rows_again(self, rows, terminal):
        lines = render(NdjsonWriter(view(), terminal=terminal), rows).decode().split("\n")
        assert lines.pop() == ""
        assert [json.loads(line) for line in lines] == rows

    @given(ROW)
    def test_of_one_document_is_an_object(self, row):
        assert json.loads(render(JsonWriter(document(row)), [row]).decode()) == row

    def test_of_rows_of_one_shape_looks_as_of_any(self):
        rows: list[Row] = [
            {"name": 'a"', "n": 1, "x": None, "y": 1.5, "z": [True]},
            {"name": "b", "n": 2, "x": 1, "y": "", "z": {}},
        ]
        assert NdjsonWriter(view()).rows(rows) == b"".join(NdjsonWriter(view()).rows([row, {}])[:-3] for row in rows)

    def test_booleans_among_numbers(self):
        rows: list[Row] = [{"a": 1}, {"a": True}]
        assert NdjsonWriter(view()).rows(rows) == b'{"a": 1}\n{"a": true}\n'

    def test_nothing_is_an_empty_array(self):
        assert render(JsonWriter(view()), []) == b"[]\n"
        assert batched(JsonWriter, [], False) == b"[]\n"

    def test_terminals_get_no_controls(self):
        row = {"name": "\x7f\x9b\u202e\udcff"}
        assert NdjsonWriter(view(), terminal=True).rows([row]) == rb'{"name": "\u007f\u009b\u202e\udcff"}' + b"\n"


class TestTsv:
    @given(st.lists(st.tuples(BYTES, BYTES), max_size=4))
    @example([("\t\n\r\\", "\\t"), ("a", "b")])
    @example([("", ""), ("", "")])
    def test_fields_can_be_told_apart_again(self, records):
        rows = [{"name": name, "a": a} for name, a in records]
        data = render(TsvWriter(view()), rows)
        lines = data.split(b"\n")
        assert lines.pop() == b""
        assert [tuple(_unescaped(field) for field in line.split(b"\t")) for line in lines] == [
            tuple(raw_bytes(field) for field in record) for record in records
        ]

    def test_has_no_header_and_plain_values(self):
        row = {"name": "x", "n": 1536, "on": True, "none": None, "list": ["a", 1], "more": "left out"}
        columns = [Column("name", text=str.upper), Column("on"), Column("more")]
        shown = View(columns=columns, tsv=["name", "n", "on", "none", "list"])
        assert TsvWriter(shown).rows([row]) == b'x\t1536\ttrue\t\t["a", 1]\n'

    def test_other_controls_stay_bytes_in_pipes(self):
        rows = [{"name": "\x1b\x00\udcff", "a": "b\tc"}]
        assert TsvWriter(view()).rows(rows) == b"\x1b\x00\xff\tb\\tc\n"
        assert TsvWriter(view(), terminal=True).rows(rows) == b"\\x1b\\x00\\xff\tb\\tc\n"

    def test_one_column(self):
        assert TsvWriter(view("name")).rows([{"name": "a"}, {"name": "b\nc"}]) == b"a\nb\\nc\n"


class TestNames:
    def test_one_a_line(self):
        assert render(WRITERS["name"](view(name="a")), [{"a": "x"}, {"a": 7}]) == b"x\n7\n"

    def test_terminals_get_no_controls(self):
        assert WRITERS["name"](view(), terminal=True).rows([{"name": "a\x1bb\nc"}]) == b"a\\x1bb\\nc\n"


class TestYaml:
    @given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), st.text() | st.integers() | st.none()), max_size=3))
    def test_is_the_rows_again(self, rows):
        assert yaml.safe_load(render(YamlWriter(view()), rows).decode()) == rows
        assert yaml.safe_load(batched(YamlWriter, rows, True).decode()) == rows

    @pytest.mark.parametrize(
        "text",
        [
            "no",
            "y",
            "1e3",
            "0o17",
            "0x1f",
            "12:30",
            "1_000",
            ".5",
            "2026-01-31",
            "=",
            "<<",
            "~",
            "",
            "-",
            "007",
            "+.inf",
        ],
    )
    def test_quotes_text_that_some_reader_takes_for_more(self, text):
        assert YamlWriter(document({"k": text})).rows([{"k": text}]) == f"k: '{text}'\n".encode()

    def test_shows_lines_as_lines(self):
        assert YamlWriter(document({"k": "a\nb\n"})).rows([{"k": "a\nb\n"}]) == b"k: |\n  a\n  b\n"

    def test_keeps_emoji_and_order_and_repeats(self):
        shared = ["x"]
        out = YamlWriter(view()).rows([{"z": "😀", "a": shared, "b": shared}])
        assert out.decode() == "- z: 😀\n  a:\n  - x\n  b:\n  - x\n"

    def test_controls_are_escapes(self):
        row = {"k": "\x1b\u202e\udcff"}
        assert YamlWriter(document(row), terminal=True).rows([row]) == b'k: "\\e\\u202e\\uDCFF"\n'
        assert YamlWriter(document(row)).rows([row]) == 'k: "\\e\u202e\\uDCFF"\n'.encode()


def _unescaped(field: bytes) -> bytes:
    result, rest = b"", field
    names = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"\\": b"\\"}
    while rest:
        before, backslash, rest = rest.partition(b"\\")
        result += before + (names[rest[:1]] if backslash else b"")
        rest = rest[1:] if backslash else b""
    return result


def test_fields_of_a_document_are_lines():
    row = {"name": "B\n", "ttl": None, "cluster": {"leader": "n1"}, "origins": [{"name": "A"}], "tags": ["x", "y"]}
    assert render(FieldsWriter(document(row)), [row]) == (
        b'name\tB\\n\nttl\t\ncluster\t{"leader": "n1"}\norigin\tA\ntag\tx\ntag\ty\n'
    )


def test_a_list_of_names_is_the_names_with_commas_in_tsv():
    columns = [Column(name) for name in "a b c d e f".split()]
    row = {
        "a": ["x.>", "y"],
        "b": [{"name": "ORDERS", "domain": None}, {"name": "STOCK", "domain": "hub"}],
        "c": ["x,y", "z"],
        "d": [{"field": "ttl", "before": 1}],
        "e": [],
        "f": {"name": "one"},
    }
    assert render(TsvWriter(View(columns=columns)), [row]).decode() == (
        'x.>,y\tORDERS,STOCK\t["x,y", "z"]\t[{"field": "ttl", "before": 1}]\t\t{"name": "one"}\n'
    )
