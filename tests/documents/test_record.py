"""Tables of fields: the reader and the JSON Schema agree, and errors name what is wrong."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvctl.documents import parser
from kvctl.documents.reader import MAX_REPORTED, read
from kvctl.documents.record import (
    DURATION,
    ENCODING,
    EXACT_TEXT,
    FLAG,
    INTEGER,
    PAIRS,
    SIZE,
    TEXT,
    TEXTS,
    Choice,
    Exclusive,
    Field,
    OneAtLeast,
    Record,
    Requires,
    Type,
    constant,
    list_of,
    or_null,
)
from kvctl.errors import UsageError

CHANGE = Choice(
    "a change",
    {
        "put": Record("a change", {"put": Field(TEXT, "Key"), "value": Field(EXACT_TEXT, "Value", required=True)}),
        "drop": Record("a change", {"drop": Field(TEXT, "Key")}),
    },
)
TYPES: list[Type] = [TEXT, TEXTS, INTEGER, FLAG, DURATION, SIZE, PAIRS, ENCODING, or_null(EXACT_TEXT)]
TYPES += [constant(True, "`j` can only be `true`"), list_of(Type(CHANGE.read, lambda _: CHANGE.schema()))]
RECORD = Record(
    "a thing",
    {name: Field(kind, "Text") for name, kind in zip("abcdefghijk", TYPES, strict=True)},
    [Exclusive("a", "b"), Requires("c", "d"), OneAtLeast(("a", "b", "k", "e", "f", "g", "h", "i", "j"))],
)
VALIDATOR = Draft202012Validator(RECORD.schema())


def values(text: str) -> dict[str, Any]:
    return read(parser.parse(text.encode(), "t.yaml"), lambda reader: RECORD.read(reader, ()))


@pytest.mark.parametrize(
    "text",
    "a: x|a: 5|b: x|b: [x, 5]|{a: x, c: 3, d: false}|e: 15m|e: 0|f: 1024|f: 1.5MiB|g: {x: 1, y: ''}|h: base64|"
    "i: |i: ''|j: true|k: []|k: [{put: a, value: ''}, {drop: b}]".split("|"),
)
def test_reader_and_schema_accept_the_same(text):
    assert values(text)
    assert [error.message for error in VALIDATOR.iter_errors(parser.parse(text.encode(), "t.yaml").data)] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a]", "A thing must be a mapping"), ("{}", "The thing needs"), ("x: 1", "`x` is not a field of a thing"),
        ("a: ''", "`a` must be text"), ("a: true", "`a` must be text"), ("b: [x, true]", r"b\[1\]: `b` must be text"),
        ("{a: x, b: y}", "`a` and `b` cannot be combined"), ("{a: x, c: 3}", "`c` requires `d`"),
        ("{a: x, c: 3.5, d: true}", "`c` must be an integer"), ("{a: x, d: 1}", "`d` must be true or false"),
        ("e: 15", "is not a duration"), ("f: much", "is not a size"), ("g: [x]", "`g` must be a mapping"),
        ("g: {x: [1]}", r"g\.x: `x` must be text"), ("h: hex", "`hex` is not a value of `h`"),
        ("i: 5", "`i` must be text, not a number"), ("j: false", "`j` can only be `true`"),
        ("k: {}", "`k` must be a list"),
        ("k: [{put: a}]", r"k\[0\]: The change has no `value`"), ("k: [x]", "A change must be a mapping"),
        ("k: [{value: a}]", "A change needs `put` or `drop`"),
        ("k: [{drop: a, value: b}]", "cannot be used with `drop`"),
        ("k: [{put: a, drop: b, value: c}]", "`put` and `drop` cannot be combined"),
    ],
)  # fmt: skip
def test_reader_and_schema_refuse_the_same(text, problem):
    with pytest.raises(UsageError, match=problem):
        values(text)
    assert not VALIDATOR.is_valid(parser.parse(text.encode(), "t.yaml").data)


def test_many_errors_are_counted():
    with pytest.raises(UsageError) as caught:
        values("k: [" + "x, " * 200 + "]")
    lines = caught.value.message.splitlines()
    assert (lines[0], len(lines)) == ("t.yaml has 200 errors:", MAX_REPORTED + 2)
    assert lines[-1] == f"  and {200 - MAX_REPORTED} more"
