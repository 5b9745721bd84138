"""Files to plain data: what is read, and what is refused with its line and column."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvctl.documents import parser
from kvctl.documents.parser import MAX_BYTES, MAX_DEPTH, MAX_VALUES, Document, parse
from kvctl.errors import UsageError
from kvctl.render.yaml_text import dump, dump_short

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def data(text: str, source: str = "f.yaml") -> Any:
    """The data in `text`."""
    return parse(text.encode("utf-8", "surrogatepass"), source).data


def refusal(text: str, source: str = "f.yaml") -> str:
    """Why `text` is refused."""
    with pytest.raises(UsageError) as caught:
        parse(text.encode(), source)
    return caught.value.message


class TestYaml:
    def test_reads_plain_data(self):
        assert data("a: 1\nb: [x, 2.5, ~]\nc:\n  d: true\n") == {"a": 1, "b": ["x", 2.5, None], "c": {"d": True}}

    @pytest.mark.parametrize(
        "text", ["no", "on", "y", "12:30", "2026-01-31", "1_000", "007", "0o8", "1.2.3", "+", "-", ".", "0x", "1e", "é"]
    )
    def test_takes_for_text_what_only_version_1_1_takes_for_more(self, text):
        assert data(f"k: {text}\n" if text != "-" else "k: '-'\n") == {"k": text}

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("0", 0),
            ("-7", -7),
            ("+7", 7),
            ("0x1F", 31),
            ("0o17", 15),
            ("1e3", 1000.0),
            (".5", 0.5),
            ("-0.5", -0.5),
            ("1.", 1.0),
        ],
    )
    def test_numbers(self, text, value):
        assert data(f"k: {text}") == {"k": value}
        assert type(data(f"k: {text}")["k"]) is type(value)

    @pytest.mark.parametrize("text", ["'12'", '"true"', "!!str 12", "! 12", "'~'", "'1e3'"])
    def test_quoted_is_text(self, text):
        assert isinstance(data(f"k: {text}")["k"], str)

    def test_keys_are_text(self):
        assert data("1: a\ntrue: b\n~: c\n0x1: d\n") == {"1": "a", "true": "b", "~": "c", "0x1": "d"}

    def test_nothing_is_none(self):
        assert data("") is None
        assert data("# only a comment\n") is None

    def test_anchors_and_merges(self):
        text = "base: &b {replicas: 3, storage: file}\none: {<<: *b, replicas: 1}\ntwo: *b\n"
        assert data(text)["one"] == {"replicas": 1, "storage": "file"}
        assert data(text)["two"] == {"replicas": 3, "storage": "file"}
        assert data('{"<<": 1}') == {"<<": 1}

    def test_numbers_too_long_for_python_stay_text(self):
        assert data(f"k: {'9' * 5000}") == {"k": "9" * 5000}

    @given(PLAIN, st.sampled_from([dump, dump_short]))
    def test_yaml_written_by_kvctl_is_read_back_here_and_elsewhere(self, value, write):
        assert data(write(value)) == value
        assert yaml.safe_load(write(value)) == value

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: Key `a` appears twice, first in line 1"),
            ("x:\n  - {k: 1, k: 2}\n", "f.yaml:2:12: Key `k` appears twice, first in line 2"),
            ("a: 1\n b: 2\n", "f.yaml:2:3: Mapping values are not allowed in this context"),
            ("a: [1, 2\n", "f.yaml:2:1: Did not find expected ',' or ']'"),
            (
                "a: !!python/object:os.system x\n",
                "f.yaml:1:4: Tag `tag:yaml.org,2002:python/object:os.system` is not supported",
            ),
            ("a: !secret {b: 1}\n", "f.yaml:1:4: Tag `!secret` is not supported"),
            ("a: *b\n", "f.yaml:1:4: `*b` does not refer to an earlier value"),
            ("a: &a [*a]\n", "f.yaml:1:8: `*a` does not refer to an earlier value"),
            ("? [a, b]\n: 1\n", "f.yaml:1:3: A key must be text"),
            ("a: 1\n---\nb: 2\n", "f.yaml:2:1: A second document; a file can have only one"),
            ("a: 1\n<<: 3\n", "f.yaml:2:1: `<<` must be a mapping, or a list of mappings"),
            ("a: é\nbé: \x07\n", "f.yaml:2:5: A control character that YAML does not allow"),
            ("a: '\n", "f.yaml:2:1: Found unexpected end of stream"),
        ],
    )
    def test_errors_name_line_and_column(self, text, message):
        assert refusal(text) == message

    def test_document_that_is_not_utf8_is_refused(self):
        with pytest.raises(UsageError, match=r"f\.yaml:2:5: This is not UTF-8"):
            parse("a: 1\nbé: \udcff\n".encode("utf-8", "surrogateescape"), "f.yaml")


class TestBounds:
    def test_size(self):
        with pytest.raises(UsageError, match=r"f\.yaml is larger than 16 MiB"):
            parse(b"x" * (MAX_BYTES + 1), "f.yaml")

    def test_aliases_that_multiply(self):
        laughs = "a0: &a0 [lol]\n" + "".join(
            f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 12)
        )
        assert refusal(laughs) == f"f.yaml:7:25: With its aliases this holds more than {MAX_VALUES:,} values"

    def test_many_values_without_aliases(self, monkeypatch):
        monkeypatch.setattr(parser, "MAX_VALUES", 10)
        assert "more than" in refusal("- 1\n" * 20)
        assert data("[1, 2, 3]") == [1, 2, 3]

    @pytest.mark.parametrize("source", ["f.yaml", "f.json", "-"])
    def test_depth(self, source):
        for depth in (MAX_DEPTH + 1, 100, 999, 1_001, 100_000):
            assert "nested too deeply" in refusal("[" * depth + "]" * depth, source)
            assert "nested too deeply" in refusal('{"a":' * depth + "1" + "}" * depth, source)
        assert data("[" * MAX_DEPTH + "]" * MAX_DEPTH, source)
        assert data('{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH, source)

    def test_wide_documents_are_not_deep(self):
        assert data("[" + ",".join(["[[1]]"] * 1_000) + "]", "f.json") == [[[1]]] * 1_000


class TestJson:
    def test_reads_what_yaml_would_not(self):
        assert data('{\t"a": "\\ud83d\\ude00\\/"}', "-") == {"a": "😀/"}

    def test_content_decides_without_an_extension(self):
        assert data('{"a": 1e3}', "-") == {"a": 1000.0}
        assert data("{a: 1, b: [x]}", "-") == {"a": 1, "b": ["x"]}

    @given(PLAIN)
    def test_round_trip(self, value):
        assert data(json.dumps(value), "f.json") == value
        assert data(json.dumps(value, indent=1), "f.json") == value

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"a": 1,\n "a": 2}', "f.json:2:2: Key `a` appears twice, first in line 1"),
            ('{"a": 1,\n "b" 2}', "f.json:2:6: Expecting ':' delimiter"),
            ("a: 1", "f.json:1:1: Expecting value"),
            ('{"a": NaN}', "f.json: JSON does not allow NaN"),
            ("", "f.json:1:1: Expecting value"),
        ],
    )
    def test_errors_name_line_and_column(self, text, message):
        assert refusal(text, "f.json") == message


class TestPlaces:
    def test_position_of_values(self):
        document = parse(b"version: 1\nbuckets:\n  ORDERS:\n    history: 5\n  STOCK:\n    - x\n    - y\n", "t.yaml")
        assert document.where("buckets", "ORDERS", "history") == "t.yaml:4:5"
        assert document.where("buckets", "STOCK", 1) == "t.yaml:7:7"

    def test_position_of_a_missing_value_is_that_of_its_parent(self):
        document = parse(b"a: 1\nb:\n  c: 2\n", "t.yaml")
        assert document.where("b", "nothing", "here") == "t.yaml:2:1"
        assert Document({}, "t.json").where("a") == "t.json"

    @pytest.mark.parametrize("text", ['{"a": 1,\n "b": {"c": [1, 2]}}', '{"a": 1,\n\t"b": {"c": [1, 2]}}'])
    def test_positions_in_json(self, text):
        document = parse(text.encode(), "t.json")
        assert document.where("b", "c", 1) == f"t.json:2:{text.splitlines()[1].index('2') + 1}"


def test_mark_of_encoding_and_line_ends_of_windows_are_read():
    assert parse(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "a.yaml").data == {"a": 1, "b": 2}
