"""Reads of keys: `kvctl get`, `history` and `keys`."""

import json
import random

import pytest

BINARY = bytes(range(256))


@pytest.mark.guarantee("commands-1", "commands-11")
def test_one_key_is_its_exact_bytes_in_a_pipe(keyed):
    keyed.put("bin", BINARY)
    keyed.put("empty", b"")
    assert keyed("get", "B", "bin").stdout == BINARY
    assert (keyed("get", "B", "empty").stdout, keyed("get", "B", "empty").exit_code) == (b"", 0)


@pytest.mark.guarantee("commands-1", by="property")
def test_any_value_comes_out_of_a_pipe_as_it_is_stored(keyed, seed):
    dice = random.Random(seed)
    for number in range(8):
        value = dice.randbytes(dice.choice([1, 3, 1000, 70_000])) + dice.choice([b"", b"\n", b"\r\n", b"\x00"])
        keyed.put(f"k.{number}", value)
        assert keyed("get", "B", f"k.{number}").stdout == value


def test_one_key_on_a_terminal_is_escaped_and_ends_the_line(keyed, snapshot):
    keyed.put("k", b"\x1b]0;evil\x07 tab\t\xff \xe2\x80\xae bidi\nsecond line")
    assert keyed("get", "B", "k", tty=True) == snapshot


def test_several_keys_are_records_in_the_order_asked(keyed, snapshot):
    for key in ("a", "b", "c"):
        keyed.put(key, b"of " + key.encode())
    assert keyed("get", "B", "c", "a", "b") == snapshot
    assert keyed("get", "B", "c", "a", tty=True) == snapshot


def test_named_keys_come_before_those_that_filters_match_and_none_twice(keyed):
    for key in ("x.1", "x.2", "y.1"):
        keyed.put(key)
    assert keyed("get", "B", "x.*", "y.1", "x.2", "-o", "name").out.split() == ["y.1", "x.2", "x.1"]


def test_limit_counts_what_filters_match(keyed):
    for key in "abcd":
        keyed.put(key, key.encode())
    found = keyed("get", "B", "d", ">", "--limit", "2", "--columns", "key").out
    assert found.split() == ["d", "a", "b"]
    assert keyed("get", "B", "a", "--limit", "2").exit_code == 2


def test_a_wildcard_with_one_match_is_still_a_record(keyed, snapshot):
    keyed.put("x.1", b"one")
    assert keyed("get", "B", "x.*", "-o", "json") == snapshot
    assert keyed("get", "B", "z.>", "-o", "json") == snapshot


def test_json_of_one_key_is_an_object_with_an_encoding_that_fits(keyed, snapshot):
    keyed.put("text", "grüße".encode())
    keyed.put("bin", b"\xff\x00")
    assert keyed("get", "B", "text", "-o", "json") == snapshot
    assert keyed("get", "B", "bin", "-o", "json") == snapshot
    assert keyed("get", "B", "text", "-o", "json", "--encoding", "base64") == snapshot
    assert keyed("get", "B", "bin", "-o", "json", "--encoding", "utf-8") == snapshot


def test_a_missing_named_key_is_reported_after_the_others(keyed, snapshot):
    keyed.put("here")
    keyed.delete("gone") if keyed.put("gone") else None
    assert keyed("get", "B", "nope", "here", "gone") == snapshot
    assert keyed("get", "B", "nope") == snapshot
    assert keyed("get", "B", "gone") == snapshot


def test_revision_reads_what_a_revision_holds(keyed, snapshot):
    first, other = keyed.put("k", b"first"), keyed.put("other")
    keyed.put("k", b"second")
    assert keyed("get", "B", "k", "--revision", str(first)).stdout == b"first"
    assert keyed("get", "B", "k", "--revision", str(other)) == snapshot


def test_headers_are_shown_when_asked_for(keyed, snapshot):
    keyed.put("k", b"v", {"Author": "me", "Trace": "7"})
    assert keyed("get", "B", "k", "--headers", "-o", "json") == snapshot
    assert keyed("get", "B", "k", "--headers") == snapshot
    assert keyed("get", "B", "k", "--headers", tty=True) == snapshot


def test_foreign_keys_are_read_as_literals(keyed):
    keyed.put("star.a", b"sibling")
    for key in ("star.*", "grüße", "a:b"):
        keyed.store(key, value=f"at {key}".encode())
    for key in ("star.*", "grüße", "a:b"):
        assert keyed("get", "B", key, "--literal").out == f"at {key}"
    assert keyed("get", "B", "star.>", "--literal").exit_code == 3
    assert keyed("get", "B", "star.*", "-o", "name").out.split() == ["star.a", "star.*"]


def test_leader_and_nearest_replica_agree_on_a_single_server(keyed):
    keyed.put("k.1", b"one")
    keyed.put("k.2", b"two")
    for keys in (("k.1",), ("k.1", "k.2"), ("k.*",)):
        assert keyed("get", "B", *keys, "--leader", "-o", "name").out == keyed("get", "B", *keys, "-o", "name").out


def test_an_unknown_bucket_has_the_nearest_name_in_its_hint(keyed):
    result = keyed("get", keyed.name + "x", "k")
    assert (result.exit_code, f"Did you mean `{keyed.name}`?" in result.err) == (3, True)
    result = keyed("get", keyed.name.swapcase(), "k")
    assert (result.exit_code, f"Did you mean `{keyed.name}`?" in result.err) == (3, True)


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


def test_history_since_a_time_begins_with_its_entries(filled):
    entries = [json.loads(line) for line in filled("history", "B", "-o", "ndjson").out.splitlines()]
    third = entries[2]["created"]
    assert filled("history", "B", "--since", third, "-o", "name").out.split() == ["gone", "m.3", "z.1", "gone"]
    assert filled("history", "B", "z.*", "--since", third, "--limit", "1", "-o", "name").out.split() == ["z.1"]
    assert filled("history", "B", "--since", "-1h", "-o", "name").out.split() == [entry["key"] for entry in entries]
    assert filled("history", "B", "--since", "2100-01-01T00:00:00Z").out == ""


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


def test_an_unknown_bucket_is_not_listed(keyed, snapshot):
    assert keyed("keys", "no-such-bucket-anywhere") == snapshot
