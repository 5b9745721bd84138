"""Batches in files: NDJSON, YAML and JSON; errors name their place."""

import json
from collections.abc import Callable

import pytest

from kvctl.documents import parser
from kvctl.errors import UsageError
from kvctl.tables import batch_file
from kvctl.tables.batch_file import read_changes
from kvctl.tables.changes import Change, Insert, Put, Remove, Version

VERSION = Version(35, 1, 2)
CHANGES: list[Change] = [
    Insert(b"a", "é".encode()),
    Put(b"\xff", b"\0\xff", VERSION, ""),
    Put(b"b", b"", family="f"),
    Remove(b"c", VERSION),
]
ITEMS = [
    {"insert": "a", "value": "é"},
    {"put": "/w==", "key_encoding": "base64", "value": "AP8=", "encoding": "base64", "family": "", "version": "z.1.2"},
    {"put": "b", "value": "", "family": "f", "version": None},
    {"remove": "c", "family": None, "version": "z.1.2"},
]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(map(json.dumps, ITEMS)),
        "\r\n\r\n".join(map(json.dumps, ITEMS)) + "\r\n",
        "\n\ufeff"[1:] + "\n".join(map(json.dumps, ITEMS)),
        json.dumps(ITEMS),
        json.dumps(ITEMS, indent=2),
        "".join(f"- {json.dumps(item)}\n" for item in ITEMS),
    ],
)
def test_batch_is_read_in_all_formats(text):
    assert read_changes(text.encode(), "x") == CHANGES


@pytest.mark.parametrize(
    "text", ['{"put": "a", "value": "x"}', '{\n "put": "a",\n "value": "x"\n}', "put: a\nvalue: x"]
)
def test_single_change_is_read(text):
    assert read_changes(text.encode(), "x") == [Put(b"a", b"x")]


WRONG = {
    "3": "a change must be a mapping",
    "[1]": "a change must be a mapping",
    '{"put": "a"}': "has no `value`",
    '{"put": "a", "value": 1}': "must be text",
    '{"put": "a", "value": null}': "must be text",
    '{"value": "x"}': "needs `insert`, `put` or `remove`",
    '{"put": 1, "value": "x"}': "must be text",
    '{"put": "a", "value": "x", "valeu": "y"}': "`valeu` is not a field",
    '{"put": "a", "insert": "b", "value": "x"}': "`insert` and `put` cannot be combined",
    '{"remove": "a", "value": "x"}': "`value` cannot be used with `remove`",
    '{"insert": "a", "value": "x", "version": "not-exists"}': "`version` cannot be used with `insert`",
    '{"put": "", "value": "x"}': "key is empty",
    '{"put": "a", "value": "***", "encoding": "base64"}': "not valid base64",
    '{"put": "a", "value": "x", "encoding": "hex"}': "`hex` is not a value of `encoding`",
    '{"put": "a", "value": "x", "encoding": ["utf-8"]}': "`encoding` must be text",
    '{"put": "a", "value": "x", "version": "what"}': "`what` is not a version",
    '{"put": "a", "value": "x", "version": 3}': "must be text",
    '{"put": "a", "value": "x", "family": 3}': "must be text",
    '{"put": "ok", "value": "x"}': "`ok` appears twice in the batch, first at",
    '{"put": "a", "value": "x", "put": "b"}': "appears twice",
    '{"put": "%s", "value": "x"}' % ("k" * 2561): "2,561 bytes",
}


@pytest.mark.guarantee("tables-5")
@pytest.mark.parametrize(("wrong", "problem"), WRONG.items())
def test_batch_error_names_its_line(wrong, problem):
    before, after = '{"put": "ok", "value": "x"}', '{"remove": "d"}'
    for text, line in (
        (f"{before}\n\n{wrong}\n{after}", 3),
        (f"- {before}\n- {wrong}\n- {after}", 2),
        (f"[{before},\n{wrong},\n{after}]", 2),
    ):
        with pytest.raises(UsageError, match=f"(?i){problem}") as caught:
            read_changes(text.encode(), "x")
        assert caught.value.message.startswith(f"x:{line}:"), caught.value.message


@pytest.mark.parametrize(
    "lone", [b'{"put"', b'{"put": "\\ud800", "value": "x"}', b'{"put": "\xff", "value": "x"}', b"[" * 100_000]
)
def test_invalid_lines_are_named(lone):
    with pytest.raises(UsageError, match=r"^x:2(:1)?: "):
        read_changes(b'{"put": "ok", "value": "x"}\n' + lone, "x")


@pytest.mark.parametrize("text", ["", "[]", "3", "\n\n", "a: {b"])
def test_other_documents_are_refused(text):
    with pytest.raises(UsageError, match=r"^x:"):
        read_changes(text.encode(), "x")


def test_list_that_is_too_large_names_the_format_for_it(monkeypatch):
    monkeypatch.setattr(parser, "MAX_BYTES", 1 << 20)
    changes = [{"put": f"k{number}", "value": "v" * 1000} for number in range(1100)]
    with pytest.raises(UsageError, match="larger than 1 MiB, the maximum of a JSON") as caught:
        read_changes(json.dumps(changes).encode(), "b.json")
    assert "NDJSON" in caught.value.hint
    assert len(read_changes(b"".join(json.dumps(one).encode() + b"\n" for one in changes), "b.ndjson")) == 1100


def test_batch_errors_are_reported_together():
    lines = ['{"put": "a", "value": 1}', '{"put": "b", "value": "x"}', "", '{"remove": "b"}', '{"insert": "c"}']
    with pytest.raises(UsageError) as caught:
        read_changes("\n".join(lines).encode(), "x")
    assert caught.value.message.splitlines() == [
        "x has 3 errors:",
        '  x:1:1: [0].value: `value` must be text, not a number. Quote it: `"1"`',
        "  x:4:1: [2]: `b` appears twice in the batch, first at x:2:1",
        "  x:5:1: [3]: The change has no `value`. Use `''` for an empty value",
    ]


def test_places_are_computed_only_for_errors(monkeypatch):
    """In JSON each lookup scans the complete file."""
    where: Callable[..., str] = batch_file.parser.Document.where
    asked = []
    monkeypatch.setattr(batch_file.parser.Document, "where", lambda *args: asked.append(args) or where(*args))
    assert len(read_changes(json.dumps(ITEMS).encode(), "x")) == 4
    assert asked == []
