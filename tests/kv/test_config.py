"""ADR-8's stream configurations, field by field."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.extensions.json import JSONSnapshotExtension

from kvctl.errors import UsageError
from kvctl.kv.config import BucketConfig, BucketStatus, Kind, Republish
from kvctl.kv.settings import FIELDS

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


def test_the_adr_s_full_example_as_json(rendered):
    republish = Republish("repub.>", "dest.>", headers_only=True)
    config = BucketConfig("CONFIGURATION", history=5, compress=True, cluster="clstr", tags=("tag1", "tag2"))
    assert replace(config, republish=republish).to_stream() == rendered


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


def test_every_setting_reads_back():
    assert BucketConfig.from_stream(EVERYTHING.to_stream()) == EVERYTHING


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
