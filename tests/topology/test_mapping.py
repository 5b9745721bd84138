"""Destinations and origins of subjects, as complete subjects off the wire."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.kv.names import is_wild, matches
from kvctl.topology.mapping import Mapping
from kvctl.topology.subjects import Transform, UnknownTransform, land

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
    mapping = Mapping.of(source(*rules))
    subject = ".".join(["$KV", "O", *tokens])
    expected = next((found for rule in mapping.rules if (found := rule.apply(subject)) is not None), None)
    landed = mapping.land(subject.encode())
    assert landed == (None if expected is None else expected.encode())
    assert mapping.origin(expected) == subject if expected else True
    assert not mapping.lossy


def test_mapping_without_transforms_keeps_subjects():
    mapping = Mapping.of({"name": "KV_O"})
    assert mapping.land(b"$KV.O.a\xff") == b"$KV.O.a\xff"
    assert mapping.origin("$KV.O.a") == "$KV.O.a"
    assert Mapping.of({"name": "KV_O", "filter_subject": "$KV.O.a.>"}).land(b"$KV.O.b") is None


def test_mapping_that_drops_tokens_has_no_reverse():
    mapping = Mapping.of(source(("*.*", "{{wildcard(2)}}")))
    assert mapping.lossy
    assert mapping.land(b"$KV.O.a.b") == b"$KV.A.b"
    assert mapping.origin("$KV.A.b") is None


@given(tokens=TOKENS, chosen=st.lists(st.sampled_from(CASES), min_size=1, max_size=3), dropped=st.booleans())
def test_mapping_finds_every_subject_that_lands_somewhere(tokens, chosen, dropped):
    rules = [rule for rules in chosen for rule in rules]
    lossy = [("*.*", "{{wildcard(2)}}"), ("NEW.>", "n"), ("*.b.>", "{{wildcard(1)}}.{{wildcard(1)}}")]
    mapping = Mapping.of(source(*(lossy if dropped else []), *rules))
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
    mapping = Mapping.of(source(("NEW.>", "p.>")))
    assert mapping.origin("$KV.A.q.1") is None
    assert mapping.origin("$KV.B.p.1") is None


def test_mapping_refuses_unknown_transform_functions():
    with pytest.raises(UnknownTransform):
        Mapping([Transform("$KV.O.*", "$KV.A.{{partition(4,1)}}")])


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
        mapping = Mapping(rules)
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
    assert Mapping([]).land(b"a") is None
    assert Mapping([]).origin("a") is None
