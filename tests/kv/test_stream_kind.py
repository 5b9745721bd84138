"""What a stream is to a key-value user."""

import pytest

from kvctl.kv.config import BucketConfig
from kvctl.kv.stream_kind import KIND, UNFINISHED, Kind, bucket_name, kind_of

BUCKET = BucketConfig("B").to_stream()
SOURCES = [{"name": "KV_O", "subject_transforms": [{"src": "$KV.O.>", "dest": "$KV.B.>"}]}]


@pytest.mark.parametrize(
    ("stream", "kind", "name"),
    [
        (BUCKET, Kind.BUCKET, "B"),
        (BUCKET | {"subjects": ["$KV.B.>", "also.this"]}, Kind.BUCKET, "B"),
        (BUCKET | {"subjects": [], "sources": SOURCES}, Kind.AGGREGATE, "B"),
        (BUCKET | {"sources": SOURCES}, Kind.AGGREGATE, "B"),
        ({"name": "M", "mirror": {"name": "KV_O"}}, Kind.MIRROR, "M"),
        ({"name": "KV_M", "mirror": {"name": "KV_O"}}, Kind.MIRROR, "M"),
        ({"name": "M", "mirror": {"name": "KV_O", "external": {"api": "$JS.hub.API"}}}, Kind.MIRROR, "M"),
        ({"name": "KV_M", "mirror": {"name": "EVENTS"}}, Kind.STREAM, "KV_M"),
        (BUCKET | {"subjects": ["events.>"]}, Kind.STREAM, "KV_B"),
        (BUCKET | {"subjects": ["events.>"], "sources": SOURCES}, Kind.STREAM, "KV_B"),
        (BUCKET | {"max_msgs_per_subject": -1}, Kind.STREAM, "KV_B"),
        (BUCKET | {"metadata": {UNFINISHED: "x"}}, Kind.INCOMPLETE, "B"),
        ({"name": "KVT_T", "subjects": ["$KVT.T.>"], "metadata": {KIND: "table"}}, Kind.TABLE, "T"),
        ({"name": "KVTP_T_0003", "subjects": ["$KVT.T.0003.>"], "metadata": {KIND: "table"}}, None, "KVTP_T_0003"),
        (BUCKET | {"metadata": {KIND: "repository"}}, Kind.REPOSITORY, "B"),
        ({"name": "EVENTS", "subjects": ["$KV.B.>"], "max_msgs_per_subject": 1}, None, "EVENTS"),
        ({"name": "M", "mirror": {"name": "EVENTS"}}, None, "M"),
    ],
)
def test_kinds(stream, kind, name):
    assert kind_of(stream) is kind
    assert bucket_name(stream, kind) == name


def test_a_mirror_of_a_mirror_is_one_where_the_first_is_in_view():
    first = {"name": "M1", "mirror": {"name": "KV_O"}}
    second = {"name": "M2", "mirror": {"name": "M1"}}
    assert kind_of(second, {"M1": first}) is Kind.MIRROR
    assert kind_of(second, {}) is None
    elsewhere = {"name": "M2", "mirror": {"name": "M1", "external": {"api": "$JS.hub.API"}}}
    assert kind_of(elsewhere, {"M1": first}) is None


def test_mirrors_in_a_circle_end():
    circle = {"A": {"name": "A", "mirror": {"name": "C"}}, "C": {"name": "C", "mirror": {"name": "A"}}}
    assert kind_of(circle["A"], circle) is None
