"""`kvctl table` as a process: output, arguments and exit codes."""

import json
import re
from typing import Any

import pytest

from tests.cli.conftest import Result, Run

VERSION = {r"\b[0-9a-z]{10}\.\d+\.\d+\b": "VERSION"}


class Tables:
    """Runner of kvctl on one table: `table("put", "key", "value")`."""

    def __init__(self, run: Run, url: str, name: str) -> None:
        self._run = run
        self._url = url
        self.name = name

    def __call__(self, command: str, *args: str, **settings: Any) -> Result:
        line = ("table", command, self.name, *args, "-s", self._url)
        return self._run(*line, **settings).masked(VERSION, TABLE=self.name)

    def value(self, command: str, *args: str, **settings: Any) -> str:
        """Return stdout of a command that must succeed."""
        result = self(command, *args, **settings)
        assert result.exit_code == 0, result.err
        return result.out.strip()

    def json(self, command: str, *args: str) -> Any:
        return json.loads(self.value(command, *args, "-o", "json"))


@pytest.fixture
def table(run, server, unique):
    """Create a table of four partitions."""
    made = Tables(run, server.url, unique("T"))
    assert made("create", "--partitions", "4").exit_code == 0
    yield made
    made("delete", "--yes")


def test_put_in_a_pipe_prints_only_the_version(table):
    version = table.value("put", "alice", "1")
    assert re.fullmatch(r"[0-9a-z]{10}\.\d\.\d+", version)
    again = table.value("put", "alice", "2", "--if-version", version)
    assert again != version
    made = table.json("put", "alice", "3")
    assert made == {"key": "alice", "family": None, "version": table.json("get", "alice")["version"]}
    binary = table.json("put", "hex:ff00", "3", "--family", "f")
    assert (binary["key"], binary["key_encoding"], binary["family"]) == ("/wA=", "base64", "f")


def test_failed_conditions_exit_4(table, snapshot):
    version = table.value("put", "alice", "1")
    table.value("put", "alice", "2")
    assert table("put", "alice", "3", "--if-version", version) == snapshot
    assert table("put-if-absent", "alice", "3") == snapshot
    assert table("remove", "bob", "--if-version", version) == snapshot
    assert table.value("get", "alice") == "2"


def test_get_prints_exact_bytes(table):
    value = bytes(range(256))
    assert table("put", "raw", "-", stdin=value).exit_code == 0
    assert table("get", "raw").stdout == value
    assert table("get", "raw", "--encoding", "utf-8").exit_code == 1
    entry = table.json("get", "raw")
    assert (entry["key_encoding"], entry["encoding"]) == ("utf-8", "base64")
    assert table("get", "none").exit_code == 3


def test_exists_exits_0_or_3(table):
    table.value("put", "k", "")
    yes, no = table("exists", "k"), table("exists", "none")
    assert (yes.exit_code, yes.out, no.exit_code, no.out) == (0, "true\n", 3, "false\n")


def test_rm_removes_an_entry_and_never_the_table(table):
    table.value("put", "k", "v")
    assert table("rm", "k").exit_code == 0
    assert table("exists", "k").exit_code == 3
    assert table("remove", "k").exit_code == 0


def test_get_all_keeps_order_and_shows_missing_entries_as_null(table):
    for key in "abc":
        table.value("put", key, key * 2)
    found = table.json("get-all", "c", "none", "a", "c")
    assert [entry and entry["value"] for entry in found] == ["cc", None, "aa", "cc"]
    result = table("get-all", "c", "none", "a")
    assert result.exit_code == 3
    assert [line.split("\t")[0] for line in result.out.splitlines()] == ["c", "a"]


def test_update_reads_batches_in_ndjson_and_yaml(table):
    old = table.value("put", "gone", "v")
    lines = [
        {"insert": "a", "value": "1"},
        {"put": "Yg==", "key_encoding": "base64", "value": "AP8=", "encoding": "base64", "family": ""},
        {"remove": "gone", "version": old},
    ]
    result = table("update", "-f", "-", stdin="".join(json.dumps(line) + "\n" for line in lines).encode())
    assert (result.exit_code, result.err) == (0, "")
    a, b, gone = result.out.split("\n")[:3]
    assert gone == ""
    assert [table.json("get", "a")["version"], table.json("get", "b", "--family", "")["version"]] == [a, b]
    yaml = f"- put: a\n  value: '2'\n  version: {a}\n- insert: c\n  value: ''\n".encode()
    planned = json.loads(table("update", "-f", "-", "--dry-run", "--read-only", "-o", "json", stdin=yaml).out)
    assert [(row["key"], row["version"]) for row in planned] == [("a", None), ("c", None)]
    assert table("update", "-f", "-", stdin=yaml).exit_code == 0
    failed = table("update", "-f", "-", stdin=yaml)
    assert failed.exit_code == 4
    assert "`a` is at version" in failed.err
    assert "`c` exists at version" in failed.err
    assert table("update", "-f", "-", "--dry-run", stdin=yaml).exit_code == 4


def test_update_with_an_invalid_batch_names_the_line(table):
    lines = b'{"put": "a", "value": "x"}\n\n{"put": "b", "value": 1}\n'
    result = table("update", "-f", "-", stdin=lines)
    assert (result.exit_code, "standard input:3:1: [1].value: `value` must be text" in result.err) == (2, True)
    assert table.json("keys")["keys"] == []


@pytest.mark.parametrize(
    "line",
    [
        "put NAME k v",
        "get NAME k",
        "keys NAME",
        "delete NAME k",
        "bucket delete NAME --yes",
        "stream edit KVT_NAME --set max_msgs_per_subject=5",
    ],
)
def test_bucket_and_stream_commands_name_the_group_of_tables(run, table, server, line):
    result = run(*line.replace("NAME", table.name).split(), "-s", server.url)
    assert result.exit_code == 1
    assert "Use `kvctl table` instead" in result.err
    assert ("--force foreign-kind" in result.err) == line.startswith("stream")


def test_table_stream_is_not_suggested_for_a_bucket(run, table, server):
    result = run("put", f"KVT_{table.name}", "k", "v", "-s", server.url)
    assert (result.exit_code, "Did you mean" in result.err) == (3, False)


def test_listing_with_limit_resumes_from_its_token(table):
    for number in range(5):
        table.value("put", f"k{number}", "v")
    first = table.json("keys", "--limit", "2")
    assert [key["key"] for key in first["keys"]] == ["k0", "k1"]
    rest = table.json("entries", "--after", first["next"], "--limit", "3")
    assert [entry["key"] for entry in rest["entries"]] == ["k2", "k3", "k4"]
    assert rest["next"] is None
    *entries, last = table.value("entries", "--limit", "2", "-o", "ndjson").splitlines()
    assert len(entries) == 2
    assert json.loads(last) == {"next": first["next"]}
    whole = table.value("keys", "-o", "ndjson").splitlines()
    assert len(whole) == 5
    assert table("keys", "--after", "nonsense").exit_code == 2
    assert [key["key"] for key in table.json("keys", "--from", "k1", "--to", "hex:6b33")["keys"]] == ["k1", "k2", "k3"]


def test_listing_on_a_terminal_prints_the_token_to_resume_from(table, snapshot):
    for key in ("a", "b"):
        table.value("put", key, "some value", "--family", "f")
    result = table("entries", "--limit", "1", tty=True)
    assert result.masked({r"--after \S+": "--after TOKEN"}) == snapshot


def test_empty_family_is_shown_on_a_terminal(table):
    table.value("put", "k", "v", "--family", "")
    table.value("put", "l", "v")
    heading, _, *lines = (line.split()[:2] for line in table("keys", tty=True).out.splitlines())
    assert heading == ["key", "family"]
    assert [line[0] for line in lines] == ["l", "k"]
    assert lines[1][1] == "''"


def test_show_on_a_terminal_prints_the_settings(table):
    table.value("put", "alice", "v")
    title, _, contents, place, _, heading, *_, row = table("show", tty=True).out.splitlines()
    assert title.endswith("  table")
    assert contents.startswith("  entries 1 · stored ")
    assert place.startswith("  partitions 4 · 1 stream replica on file · stream KVT_")
    assert heading == "  Partitions with entries, 1 of 4"
    assert re.fullmatch(r" +\d  [0-9a-f]{4}-[0-9a-f]{4} +1  ━━━━━━━━━━", row)


def test_create_again_changes_nothing_or_conflicts(table):
    same = table("create", "--partitions", "4")
    assert (same.exit_code, "already exists" in same.out) == (0, True)
    other = table("create", "--partitions", "5")
    assert (other.exit_code, "partitions: 4 -> 5" in other.err) == (4, True)
    apart = table("create", "--partitions", "4", "--partition-streams")
    assert (apart.exit_code, apart.err.count(" -> ")) == (4, 2)  # the heading, and the one difference
    assert table._run("table", "get", "a@b", "k", "-s", table._url).err.startswith("error: `a@b` is not a table name")
    assert table("edit", "--partitions", "4", "--description", "x").exit_code == 0
    refused = table("edit", "--partitions", "5")
    assert (refused.exit_code, "which cannot be changed" in refused.err) == (1, True)


def test_edit_shows_its_differences_and_dry_runs_work_on_a_read_only_connection(table):
    change = ("edit", "--description", "x")
    planned = table(*change, "--dry-run", "--read-only")
    assert (planned.exit_code, planned.out.split()[-2:], planned.err) == (0, ["description", "x"], "")
    assert table.json(*change, "--dry-run") == [{"field": "description", "before": None, "after": "x"}]
    refused = table(*change, "--read-only")
    assert (refused.exit_code, refused.out, "read-only" in refused.err) == (1, "", True)
    for line in (("seal",), ("compact",), ("delete",)):
        assert table(*line, "--dry-run", "--read-only").exit_code == 0, line
    assert table.json(*change)["differences"] == [{"field": "description", "before": None, "after": "x"}]


def test_show_lists_each_partition(table):
    for number in range(20):
        table.value("put", str(number), "v")
    shown = table.json("show")
    details = shown["partition_details"]
    assert shown["partitions"] == len(details) == 4
    assert sum(part["entries"] for part in details) == shown["entries"] == 20
    assert details[0]["range"][0] == "0" * 16
    assert details[3]["range"][1] == "f" * 16
    assert all(part["stream"] == f"KVT_{table.name}" and part["leader"] for part in details)


def test_seal_and_delete_ask_for_confirmation(table):
    table.value("put", "k", "v")
    assert table("seal").exit_code == 2
    assert table("seal", stdin=b"n\n", tty=True).exit_code == 1
    assert table("seal", "--yes").exit_code == 0
    assert table("put", "k", "w").exit_code == 1
    assert table.value("get", "k") == "v"
    assert table("delete").exit_code == 2
    assert table("delete", "--dry-run").exit_code == 0
    assert table("delete", "--yes").exit_code == 0
    assert table("show").exit_code == 3
