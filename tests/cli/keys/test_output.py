"""Entries as rows and lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.cli.keys.output import Shape
from kvctl.errors import KvctlError
from kvctl.kv.entry import Entry, Operation
from kvctl.render.formats import NdjsonWriter, TsvWriter

TTL = b"NATS/1.0\r\nNats-TTL: 1h30m\r\nAuthor: me\r\n\r\n"
ENTRIES = st.builds(
    Entry,
    bucket=st.just("B"),
    key=st.text(st.characters(exclude_characters=" \t\r\n"), min_size=1) | st.just("a\udcffb"),
    value=st.binary() | st.text().map(str.encode),
    revision=st.integers(1, 2**63),
    created_ns=st.integers(0, 4_000_000_000_000_000_000),
    operation=st.sampled_from(Operation),
    delta=st.none() | st.integers(0, 10),
    stream=st.none() | st.just("KV_B"),
    reason=st.none() | st.just("MaxAge"),
    header=st.just(b"") | st.just(TTL),
) | st.builds(
    Entry,
    bucket=st.just("B"),
    key=st.text("abc.", min_size=1),
    value=st.text().map(str.encode),
    revision=st.integers(1, 2**63),
    created_ns=st.integers(10**9, 4_000_000_000_000_000_000),
    delta=st.integers(0, 10),
)
"""Any entries, and half of the time plain ones, which take the fast path."""


@given(st.lists(ENTRIES), st.booleans(), st.booleans(), st.sampled_from([None, "base64"]))
def test_lines_are_what_the_writer_makes_of_the_rows(entries, headers, meta_only, encoding):
    shape = Shape(headers=headers, meta_only=meta_only, encoding=encoding)
    written = b"".join(NdjsonWriter(shape.view()).rows([shape.row(entry)]) for entry in entries)
    assert shape.lines(entries) == written


def test_fields_and_their_order():
    entry = Entry("B", "k", b"v", 7, 1_000_000_001, Operation.DEL, 0, "KV_B", "MaxAge", TTL)
    assert json.dumps(Shape(headers=True).row(entry)) == (
        '{"bucket": "B", "key": "k", "revision": 7, "created": "1970-01-01T00:00:01.000000001Z", "operation": "DEL", '
        '"value": "v", "encoding": "utf-8", "reason": "MaxAge", "delta": 0, "stream": "KV_B", "ttl": 5400, '
        '"headers": {"Nats-TTL": "1h30m", "Author": "me"}}'
    )


def test_a_size_takes_the_place_of_the_value():
    header = b"NATS/1.0\r\nNats-Msg-Size: 12345\r\n\r\n"
    row = Shape(meta_only=True).row(Entry("B", "k", b"", 1, 0, header=header))
    assert (row["size"], row.keys() & {"value", "encoding"}) == (12345, set())


@pytest.mark.parametrize("value", [b"\xff", b"\xed\xa0\x80", b"ok\xc3"])
def test_what_is_not_utf_8_is_base64_and_never_forced_into_text(value):
    entry = Entry("B", "k", value, 1, 0)
    assert Shape().row(entry)["encoding"] == "base64"
    with pytest.raises(KvctlError, match="is not UTF-8"):
        Shape(encoding="utf-8").row(entry)
    with pytest.raises(KvctlError, match="is not UTF-8"):
        Shape(encoding="utf-8").lines([entry])


@pytest.mark.parametrize("ttl", [b"soon", b"9" * 400, b"\xff", b"1h-", b"nevermore", b""])
def test_headers_that_others_made_up_break_nothing(ttl):
    header = b"NATS/1.0\r\nNats-TTL: %b\r\nNats-Msg-Size: 5 apples\r\n\r\n" % ttl
    entry = Entry("B", "k", b"", 1, 0, header=header)
    assert ("ttl" in Shape().row(entry), Shape(meta_only=True).row(entry)["size"]) == (False, 0)


def test_the_size_is_the_servers_word_not_the_writers():
    for own in (b"Nats-Msg-Size: 1\r\n", b"cut"):
        header = b"NATS/1.0\r\n" + own + b"Nats-Msg-Size: 12345\r\n\r\n"
        assert Shape(meta_only=True).row(Entry("B", "k", b"", 1, 0, header=header))["size"] == 12345


@given(st.lists(ENTRIES), st.booleans(), st.booleans(), st.sampled_from([None, "base64"]))
def test_records_are_rows_as_tsv_shows_them(entries, headers, meta_only, encoding):
    shape = Shape(headers=headers, meta_only=meta_only, encoding=encoding)
    writer = TsvWriter(shape.view())
    assert writer.rows(shape.records(entries)) == writer.rows([shape.row(entry) for entry in entries])
