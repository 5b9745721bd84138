"""Destinations of keys: rendered, predicted, and compared with a server."""

import asyncio
import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvctl
from kvctl.errors import UsageError
from kvctl.jetstream import streams
from kvctl.kv.names import is_wild, matches, meet
from kvctl.topology.model.subjects import (
    KeyMapping,
    Transform,
    UnknownTransform,
    capture,
    default_dest,
    land,
    parse,
    pattern_of,
    places,
    render,
    wildcard_number,
)


@pytest.mark.parametrize(
    ("keys", "prefix", "maps", "key", "lands"),
    [
        ([], "", [], "a.b", "a.b"),
        ([], "p.q", [], "a.b", "p.q.a.b"),
        (["NEW.>"], "", [], "NEW.7", "7"),
        (["NEW.>"], "orders.new", [], "NEW.7.x", "orders.new.7.x"),
        (["NEW.>"], "", [], "OLD.7", None),
        (["a.*.c"], "", [], "a.b.c", "b.c"),
        (["a.*.c"], "p", [], "a.b.c", "p.b.c"),
        (["app.port"], "", [], "app.port", "app.port"),
        (["app.port"], "p", [], "app.port", "p.app.port"),
        ([], "", [("*.*", "stock.$2.$1")], "a.b", "stock.b.a"),
        ([], "", [("x.*.>", "$1.y.>")], "x.1.2.3", "1.y.2.3"),
    ],
)
def test_transforms_land_keys_by_filter_prefix_or_map(keys, prefix, maps, key, lands):
    transforms = render("ORDERS", "EDGE", keys, prefix, maps)
    assert land(transforms, f"$KV.ORDERS.{key}") == (lands and f"$KV.EDGE.{lands}")


def test_transforms_of_adr_8_render_as_in_adr_8():
    assert [rule.to_json() for rule in render("ORDERS", "NEW_ORDERS", ["NEW.>"])] == [
        {"src": "$KV.ORDERS.NEW.>", "dest": "$KV.NEW_ORDERS.>"}
    ]


@pytest.mark.parametrize(
    ("src", "dest", "dropped"),
    [("*.*", "$2.$1", ()), ("a.*.*", "$2", (1,)), ("a.>", "b", (1,)), ("*.>", "x.>", (1,)), ("a.b", "c", ())],
)
def test_dropped_wildcards_are_named(src, dest, dropped):
    assert render("A", "B", maps=[(src, dest)])[0].dropped == dropped


@pytest.mark.parametrize("dest", ["$3.$1", "$0", "a..b", "a.*", ">.a", "a b", "", "{{partition(2,1)}}"])
def test_invalid_destination_is_refused(dest):
    with pytest.raises(UsageError):
        render("A", "B", maps=[("*.*", dest)])


def test_unknown_transform_functions_are_refused():
    with pytest.raises(UnknownTransform):
        Transform("a.*", "b.{{partition(3,1)}}").apply("a.1")


@pytest.mark.parametrize(
    ("first", "second", "met"),
    [
        ("a.>", "a.*", True),
        ("a.*", "*.b", True),
        ("a.b", "a.c", False),
        ("a", "a.>", False),
        (">", "x", True),
        ("a.*", "a.b.c", False),
    ],
)
def test_filters_that_share_a_subject_meet(first, second, met):
    assert meet(first, second) is met is meet(second, first)


_SUBJECTS = [".".join(tokens) for count in (1, 2, 3, 4) for tokens in product("ab", repeat=count)]
_FILTERS = [
    ".".join(tokens)
    for count in (1, 2, 3)
    for head in product("ab*", repeat=count - 1)
    for tokens in ((*head, last) for last in "ab*>")
]


def _selected(text: str) -> set[str]:
    """Return the subjects that a filter selects, by a regular expression."""
    pattern = text.replace(".", "[.]").replace("*", "[^.]+").replace(">", ".+")
    return {subject for subject in _SUBJECTS if re.fullmatch(pattern, subject)}


def test_filters_meet_and_cover_each_other_exactly_where_their_subjects_do():
    selected = {text: _selected(text) for text in _FILTERS}
    for one, other in product(_FILTERS, repeat=2):
        assert meet(one, other) == bool(selected[one] & selected[other]), (one, other)
        assert Transform(one, "").covers(other) == (selected[other] <= selected[one]), (one, other)


def test_filter_captures_exactly_the_subjects_that_it_selects():
    for text in _FILTERS:
        pattern = text.replace(".", "[.]").replace("*", "([^.]+)").replace(">", "(.+)")
        for subject in _SUBJECTS:
            found, expected = capture(text, subject), re.fullmatch(pattern, subject)
            assert (found is None) == (expected is None), (text, subject)
            if found and expected:
                wild, rest = found
                assert (*wild, *([] if rest is None else [rest])) == expected.groups()
    assert capture("a.>.b", "a.x.b") is None
    assert capture("a.>.b", "a.>.b") == ([], None)


def test_rule_without_a_destination_leaves_subjects_as_they_are():
    rule = Transform("a.*.>", "")
    assert (rule.apply("a.b.c"), rule.apply("b.b.c")) == ("a.b.c", None)
    assert (rule.dropped, rule.pattern) == ((), "a.*.>")
    assert parse([{}, {"src": "a.*", "dest": "b"}]) == [Transform(">", ""), Transform("a.*", "b")]
    assert land([], "x") == "x"
    assert land([Transform("a", "b"), Transform("*", "c")], "x") == "c"


@pytest.mark.parametrize("prefix", [".", "a.", ".a", "a..b", "a b", "*", "a.>", "$1", "é"])
def test_prefix_that_begins_no_key_is_refused(prefix):
    with pytest.raises(UsageError, match="is not a prefix"):
        render("A", "B", prefix=prefix)


@pytest.mark.parametrize("text", ["", "a*", "a..b", ">.a"])
def test_filter_or_map_of_something_else_is_refused(text):
    with pytest.raises(UsageError):
        render("A", "B", [text])
    with pytest.raises(UsageError):
        render("A", "B", maps=[(text, "b")])


@pytest.mark.parametrize(
    ("src", "dest", "why"),
    [
        ("*.*", "$3", "uses wildcard 3, but `.*` has 2"),
        ("*.*", "$0", "uses wildcard 0"),
        ("a", "$1", "has 0"),
        ("a.*", ">", "`>` is not valid"),
        ("a.>", "b.>.c", "`>` is not valid"),
        ("a.*", "b.*", "is not valid in the destination"),
        ("a.*", "b.", "`` is not valid"),
        ("a.*", "x$1", "is not valid"),
    ],
)
def test_map_whose_destination_has_other_places_is_refused(src, dest, why):
    with pytest.raises(UsageError, match=why):
        render("A", "B", maps=[(src, dest)])


@pytest.mark.parametrize(
    ("text", "dest"),
    [
        ("a.b", "a.b"),
        (">", ">"),
        ("NEW.>", ">"),
        ("*", "$1"),
        ("a.*.c", "$1.c"),
        ("*.a.*.>", "$1.a.$2.>"),
        ("x.y.*.*", "$1.$2"),
    ],
)
def test_filter_lands_without_its_literal_head(text, dest):
    assert default_dest(text) == dest
    assert places(dest) == re.sub(r"[$](\d)", r"{{wildcard(\1)}}", dest)
    assert pattern_of(dest) == re.sub(r"[$]\d", "*", dest) == pattern_of(places(dest))


def test_number_of_a_wildcard_may_be_of_any_length():
    for token in (f"${'9' * 5000}", f"{{{{wildcard({'9' * 5000})}}}}"):
        assert (wildcard_number(token) or 0) > 10**8
    assert wildcard_number(f"${'0' * 5000}1") == 1


def test_wildcard_is_parsed_in_both_notations():
    assert [wildcard_number(token) for token in ("$1", "$12", "{{wildcard(3)}}", "{{ Wildcard( 4 ) }}")] == [
        1,
        12,
        3,
        4,
    ]
    assert [wildcard_number(token) for token in ("a", "$", "$KV", ">", "*", "1", "{a}")] == [None] * 7
    for token in ("{{split(1,-)}}", "x{{wildcard(1)}}", "$\u00b2"):
        with pytest.raises(UnknownTransform):
            wildcard_number(token)


_TOKEN = st.sampled_from(["a", "b", "c"])
_KEYS = st.lists(st.lists(_TOKEN, min_size=1, max_size=4).map(".".join), min_size=1, max_size=12, unique=True)


@st.composite
def _rules(draw: st.DrawFn) -> tuple[list[str], str, list[tuple[str, str]]]:
    prefix = draw(st.sampled_from(["", "p", "p.q"]))
    source = draw(st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3))
    tail = draw(st.booleans())
    text = ".".join([*source, ">"] if tail else source)
    if draw(st.booleans()):
        return [text], prefix, []
    places = draw(st.permutations([f"${number}" for number in range(1, source.count("*") + 1)]))
    dest = ".".join([draw(_TOKEN), *places, *([">"] if tail else [])])
    return [], prefix, [(text, dest)]


@settings(max_examples=25, deadline=None)
@given(rules=_rules(), keys=_KEYS)
def test_server_lands_every_key_where_predicted(server, rules, keys):
    transforms = render("PREDICT", "LANDED", *rules)
    predicted = {landed for key in keys if (landed := land(transforms, f"$KV.PREDICT.{key}"))}
    assert asyncio.run(_landed(server.url, transforms, keys, len(predicted))) == predicted


async def _landed(url: str, transforms: list[Transform], keys: list[str], wanted: int) -> set[str]:
    async with kvctl.connect(url) as client:
        origin = {"name": "KV_PREDICT", "subjects": ["$KV.PREDICT.>"], "storage": "memory"}
        source = {"name": "KV_PREDICT", "subject_transforms": [rule.to_json() for rule in transforms]}
        await streams.create(client.api, origin)
        try:
            await client.bucket("PREDICT").put_many((key, b"") for key in keys)
            made = await streams.create(client.api, {"name": "LANDED", "storage": "memory", "sources": [source]})
            assert parse(made["config"]["sources"][0]["subject_transforms"]) == transforms
            for _ in range(100):
                found = await streams.subjects(client.api, "LANDED")
                info = await streams.info(client.api, "LANDED")
                if len(found) >= wanted and info["sources"][0]["active"] >= 0:
                    break
                await asyncio.sleep(0.02)
            return set(found)
        finally:
            for name in ("LANDED", "KV_PREDICT"):
                if await streams.find(client.api, name):
                    await streams.delete(client.api, name)


TOKENS = st.lists(st.sampled_from(["a", "b", "c", "NEW", "é"]), min_size=1, max_size=4)


def source(*rules: tuple[str, str]) -> dict[str, Any]:
    """Return a source of bucket O for bucket A."""
    return {
        "name": "KV_O",
        "subject_transforms": [{"src": f"$KV.O.{src}", "dest": f"$KV.A.{dest}" if dest else ""} for src, dest in rules],
    }


CASES = [
    ((">", ">"),),
    (("NEW.>", "p.>"),),
    (("*.*", "stock.{{wildcard(2)}}.{{wildcard(1)}}"),),
    (("a", "b"), ("NEW.*", "x.{{wildcard(1)}}")),
    ((">", ""),),
    (("*.>", "{{wildcard(1)}}.deep.>"),),
]


@pytest.mark.parametrize("rules", CASES)
@given(tokens=TOKENS)
def test_mapping_lands_subjects_by_rules_and_finds_their_origin(rules, tokens):
    mapping = KeyMapping.of(source(*rules))
    subject = ".".join(["$KV", "O", *tokens])
    expected = next((found for rule in mapping.rules if (found := rule.apply(subject)) is not None), None)
    landed = mapping.land(subject.encode())
    assert landed == (None if expected is None else expected.encode())
    assert mapping.origin(expected) == subject if expected else True
    assert not mapping.lossy


def test_mapping_without_transforms_keeps_subjects():
    mapping = KeyMapping.of({"name": "KV_O"})
    assert mapping.land(b"$KV.O.a\xff") == b"$KV.O.a\xff"
    assert mapping.origin("$KV.O.a") == "$KV.O.a"
    assert KeyMapping.of({"name": "KV_O", "filter_subject": "$KV.O.a.>"}).land(b"$KV.O.b") is None


def test_mapping_that_drops_tokens_has_no_reverse():
    mapping = KeyMapping.of(source(("*.*", "{{wildcard(2)}}")))
    assert mapping.lossy
    assert mapping.land(b"$KV.O.a.b") == b"$KV.A.b"
    assert mapping.origin("$KV.A.b") is None


@given(tokens=TOKENS, chosen=st.lists(st.sampled_from(CASES), min_size=1, max_size=3), dropped=st.booleans())
def test_mapping_finds_every_subject_that_lands_somewhere(tokens, chosen, dropped):
    rules = [rule for rules in chosen for rule in rules]
    lossy = [("*.*", "{{wildcard(2)}}"), ("NEW.>", "n"), ("*.b.>", "{{wildcard(1)}}.{{wildcard(1)}}")]
    mapping = KeyMapping.of(source(*(lossy if dropped else []), *rules))
    subject = ".".join(["$KV", "O", *tokens])
    landed = mapping.land(subject.encode())
    if landed is not None:
        found = mapping.origins(landed.decode())
        assert matches(subject, tuple(found))
        assert all(mapping.land(one.encode()) == landed for one in found if not is_wild(one))
        # Any part of the place may be open.
        parts = landed.decode().split(".")
        for at in range(2, len(parts)):
            assert matches(subject, tuple(mapping.origins(".".join([*parts[:at], "*", *parts[at + 1 :]]))))
            assert matches(subject, tuple(mapping.origins(".".join([*parts[:at], ">"]))))


def test_mapping_has_no_origin_for_other_destinations():
    mapping = KeyMapping.of(source(("NEW.>", "p.>")))
    assert mapping.origin("$KV.A.q.1") is None
    assert mapping.origin("$KV.B.p.1") is None


def test_mapping_refuses_unknown_transform_functions():
    with pytest.raises(UnknownTransform):
        KeyMapping([Transform("$KV.O.*", "$KV.A.{{partition(4,1)}}")])


RULES = [
    (">", ""),
    ("a", ""),
    ("a.>", ""),
    ("a.*", ""),
    ("*", ""),
    ("a", "b"),
    (">", "p.>"),
    ("a.>", "a.>"),
    ("a.>", "b"),
    ("a.>", "q.>"),
    ("a.*", "q.{{wildcard(1)}}.x"),
    ("*.b.*.>", "{{wildcard(2)}}.{{wildcard(1)}}.>"),
]
SUBJECTS = [".".join(tokens) for count in (1, 2, 3, 4) for tokens in product("ab", repeat=count)]


def test_mapping_of_one_or_two_rules_lands_subjects_as_transforms_do():
    for chosen in [*((rule,) for rule in RULES), *product(RULES, repeat=2)]:
        rules = [Transform(src, dest) for src, dest in chosen]
        mapping = KeyMapping(rules)
        assert mapping.taken == tuple(src for src, _ in chosen)
        assert mapping.lossy == any(rule.dropped for rule in rules)
        for subject in SUBJECTS:
            expected = land(rules, subject)
            assert mapping.land(subject.encode()) == (None if expected is None else expected.encode()), (
                chosen,
                subject,
            )
            if (origin := mapping.origin(subject)) is not None:
                assert mapping.land(origin.encode()) == subject.encode(), subject
            if expected is not None and not mapping.lossy:
                found = mapping.origin(expected)
                assert found is not None
                assert land(rules, found) == expected, subject


def test_mapping_without_rules_matches_nothing():
    assert KeyMapping([]).land(b"a") is None
    assert KeyMapping([]).origin("a") is None
