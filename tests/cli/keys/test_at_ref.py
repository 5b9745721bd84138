"""The key commands at a ref of a repository, and completion of NAME@REF."""

import json

import pytest

from tests.cli.repos import Repo


@pytest.fixture
def repo(run, server, unique):
    """A repository with a tag, and one key of it staged."""
    made = Repo(run, server.url, unique("R"))
    assert made("init", ".").exit_code == 0
    made.commit("one", app_port="80", app_host="here")
    made.text("tag", "create", "@v1")
    made.put(app_port="81")
    yield made
    made("delete", ".", "--yes")


class TestReading:
    def test_what_is_staged_is_read_at_the_branch_alone(self, repo):
        one = repo.json("repo", "show", "@v1")["id"]
        assert repo.text("get", "@main", "app.port") == repo.text("get", "@main$", "app.port") == "81"
        for ref in ("v1", "main@", one, one[:6]):
            assert repo.text("get", f"@{ref}", "app.port") == "80"
        assert repo.run("get", "@main~1", "app.port").exit_code == 3
        assert repo.run("get", "@nope", "app.port").exit_code == 3
        for line in ("get @v1@ app.port", "bucket show @main", "bucket compact @main"):
            assert repo.run(*line.split()).exit_code == 2

    def test_exact_bytes(self, repo):
        value = bytes(range(256))
        assert repo.run("put", "@main", "raw", "-", stdin=value).exit_code == 0
        assert repo.run("get", "@main", "raw").stdout == value
        assert repo.run("get", "@main", "raw", "--encoding", "utf-8").exit_code == 1
        assert repo.json("get", "@main", "raw")["encoding"] == "base64"

    def test_entries_have_an_identity_and_staged_ones_a_revision(self, repo, snapshot):
        assert repo.run("get", "@main", "app.port", "-o", "json") == snapshot
        assert repo.run("get", "@main", "app.host", "-o", "json") == snapshot
        assert repo.run("get", "@main", "app.host", "app.port", tty=True) == snapshot
        assert repo.run("get", "@main", "app.port", "app.*", "none") == snapshot
        assert repo.run("get", "@main", "zzz.*", tty=True) == snapshot

    def test_keys(self, repo, snapshot):
        repo.text("delete", "@main", "app.host")
        assert repo.text("keys", "@main") == "app.port"
        assert repo.text("keys", "@main@").split() == ["app.host", "app.port"]
        assert repo.text("keys", "@v1", "app.*", "--limit", "1") == "app.host"
        assert repo.run("keys", "@main", "-o", "json") == snapshot
        assert repo.json("keys", "@v1", "--count") == {"bucket": repo.name, "ref": "v1", "count": 2}

    def test_history(self, repo, snapshot):
        repo.commit("two\n\nand why")
        repo.text("delete", "@main", "app.port")
        shown = repo.run("history", "@main", "app.port", tty=True)
        assert shown.masked({r" {2,}": "  "}) == snapshot
        assert repo.run("history", "@main") == snapshot
        rows = [json.loads(line) for line in repo.text("history", "@main", "app.port", "-o", "ndjson").splitlines()]
        written = [("PUT", "80", "one"), ("PUT", "81", "two\n\nand why"), ("DEL", "", None)]
        assert [(row["operation"], row["value"], row.get("message")) for row in rows] == written
        assert [isinstance(row.get("revision"), int) for row in rows] == [False, False, True]
        assert len(repo.json("history", "@main@", "--limit", "2")) == 2
        since = repo.text("history", "@main", "-o", "ndjson", "--since", rows[1]["created"]).splitlines()
        assert [json.loads(line)["value"] for line in since] == ["81", ""]
        assert [row["operation"] for row in repo.json("history", "@main", "--since", "2100-01-01T00:00:00Z")] == ["DEL"]


class TestWriting:
    def test_a_write_prints_its_revision_alone(self, repo):
        revision = repo.text("put", "@main", "k", "v")
        assert int(revision) > 10**15
        assert repo.json("get", "@main", "k")["revision"] == int(revision)
        written = repo.json("put", "@main", "k", "w")
        assert list(written) == ["bucket", "ref", "key", "revision", "identity"]
        assert written["identity"] == repo.json("get", "@main", "k")["identity"]

    def test_put_if_different_writes_only_what_is(self, repo):
        assert repo.text("put", "@main", "app.host", "here", "--if-different") == ""
        assert repo.json("repo", "status", "@main")["changes"] == [{"change": "changed", "key": "app.port"}]
        assert repo.text("put", "@main", "app.port", "81", "--if-different") == repo.text(
            "put", "@main", "app.port", "81", "--if-different"
        )

    def test_create(self, repo, snapshot):
        assert repo.run("create", "@main", "app.host", "x") == snapshot
        assert repo.run("create", "@main", "app.port", "x") == snapshot
        repo.text("create", "@main", "new", "x")

    @pytest.mark.guarantee("versions-3")
    def test_update_by_identity_or_staged_revision(self, repo, snapshot):
        committed = repo.json("get", "@main", "app.host")["identity"]
        staged = repo.json("get", "@main", "app.port")
        repo.text("update", "@main", "app.host", "there", committed)
        assert repo.run("update", "@main", "app.host", "x", committed) == snapshot
        repo.text("update", "@main", "app.port", "82", "--if-revision", str(staged["revision"]))
        assert repo.run("update", "@main", "app.port", "83", str(staged["revision"])) == snapshot
        assert repo.run("update", "@main", "none", "x", "7") == snapshot
        assert repo.text("get", "@main", "app.port") == "82"

    def test_staged_change_is_named_on_a_terminal(self, repo):
        assert repo.run("put", "@main", "app.port", "82", tty=True).err.strip() == "Staged `app.port` on `main`"
        deleted = repo.run("delete", "@main", "app.port", tty=True)
        assert deleted.err.strip() == "Staged the deletion of `app.port` on `main`"
        assert repo.run("put", "@main", "k", "v", "-o", "table", tty=True).out.startswith("Revision")

    def test_delete(self, repo, snapshot):
        identity = repo.json("get", "@main", "app.host")["identity"]
        assert repo.run("delete", "@main", "app.host", "--if-revision", "0" * 40).exit_code == 4
        assert repo.run("delete", "@main", "app.host", "none") == snapshot
        assert repo.run("delete", "@main", "app.host").exit_code == 3
        repo.text("delete", "@main", "app.host", "--ignore-missing")
        repo.text("repo", "reset", "@main", "--key", "app.host")
        repo.text("delete", "@main", "app.host", "--if-revision", identity)

    def test_delete_what_matches(self, repo, snapshot):
        assert repo.run("delete", "@main", "--match", "app.*") == snapshot
        assert repo.run("delete", "@main", "--match", "app.*", "--dry-run") == snapshot
        assert repo.run("delete", "@main", "--match", "app.*", tty=True, stdin=b"n\n") == snapshot
        assert len(repo.text("delete", "@main", "--match", "app.*", "--yes").split()) == 2
        assert repo.text("keys", "@main") == ""
        assert repo.text("keys", "@v1").split() == ["app.host", "app.port"]

    def test_for_several_keys_json_is_an_array_whatever_was_there(self, repo):
        assert len(repo.json("delete", "@main", "app.host", "none", "--ignore-missing")) == 1
        assert repo.json("delete", "@main", "--match", "none", "--yes") == []

    @pytest.mark.guarantee("versions-1")
    def test_writes_need_a_branch(self, repo):
        one = repo.json("repo", "show", "@v1")["id"]
        for ref in ("v1", one, "main@"):
            for line in (("put", f"@{ref}", "k", "v"), ("delete", f"@{ref}", "app.port"), ("load", f"@{ref}", "-")):
                assert repo.run(*line).exit_code == 2
        assert repo.run("repo", "status", "@v1").exit_code == 2
        assert repo.run("put", "@nope", "k", "v").exit_code == 3


class TestTransfer:
    def test_what_is_dumped_is_loaded(self, repo, tmp_path):
        repo.run("put", "@main", "raw", "-", stdin=b"\xff\x00")
        path = tmp_path / "dump.ndjson"
        assert json.loads(repo.text("dump", "@main", "--to", str(path), "-o", "json"))["entries"] == 3
        header = json.loads(path.read_text().splitlines()[0])
        assert {
            "kvctl": "dump",
            "bucket": repo.name,
            "ref": "main",
            "staged": 2,
            "exact": True,
        }.items() <= header.items()
        repo.text("branch", "create", "@copy")
        assert repo.json("load", "@copy", str(path)) == {"written": 3, "unchanged": 0, "rejected": 0}
        assert repo.json("load", "@copy", str(path), "--if-different")["unchanged"] == 3
        assert repo.run("get", "@copy", "raw").stdout == b"\xff\x00"
        repo.text("bucket", "add", f"{repo.name}-B")
        assert repo.text("dump", "@v1", "app.port").count("\n") == 2
        assert json.loads(repo.text("load", f"{repo.name}-B", str(path), "-o", "json"))["written"] == 3
        damaged = path.read_bytes().replace(b"here", b"gone")
        assert repo.run("load", "@copy", "-", stdin=damaged).exit_code == 4

    def test_rows(self, repo, snapshot):
        rows = [
            {"key": "app.host", "value": "other"},
            {"key": "new", "value": "AP8=", "encoding": "base64"},
            {"key": "short", "value": "1", "ttl": 60},
            {"key": "a..b", "value": "1"},
            {"key": "new", "value": "last"},
        ]
        text = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        assert repo.run("load", "@main", "-", "--strict", stdin=text).exit_code == 2
        assert repo.run("load", "@main", "-", "--dry-run", stdin=text).out == "3\t0\t2\n"
        assert repo.text("get", "@main", "app.host") == "here"
        assert repo.run("load", "@main", "-", "--create-only", stdin=text) == snapshot
        assert repo.text("get", "@main", "app.host") == "here"
        assert repo.run("load", "@main", "-", stdin=text).exit_code == 7
        assert [repo.text("get", "@main", key) for key in ("app.host", "new")] == ["other", "last"]


class TestCompletion:
    def test_of_places(self, repo, run, server):
        def offered(*words: str) -> list[str]:
            for _ in range(5):  # a busy server may not answer in time
                if lines := run("__complete", "--", "-s", server.url, *words).out.splitlines():
                    return [line.partition("\t")[0] for line in lines]
            return []

        assert offered("get", repo.name) == [f"{repo.name}@"]
        assert offered("get", f"{repo.name}@") == [f"{repo.name}@main", f"{repo.name}@v1"]
        assert offered("put", f"{repo.name}@m") == [f"{repo.name}@main"]
        assert offered("get", f"{repo.name}@main", "app.p") == ["app.port"]
        assert offered("repo", "show", f"{repo.name}@v") == [f"{repo.name}@v1"]
        assert offered("repo", "status", f"{repo.name}@") == [f"{repo.name}@main"]
        assert offered("tag", "delete", f"{repo.name}@") == [f"{repo.name}@v1"]
        assert offered("repo", "merge", repo.name, "v") == ["v1"]
        assert offered("repo", "diff", f"{repo.name}@main", "") == ["main", "v1"]
        assert offered("watch", repo.name) == []
