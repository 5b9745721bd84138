"""Edits change what was asked for, on whatever configuration is there."""

from datetime import timedelta

import pytest

from kvctl.errors import UsageError
from kvctl.jetstream.config_diff import Difference
from kvctl.kv.config import BucketConfig, Republish, differences
from kvctl.kv.config_edit import CLEARABLE, edited
from kvctl.kv.settings import FIELDS, SETTINGS
from kvctl.kv.stream_kind import UNFINISHED
from tests.kv.test_config import EVERYTHING

LIVE = {
    **BucketConfig("B", history=5, metadata={"owner": "a"}).to_stream(),
    "allow_direct": False,
    "deny_purge": True,
    "consumer_limits": {"inactive_threshold": 10**9},
    "subject_transform": {"src": "a.>", "dest": "b.>"},
    "from_a_newer_server": {"deeply": ["nested", 1]},
    "metadata": {"owner": "a", "_nats.ver": "2.15.1", "_nats.level": "5"},
}


@pytest.mark.guarantee("buckets-3", by="property")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("description", "x"), ("history", 9), ("ttl", timedelta(hours=1)), ("marker_ttl", timedelta(hours=1)),
        ("replicas", 3), ("max_value_size", 10), ("max_bytes", 10), ("compress", True), ("cluster", "lon"),
        ("tags", ("a",)), ("republish", Republish("a.>", "b.>")), ("metadata", {"team": "b"}), ("atomic", True),
    ],
)  # fmt: skip
def test_an_edit_changes_nothing_else(field, value):
    after = edited(LIVE, {field: value})
    changed = {name for name in {*LIVE, *after} if LIVE.get(name) != after.get(name)}
    assert changed == STREAM_FIELDS[field]
    assert edited(after, {field: value}) == after


STREAM_FIELDS = {
    "description": {"description"}, "history": {"max_msgs_per_subject"}, "ttl": {"max_age"},
    "marker_ttl": {"subject_delete_marker_ttl", "allow_msg_ttl"}, "replicas": {"num_replicas"},
    "max_value_size": {"max_msg_size"}, "max_bytes": {"max_bytes"}, "compress": {"compression"},
    "cluster": {"placement"}, "tags": {"placement"}, "republish": {"republish"}, "metadata": {"metadata"},
    "atomic": {"allow_atomic"},
}  # fmt: skip


def test_the_configuration_given_is_left_alone():
    before = BucketConfig("B", metadata={"a": "1"}).to_stream()
    edited(before, {"metadata": {"a": "2"}, "history": 3}, ["description"])
    assert before == BucketConfig("B", metadata={"a": "1"}).to_stream()


def test_metadata_is_merged():
    after = edited(LIVE, {"metadata": {"owner": "b", "team": "c"}})
    assert after["metadata"] == {"owner": "b", "team": "c", "_nats.ver": "2.15.1", "_nats.level": "5"}


def test_cluster_and_tags_do_not_replace_one_another():
    placed = edited(edited(LIVE, {"cluster": "lon"}), {"tags": ("ssd",)})
    assert placed["placement"] == {"cluster": "lon", "tags": ["ssd"]}
    assert edited(placed, {}, ["tags"])["placement"] == {"cluster": "lon"}
    assert "placement" not in edited(placed, {}, ["placement"])


@pytest.mark.parametrize("field", [field for field in FIELDS if SETTINGS[field].clearable])
def test_every_field_can_be_cleared(field):
    stream = EVERYTHING.to_stream()
    cleared = edited(stream, {}, [field.replace("_", "-")])
    expected = {**EVERYTHING.settings(), field: FIELDS[field]}
    assert BucketConfig.from_stream(cleared).settings() == expected
    assert cleared["allow_direct"] is True


def test_clearing_markers_keeps_ttls_of_keys():
    """Servers refuse to turn allow_msg_ttl off again."""
    assert edited(EVERYTHING.to_stream(), {}, ["marker-ttl"])["allow_msg_ttl"] is True


def test_one_entry_of_the_metadata_can_be_cleared():
    after = edited(LIVE, {"metadata": {"a.b-c": "x"}})
    assert edited(after, {}, ["metadata.a.b-c"])["metadata"] == LIVE["metadata"]
    assert edited(LIVE, {}, ["metadata"])["metadata"] == {"_nats.ver": "2.15.1", "_nats.level": "5"}


@pytest.mark.parametrize(
    "field", ["bogus", "name", "first-revision", "allow-direct", "metadata.nobody", "metadata._nats.ver", ""]
)
def test_unknown_field_cannot_be_cleared(field):
    with pytest.raises(UsageError):
        edited(LIVE, {}, [field])


def test_the_hint_names_every_clearable_field():
    with pytest.raises(UsageError) as refused:
        edited(LIVE, {}, ["bogus"])
    assert all(f"`{field.replace('_', '-')}`" in (refused.value.hint or "") for field in CLEARABLE)


@pytest.mark.parametrize(
    ("before", "after", "window"),
    [(0, 60, 60), (60, 30, 30), (60, 0, 120), (60, 600, 120), (600, 90, 90), (600, 0, 120), (60, 60, 60)],
)
def test_the_duplicate_window_follows_a_ttl_and_comes_back(before, after, window):
    stream = BucketConfig("B", ttl=timedelta(seconds=before)).to_stream()
    assert edited(stream, {"ttl": timedelta(seconds=after)})["duplicate_window"] == window * 10**9


def test_a_window_of_its_own_stays():
    stream = {**BucketConfig("B").to_stream(), "duplicate_window": 30 * 10**9}
    assert edited(stream, {"ttl": timedelta(hours=1)})["duplicate_window"] == 30 * 10**9
    assert edited(stream, {"history": 2})["duplicate_window"] == 30 * 10**9


def test_an_aggregate_gets_no_window_and_no_subjects():
    """A window would drop entries of one origin as duplicates of another's; subjects would make it writable."""
    stream = {"name": "KV_A", "sources": [{"name": "KV_B"}], "max_msgs_per_subject": 1, "max_age": 0}
    after = edited(stream, {"ttl": timedelta(seconds=60), "history": 2})
    assert after == {**stream, "max_age": 60 * 10**9, "max_msgs_per_subject": 2}


def test_headers_only_can_be_switched_alone():
    stream = BucketConfig("B", republish=Republish("a.>", "b.>")).to_stream()
    after = edited(stream, {"republish_headers_only": True})
    assert after["republish"] == {"src": "a.>", "dest": "b.>", "headers_only": True}
    with pytest.raises(UsageError, match="Nothing is republished"):
        edited(LIVE, {"republish_headers_only": True})


def test_unknown_field_cannot_be_set():
    with pytest.raises(UsageError, match="`allow_direct` is not a field"):
        edited(LIVE, {"allow_direct": True})


# -- differences -------------------------------------------------------------------------------------------


def test_differences_speak_a_bucket_s_language():
    before = BucketConfig("B", metadata={"a": "1"}).to_stream()
    after = EVERYTHING.to_stream() | {"name": "KV_B", "subjects": ["$KV.B.>"]}
    assert {str(difference) for difference in differences(before, after)} == {
        "history: 1 -> 64",
        "max_bytes: none -> 1073741824",
        "ttl: none -> 7d",
        "max_value_size: none -> 1024",
        "storage: file -> memory",
        "replicas: 1 -> 3",
        "description: none -> all there is",
        "allow_msg_ttl: none -> yes",
        "marker_ttl: none -> 1h",
        "compression: none -> s2",
        "cluster: none -> lon",
        "tags: none -> ssd",
        "republish: none -> $KV.ALL.>=copies.>",
        "metadata.a: 1 -> none",
        "metadata.owner: none -> team-a",
        "atomic: none -> yes",
        "first_revision: none -> 1000",
    }


def test_a_duration_differs_in_seconds():
    found = differences({"max_age": 0}, {"max_age": 90 * 10**9, "duplicate_window": 500_000_000})
    assert found == [Difference("ttl", None, 90), Difference("duplicate_window", None, 0.5)]


def test_fields_added_by_servers_are_not_differences():
    stream = BucketConfig("B").to_stream()
    found = {
        **stream, "compression": "none", "mirror_direct": False, "sealed": False, "deny_purge": False,
        "consumer_limits": {}, "allow_msg_ttl": False, "metadata": {"_nats.ver": "2.15.1"}, "placement": None,
    }  # fmt: skip
    assert differences(stream, found) == []


def test_a_field_that_only_newer_servers_have_is_a_difference():
    stream = BucketConfig("B").to_stream()
    assert differences(stream, {**stream, "allow_flying": True}) == [Difference("allow_flying", None, True)]


def test_a_mark_of_unfinished_work_is_a_difference():
    stream = BucketConfig("B").to_stream()
    marked = {**stream, "metadata": {UNFINISHED: "x"}}
    assert [item.field for item in differences(marked, stream)] == [f"metadata.{UNFINISHED}"]
