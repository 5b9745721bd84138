"""`kvctl keys` and `kvctl history`."""

import json

import pytest


@pytest.fixture
def filled(keyed):
    """Keys z.1, a.2, m.3 and gone, of which the last is deleted, and z.1 has two values."""
    for key in ("z.1", "a.2", "gone", "m.3"):
        keyed.put(key, b"first " + key.encode())
    keyed.put("z.1", b"second\tline\\")
    keyed.delete("gone")
    return keyed


def test_keys_are_names_in_a_pipe(filled, snapshot):
    assert filled("keys", "B") == snapshot
    assert filled("keys", "B", "-o", "name", "a.*", "m.>") == snapshot
    assert filled("keys", "B", "nothing.>") == snapshot


def test_keys_on_a_terminal_are_a_table(filled, snapshot):
    assert filled("keys", "B", tty=True) == snapshot
    assert filled("keys", "B", "--deleted", tty=True) == snapshot
    assert filled("keys", "B", "nothing.>", tty=True) == snapshot


def test_keys_as_objects(filled, snapshot):
    assert filled("keys", "B", "-o", "json") == snapshot
    assert filled("keys", "B", "-o", "ndjson", "--deleted") == snapshot


def test_keys_sorted_and_limited(filled):
    assert filled("keys", "B").out.split() == ["a.2", "m.3", "z.1"]  # as last written
    assert filled("keys", "B", "--limit", "2").out.split() == ["a.2", "m.3"]
    filled.put("a.2")
    assert filled("keys", "B", "--limit", "2").out.split() == ["m.3", "z.1"]
    assert filled("keys", "B", "--sort", "--limit", "2").out.split() == ["a.2", "m.3"]
    sorted_rows = json.loads(filled("keys", "B", "--sort", "--limit", "2", "-o", "json").out)
    assert [row["key"] for row in sorted_rows] == ["a.2", "m.3"]
    assert filled.consumers_left() == 0


def test_count_is_the_number_of_keys_alone(filled):
    assert filled("keys", "B", "--count").out == "3\n"
    assert filled("keys", "B", "--count", "--deleted").out == "4\n"
    assert filled("keys", "B", "nothing.>", "--count").out == "0\n"
    assert filled("keys", "B", "*.1", "z.*", "--count", tty=True).out == "Keys  1\n"
    assert json.loads(filled("keys", "B", "--count", "-o", "json").out) == {"bucket": filled.name, "count": 3}
    assert filled("keys", "B", "--count", "--as-of", "1").out == "1\n"
    assert filled("keys", "B", "--count", "--limit", "1").exit_code == 2


def test_history_since_a_time_begins_with_its_entries(filled):
    entries = [json.loads(line) for line in filled("history", "B", "-o", "ndjson").out.splitlines()]
    third = entries[2]["created"]
    assert filled("history", "B", "--since", third, "-o", "name").out.split() == ["gone", "m.3", "z.1", "gone"]
    assert filled("history", "B", "z.*", "--since", third, "--limit", "1", "-o", "name").out.split() == ["z.1"]
    assert filled("history", "B", "--since", "-1h", "-o", "name").out.split() == [entry["key"] for entry in entries]
    assert filled("history", "B", "--since", "2100-01-01T00:00:00Z").out == ""
    wrong = filled("history", "B", "--since", "3")
    assert (wrong.exit_code, wrong.err.splitlines()[0]) == (2, "error: `3` is not a time")


def test_overlapping_filters_list_each_key_once(filled):
    filled.put("a.b")
    assert sorted(filled("keys", "B", "a.*", "*.b", "a.>").out.split()) == ["a.2", "a.b"]


def test_non_conforming_keys_are_listed_and_escaped_for_terminals(keyed):
    keyed.store("a\\b", "\x1b[31mred", "grüße", "star.*")
    assert keyed("keys", "B", "-o", "name").out.splitlines() == ["a\\b", "\x1b[31mred", "grüße", "star.*"]
    assert keyed("keys", "B").out.splitlines()[0] == "a\\\\b"  # tsv
    assert keyed("keys", "B", "-o", "name", tty=True).out.splitlines()[1] == "\\x1b[31mred"
    assert "\x1b" not in keyed("keys", "B", tty=True).out


def test_history_is_oldest_first_with_deletions(filled, snapshot):
    assert filled("history", "B") == snapshot
    assert filled("history", "B", "z.1", "gone", tty=True) == snapshot
    assert filled("history", "B", "gone", "-o", "ndjson") == snapshot
    assert filled("history", "B", "nothing", "-o", "json") == snapshot


def test_history_limit_keeps_the_newest(filled):
    rows = [line.split("\t") for line in filled("history", "B", "--limit", "2").out.splitlines()]
    assert [(row[1], row[2], row[4]) for row in rows] == [("z.1", "5", "PUT"), ("gone", "6", "DEL")]


def test_history_of_a_non_conforming_key(keyed):
    keyed.put("star.a", b"sibling")
    for value in (b"one", b"two"):
        keyed.store("star.*", value=value)
    rows = [json.loads(line) for line in keyed("history", "B", "star.*", "--literal", "-o", "ndjson").out.splitlines()]
    assert [(row["key"], row["value"]) for row in rows] == [("star.*", "one"), ("star.*", "two")]


def test_reasons_of_deletions_are_shown(keyed, snapshot):
    keyed.put("k", b"", {"Nats-Marker-Reason": "MaxAge"})
    keyed.put("k", b"", {"KV-Operation": "ARCHIVE"})
    keyed.put("k", b"", {"KV-Operation": "PURGE"})
    assert keyed("history", "B", "k", "-o", "ndjson") == snapshot
    assert keyed("history", "B", "k", tty=True) == snapshot


def test_invalid_listing_arguments_are_refused(run, keyed, snapshot):
    assert keyed("keys", "B", "a.>.b") == snapshot
    assert keyed("keys", "B", "--limit", "0") == snapshot
    assert keyed("history", "B", "") == snapshot
    assert keyed("keys", "no-such-bucket-anywhere") == snapshot
