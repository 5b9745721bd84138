"""delete and purge: by name, by filter, and never by a wildcard."""

import json

import pytest

from kvctl.server import run_server
from tests.cli.keyed import Keyed
from tests.support.raw import RawClient


def test_delete_marks_and_prints_a_revision_for_each_key(keyed, snapshot):
    for key in ("a", "b", "c"):
        keyed.put(key)
    assert keyed("delete", "B", "a") == snapshot
    revisions = keyed("delete", "B", "c", "b").out.split()
    assert sorted(map(int, revisions)) == [5, 6]
    assert [row["operation"] for row in _history(keyed, "a")] == ["PUT", "DEL"]


def test_delete_on_a_terminal_and_in_json(keyed, snapshot):
    for key in ("a", "b", "c"):
        keyed.put(key)
    assert keyed("delete", "B", "a", tty=True) == snapshot
    assert keyed("delete", "B", "b", "-o", "json") == snapshot
    assert json.loads(keyed("delete", "B", "c", "nope", "-o", "json", "--ignore-missing").out)[0]["key"] == "c"


def test_a_key_that_is_not_there_gets_no_marker(keyed, snapshot):
    keyed.put("here")
    keyed.put("gone")
    keyed.delete("gone")
    before = keyed.last_revision()
    assert keyed("delete", "B", "gone") == snapshot
    assert keyed("delete", "B", "nope") == snapshot
    assert keyed("delete", "B", "nope", "--ignore-missing") == snapshot
    assert keyed.last_revision() == before
    assert keyed("delete", "B", "nope", "here", "gone") == snapshot
    assert keyed.last_revision() == before + 1


def test_delete_on_condition(keyed, snapshot):
    first = keyed.put("k")
    keyed.put("k")
    assert keyed("delete", "B", "k", "--if-revision", str(first)) == snapshot
    assert keyed("delete", "B", "k", "--if-revision", str(first + 1)).exit_code == 0


def test_deletion_after_the_expected_revision_is_a_conflict(keyed):
    first = keyed.put("k")
    marker = keyed.delete("k")
    assert keyed("delete", "B", "k", "--if-revision", str(first)).exit_code == 4
    assert keyed("delete", "B", "k", "--if-revision", str(first), "--ignore-missing").exit_code == 0
    assert keyed("delete", "B", "k", "--if-revision", str(marker)).exit_code == 3
    assert keyed("delete", "B", "nope", "--if-revision", "1").exit_code == 3
    keyed.put("l")
    assert keyed("delete", "B", "l", "--if-revision", str(first), "--ignore-missing").exit_code == 4
    assert keyed.last_revision() == marker + 1


def test_match_expands_to_keys_counts_and_asks(keyed, snapshot):
    for key in ("a.1", "a.2", "a.3", "a.4", "b.1"):
        keyed.put(key)
    assert keyed("delete", "B", "--match", "a.*", "--dry-run") == snapshot
    assert keyed("delete", "B", "--match", "a.*", "-n", tty=True) == snapshot
    assert keyed("delete", "B", "--match", "a.*") == snapshot
    assert keyed("delete", "B", "--match", "a.*", tty=True, stdin=b"n\n") == snapshot
    assert keyed.last_revision() == 5
    assert keyed("delete", "B", "--match", "a.*", tty=True, stdin=b"y\n").exit_code == 0
    assert keyed("keys", "B").out.split() == ["b.1"]
    assert keyed("delete", "B", "--match", "a.*", "--yes") == snapshot
    assert keyed("delete", "B", "--match", "a.*", "--yes", "-o", "json").out == "[]\n"


def test_purge_erases_history_and_asks(keyed, snapshot):
    for _ in range(3):
        keyed.put("k")
    assert keyed("purge", "B", "k") == snapshot
    assert keyed("purge", "B", "k", tty=True, stdin=b"\n") == snapshot
    assert keyed("purge", "B", "k", "--yes").out == "4\n"
    assert keyed("purge", "B", "k", "--dry-run", "--read-only").out == "k\n"  # as the next, which replaces it
    assert keyed("purge", "B", "k", "--yes").out == "5\n"
    assert [row["operation"] for row in _history(keyed, "k")] == ["PURGE"]
    assert keyed("purge", "B", "nope", "--yes") == snapshot


def test_purge_by_filter_takes_the_history_of_deleted_keys_too(keyed):
    keyed.put("a.1")
    keyed.put("a.2")
    keyed.delete("a.2")
    keyed.put("a.3", b"", {"KV-Operation": "PURGE"})
    assert keyed("purge", "B", "--match", "a.>", "-n").out.split() == ["a.1", "a.2"]
    assert len(keyed("purge", "B", "--match", "a.>", "--yes").out.split()) == 2
    assert keyed("purge", "B", "--match", "a.>", "--yes").out == ""


def test_purge_with_a_ttl_for_the_marker(keyed):
    keyed.put("k")
    assert keyed("purge", "B", "k", "--ttl", "1h", "--yes").exit_code == 0
    assert _history(keyed, "k")[0]["ttl"] == 3600


@pytest.mark.guarantee("writing-8")
def test_no_wildcard_reaches_a_write(keyed):
    keyed.put("a.1")
    for wildcard in (">", "*", "a.*", "a.>", ""):
        assert keyed("purge", "B", wildcard, "--yes").exit_code == 2
        assert keyed("delete", "B", wildcard).exit_code == 2
    assert keyed.last_revision() == 1


@pytest.mark.guarantee("writing-15")
def test_foreign_keys_are_deleted_as_literals_and_their_siblings_stay(keyed, snapshot):
    keyed.put("star.a")
    keyed.put("star.b")
    keyed.store("star.*", "grüße", "x:y", "star.>")
    assert keyed("delete", "B", "--match", ">", "--dry-run") == snapshot
    assert len(keyed("delete", "B", "star.*", "grüße", "x:y", "--literal").out.split()) == 3
    assert keyed("keys", "B").out.split() == ["star.a", "star.b", "star.>"]
    assert keyed("delete", "B", "star.*", "--literal") == snapshot
    assert keyed("delete", "B", "star.>", "--literal").exit_code == 0
    assert keyed("keys", "B").out.split() == ["star.a", "star.b"]


def test_a_filter_leaves_foreign_keys_and_reserved_ones_alone(keyed, snapshot):
    keyed.put("a")
    keyed.store("x:y", "_kv.internal")
    assert keyed("delete", "B", "--match", ">", "--yes") == snapshot
    assert keyed("keys", "B").out.split() == ["x:y", "_kv.internal"]


ONE_KEY = """
listen: "127.0.0.1:@client@"
jetstream { store_dir: "@store@" }
accounts { APP { jetstream: enabled, users: [
  {user: admin, password: admin}
  {user: some, password: some, permissions: {publish: ["$KV.R.a", "$JS.API.>"], subscribe: ["_INBOX.>"]}}
] } }
"""


def test_a_failure_among_several_says_what_was_done(run, snapshot):
    with run_server(config=ONE_KEY, name="some") as server:
        with RawClient(server.url, user="admin", password="admin") as admin:
            admin.create_bucket("R")
            for key in ("a", "b"):
                admin.put("R", key, b"v")
        password = {"NATS_USER": "some", "NATS_PASSWORD": "some", "NATS_URL": server.url}
        assert run("delete", "R", "b", env=password) == snapshot
        assert run("delete", "R", "a", "b", env=password) == snapshot


def _history(keyed: Keyed, key: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in keyed("history", "B", key, "-o", "ndjson").out.splitlines()]
