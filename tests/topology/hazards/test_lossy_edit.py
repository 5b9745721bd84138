"""Edits that would lose data, and the text of their refusals."""

from datetime import timedelta

import pytest

from kvctl.errors import HazardRefused
from kvctl.kv.config import BucketConfig
from kvctl.kv.stream_kind import KIND
from kvctl.topology.hazards.hazards import Hazard, of_foreign, refuse
from kvctl.topology.hazards.lossy_edit import AGE, BUCKET, BYTES, HISTORY, SIZE, STREAM, SUBJECTS, Cost, looks_at, lossy

BEFORE = BucketConfig("B", history=5, ttl=timedelta(days=1), max_bytes=1000, max_value_size=100).to_stream()


@pytest.mark.parametrize(
    ("change", "aspects"),
    [
        ({}, set()),
        ({"max_msgs_per_subject": 4}, {HISTORY}),
        ({"max_msgs_per_subject": 5}, set()),
        ({"max_msgs_per_subject": 6}, set()),
        ({"max_msgs_per_subject": -1}, set()),
        ({"max_age": 1}, {AGE}),
        ({"max_age": 0}, set()),
        ({"max_age": 10**18}, set()),
        ({"max_bytes": 999}, {BYTES}),
        ({"max_bytes": -1}, set()),
        ({"max_msg_size": 99}, {SIZE}),
        ({"max_msg_size": -1}, set()),
        ({"subjects": ["$KV.C.>"]}, {SUBJECTS}),
        ({"description": "x", "num_replicas": 3, "compression": "s2", "allow_atomic": True}, set()),
    ],
    ids=str,
)
def test_only_smaller_limits_and_changed_subjects_are_measured(change, aspects):
    assert looks_at(BEFORE, BEFORE | change) == aspects


def test_first_limit_counts_as_smaller():
    without = BucketConfig("B").to_stream() | {"max_msgs_per_subject": -1}
    assert looks_at(without, BEFORE) == {HISTORY, AGE, BYTES, SIZE}
    assert looks_at(BEFORE, without) == set()


@pytest.mark.parametrize("absent", [{}, {"max_bytes": 0}, {"max_bytes": -1}, {"max_bytes": None}], ids=str)
def test_any_limit_is_smaller_than_unlimited(absent):
    assert looks_at(absent, {"max_bytes": 1}) == {BYTES}
    assert looks_at({"max_bytes": 1}, absent) == set()
    assert looks_at(absent, absent) == set()
    assert looks_at({"max_bytes": 1}, {"max_bytes": 1}) == set()
    assert looks_at({"max_bytes": 2}, {"max_bytes": 1}) == {BYTES}


def test_stream_without_subjects_changes_none():
    aggregate = {**BEFORE, "subjects": []}
    assert looks_at(aggregate, aggregate | {"subjects": ["$KV.B.>"]}) == set()


@pytest.mark.parametrize(
    ("change", "cost", "evidence"),
    [
        (
            {"max_msgs_per_subject": 2},
            Cost(messages=9, over_history=5, keys_over_history=2),
            "history 5 -> 2 removes 5 revisions of 2 keys",
        ),
        (
            {"max_msgs_per_subject": 1},
            Cost(messages=2, over_history=1, keys_over_history=1),
            "history 5 -> 1 removes 1 revision of 1 key",
        ),
        ({"max_age": 60 * 10**9}, Cost(messages=9, expired=9), "ttl 1d -> 1m removes all 9 revisions immediately"),
        (
            {"max_age": 60 * 10**9},
            Cost(messages=9, expired=2),
            "ttl 1d -> 1m removes 2 revisions immediately and 7 more at that age",
        ),
        ({"max_age": 60 * 10**9}, Cost(messages=1, expired=1), "ttl 1d -> 1m removes all 1 revision immediately"),
        ({"max_age": 60 * 10**9}, Cost(messages=9), "ttl 1d -> 1m removes 9 revisions at that age"),
        (
            {"max_bytes": 100},
            Cost(messages=9, bytes=612),
            "max_bytes 100 is 512 B below what is in use by 9 revisions: no new key fits",
        ),
        (
            {"max_bytes": 100, "discard": "old"},
            Cost(messages=9, bytes=612),
            "max_bytes 100 is 512 B below what is in use by 9 revisions: the oldest are deleted",
        ),
        (
            {"max_bytes": 100},
            Cost(messages=1, bytes=101),
            "max_bytes 100 is 1 B below what is in use by 1 revision: no new key fits",
        ),
        (
            {"max_msg_size": 10},
            Cost(messages=9, oversized=3),
            "max_value_size 10 is below 3 revisions, which could not be rewritten",
        ),
        (
            {"subjects": ["$KV.C.>"]},
            Cost(messages=9, keys_outside=4),
            "subjects $KV.B.> -> $KV.C.> makes 4 keys inaccessible",
        ),
    ],
)
def test_evidence_counts_data_that_would_be_lost(change, cost, evidence):
    assert lossy(BEFORE, BEFORE | change, cost) == [Hazard("lossy-edit", evidence)]


@pytest.mark.parametrize(
    "change",
    [{"max_msgs_per_subject": 1}, {"max_age": 1}, {"max_bytes": 10}, {"max_msg_size": 1}, {"subjects": ["x.>"]}],
    ids=str,
)
def test_edit_that_loses_nothing_has_no_hazard(change):
    assert lossy(BEFORE, BEFORE | change, Cost()) == []


@pytest.mark.parametrize("words", [BUCKET, STREAM])
def test_markers_cannot_be_turned_off(words):
    marked = BEFORE | {"allow_msg_ttl": True, "subject_delete_marker_ttl": 10**9}
    unmarked = {name: value for name, value in marked.items() if name != "subject_delete_marker_ttl"}
    (hazard,) = lossy(marked, unmarked, Cost(), words)
    assert "other clients cannot edit the bucket" in hazard.evidence
    assert lossy(marked, marked | {"subject_delete_marker_ttl": 10**10}, Cost(), words) == []


def test_bucket_that_is_exactly_full_loses_nothing():
    assert lossy(BEFORE, BEFORE | {"max_bytes": 100}, Cost(messages=1, bytes=100)) == []


def test_evidence_shows_missing_ttl_as_none():
    found = lossy({"name": "S"}, {"name": "S", "max_age": 10**9}, Cost(messages=2, expired=1))
    assert [hazard.evidence for hazard in found] == [
        "ttl none -> 1s removes 1 revision immediately and 1 more at that age"
    ]


def test_cost_is_completed_and_keeps_what_was_measured():
    assert Cost(messages=2).having(bytes=3) == Cost(messages=2, bytes=3)


def test_stream_of_a_table_is_a_foreign_kind():
    [hazard] = of_foreign({"name": "KVT_T", "metadata": {KIND: "table"}})
    assert hazard == Hazard(
        "foreign-kind", "`KVT_T` belongs to a table, which would break", "Use `kvctl table` instead"
    )
    assert of_foreign(BEFORE) == []


def test_hint_names_each_remedy_and_each_hazard_once():
    found = [Hazard("a", "1", "Wait"), Hazard("b", "2"), Hazard("a", "3", "Wait"), Hazard("b", "4", "Ask")]
    with pytest.raises(HazardRefused) as refused:
        refuse(found, None, "No")
    assert refused.value.message == "No:\n  1\n  2\n  3\n  4"
    assert refused.value.hint == "Wait. Ask. Use `--force a --force b` to proceed anyway"


def test_refusal_reports_all_hazards():
    cost = Cost(messages=9, bytes=5000, over_history=5, keys_over_history=2, oversized=1)
    change = {"max_msgs_per_subject": 1, "max_bytes": 10, "max_msg_size": 10}
    found = lossy(BEFORE, BEFORE | change, cost)
    assert len(found) == 3
    with pytest.raises(HazardRefused) as refused:
        refuse(found, [], "The edit of `B` would lose data")
    assert len(refused.value.message.splitlines()) == 4
    assert refused.value.hint == "Use `--force lossy-edit` to proceed anyway"
    assert refused.value.exit_code == 1


def test_forced_hazard_is_not_refused():
    hazards = [Hazard("lossy-edit", "one"), Hazard("lagging-replica", "two")]
    refuse(hazards, ["lossy-edit", "lagging-replica"], "What")
    with pytest.raises(HazardRefused, match="two") as refused:
        refuse(hazards, ["lossy-edit"], "What")
    assert (refused.value.name, "one" in refused.value.message) == ("lagging-replica", False)
    refuse([], None, "What")
