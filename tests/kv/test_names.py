"""Names of ADR-8: which are valid, and what filters select, against a brute force model and the real server."""

import re
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvctl.errors import UsageError
from kvctl.kv.names import (
    MOST_FILTERS,
    FilterTree,
    apart,
    check_bucket,
    check_filter,
    check_key,
    check_keys,
    check_literal,
    disjoint,
    is_plain,
    is_wild,
    literal_filter,
    matches,
    overlapping,
)
from tests.support.raw import RawClient

KEYS = [".".join(tokens) for count in (1, 2, 3) for tokens in product("ab", repeat=count)]
"""All keys of up to three tokens out of two."""

LONGER = [*KEYS, *(f"{key}.a" for key in KEYS)]
"""These and more, since `a.b.>` and `a.b.*` only differ beyond."""

FILTERS = [
    ".".join(tokens)
    for count in (1, 2, 3)
    for tokens in product(("a", "b", "*"), repeat=count)
    for tokens in (tokens, (*tokens[:-1], ">"))
]
"""All filters over them."""


class TestBuckets:
    @pytest.mark.parametrize("name", ["B", "a_b-C9", "-", "_", "x" * 252])
    def test_valid(self, name):
        assert check_bucket(name) == name

    @pytest.mark.parametrize("name", ["", "a.b", "a b", "a\n", "é", "*", ">", "a/b", "KV\x00", "x" * 253])
    def test_refused(self, name):
        with pytest.raises(UsageError) as caught:
            check_bucket(name)
        assert caught.value.exit_code == 2


class TestKeys:
    @pytest.mark.parametrize(
        "key", ["a", "a.b.c", "-/_=aZ9", "/etc/passwd", "a/b", "a/", "=cmd", "-rf", "KV.x", "1.2.3"]
    )
    def test_valid(self, key):
        assert check_key(key) == key

    @pytest.mark.parametrize(
        "key",
        [
            "",
            ".",
            ".a",
            "a.",
            "a..b",
            "a/../b",
            "..",
            "a b",
            "a\n",
            "a.b\n",
            "\na",
            "a\tb",
            "é",
            "日本",
            "a:b",
            "a,b",
            "a\x1b[31m",
            "a\x00",
            "a$",
            '"',
        ],
    )
    def test_refused(self, key):
        with pytest.raises(UsageError) as caught:
            check_key(key)
        assert caught.value.exit_code == 2

    @pytest.mark.parametrize("key", ["*", ">", "a.*", "a.>", "*.b", "a*", "a>", "a.b*c"])
    def test_no_wildcard_names_a_key(self, key):
        with pytest.raises(UsageError, match="wildcards") as caught:
            check_key(key)
        assert "--match" in (caught.value.hint or "")

    @pytest.mark.parametrize("key", ["_kv", "_kv.a", "_kvx"])
    def test_those_for_internal_use_are_refused(self, key):
        with pytest.raises(UsageError, match="reserved"):
            check_key(key)

    @pytest.mark.parametrize("key", ["a_kv", "kv", "a._kv"])
    def test_reserved_prefix_is_refused_only_at_the_start(self, key):
        assert check_key(key) == key


class TestForeignKeys:
    @pytest.mark.parametrize("key", ["é", "a\x1b[31m", "*", "star.*", ">", "a:b", "_kv.x", "a\udcffb"])
    def test_literal_key_may_have_any_subject_characters(self, key):
        assert check_literal(key) == key

    @pytest.mark.parametrize("key", ["", "a b", "a\tb", "a\r", "a\n", "a..b", ".a", "a."])
    def test_literal_key_with_illegal_subject_characters_is_refused(self, key):
        with pytest.raises(UsageError):
            check_literal(key)

    @pytest.mark.parametrize(
        ("key", "text", "plain"),
        [
            ("é.b", "é.b", True),
            ("star.*", "star.*", False),
            ("a.>.b", "a.>", False),
            (">", ">", False),
            ("a\udcff.b", "*.b", False),
            ("a*", "a*", True),
        ],
    )
    def test_are_read_by_a_filter_that_includes_them(self, key, text, plain):
        assert (literal_filter(key), is_plain(key)) == (text, plain)


class TestFilters:
    @pytest.mark.parametrize(
        "text", ["a", "a.b", "*", ">", "a.*", "*.b", "a.*.c", "a.>", "*.>", "a.*.>", "_kv.>", "-/_=."[:-1]]
    )
    def test_valid(self, text):
        assert check_filter(text) == text

    @pytest.mark.parametrize(
        "text",
        ["", ".", "a.", ".a", "a..b", ">.a", "a.>.b", "a*", "*a", "a>", "a.b>", "**", ">>", "a\n", "a b", "é", ">\n"],
    )
    def test_refused(self, text):
        with pytest.raises(UsageError, match="is not a filter" if text else "is empty") as caught:
            check_filter(text)
        assert caught.value.exit_code == 2

    @pytest.mark.parametrize(("text", "wild"), [("a.b", False), ("*", True), ("a.*", True), (">", True), ("a.>", True)])
    def test_wild_or_not(self, text, wild):
        assert is_wild(text) == wild

    def test_no_filter_matches_everything(self):
        assert matches("a.b", ())

    def test_select_what_the_server_selects(self, raw, bucket_name):
        raw.create_bucket(bucket_name, dict.fromkeys(KEYS, b""))
        prefix = f"$KV.{bucket_name}."
        for text in FILTERS:
            info = raw.api(f"STREAM.INFO.KV_{bucket_name}", {"subjects_filter": prefix + text})
            selected = {subject.removeprefix(prefix) for subject in info["state"].get("subjects") or {}}
            assert {key for key in KEYS if matches(key, (text,))} == selected, text


chosen = st.lists(st.sampled_from(FILTERS), max_size=5)


@settings(deadline=None)
@given(chosen)
def test_filter_covered_by_another_is_dropped_and_no_other(filters):
    kept = disjoint(filters)
    assert set(kept) <= set(filters)
    assert _selected(kept) == _selected(filters)
    assert not any(_selected([one]) <= _selected([other]) for one in kept for other in kept if one != other)


@settings(deadline=None)
@given(chosen)
def test_filters_overlap_where_a_key_matches_two(filters):
    several = any(
        any(matches(key, (one,)) and matches(key, (other,)) for key in LONGER)
        for one, other in combinations(filters, 2)
    )
    assert overlapping(filters) == several


def test_the_server_takes_every_set_of_filters_that_does_not_overlap(raw, bucket_name):
    raw.create_bucket(bucket_name)
    pairs = [
        pair for pair in combinations(FILTERS, 2) if len(disjoint(list(pair))) == 2 and not overlapping(list(pair))
    ]
    assert len(pairs) > 50
    for number, pair in enumerate(pairs[::5]):
        answer = _consumer(raw, bucket_name, f"c{number}", pair)
        assert "error" not in answer, pair


def test_the_server_refuses_a_filter_covered_by_another(raw, bucket_name):
    raw.create_bucket(bucket_name)
    assert _consumer(raw, bucket_name, "c", ("a.>", "a.b"))["error"]["err_code"] == 10138


def _selected(filters: list[str]) -> set[str]:
    return {key for key in LONGER if any(matches(key, (text,)) for text in filters)}


def _consumer(raw: RawClient, bucket: str, name: str, filters: tuple[str, ...]) -> dict[str, Any]:
    config = {"name": name, "deliver_policy": "last_per_subject", "ack_policy": "none", "mem_storage": True}
    config["filter_subjects"] = [f"$KV.{bucket}.{text}" for text in filters]
    body = {"stream_name": f"KV_{bucket}", "config": config}
    return raw.api(f"CONSUMER.CREATE.KV_{bucket}.{name}", body)


@pytest.mark.parametrize(
    "keys",
    [["a", "b\nc"], ["a\n"], ["\na"], ["a", ""], [""], ["a", "_kv.x"], ["_kv"], ["a..b"], ["a", "b "], ["a", "*"]],
)
def test_many_keys_are_checked_as_strictly_as_one(keys):
    with pytest.raises(UsageError) as one:
        check_key(keys[-1])
    with pytest.raises(UsageError) as many:
        check_keys(["x.1", "y/2", *keys])
    assert str(many.value) == str(one.value)
    check_keys([])
    check_keys(["a"] * 10_000)


@pytest.mark.parametrize("keys", [["a\nb\nc"], ["a\nb", "c\nd"], ["a\nb\nc", "d", "e\nf"]])
def test_key_with_line_ends_is_not_counted_as_several(keys):
    with pytest.raises(UsageError, match="is not a key"):
        check_keys(keys)


def test_key_without_wildcards_is_refused_without_a_word_about_filters():
    for key in ("a b", "", "a..b"):
        with pytest.raises(UsageError) as caught:
            check_key(key)
        assert "--match" not in (caught.value.hint or "")


def test_ref_in_place_of_a_bucket_is_refused_as_a_ref():
    with pytest.raises(UsageError, match="`orders@main` is a ref of a repository"):
        check_bucket("orders@main")


@settings(deadline=None)
@given(st.sampled_from(LONGER), st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3))
def test_key_is_selected_where_a_regular_expression_says_so(key, filters):
    patterns = [re.escape(text).replace(r"\*", "[^.]+").replace(">", ".+") for text in filters]
    assert matches(key, tuple(filters)) == any(re.fullmatch(pattern, key) for pattern in patterns)


def test_every_two_filters_overlap_exactly_where_they_select_a_common_key():
    selected = {text: _selected([text]) for text in FILTERS}
    for one, other in product(selected, repeat=2):
        assert overlapping([one, other]) == bool(selected[one] & selected[other]), (one, other)
        assert (disjoint([one, other]) == [one]) == (selected[other] <= selected[one]), (one, other)


KINDS = {
    "keys": lambda n: f"f.{n}",
    "filters": lambda n: f"f.{n}.*",
    "crossing": lambda n: f"*.x{n}" if n % 2 else f"a{n}.y{n}",
    "deep": lambda n: ".".join("*a"[n >> bit & 1] for bit in range(16)) + f".{n}",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", ["covers", "meets"])
def test_the_steps_for_many_filters_grow_as_their_number(kind, question):
    filters = [KINDS[kind](number) for number in range(4000)]
    tree = FilterTree(filters)
    before = tree._steps
    for text in filters:
        getattr(tree, question)(text)
    nodes = sum(text.count(".") + 2 for text in filters)
    assert before - tree._steps <= FilterTree.STEPS * len(filters) + nodes


def test_too_many_filters_are_not_given_to_one_consumer():
    assert apart([f"f.{number}" for number in range(MOST_FILTERS)])[-1] == f"f.{MOST_FILTERS - 1}"
    assert apart([f"f.{number}" for number in range(MOST_FILTERS + 1)]) == (">",)
