"""Phrases of messages: plurals, lists of names, articles."""

import pytest

from kvctl import phrases


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "key", "1 key"), (2, "key", "2 keys"), (0, "entry", "0 entries"), (1200, "replica", "1,200 replicas")],
)
def test_counted_gives_the_noun_its_number(number, noun, text):
    assert phrases.counted(number, noun) == text


@pytest.mark.parametrize(
    ("limit", "text"),
    [(None, "`a`, `b`, `c`"), (3, "`a`, `b`, `c`"), (2, "`a`, `b` and 1 more"), (1, "`a` and 2 more")],
)
def test_quoted_names_no_more_than_its_limit(limit, text):
    assert phrases.quoted("abc", limit) == text


def test_quoted_of_nothing_is_empty():
    assert phrases.quoted([]) == ""


def test_article_follows_the_sound_of_the_noun():
    assert [phrases.with_article(noun) for noun in ("bucket", "aggregate")] == ["a bucket", "an aggregate"]


def test_lines_and_indented_escape_the_line_ends_of_others():
    message = phrases.indented("Two\nerrors:", ["a\n::error::b", "c"])
    assert message == "Two\\nerrors:\n  a\\n::error::b\n  c"
    assert phrases.lines(message, "d") == f"{message}\nd"
    assert phrases.lines(f"{message}") == message.replace("\n", "\\n")
