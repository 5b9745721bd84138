"""`kvctl stream` as a process: create, edit, every read form of ADR-31, purge, delete."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Result
from tests.cli.dialogue import Dialogue
from tests.support.raw import RawClient

FORMS = {
    "2": [2],
    "--last-for S.a": [5],
    "--next-for S.a": [1],
    "2 --next-for S.a": [3],
    "--start-time -1h": [1],
    "2 --batch 3": [2, 3, 4],
    "2 --batch 2 --next-for S.a": [3, 5],
    "--batch 9 --max-bytes 1": [1],
    "--last-of S.a --last-of S.b": [2, 5],
    "--last-of S.>": [2, 4, 5],
    "--last-of S.a --up-to-seq 4": [3],
}
"""Arguments of `stream get` -> sequences of the messages read."""


@pytest.fixture
def name(unique):
    return unique("STREAM")


@pytest.fixture
def stream(run, server, name):
    """Run `kvctl stream COMMAND S ...` with the test's own stream for S, also at the start of an argument."""

    def command(verb: str, *args: str, **settings: Any) -> Result:
        words = [name + word.removeprefix("S") if word == "S" or word.startswith("S.") else word for word in args]
        return run("stream", verb, *words, "-s", server.url, **settings).masked(S=name)

    return command


@pytest.fixture
def filled(stream, raw, name):
    """Publish messages 1 to 5 on S.a, S.b, S.a, S.c, S.a; the third has a header, the fourth is not UTF-8."""
    assert stream("create", "S", "--subject", "S.>", "--set", "allow_direct=true").exit_code == 0
    for subject, data in (("a", b"one"), ("b", b"two"), ("a", b"three"), ("c", b"\xff"), ("a", b"")):
        raw.request(f"{name}.{subject}", data, {"Color": "red"} if data == b"three" else None)
    return stream


def rows(result: Result) -> Any:
    assert result.exit_code == 0, result.err
    return json.loads(result.out)


def config(raw: RawClient, name: str) -> dict[str, Any]:
    found: dict[str, Any] = raw.api(f"STREAM.INFO.{name}")["config"]
    return found


def test_stream_is_created_listed_and_shown(filled, snapshot, name):
    listed = next(row for row in rows(filled("ls", "-o", "json")) if row["name"] == name)
    assert (listed["kind"], listed["messages"], listed["subjects"]) == ("stream", 5, [f"{name}.>"])
    shown = rows(filled("show", "S", "-o", "json"))
    names = (
        "name kind subjects messages bytes consumers last_sequence replicas storage created description retention "
        "first_sequence first_time last_time subject_count deleted_messages cluster origins alternates config state"
    )
    assert set(shown) == {*names.split()}
    assert filled("show", "S", tty=True).masked({r"\b\d+ B\b": "SIZE"}) == snapshot
    assert filled("ls", "--subject", "S.a", "-o", "name").out.split() == [name]


def test_stream_ls_shows_the_kind_of_a_bucket(run, raw, server, unique):
    bucket = unique()
    raw.create_bucket(bucket)
    found = rows(run("stream", "ls", "-s", server.url, "-o", "json"))
    assert [row["kind"] for row in found if row["name"] == f"KV_{bucket}"] == ["bucket"]


class TestCreate:
    def test_create_again_changes_nothing_or_conflicts(self, stream, snapshot):
        options = ("S", "--subject", "S.>", "--set", "max_age=1h")
        assert stream("create", *options) == snapshot
        assert stream("create", *options) == snapshot
        assert stream("create", "S", "--subject", "S.>", "--set", "max_age=2h") == snapshot

    def test_create_from_a_file_with_more_options(self, stream, raw, name, tmp_path):
        file = tmp_path / "stream.yaml"
        file.write_text(f"name: {name}\nsubjects: [{name}.>]\nmax_age: 1h\nplacement: {{tags: []}}\n")
        done = stream("create", "--config", str(file), "--set", "max_age=2h", "--set", "metadata.owner=me")
        assert done.exit_code == 0, done.err
        made = config(raw, name)
        assert (made["max_age"], made["metadata"]["owner"]) == (7200 * 10**9, "me")

    def test_create_from_the_output_of_show(self, filled, raw, name):
        shown = filled("show", "S", "-o", "json").stdout
        done = filled("create", f"{name}_COPY", "--config", "-", "--subject", f"copy.{name}", stdin=shown)
        assert done.exit_code == 0, done.err
        assert config(raw, f"{name}_COPY")["allow_direct"] is True

    def test_create_dry_run_creates_nothing(self, stream, raw, name):
        shown = rows(stream("create", "S", "--subject", "S.>", "--replicas", "3", "--dry-run", "-o", "json"))
        assert shown == {"name": name, "subjects": [f"{name}.>"], "num_replicas": 3}
        assert raw.api(f"STREAM.INFO.{name}")["error"]["code"] == 404


class TestEdit:
    @pytest.mark.guarantee("streams-1")
    def test_edit_shows_the_difference_and_changes_nothing_else(self, filled, raw, name, snapshot):
        before = config(raw, name)
        assert filled("edit", "S", "--set", "description=of ours", "--dry-run") == snapshot
        assert config(raw, name) == before
        assert filled("edit", "S", "--set", "description=of ours", "-o", "json") == snapshot
        assert filled("edit", "S", "--set", "description=of ours") == snapshot
        assert config(raw, name) == before | {"description": "of ours"}

    @pytest.mark.guarantee("streams-1")
    @pytest.mark.parametrize(
        ("change", "evidence"),
        [
            ("max_msgs=2", "max_msgs none -> 2 removes 3 messages"),
            ("max_msgs_per_subject=1", "max_msgs_per_subject none -> 1 removes 2 messages of 1 subject"),
            ("subjects=elsewhere.S", "no longer covers 3 subjects"),
            ("sealed=true", "sealing is permanent"),
        ],
    )
    def test_lossy_edit_is_refused(self, filled, raw, name, change, evidence):
        before = config(raw, name)
        result = filled("edit", "S", "--set", change)
        assert (result.exit_code, evidence in result.err) == (1, True), result.err
        assert "--force lossy-edit" in result.err
        assert config(raw, name) == before
        tried = filled("edit", "S", "--set", change, "--dry-run")
        assert (tried.exit_code, "needs `--force lossy-edit`" in tried.err) == (0, True)

    def test_lossy_edit_is_made_with_force(self, filled, raw, name):
        assert filled("edit", "S", "--set", "max_msgs=2", "--force", "lossy-edit").exit_code == 0
        assert raw.api(f"STREAM.INFO.{name}")["state"]["messages"] == 2

    def test_edit_of_a_bucket_stream_reports_bucket_hazards(self, run, raw, server, name):
        raw.create_bucket(name, max_msgs_per_subject=5)
        for _ in range(3):
            raw.put(name, "k", b"")
        result = run("stream", "edit", f"KV_{name}", "--set", "max_msgs_per_subject=1", "-s", server.url)
        assert (result.exit_code, "removes 2 messages of 1 subject" in result.err) == (1, True)

    def test_stream_of_a_table_is_not_changed(self, stream, raw, name):
        raw.api(f"STREAM.CREATE.{name}", {"name": name, "metadata": {"kvctl.kind": "table"}})
        for verb, *args in (("edit", "--set", "description=x"), ("delete", "--yes"), ("purge", "--yes")):
            result = stream(verb, "S", *args)
            assert (result.exit_code, "belongs to a table" in result.err) == (1, True)
        assert stream("edit", "S", "--set", "description=x", "--force", "foreign-kind").exit_code == 0


class TestGet:
    def test_get_of_one_message_prints_all_fields(self, filled, snapshot):
        assert filled("get", "S", "3", "-o", "json") == snapshot
        assert filled("get", "S", "4", "-o", "json") == snapshot
        assert filled("get", "S", "3", tty=True) == snapshot
        assert filled("get", "S", "3") == snapshot

    @pytest.mark.parametrize("leader", [(), ("--leader",)])
    def test_get_supports_every_form(self, filled, leader):
        for line, sequences in FORMS.items():
            result = filled("get", "S", *line.split(), *leader, "-o", "json")
            if leader and ("--batch" in line or "--last-of" in line):
                option = "--last-of" if "--last-of" in line else "--batch"
                assert result.exit_code == 2
                assert f"`--leader` cannot be combined with `{option}`" in result.err
                continue
            found = rows(result)
            found = found if isinstance(found, list) else [found]
            assert [row["sequence"] for row in found] == sequences, line
            names = "stream subject sequence time headers data encoding pending last_sequence up_to_sequence"
            assert set(found[0]) == {*names.split()}

    def test_get_accepts_a_printed_time(self, filled):
        third = rows(filled("get", "S", "3", "-o", "json"))
        found = rows(filled("get", "S", "--last-of", "S.a", "--up-to-time", third["time"], "-o", "json"))
        assert [row["data"] for row in found] == ["three"]

    def test_get_without_direct_get_reads_through_the_leader(self, stream, raw, name):
        stream("create", "S", "--subject", "S.>")
        raw.request(f"{name}.a", b"x")
        assert rows(stream("get", "S", "1", "-o", "json"))["data"] == "x"

    def test_get_of_several_messages_without_direct_get_is_refused_by_name(self, stream, raw, name, snapshot):
        stream("create", "S", "--subject", "S.>")
        raw.request(f"{name}.a", b"x")
        assert stream("get", "S", "1", "--batch", "2") == snapshot
        assert stream("get", "S", "--last-of", "S.>", "-o", "json").exit_code == 1

    def test_get_of_a_missing_message_is_not_found(self, filled, snapshot):
        assert filled("get", "S", "99") == snapshot
        lines = "get NONE 1,get NONE 1 --batch 2,get NONE 1 --leader,subjects NONE,delete-message NONE 1"
        for line in f"{lines},edit NONE --set max_age=1h".split(","):
            result = filled(*line.split())
            assert (result.exit_code, result.err.splitlines()[0]) == (3, "error: Stream `NONE` does not exist")


def test_subjects_lists_counts(filled, name):
    found = rows(filled("subjects", "S", "-o", "json"))
    assert found == [{"subject": f"{name}.{key}", "messages": count} for key, count in (("a", 3), ("b", 1), ("c", 1))]
    assert filled("subjects", "S", "S.b").out == f"{name}.b\t1\n"


class TestRemoving:
    def test_delete_message_deletes_one_message(self, filled, snapshot):
        assert filled("delete-message", "S", "2", "--dry-run", "-o", "json") == snapshot
        assert rows(filled("get", "S", "2", "-o", "json"))["data"] == "two"
        assert filled("delete-message", "S", "2", "-o", "json") == snapshot
        assert filled("delete-message", "S", "3", "--no-erase").exit_code == 0
        assert filled("delete-message", "S", "2") == snapshot

    @pytest.mark.parametrize(
        ("options", "left"),
        [("", 0), ("--subject S.a", 2), ("--seq 3", 3), ("--keep 2", 2), ("--subject S.a --keep 1", 3)],
    )
    def test_purge_removes_the_matching_messages(self, filled, raw, name, options, left):
        assert rows(filled("purge", "S", *options.split(), "--dry-run", "-o", "json"))["messages"] == 5 - left
        assert raw.api(f"STREAM.INFO.{name}")["state"]["messages"] == 5
        assert rows(filled("purge", "S", *options.split(), "--yes", "-o", "json"))["messages"] == 5 - left
        assert raw.api(f"STREAM.INFO.{name}")["state"]["messages"] == left

    def test_purge_of_one_message_is_counted_in_the_singular(self, filled):
        assert "Purged 1 message of" in filled("purge", "S", "--keep", "4", "--yes", tty=True).out

    def test_purge_and_delete_ask(self, filled, raw, name, snapshot):
        assert filled("purge", "S").exit_code == 2
        assert filled("delete", "S").exit_code == 2
        assert filled("purge", "S", stdin=b"n\n", tty=True) == snapshot
        assert filled("delete", "S", stdin=b"n\n", tty=True) == snapshot
        assert raw.api(f"STREAM.INFO.{name}")["state"]["messages"] == 5
        assert filled("delete", "S", stdin=b"y\n", tty=True).exit_code == 0
        assert filled("delete", "S", "--yes").exit_code == 3

    def test_delete_of_an_origin_asks_for_its_name(self, filled, raw, name):
        raw.api(f"STREAM.CREATE.{name}_M", {"name": f"{name}_M", "mirror": {"name": name}})
        (dependent,) = rows(filled("delete", "S", "--dry-run", "-o", "json"))["dependents"]
        assert (dependent["name"], dependent["stream"]) == (f"{name}_M", f"{name}_M")
        refused = filled("delete", "S", "--yes")
        assert (refused.exit_code, f"`{name}_M` replicates `{name}`" in refused.err) == (2, True)
        assert filled("delete", "S", "--confirm", name).exit_code == 0


class TestPurgeOfReplicatedStreams:
    @pytest.fixture
    def replica(self, raw, name):
        """Create a stream that replicates from `S`."""
        raw.api(f"STREAM.CREATE.{name}_M", {"name": f"{name}_M", "sources": [{"name": name}]})
        return f"{name}_M"

    def test_purge_of_an_origin_asks_for_its_name(self, filled, raw, name, replica):
        (dependent,) = rows(filled("purge", "S", "--dry-run", "-o", "json"))["dependents"]
        assert dependent["stream"] == replica
        refused = filled("purge", "S", "--yes")
        assert (refused.exit_code, f"`{replica}`" in refused.err) == (2, True)
        assert filled("purge", "S", "--confirm", f"{name}x").exit_code == 2
        assert raw.api(f"STREAM.INFO.{name}")["state"]["messages"] == 5
        assert filled("purge", "S", "--confirm", name).exit_code == 0
        assert raw.api(f"STREAM.INFO.{name}")["state"]["messages"] == 0

    def test_purge_of_a_replica_asks_for_its_name(self, filled, raw, name, replica):
        refused = filled("purge", replica, "--yes")
        assert (refused.exit_code, "purged messages return only with" in refused.err) == (2, True)
        assert filled("purge", replica, "--confirm", replica).exit_code == 0


def test_message_that_arrives_during_the_prompt_is_not_purged(filled, raw, server, name):
    with Dialogue("stream", "purge", name, "-s", server.url) as dialogue:
        assert "Purge 5 messages" in dialogue.hear("[y/N]")
        raw.request(f"{name}.a", b"late")
        dialogue.say("y")
        assert dialogue.end() == 0
    assert raw.api(f"STREAM.INFO.{name}")["state"]["messages"] == 1


def test_read_only_connection_changes_nothing(filled, raw, name):
    for line in "create S2,edit S --set description=x,purge S --yes,delete S --yes,delete-message S 1".split(","):
        assert filled(*line.split(), "--read-only").exit_code == 1
    assert raw.api(f"STREAM.INFO.{name}")["state"]["messages"] == 5
