"""Warnings about keys that live longer or shorter than their ttl says."""

import pytest

from tests.cli.keyed import Keyed

SECOND = 10**9


@pytest.fixture
def aged(server, raw, unique):
    """A bucket without a history, whose own ttl is ten minutes."""
    name = unique("AGED")
    raw.create_bucket(
        name, max_age=600 * SECOND, duplicate_window=60 * SECOND, allow_msg_ttl=True, subject_delete_marker_ttl=SECOND
    )
    return Keyed(name, server.url, raw)


def test_ttl_that_the_server_raises_is_reported(keyed):
    keyed.put("old")
    said = (
        f"warning: `{{}}` expires after 1h, the marker ttl of bucket `{keyed.name}`, because the bucket keeps history\n"
    )
    created = keyed("create", "B", "k", "v", "--ttl", "60s")
    assert (created.exit_code, created.out, created.err) == (0, "2\n", said.format("k"))
    updated = keyed("update", "B", "old", "v", "1", "--ttl", "60s")
    assert (updated.exit_code, updated.out) == (0, "3\n")
    assert said.format("old") in updated.err


def test_ttls_that_the_server_keeps_are_not_reported(keyed, aged):
    for result in (
        keyed("create", "B", "k", "v", "--ttl", "1h"),
        keyed("create", "B", "l", "v", "--ttl", "2h"),
        aged("create", "B", "k", "v", "--ttl", "5m"),
        aged("create", "B", "l", "v", "--ttl", "10m"),
        aged("create", "B", "m", "v"),
    ):
        assert (result.exit_code, result.err) == (0, "")


def test_ttl_above_that_of_the_bucket_is_reported(aged):
    result = aged("create", "B", "k", "v", "--ttl", "1h")
    assert (result.exit_code, result.out) == (0, "1\n")
    assert result.err == f"warning: `k` expires after 10m, the ttl of bucket `{aged.name}`\n"


@pytest.mark.parametrize("command", ["copy", "rename"])
def test_copy_into_a_bucket_that_shortens_its_life_is_reported(keyed, aged, command):
    keyed.put("k")
    keyed.put("brief", headers={"Nats-TTL": "2h"})
    said = f"warning: `{{}}` expires after 10m, the ttl of bucket `{aged.name}`; in bucket `{keyed.name}` it would "
    result = keyed(command, "B", "k", "l", "--to-bucket", aged.name)
    assert (result.exit_code, result.out, result.err) == (0, "1\n", said.format("l") + "not expire\n")
    result = keyed(command, "B", "brief", "m", "--to-bucket", aged.name)
    assert result.exit_code == 0
    assert result.err.startswith(said.format("m") + "live for ")


def test_copy_that_lives_as_long_is_not_reported(keyed, aged):
    aged.put("k")
    aged.put("brief", headers={"Nats-TTL": "5m"})
    for result in (
        aged("copy", "B", "k", "l"),
        aged("copy", "B", "k", "k", "--to-bucket", keyed.name),
        aged("rename", "B", "brief", "m"),
        keyed("copy", "B", "k", "n", "--to-bucket", keyed.name),
    ):
        assert (result.exit_code, result.err) == (0, "")
