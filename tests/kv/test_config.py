"""ADR-8's stream configurations, field by field."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.extensions.json import JSONSnapshotExtension

from kvctl.errors import UsageError
from kvctl.jetstream.config_diff import Difference
from kvctl.kv.config import CLEARABLE, BucketConfig, BucketStatus, Kind, Republish, differences, edited
from kvctl.kv.settings import FIELDS, SETTINGS
from kvctl.kv.stream_kind import UNFINISHED

SECOND = timedelta(seconds=1)


@pytest.fixture
def rendered(snapshot):
    """Snapshots of rendered JSON."""
    return snapshot.use_extension(JSONSnapshotExtension)


def test_a_bucket_without_settings_is_as_the_adr_says(rendered):
    assert BucketConfig("ORDERS").to_stream() == rendered


@pytest.mark.guarantee("buckets-7")
def test_the_adr_s_full_example():
    config = BucketConfig(
        "CONFIGURATION",
        history=5,
        compress=True,
        cluster="clstr",
        tags=("tag1", "tag2"),
        republish=Republish("repub.>", "dest.>", headers_only=True),
    )
    assert config.to_stream() == {
        "name": "KV_CONFIGURATION",
        "subjects": ["$KV.CONFIGURATION.>"],
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs_per_subject": 5,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msg_size": -1,
        "storage": "file",
        "discard": "new",
        "num_replicas": 1,
        "duplicate_window": 120000000000,
        "allow_rollup_hdrs": True,  # the ADR writes `rollup_hdrs`, which servers refuse as unknown
        "deny_delete": True,
        "allow_direct": True,
        "compression": "s2",
        "placement": {"cluster": "clstr", "tags": ["tag1", "tag2"]},
        "republish": {"src": "repub.>", "dest": "dest.>", "headers_only": True},
    }


def test_everything_at_once(rendered):
    assert EVERYTHING.to_stream() == rendered


EVERYTHING = BucketConfig(
    "ALL",
    description="all there is",
    history=64,
    ttl=timedelta(days=7),
    marker_ttl=timedelta(hours=1),
    replicas=3,
    storage="memory",
    max_value_size=1024,
    max_bytes=1 << 30,
    compress=True,
    cluster="lon",
    tags=("ssd",),
    republish=Republish("$KV.ALL.>", "copies.>"),
    metadata={"owner": "team-a"},
    atomic=True,
    first_revision=1000,
)


@pytest.mark.parametrize(
    ("ttl", "window"), [(0, 120), (1, 1), (90, 90), (119.5, 119.5), (120, 120), (3600, 120)], ids=str
)
def test_the_duplicate_window_is_the_ttl_where_that_is_under_two_minutes(ttl, window):
    stream = BucketConfig("B", ttl=timedelta(seconds=ttl)).to_stream()
    assert stream["max_age"] == ttl * 10**9
    assert stream["duplicate_window"] == window * 10**9


def test_keys_with_a_ttl_are_allowed_with_the_markers_only():
    assert "allow_msg_ttl" not in BucketConfig("B").to_stream()
    stream = BucketConfig("B", marker_ttl=timedelta(hours=1)).to_stream()
    assert (stream["allow_msg_ttl"], stream["subject_delete_marker_ttl"]) == (True, 3600 * 10**9)


@pytest.mark.parametrize(
    "settings",
    [
        {"history": 0},
        {"history": 65},
        {"ttl": timedelta(milliseconds=99)},
        {"marker_ttl": timedelta(milliseconds=999)},
        {"replicas": 0},
        {"replicas": 6},
        {"storage": "tape"},
        {"max_value_size": 0},
        {"max_bytes": 0},
        {"cluster": ""},
        {"tags": ("a", "")},
        {"republish": Republish("", "x.>")},
        {"republish": Republish("x.>", "")},
        {"metadata": {"": "x"}},
        {"first_revision": 0},
        {"first_revision": 2**63},
        {"metadata": {"_nats.ver": "1"}},
        {"metadata": {"kvctl.unfinished": "1"}},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(settings):
    field = next(iter(settings)).replace("_", "-")
    with pytest.raises(UsageError, match=f"`{field}`"):
        BucketConfig("B", **settings).to_stream()


@pytest.mark.parametrize("name", ["", "a.b", "a b", "é", "a*", "a\n", "x" * 253])
def test_bucket_names_are_the_adr_s(name):
    with pytest.raises(UsageError, match="bucket name"):
        BucketConfig(name).to_stream()


configs = st.builds(
    BucketConfig,
    st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True),
    description=st.text(max_size=20),
    history=st.integers(1, 64),
    ttl=st.integers(0, 10**6).map(timedelta) | st.sampled_from([timedelta(), SECOND, 90 * SECOND]),
    marker_ttl=st.sampled_from([timedelta(), SECOND, 3600 * SECOND]),
    replicas=st.integers(1, 5),
    storage=st.sampled_from(["file", "memory"]),
    max_value_size=st.none() | st.integers(1, 2**31 - 1),
    max_bytes=st.none() | st.integers(1, 2**40),
    compress=st.booleans(),
    cluster=st.none() | st.just("lon"),
    tags=st.sampled_from([(), ("a",), ("a", "b")]),
    republish=st.none() | st.builds(Republish, st.just("a.>"), st.just("b.>"), st.booleans()),
    metadata=st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text(max_size=5), max_size=3),
    atomic=st.booleans(),
    first_revision=st.none() | st.integers(1, 2**63 - 1),
)


@given(configs)
def test_rendered_configuration_reads_back_the_same(config):
    assert BucketConfig.from_stream(config.to_stream()) == config


def test_every_setting_is_a_field():
    assert set(EVERYTHING.settings()) == set(FIELDS)
    assert all(EVERYTHING.settings()[name] != default for name, default in FIELDS.items())


def test_the_status_is_the_adr_s():
    stream = BucketConfig("ORDERS", history=5, ttl=90 * SECOND, compress=True).to_stream()
    state = {"messages": 7, "bytes": 512, "last_seq": 9}
    status = BucketStatus.from_info({"config": stream, "state": state, "created": "2026-01-31T12:00:00.123456789Z"})
    assert (status.bucket, status.values, status.history, status.ttl) == ("ORDERS", 7, 5, 90 * SECOND)
    assert (status.is_compressed, status.backing_store, status.bytes) == (True, "JetStream", 512)
    assert (status.stream, status.kind, status.last_revision) == ("KV_ORDERS", Kind.BUCKET, 9)
    assert status.created_ns % 10**9 == 123456789


def test_stream_without_settings_reads_as_a_bucket_without_settings():
    assert BucketConfig.from_stream({"name": "KV_B"}) == BucketConfig("B", history=0)
    zero = {"name": "KV_B", "max_msgs_per_subject": 3, "max_msg_size": 0, "max_bytes": 0}
    assert BucketConfig.from_stream(zero) == BucketConfig("B", history=3)
    one = {"name": "KV_B", "max_msgs_per_subject": 3, "max_msg_size": 1, "max_bytes": 1, "num_replicas": 3}
    assert BucketConfig.from_stream(one) == BucketConfig("B", history=3, max_value_size=1, max_bytes=1, replicas=3)


def test_status_of_a_stream_without_settings_has_their_defaults():
    info = {
        "config": {"name": "S"},
        "state": {"messages": 0, "bytes": 0, "last_seq": 0},
        "created": "2026-01-31T12:00:00Z",
    }
    status = BucketStatus.from_info(info)
    assert (status.kind, status.stream, status.history, status.replicas) == (Kind.STREAM, "S", 0, 1)
    assert (status.ttl, status.is_compressed, status.config, status.info) == (0 * SECOND, False, info["config"], info)


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
    ("field", "value", "stream_fields"),
    [
        ("description", "x", {"description"}),
        ("history", 9, {"max_msgs_per_subject"}),
        ("ttl", timedelta(hours=1), {"max_age"}),
        ("marker_ttl", timedelta(hours=1), {"subject_delete_marker_ttl", "allow_msg_ttl"}),
        ("replicas", 3, {"num_replicas"}),
        ("max_value_size", 10, {"max_msg_size"}),
        ("max_bytes", 10, {"max_bytes"}),
        ("compress", True, {"compression"}),
        ("cluster", "lon", {"placement"}),
        ("tags", ("a",), {"placement"}),
        ("republish", Republish("a.>", "b.>"), {"republish"}),
        ("metadata", {"team": "b"}, {"metadata"}),
        ("atomic", True, {"allow_atomic"}),
    ],
)
def test_an_edit_changes_nothing_else(field, value, stream_fields):
    after = edited(LIVE, {field: value})
    changed = {name for name in {*LIVE, *after} if LIVE.get(name) != after.get(name)}
    assert changed == stream_fields
    assert edited(after, {field: value}) == after


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
        **stream,
        "compression": "none",
        "mirror_direct": False,
        "sealed": False,
        "deny_purge": False,
        "consumer_limits": {},
        "allow_msg_ttl": False,
        "metadata": {"_nats.ver": "2.15.1"},
        "placement": None,
    }
    assert differences(stream, found) == []


def test_a_field_that_only_newer_servers_have_is_a_difference():
    stream = BucketConfig("B").to_stream()
    assert differences(stream, {**stream, "allow_flying": True}) == [Difference("allow_flying", None, True)]


def test_a_mark_of_unfinished_work_is_a_difference():
    stream = BucketConfig("B").to_stream()
    marked = {**stream, "metadata": {UNFINISHED: "x"}}
    assert [item.field for item in differences(marked, stream)] == [f"metadata.{UNFINISHED}"]
