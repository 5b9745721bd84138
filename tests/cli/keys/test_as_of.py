"""`--as-of`: keys as they were, exactly, or exit code 3 with what is lost."""

import json

import pytest


@pytest.fixture
def past(keyed):
    """With a.1 and a.2, then b; a.1 overwritten, a.2 deleted, new created: revisions 1 to 6; history 3."""
    config = keyed.raw.api(f"STREAM.INFO.KV_{keyed.name}")["config"]
    answer = keyed.raw.api(f"STREAM.UPDATE.KV_{keyed.name}", {**config, "max_msgs_per_subject": 3})
    assert "error" not in answer
    for key in ("a.1", "a.2", "b"):
        keyed.put(key, b"then " + key.encode())
    keyed.put("a.1", b"later")
    keyed.delete("a.2")
    keyed.put("new")
    return keyed


def test_one_key_is_its_bytes_of_then(past):
    assert past("get", "B", "a.1", "--as-of", "3").stdout == b"then a.1"
    assert past("get", "B", "a.1", "--as-of", "4").stdout == b"later"
    assert past("get", "B", "a.2", "--as-of=4", "--leader").stdout == b"then a.2"


def test_several_keys_are_records_of_then(past, snapshot):
    assert past("get", "B", "b", "a.*", "--as-of", "4") == snapshot
    assert past("get", "B", "b", "new", "a.1", "--as-of", "3", "-o", "name") == snapshot
    assert past("get", "B", "a.2", "--as-of", "5") == snapshot
    rows = json.loads(past("get", "B", ">", "--as-of", "3", "-o", "json").out)
    then = [("a.1", 1, "then a.1"), ("a.2", 2, "then a.2"), ("b", 3, "then b")]
    assert [(row["key"], row["revision"], row["value"]) for row in rows] == then


@pytest.mark.guarantee("reading-7")
def test_a_printed_time_can_be_given_back(past):
    puts = [row for row in json.loads(past("history", "B", "-o", "json").out) if row["operation"] == "PUT"]
    assert len(puts) >= 3
    for row in puts:
        assert past("get", "B", row["key"], "--as-of", row["created"]).out == row["value"]


def test_ago_counts_from_now(past):
    assert past("get", "B", "a.1", "--as-of", "-0s").out == "later"
    result = past("get", "B", "a.1", "--as-of", "-15m")
    assert (result.exit_code, result.out) == (3, "")


def test_keys_lists_those_that_lived(past, snapshot):
    assert past("keys", "B", "--as-of", "4").out.split() == ["a.2", "b", "a.1"]
    assert past("keys", "B", "a.*", "--as-of", "4", "--sort").out.split() == ["a.1", "a.2"]
    assert past("keys", "B", "--as-of", "5", "--deleted", "-o", "json") == snapshot


@pytest.mark.guarantee("reading-7")
def test_what_is_lost_is_named_and_nothing_is_printed(past, snapshot):
    for key in ("b", "b", "b", "purged"):
        past.put(key)
    past.put("purged", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    assert past("get", "B", "a.1", "b", "purged", "--as-of", "6") == snapshot
    assert past("get", "B", ">", "--as-of", "6", "-o", "json") == snapshot
    assert past("get", "B", "b", "--as-of", "6") == snapshot
    assert past("keys", "B", "--as-of", "6") == snapshot
    assert past("get", "B", "a.1", "new", "--as-of", "6", "-o", "name").out.split() == ["a.1", "new"]


def test_what_cannot_be_is_said(past, snapshot):
    assert past("get", "B", "b", "--as-of", "7") == snapshot


@pytest.mark.guarantee("reading-21")
def test_what_was_removed_from_the_stream_is_refused_or_warned_of(keyed, snapshot):
    keyed.raw.create_bucket("C", {f"k{number}": b"v" for number in range(1, 7)}, max_msgs_per_subject=5)
    keyed.raw.api("STREAM.PURGE.KV_C", {"seq": 4})
    for command in (
        ["keys", "C", "--as-of", "3"],
        ["get", "C", "k1", "--as-of", "4"],
        ["get", "C", "k4", "--as-of", "4"],
        ["keys", "C", "--as-of", "4"],
        ["get", "C", ">", "--as-of", "5", "-o", "name"],
    ):
        assert keyed(*command) == snapshot
    result = keyed("dump", "C", "--as-of", "5")
    assert json.loads(result.out.splitlines()[0])["exact"] is False
    assert (result.exit_code, result.err) == snapshot
