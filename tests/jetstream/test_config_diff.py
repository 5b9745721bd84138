"""Differences of configurations: what counts as one, and its text."""

import pytest

from kvctl.jetstream.config_diff import Difference, differences, overlaid
from kvctl.jetstream.config_text import CONSUMER, STREAM

SOURCE = {"name": "A", "filter_subject": "", "external": {"api": "x", "deliver": ""}}
FOUND = {"name": "S", "max_age": 0, "max_msgs": -1, "storage": "file", "metadata": {"_nats.level": "1"}}


def test_differences_leave_out_what_says_nothing():
    assert differences(FOUND, {"name": "S", "num_replicas": 1}, STREAM) == []
    differing = differences(FOUND, {"name": "S", "max_age": 60 * 10**9, "placement": {"cluster": "lon"}}, STREAM)
    assert [str(item) for item in differing] == ["max_age: none -> 1m", "placement.cluster: none -> lon"]
    assert [(item.before, item.after) for item in differing] == [(None, 60), (None, "lon")]
    assert [str(item) for item in differences(FOUND, {"storage": "memory"}, STREAM)] == [
        "name: S -> none",
        "storage: file -> memory",
    ]


def test_differences_have_the_order_of_the_schema():
    config = {"allow_flying": True, "allow_direct": True, "discard": "new", "max_age": 5, "deny_delete": True}
    in_order = ["max_age", "discard", "deny_delete", "allow_direct", "allow_flying"]
    assert [item.field for item in differences({}, config, STREAM)] == in_order


@pytest.mark.parametrize(
    ("schema", "before", "after", "expected"),
    [
        (STREAM, {"allow_flying": True}, {}, Difference("allow_flying", True, None)),
        (STREAM, {"placement": {"floor": 3}}, {}, Difference("placement.floor", 3, None)),
        (
            STREAM,
            {"sources": []},
            {"sources": [SOURCE]},
            Difference("sources", None, [{"name": "A", "external.api": "x"}]),
        ),
        (CONSUMER, {"num_replicas": 0}, {"num_replicas": 3}, Difference("num_replicas", 0, 3)),
        (CONSUMER, {"backoff": [10**9]}, {"backoff": [10**9, 2 * 10**9]}, Difference("backoff", [1], [1, 2])),
        (CONSUMER, {"flights": {"LON": "1"}}, {}, Difference("flights", {"LON": "1"}, None)),
    ],
)
def test_fields_that_kvctl_does_not_know_are_compared_too(schema, before, after, expected):
    assert differences(before, after, schema) == [expected]
    assert differences(before, before, schema) == []


def test_overlay_replaces_requested_fields_and_the_members_of_objects():
    metadata, mirror = {"a": "1", "b": "2"}, {"name": "M", "filter_subject": "x"}
    found = {"name": "S", "max_msgs": 9, "metadata": metadata, "mirror": mirror, "max_age": 5}
    wanted = {"name": "S", "metadata": {"a": "3"}, "mirror": {"name": "M"}, "max_age": 0, "storage": "memory"}
    changed = {"metadata": {"a": "3", "b": "2"}, "mirror": {"name": "M"}, "storage": "memory"}
    assert overlaid(found, wanted) == found | changed
