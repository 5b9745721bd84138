"""Names, prefixes and filters at the borders of what the protocol takes."""

import pytest

from kvctl.errors import UsageError
from kvctl.tokens import (
    check_filter_subject,
    check_header,
    check_name,
    check_prefix,
    check_subject,
    encoded,
    header_lines,
    shown,
    unsafe,
)


@pytest.mark.parametrize("name", ["a", "A-b_9$", "é" * 127 + "a", "x" * 255])
def test_name_of_up_to_255_bytes_is_returned(name):
    assert check_name(name, "stream") == name


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128])
def test_name_of_another_length_is_refused_with_the_limit(name):
    with pytest.raises(UsageError, match="name of a consumer must have 1 to 255 bytes"):
        check_name(name, "consumer")


@pytest.mark.parametrize("name", ["a.b", "a*", ">", "a/b", "a\\b", "a b", "a\n", "\0", "\fa"])
def test_name_with_an_illegal_character_is_refused(name):
    with pytest.raises(UsageError, match="is not the name of a stream"):
        check_name(name, "stream")


@pytest.mark.parametrize("text", ["a", "a.b", "*", ">", "a.*.c", "a.>", "*.>", "$KV.B.é", "a>"])
def test_filter_subject_is_returned(text):
    assert check_filter_subject(text) == text


@pytest.mark.parametrize("text", [".", "a.", ".a", "a..b", ">.a", "a.>.b", "a b", "a\tb", "a\n"])
def test_filter_that_is_not_one_is_refused(text):
    with pytest.raises(UsageError, match="is not a subject filter"):
        check_filter_subject(text)


def test_empty_subject_and_empty_filter_are_called_empty():
    with pytest.raises(UsageError, match="The subject filter is empty"):
        check_filter_subject("")
    with pytest.raises(UsageError, match="The subject is empty"):
        check_subject(b"")


@pytest.mark.parametrize("subject", [b"a", b"a.b.c", b"*.>", b"\xff.\xc2\x85", b"\x0b", b"a\x0cb"])
def test_subject_with_other_bytes_than_the_protocols_passes(subject):
    check_subject(subject)


@pytest.mark.parametrize("subject", [b".", b".a", b"a.", b"a..b", b"a b", b" a", b"a\r", b"a\nb", b"a\0b", b"\t"])
def test_subject_that_ends_a_token_or_line_is_refused(subject):
    with pytest.raises(UsageError, match="is not a subject"):
        check_subject(subject)


def test_subject_with_white_space_or_nul_is_unsafe():
    assert [unsafe(one) for one in (b"a", b"a.b", b"a b", b" a", b"a\n", b"a\0", b"")] == [False] * 2 + [True] * 5


@pytest.mark.parametrize(("text", "tokens"), [("a", None), ("a.b", None), ("a", 1), ("a.b", 2), ("$JS.hub.API", 3)])
def test_prefix_of_the_wanted_tokens_passes(text, tokens):
    check_prefix("api", text, tokens=tokens)


@pytest.mark.parametrize(
    ("text", "tokens", "hint"),
    [
        ("a.b", 1, "one token"),
        ("", 1, "one token"),
        ("a", 2, "single dots"),
        ("a..b", None, "single dots"),
        ("a.", None, "single dots"),
        ("a.*", None, "single dots"),
        (">", None, "single dots"),
        ("a b", None, "single dots"),
        ("a\x7f", None, "single dots"),
    ],
)
def test_prefix_that_no_subject_begins_with_is_refused(text, tokens, hint):
    with pytest.raises(UsageError, match="`api` cannot be") as caught:
        check_prefix("api", text, tokens=tokens)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["A", "Nats-Msg-Id", "a b", "é"])
def test_header_line_has_the_name_and_the_value(name):
    assert header_lines({name: "1", "Z": ""}) == f"{name}: 1\r\nZ: \r\n"


@pytest.mark.parametrize("name", ["", "a:", ":", " a", "a ", "a\tb", "\x7f"])
def test_header_name_that_would_not_come_back_is_refused(name):
    with pytest.raises(UsageError, match="is not the name of a header"):
        header_lines({name: "1"})


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n", "\0"])
def test_header_with_a_line_end_is_refused_by_its_part(end):
    with pytest.raises(UsageError, match="The value of header `B` contains a line end"):
        header_lines({"A": "1", "B": f"x{end}y"})
    with pytest.raises(UsageError, match="The name of header"):
        header_lines({"A": "1", f"B{end}C": "x"})


def test_header_block_is_taken_and_its_parts_are_refused():
    for block in (b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: 1\r\n\r\n"):
        check_header(block)
    for block in (b"NATS/1.0", b"NATS/1.0\r\n\r\n\r\n", b"A: 1\r\n\r\n", b"NATS/1.0\r\n\r\nPUB a 0\r\n\r\n"):
        with pytest.raises(UsageError, match="is not a header block"):
            check_header(block)


def test_text_of_up_to_120_characters_is_shown_in_full():
    assert shown("x" * 120) == "x" * 120
    assert shown("x" * 121) == "x" * 120 + "..."
    assert shown(b"\xff\x80a\x7f") == r"\xff\x80a\x7f"
    assert shown("é\u2028\ud800\udc7f\udd00") == r"é\u2028\ud800\udc7f\udd00"


def test_half_a_character_has_no_bytes_and_an_invalid_byte_has_one():
    assert encoded("é\udcff") == b"\xc3\xa9\xff"
    with pytest.raises(UsageError, match="lone surrogate"):
        encoded("a\ud800")
