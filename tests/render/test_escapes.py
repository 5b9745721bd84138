"""Escaping of dangerous characters for terminals, and the bytes that text came from."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.render.escapes import escape, escape_unicode, raw_bytes, utf8

ANY_TEXT = st.text(st.characters(exclude_categories=()))
"""Every code point, lone surrogates included."""


class TestEscape:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("plain é 漢 😀", "plain é 漢 😀"),
            ("\x1b[31m", r"\x1b[31m"),
            ("a\tb\nc\rd", r"a\tb\nc\rd"),
            ("\x00\x07\x7f\x9b", r"\x00\x07\x7f\x9b"),
            ("\u202eabc\u2066\u200f", r"\u202eabc\u2066\u200f"),
            ("a\u2028b\x85c", r"a\u2028b\x85c"),
            (b"\xff\xfe".decode("utf-8", "surrogateescape"), r"\xff\xfe"),
            ("\ud800", r"\ud800"),
        ],
    )
    def test_shows_what_is_there(self, text, shown):
        assert escape(text) == shown

    def test_keeps_what_it_is_told_to(self):
        assert escape("a\tb\nc\x1b", keep="\n\t") == "a\tb\nc\\x1b"

    @pytest.mark.guarantee("commands-3", by="property")
    @given(ANY_TEXT)
    def test_leaves_no_control_and_nothing_that_is_not_utf8(self, text):
        shown = escape(text)
        assert shown.encode().decode() == shown
        assert not [character for character in shown if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")]
        assert not [character for character in shown if unicodedata.bidirectional(character) in BIDI_CONTROLS]


BIDI_CONTROLS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


class TestJsonEscapes:
    @given(ANY_TEXT)
    def test_read_back_as_they_were(self, text):
        line = escape_unicode(json.dumps(text, ensure_ascii=False))
        assert json.loads(line) == text
        assert escape(line) == line

    @given(ANY_TEXT)
    def test_lone_surrogates_leave_as_escapes(self, text):
        data = utf8(json.dumps(text, ensure_ascii=False))
        assert json.loads(data.decode()) == text


class TestBytes:
    @given(st.binary())
    def test_come_back_as_they_were(self, data):
        assert raw_bytes(data.decode("utf-8", "surrogateescape")) == data

    def test_of_what_never_were_bytes_are_escapes(self):
        assert raw_bytes("a\ud800") == rb"a\ud800"
