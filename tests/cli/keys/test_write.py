"""Writes of keys: `kvctl put`, `create`, `update`, `revert` and `touch`."""

import json

from kvctl.server import run_server
from tests.support.raw import RawClient


def test_put_prints_the_revision(keyed, snapshot):
    assert keyed("put", "B", "k", "v") == snapshot
    assert keyed("put", "B", "k", "v", tty=True) == snapshot
    assert keyed("put", "B", "k", "v", "-o", "json") == snapshot
    assert keyed("put", "B", "k", "v", "-q", tty=True).err == ""
    assert keyed.value("k") == b"v"


def test_values_come_from_arguments_files_and_standard_input(keyed, tmp_path):
    file = tmp_path / "value"
    file.write_bytes(b"\x00from a file\n")
    for args, stdin, value in (
        (("text",), b"", b"text"),
        (("",), b"", b""),
        (("--", "-5"), b"", b"-5"),
        (("--", "-x"), b"", b"-x"),
        (("-",), b"from \xff stdin\n", b"from \xff stdin\n"),
        (("--file", str(file)), b"ignored", b"\x00from a file\n"),
        (("--file", "-"), b"piped", b"piped"),
    ):
        assert keyed("put", "B", "k", *args, stdin=stdin).exit_code == 0
        assert keyed.value("k") == value


def test_put_without_a_value_never_reads_standard_input(keyed, snapshot):
    assert keyed("put", "B", "k", stdin=b"the next line of a loop") == snapshot
    assert keyed.last_revision() == 0


def test_if_different_prints_the_revision_that_holds_the_value(keyed, snapshot):
    first = keyed.put("k", b"v")
    assert keyed("put", "B", "k", "v", "--if-different").out == f"{first}\n"
    assert keyed("put", "B", "k", "v", "--if-different", tty=True) == snapshot
    assert keyed("put", "B", "k", "other", "--if-different").out == f"{first + 1}\n"
    keyed.delete("k")
    assert keyed("put", "B", "k", "", "--if-different").out == f"{first + 3}\n"  # a deletion is not the empty value


def test_create_refuses_a_key_that_lives(keyed, snapshot):
    assert keyed("create", "B", "k", "v").out == "1\n"
    assert keyed("create", "B", "k", "v") == snapshot
    keyed.delete("k")
    assert keyed("create", "B", "k", "again").out == "3\n"


def test_create_with_a_ttl(keyed, snapshot):
    assert keyed("create", "B", "k", "v", "--ttl", "1h").exit_code == 0
    assert json.loads(keyed("get", "B", "k", "-o", "json").out)["ttl"] == 3600
    assert keyed("create", "B", "l", "v", "--ttl", "10ms") == snapshot


def test_update_needs_the_last_revision(keyed, snapshot):
    first = keyed.put("k", b"v")
    assert keyed("update", "B", "k", "w", str(first)).out == f"{first + 1}\n"
    assert keyed("update", "B", "k", "x", "--if-revision", str(first + 1)).out == f"{first + 2}\n"
    assert keyed("update", "B", "k", "y", str(first)) == snapshot
    assert keyed("update", "B", "never", "y", "1") == snapshot
    assert keyed.value("k") == b"x"


def test_update_from_a_file_takes_the_revision_after_the_key(keyed, tmp_path):
    (tmp_path / "value").write_bytes(b"file")
    first = keyed.put("k", b"v")
    assert keyed("update", "B", "k", "--file", str(tmp_path / "value"), str(first)).exit_code == 0
    assert keyed.value("k") == b"file"


def test_revert_writes_an_earlier_value_again(keyed, snapshot):
    first = keyed.put("k", b"first")
    deletion = keyed.delete("k")
    assert keyed("revert", "B", "k", str(first)).out == f"{deletion + 1}\n"
    assert keyed.value("k") == b"first"
    assert keyed("revert", "B", "k", "99") == snapshot
    assert keyed("revert", "B", "k", str(deletion)) == snapshot


def test_copy_and_rename(keyed, snapshot):
    keyed.put("a", b"v")
    assert keyed("copy", "B", "a", "b").out == "2\n"
    assert keyed("copy", "B", "a", "b") == snapshot
    assert keyed("copy", "B", "a", "b", "--overwrite", "-o", "json") == snapshot
    assert keyed("rename", "B", "a", "c").exit_code == 0
    assert (keyed.value("a"), keyed.value("b"), keyed.value("c")) == (None, b"v", b"v")
    assert keyed("rename", "B", "a", "d") == snapshot


def test_a_dry_rename_names_both_changes_and_makes_none(keyed):
    keyed.put("a")
    keyed.put("taken")
    plan = f"PUT\t{keyed.name}\tb\nDEL\t{keyed.name}\ta\n"
    assert keyed("rename", "B", "a", "b", "--dry-run", "--read-only").out == plan
    assert keyed("rename", "B", "a", "taken", "--dry-run").exit_code == 4
    assert keyed("rename", "B", "gone", "b", "--dry-run").exit_code == 3
    assert keyed.last_revision() == 2


def test_copy_to_another_bucket_and_another_context(keyed, run, home):
    keyed.put("k", b"v")
    other = keyed.name + "-2"
    keyed.raw.create_bucket(other)
    assert keyed("copy", "B", "k", "k", "--to-bucket", other).exit_code == 0
    assert keyed.raw.request(f"$JS.API.DIRECT.GET.KV_{other}.$KV.{other}.k").data == b"v"
    with run_server(name="there") as there, RawClient(there.url) as raw:
        raw.create_bucket(keyed.name)
        assert run("context", "add", "there", "--server", there.url).exit_code == 0
        assert keyed("rename", "B", "k", "moved", "--to-context", "there").out == "1\n"
        assert raw.request(f"$JS.API.DIRECT.GET.KV_{keyed.name}.$KV.{keyed.name}.moved").data == b"v"
    assert keyed.value("k") is None


def test_writes_are_refused_before_they_are_sent(keyed, snapshot):
    keyed.put("k", b"v")
    before = keyed.last_revision()
    for command in (("put", "B", "k", "v"), ("create", "B", "l", "v"), ("copy", "B", "k", "l"), ("delete", "B", "k")):
        assert keyed(*command, "--read-only").exit_code == 1
    assert keyed("put", "B", "k", "v", "--read-only") == snapshot
    assert keyed("put", "B", "k", "-", stdin=b"x" * (1 << 20) + b"y") == snapshot
    assert keyed("put", "B", "k" * 4200, "v").masked({"k{20,}": "LONG", r"\d+ bytes": "SIZE"}) == snapshot
    assert keyed.last_revision() == before


def test_an_unknown_bucket_is_named(keyed, snapshot):
    assert keyed("put", "no-such-bucket-anywhere", "k", "v") == snapshot


WRITER = """
listen: "127.0.0.1:@client@"
jetstream { store_dir: "@store@" }
accounts { APP { jetstream: enabled, users: [
  {user: admin, password: admin}
  {user: writer, password: writer, permissions: {publish: ["$KV.R.>"], subscribe: ["_INBOX.>"]}}
] } }
"""


def test_a_write_whose_outcome_is_open_says_how_to_find_out(run, snapshot):
    with run_server(config=WRITER, name="writer") as server:
        with RawClient(server.url, user="admin", password="admin") as admin:
            admin.create_bucket("R", no_ack=True)
        password = {"NATS_USER": "writer", "NATS_PASSWORD": "writer", "NATS_URL": server.url}
        result = run("put", "R", "k", "v", "--timeout", "3s", env=password)
        assert result.exit_code == 6
        assert result.masked({r"--timeout \S+": "--timeout 500ms", r"within \S+": "within 0.5s"}) == snapshot


def test_touch_prints_the_new_revision_and_renews_the_ttl(keyed):
    assert keyed("create", "B", "k", "v", "--ttl", "1h").exit_code == 0
    assert keyed("touch", "B", "k", "--ttl", "2h").out == "2\n"
    entry = json.loads(keyed("get", "B", "k", "-o", "json").out)
    assert (entry["value"], entry["ttl"]) == ("v", 7200)
    assert json.loads(keyed("touch", "B", "k", "--ttl", "3h", "-o", "json").out)["revision"] == 3


def test_touch_refuses_what_it_cannot_renew(keyed, snapshot):
    assert keyed("touch", "B", "none", "--ttl", "1h") == snapshot
    assert keyed("touch", "B", "k", "--ttl", "1h", "--read-only").exit_code == 1
    assert keyed.last_revision() == 0
