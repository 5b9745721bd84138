"""Reads of keys: `kvctl get`, `history` and `keys`."""

import json
import os
import random
import subprocess
import sys

import pytest

from kvctl.server import run_server
from tests.support.raw import RawClient

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
    assert keyed("get", "B", "k", "other", "--revision", str(first)) == snapshot


def test_headers_are_shown_when_asked_for(keyed, snapshot):
    keyed.put("k", b"v", {"Author": "me", "Trace": "7"})
    assert keyed("get", "B", "k", "--headers", "-o", "json") == snapshot
    assert keyed("get", "B", "k", "--headers") == snapshot
    assert keyed("get", "B", "k", "--headers", tty=True) == snapshot


@pytest.mark.guarantee("reading-3")
def test_more_matches_than_one_request_answers(keyed):
    keys = [f"k.{number:04d}" for number in range(1500)]
    for key in keys:
        keyed.raw.put(keyed.name, key, key.encode())
    rows = [json.loads(line) for line in keyed("get", "B", "k.*", "-o", "ndjson").out.splitlines()]
    assert [row["value"] for row in rows] == keys
    assert keyed.consumers_left() == 0


@pytest.mark.parametrize("direct", [True, False])
def test_foreign_keys_are_read_as_literals(keyed, direct):
    if not direct:
        config = keyed.raw.api(f"STREAM.INFO.KV_{keyed.name}")["config"]
        keyed.raw.api(f"STREAM.UPDATE.KV_{keyed.name}", {**config, "allow_direct": False})
    keyed.put("star.a", b"sibling")
    for key in ("star.*", "grüße", "a:b"):
        keyed.store(key, value=f"at {key}".encode())
    for key in ("star.*", "grüße", "a:b"):
        assert keyed("get", "B", key, "--literal").out == f"at {key}"
    assert keyed("get", "B", "star.>", "--literal").exit_code == 3
    assert keyed("get", "B", "star.*", "-o", "name").out.split() == ["star.a", "star.*"]


def test_a_bucket_without_direct_get_is_read(keyed):
    config = keyed.raw.api(f"STREAM.INFO.KV_{keyed.name}")["config"]
    keyed.raw.api(f"STREAM.UPDATE.KV_{keyed.name}", {**config, "allow_direct": False})
    keyed.put("k.1", b"one")
    keyed.put("k.2", b"two")
    assert keyed("get", "B", "k.1").out == "one"
    assert keyed("get", "B", "k.2", "k.1", "-o", "name").out.split() == ["k.2", "k.1"]
    assert keyed("get", "B", "k.*", "-o", "name").out.split() == ["k.1", "k.2"]
    assert keyed("get", "B", "k.1", "--leader").out == "one"


def test_leader_and_nearest_replica_agree_on_a_single_server(keyed):
    keyed.put("k.1", b"one")
    keyed.put("k.2", b"two")
    for keys in (("k.1",), ("k.1", "k.2"), ("k.*",)):
        assert keyed("get", "B", *keys, "--leader", "-o", "name").out == keyed("get", "B", *keys, "-o", "name").out


def test_usage_errors_send_nothing(run, snapshot):
    nowhere = ("-s", "nats://127.0.0.1:1")
    assert run("get", "orders", "a..b", *nowhere) == snapshot
    assert run("get", "orders", "k", "a*", *nowhere) == snapshot
    assert run("watch", "orders@main", *nowhere) == snapshot
    assert run("get", "orders", "", *nowhere) == snapshot
    assert run("get", "orders", "_kv.lock", *nowhere) == snapshot
    assert run("get", "orders", "k", "--revision", "x", *nowhere) == snapshot
    assert run("get", "orders", "k", *nowhere) == snapshot


def test_an_unknown_bucket_has_the_nearest_name_in_its_hint(keyed):
    result = keyed("get", keyed.name + "x", "k")
    assert (result.exit_code, f"Did you mean `{keyed.name}`?" in result.err) == (3, True)
    result = keyed("get", keyed.name.swapcase(), "k")
    assert (result.exit_code, f"Did you mean `{keyed.name}`?" in result.err) == (3, True)


ONLY_KEYS = """
listen: "127.0.0.1:@client@"
jetstream { store_dir: "@store@" }
accounts { APP { jetstream: enabled, users: [
  {user: admin, password: admin}
  {user: reader, password: reader, permissions: {
    publish: ["$JS.API.DIRECT.GET.KV_R.$KV.R.>"], subscribe: ["_INBOX.>"] }}
] } }
"""


@pytest.fixture(scope="module")
def guarded():
    """A server whose user `reader` may only ask for keys of bucket R one by one."""
    with run_server(config=ONLY_KEYS, name="guarded") as server:
        with RawClient(server.url, user="admin", password="admin") as admin:
            admin.create_bucket("R")
            admin.put("R", "k.1", b"one")
            admin.put("R", "k.2", b"two")
        yield server


def test_permissions_key_by_key_are_enough_for_named_keys(guarded, run, snapshot):
    def get(*keys: str):
        password = {"NATS_USER": "reader", "NATS_PASSWORD": "reader", "NATS_URL": guarded.url}
        return run("get", "R", *keys, env=password)

    assert get("k.1").out == "one"
    assert get("k.2", "k.1", "-o", "name").out.split() == ["k.2", "k.1"]
    assert get("k.*") == snapshot
    assert get("k.1", "--as-of", "1") == snapshot


HEAVY = (
    "rich", "yaml", "pydantic", "nats.js.api", "concurrent.futures.thread",
    "kvctl.render.text_table", "kvctl.kv.read.listing", "kvctl.kv.read.watch", "kvctl.kv.read.bulk_get",
    "kvctl.kv.conditional_write",
    "kvctl.kv.config", "kvctl.jetstream.consumers.admin", "kvctl.jetstream.publish",
)  # fmt: skip


def test_a_get_loads_only_what_it_needs(keyed):
    keyed.put("k")
    code = f"""
import sys
from kvctl.deferred import DeferredModule, defer_modules
defer_modules()
from kvctl.cli.app.main import main
main(["get", "{keyed.name}", "k"])
print(*(name for name, module in sys.modules.items() if not isinstance(module, DeferredModule)))
"""
    loaded = subprocess.check_output([sys.executable, "-c", code], env={**os.environ, **keyed.env()}, text=True).split()
    assert loaded[0].startswith("value")
    assert set(HEAVY) & set(loaded) == set()


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
