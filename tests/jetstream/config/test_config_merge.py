"""One editor's change on what another one left."""

from typing import Any

import pytest

from kvctl.errors import ConflictError
from kvctl.jetstream.config.config_merge import merge

Config = dict[str, Any]


def a(name: str, **more: Any) -> Config:
    return {"name": name, **more}


@pytest.mark.parametrize(
    ("before", "after", "live", "merged"),
    [
        ({"x": 1}, {"x": 2}, {"x": 1, "y": 3}, {"x": 2, "y": 3}),
        ({"x": 1, "y": 1}, {"y": 1}, {"x": 1, "y": 2}, {"y": 2}),
        ({"x": 1}, {"x": 2}, {"x": 2}, {"x": 2}),
        ({}, {"subjects": []}, {"x": 1}, {"x": 1}),
        ({"metadata": {"a": "1", "b": "1"}}, {"metadata": {"b": "2"}}, {"metadata": {"a": "1", "b": "1", "c": "1"}},
         {"metadata": {"b": "2", "c": "1"}}),
        ({"placement": {"cluster": "c"}}, {"placement": {"cluster": "d"}},
         {"placement": {"cluster": "c", "tags": ["t"]}}, {"placement": {"cluster": "d", "tags": ["t"]}}),
        ({"sources": [a("A")]}, {"sources": [a("A"), a("B")]}, {"sources": [a("A"), a("C")]},
         {"sources": [a("A"), a("C"), a("B")]}),
        ({"sources": [a("A"), a("B")]}, {"sources": [a("A")]}, {"sources": [a("A"), a("B"), a("C")]},
         {"sources": [a("A"), a("C")]}),
        ({"sources": [a("A")]}, {"sources": [a("A"), a("B")]}, {"sources": [a("A"), a("B", opt_start_seq=1)]},
         {"sources": [a("A"), a("B", opt_start_seq=1)]}),
        ({"sources": [a("A")]}, {"sources": [a("A", opt_start_seq=1)]}, {"sources": [a("A"), a("B")]},
         {"sources": [a("A", opt_start_seq=1), a("B")]}),
        ({"sources": [a("A")]}, {"sources": [a("A"), a("B")]}, {}, {"sources": [a("B")]}),
    ],
)  # fmt: skip
def test_change_is_made_to_what_is_there_now(before, after, live, merged):
    assert merge(before, after, live) == merged


@pytest.mark.parametrize(
    ("before", "after", "live", "field"),
    [
        ({"x": 1}, {"x": 2}, {"x": 3}, "x"),
        ({"x": 1}, {}, {"x": 3}, "x"),
        ({"metadata": {"a": "1"}}, {"metadata": {"a": "2"}}, {"metadata": {"a": "3"}}, "metadata.a"),
        ({"metadata": {"a": "1"}}, {"metadata": {"a": "2"}}, {}, "metadata.a"),
    ],
)
def test_field_that_both_changed_is_a_conflict(before, after, live, field):
    with pytest.raises(ConflictError, match=f"`{field}` was changed in the meantime"):
        merge(before, after, live)
