"""Rows of an input: a row means the same, in whichever form it is written."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import pytest

from kvctl.errors import UsageError
from kvctl.kv.bulk import input_file
from kvctl.kv.bulk.input_file import open_input
from kvctl.kv.bulk.rows import BadRow

NAMES = ("key", "value", "id", "encoding", "operation", "ttl", "headers")


def parsed(text: str, key: str, value: str) -> list[tuple[str, bytes, bytes] | BadRow]:
    source = open_input("rows.ndjson", io.BytesIO(text.encode()), key=key, value=value)
    found: list[Any] = []
    for batch in source.batches():
        found += [(row.key, row.value, row.header) for row in batch.rows] + batch.bad
    return found


@pytest.mark.parametrize(("key", "value"), [*itertools.permutations(NAMES, 2)])
def test_key_and_value_of_any_names_are_the_same_in_every_form_of_the_row(key, value):
    row = {key: "base64", value: "10"}
    others = {name: "other" for name in ("key", "value", "more") if name not in row}
    for fields in (row, row | others, others | row, row | others | {"ttl": row.get("ttl")}):
        text = json.dumps(fields)
        for form in (f"{text}\n", f"{text}\r\n", f" {text}"):
            assert parsed(form, key, value) == [("base64", b"10", b"")]


@pytest.mark.parametrize("format", ["ndjson", "tsv"])
def test_a_line_that_does_not_end_is_refused(monkeypatch, format):
    monkeypatch.setattr(input_file, "LONGEST_LINE", 1 << 20)
    text = f"key\tvalue\nk\t{'x' * (3 << 20)}"
    with pytest.raises(UsageError, match="longer than 1 MiB"):
        list(open_input(f"rows.{format}", io.BytesIO(text.encode())).batches())
