"""Repository commands as processes: output, arguments and exit codes."""

import json
import re

import pytest

from tests.cli.repos import Repo


@pytest.fixture
def repo(run, server, unique):
    """Create a repository, deleted after the test."""
    made = Repo(run, server.url, unique("R"))
    assert made("init", ".").exit_code == 0
    yield made
    made("delete", ".", "--yes")


class TestRepositories:
    def test_help_lists_commands_by_their_use_and_upkeep_last(self, run):
        listed = re.findall(r"^  ([a-z-]+)  +[A-Z]", run("repo", "--help").out, re.MULTILINE)
        everyday = "status commit log diff merge revert cherry-pick merge-base reset checkout"
        assert listed == ["init", "ls", "show", "delete", *everyday.split(), "annotate", "gc"]

    def test_init_without_branches_names_the_newest_commit(self, repo):
        repo.text("put", "@main", "k", "v")
        identity = repo.text("repo", "commit", "@main", "-m", "one")
        repo.text("branch", "delete", "@main", "--yes")
        result = repo("init", ".")
        assert result.exit_code == 0
        assert "has no branches" in result.out
        assert f"kvctl branch create {repo.name}@main --from {identity}" in result.out
        repo.text("branch", "create", "@main", "--from", identity)
        assert repo.text("get", "@main", "k") == "v"

    def test_init_again_changes_nothing_or_conflicts(self, repo, snapshot):
        assert repo("init", ".") == snapshot
        assert repo("init", ".", "--description", "other") == snapshot
        assert json.loads(repo("init", "new", "--dry-run", "-o", "json").out)["allow_atomic"] is True
        assert repo("show", "new").exit_code == 3

    def test_show_lists_branches_and_tags(self, repo, snapshot):
        repo.text("tag", "create", "@v1")
        repo.put(c="staged")
        assert repo("show", ".", tty=True) == snapshot
        shown = repo.json("repo", "show", ".")
        assert [(one["name"], one["commit"] == shown["tags"][0]["commit"]) for one in shown["branches"]] == [
            ("main", True)
        ]
        assert repo.name in repo.text("repo", "ls", "-o", "name").splitlines()
        assert repo.json("repo", "info", ".") == repo.json("repo", "view", ".") == shown  # `status` is another command

    def test_delete_asks_for_confirmation(self, repo, snapshot):
        assert repo("delete", ".") == snapshot
        assert repo("delete", ".", tty=True, stdin=b"n\n").exit_code == 1
        assert repo("delete", ".", "--dry-run") == snapshot
        assert repo("delete", ".", tty=True, stdin=b"y\n") == snapshot
        assert repo("delete", ".", "--yes").exit_code == 3

    def test_mirror_of_a_repository_is_read_only_and_guards_its_deletion(self, repo, snapshot):
        repo.commit("one", a="1")
        mirror = f"{repo.name}-M"
        repo.text("mirror", "create", mirror, "--origin", ".")
        assert mirror in repo.text("mirror", "ls", "-o", "name").splitlines()
        assert repo.text("get", f"{mirror}@main", "a") == "1"
        assert repo.run("put", f"{mirror}@main", "a", "2") == snapshot
        assert repo.run("put", mirror, "a", "2").exit_code == 1
        assert repo.run("mirror", "promote", mirror, "--as", f"{mirror}-B") == snapshot
        plan = repo.text("topology", "export", mirror)
        assert repo.run("topology", "plan", "-f", "-", stdin=plan.encode()).out == "Nothing to change\n"
        assert repo("delete", ".", "--yes") == snapshot
        repo.text("repo", "delete", ".", "--confirm", repo.name)
        assert repo.text("get", f"{mirror}@main", "a") == "1"
        repo.text("mirror", "delete", mirror, "--yes")

    @pytest.mark.guarantee("versions-19")
    def test_bucket_commands_name_the_repository_command(self, repo, snapshot):
        stream = f"KVR_{repo.name}"
        rows = repo.json("bucket", "ls", "--all")
        assert [row["kind"] for row in rows if row["name"] == repo.name] == ["repository"]
        lines = (
            "put . a 1, get . a, purge . a --yes, watch ., watch @main, bucket show ., bucket edit . --history 5, "
            f"bucket compact ., aggregate create AG --origin ., stream purge {stream} --yes, "
            f"stream edit {stream} --set allow_atomic=false"
        )
        for line in lines.split(", "):
            assert repo.run(*line.split()) == snapshot
        forced = repo.run("stream", "edit", stream, "--set", "description=x", "--force", "foreign-kind")
        assert forced.exit_code == 0


class TestCommits:
    def test_staged_changes_are_shown_and_committed(self, repo, snapshot):
        repo.commit("first", app_port="80", app_host="here", gone="1")
        repo.put(app_port="81", new="\x1b[2J")
        repo.text("delete", "@main", "gone")
        assert repo("status", "@main", tty=True) == snapshot
        assert repo("status", "@main") == snapshot
        assert repo("diff", "@main", tty=True) == snapshot
        assert repo("diff", "@main", "--exit-code").exit_code == 8
        assert repo("commit", "@main", "-m", "Change\n\nBecause.", "--meta", "ticket=7", tty=True) == snapshot
        assert repo("status", "@main", tty=True) == snapshot
        assert repo("diff", "@main", "--exit-code") == snapshot
        assert repo("commit", "@main", "-m", "again") == snapshot
        assert repo.text("repo", "commit", "@main", "-m", "empty", "--allow-empty")

    def test_commit_prints_all_fields_in_json(self, repo):
        first = repo.json("repo", "show", "@main")
        repo.put(a="1")
        made = repo.json("repo", "commit", "@main", "-m", "one", "--meta", "k=v", "--author", "bob")
        assert list(made) == ["id", "root", "parents", "message", "author", "created", "meta", "generation"]
        assert made["parents"] == [first["id"]]
        assert (made["message"], made["author"], made["meta"], made["generation"]) == ("one", "bob", {"k": "v"}, 1)
        assert repo.json("repo", "show", f"@{made['id'][:8]}") == made
        assert repo.json("repo", "log", "@main") == [made, first]

    def test_log_prints_blocks_graphs_and_json(self, repo, snapshot):
        repo.commit("one", a="1")
        repo.text("branch", "create", "@try")
        repo.commit("two", a="2")
        repo.commit("three", "try", b="1")
        repo.text("repo", "merge", ".", "try", "main", "-m", "Bring it\n\nAll of it.")
        repo.text("tag", "create", "@v1")
        assert repo("log", "@main", tty=True) == snapshot
        assert repo("log", "@main", "--graph", tty=True) == snapshot
        assert repo("log", "@main", "--graph") == snapshot
        assert "\x1b[33m" in repo("log", "@main", tty=True, env={"NO_COLOR": "", "FORCE_COLOR": "1"}).out
        table = repo.text("repo", "log", "@main", "-o", "table").splitlines()
        assert len({line.index("ann@laptop") for line in table[2:]} | {table[0].index("author")}) == 1
        messages = [json.loads(line)["message"] for line in repo("log", "@main", "-o", "ndjson").out.splitlines()]
        assert messages == ["Bring it\n\nAll of it.", "three", "two", "one", "Repository created"]
        assert [one["message"] for one in repo.json("repo", "log", "@main", "--key", "a")] == ["two", "one"]
        assert len(repo.json("repo", "log", "@main", "--first-parent", "--limit", "2")) == 2
        assert len(repo.text("repo", "log", "@v1", "-o", "name").splitlines()) == 5

    def test_diff_compares_two_refs(self, repo, snapshot):
        repo.commit("one", a="1", b="1", c="1")
        repo.text("branch", "create", "@try")
        repo.commit("two", a="2", b="2")
        repo.commit("three", "try", a="3", d="1")
        repo.text("put", "@try", "raw", "-", stdin=b"\xff")
        assert repo("diff", "@main", "try", "--stat", tty=True) == snapshot
        assert repo("diff", "@main", "@try$", "--stat", tty=True) == snapshot
        assert repo("diff", "@main", "try", "--three-dot", "--stat", tty=True) == snapshot
        assert repo("diff", "@main", "try$", "-o", "json") == snapshot
        assert repo("diff", "@main", "main", "--exit-code").exit_code == 0
        assert repo("diff", "@main", "try", "--exit-code").exit_code == 8
        assert repo("diff", "@main", "nope").exit_code == 3

    def test_diff_on_a_terminal_shows_changed_lines(self, repo, snapshot):
        text = "server:\n  port: 8080\n  host: a\n  workers: 4\nlog:\n  level: info\n  path: \x1b[31m\n"
        repo.commit("one", app_yaml=text, app_port="80", gone="1")
        repo.put(app_yaml=text.replace("8080", "9090").replace("info", "debug"), app_port="81", new="1")
        repo.text("put", "@main", "raw", "-", stdin=b"\xff")
        repo.text("delete", "@main", "gone")
        assert repo("diff", "@main", tty=True) == snapshot
        coloured = repo("diff", "@main", "--color", "always", tty=True).out
        assert "\x1b[36m@@ -1 +1 @@\x1b[0m\n\x1b[31m-80\x1b[0m\n\x1b[32m+81\x1b[0m\n\x1b[1m--- a/app.yaml" in coloured
        assert re.sub(r"\x1b\[\d*m", "", coloured) == repo("diff", "@main", tty=True).out
        piped = repo("diff", "@main", "-p").out
        assert "-  port: 8080\n+  port: 9090\n" in piped
        assert "path: \x1b[31m\n" in piped
        assert repo("diff", "@main").out.startswith("changed\tapp.port\t80\t81\n")
        assert repo("diff", "@main", "--stat", tty=True).out.splitlines()[2].split() == ["~", "app.port", "80", "81"]
        assert repo("diff", "@main", "main", tty=True).exit_code == 0

    def test_annotate_names_the_last_commit_of_each_key(self, repo, snapshot):
        one = repo.commit("one", a_x="1", b="1")
        two = repo.commit("two", b="2")
        repo.put(c="staged")
        assert repo("annotate", "@main", tty=True) == snapshot
        found = {row["key"]: row["commit"] for row in repo.json("repo", "annotate", "@main")}
        assert found == {"a.x": one, "b": two, "c": None}
        assert repo.text("repo", "annotate", "@main", "a.*", "-o", "name") == "a.x"


class TestMerges:
    def test_merge_again_changes_nothing(self, repo, snapshot):
        repo.commit("one", a="1")
        repo.text("branch", "create", "@try")
        repo.commit("two", "try", b="1")
        repo.commit("three", c="1")
        assert repo("merge", ".", "try", "main", "--dry-run", tty=True) == snapshot
        merged = repo.json("repo", "merge", ".", "try", "main")
        assert (len(merged["parents"]), merged["message"]) == (2, "Merge try into main")
        assert repo("merge", ".", "try", "main") == snapshot
        assert repo("merge", ".", "try", "main").out.strip() == merged["id"]
        assert repo.text("repo", "merge-base", ".", "try", "main") == merged["parents"][1]

    def test_merge_bases_of_crossing_merges_are_listed_newest_first(self, repo, snapshot):
        repo.commit("one", port="80")
        repo.text("branch", "create", "@try")
        bases = [repo.commit("mine", port="8080"), repo.commit("theirs", "try", port="9090")]
        for source, dest in zip(reversed(bases), ("main", "try"), strict=True):
            repo.text("repo", "merge", ".", source, dest, "--strategy", "dest-wins")
        assert repo.text("repo", "merge-base", ".", "try", "main") == bases[1]
        assert repo.text("repo", "merge-base", ".", "try", "main", "--all", "-o", "name").split() == bases[::-1]
        assert [one["id"] for one in repo.json("repo", "merge-base", ".", "try", "main", "--all")] == bases[::-1]
        assert repo("merge-base", ".", "try", "main", "--all", tty=True) == snapshot
        assert repo("merge", ".", "try", "main", tty=True) == snapshot

    def test_conflicts_of_reverts_and_cherry_picks_are_resolved_by_a_strategy(self, repo):
        repo.commit("one", a="1", b="1")
        repo.text("branch", "create", "@try")
        repo.commit("two", a="2", b="2")
        later = repo.commit("three", a="3")
        assert repo("revert", "@main", "main~1").exit_code == 4
        repo.text("repo", "revert", "@main", "main~1", "--strategy", "dest-wins")
        assert [repo.text("get", "@main", key) for key in "ab"] == ["3", "1"]
        assert repo("cherry-pick", "@try", later).exit_code == 4
        repo.text("repo", "cherry-pick", "@try", later, "--strategy", "source-wins")
        assert [repo.text("get", "@try", key) for key in "ab"] == ["3", "1"]
        assert repo("revert", "@main", "main~1", "--strategy", "mine").exit_code == 2

    def test_metadata_given_twice_is_refused(self, repo):
        repo.put(a="1")
        result = repo("commit", "@main", "-m", "m", "--meta", "a=1", "--meta", "a=2")
        assert (result.exit_code, "`a` is given twice: `a=1` and `a=2`" in result.err) == (2, True)

    @pytest.mark.guarantee("versions-12")
    def test_merge_conflicts_are_listed_and_nothing_changes(self, repo, snapshot):
        repo.commit("one", a="1", b="1", c="1")
        repo.text("branch", "create", "@try")
        repo.commit("two", a="2", b="2")
        head = repo.commit("other", c="2")
        repo.commit("three", "try", a="3", b="3", d="1")
        assert repo("merge", ".", "try", "main", tty=True) == snapshot
        assert repo("merge", ".", "try", "main", "-o", "json") == snapshot
        assert repo("merge", ".", "try", "main", "--dry-run").exit_code == 4
        assert repo.json("repo", "show", "@main")["id"] == head
        repo.text("repo", "merge", ".", "try", "main", "--strategy", "source-wins", "--squash")
        assert len(repo.json("repo", "show", "@main")["parents"]) == 1
        assert [repo.text("get", "@main", key) for key in "abcd"] == ["3", "3", "2", "1"]

    def test_staged_changes_refuse_merge_revert_and_reset(self, repo, snapshot):
        one = repo.commit("one", a="1")
        repo.text("branch", "create", "@try")
        repo.commit("two", "try", b="1")
        repo.put(c="1")
        assert repo("merge", ".", "try", "main") == snapshot
        for line in (f"revert @main {one}", "cherry-pick @main try", f"reset @main --hard {one}"):
            assert repo(*line.split()).exit_code == 4
        assert repo.json("repo", "show", "@main")["id"] == one

    def test_revert_and_cherry_pick_make_new_commits(self, repo, snapshot):
        repo.commit("one", a="1")
        two = repo.commit("two", a="2", b="1")
        assert repo("revert", "@main", two, "--dry-run", tty=True) == snapshot
        made = repo.json("repo", "revert", "@main", "main")
        assert (made["message"], made["meta"]) == ("Revert `two`", {"reverts": two})
        assert repo.text("get", "@main", "a") == "1"
        assert repo("revert", "@main", two).exit_code == 1
        assert repo.json("repo", "revert", "@main", "main")["message"] == "Reapply `two`"
        assert repo.json("repo", "revert", "@main", "main")["message"] == "Revert `two`"
        again = repo.json("repo", "cherry-pick", "@main", two)
        assert (again["message"], again["meta"]) == ("two", {"cherry-picked-from": two})
        repo.commit("three", a="3")
        assert repo("revert", "@main", two) == snapshot
        repo.text("branch", "create", "@try", "--from", two)
        repo.commit("side", "try", z="1")
        repo.text("repo", "merge", ".", "try", "main")
        assert repo("revert", "@main", "main") == snapshot
        assert repo.json("repo", "revert", "@main", "main", "--parent", "1")["generation"] > 4

    def test_reset_drops_staged_changes_or_moves_the_branch(self, repo, snapshot):
        one = repo.commit("one", a="1", app_x="1", app_y="1")
        repo.commit("two", a="2")
        repo.put(a="3", app_x="3", app_y="3", b="3")
        assert repo("reset", "@main", "--prefix", "app.", "--dry-run", tty=True) == snapshot
        repo.text("repo", "reset", "@main", "--key", "a")
        assert repo.text("repo", "status", "@main", "-o", "name").split() == ["app.x", "app.y", "b"]
        repo.text("repo", "reset", "@main", "--prefix", "app.")
        assert repo.json("repo", "reset", "@main")["keys"] == [{"key": "b"}]
        assert repo("reset", "@main") == snapshot
        assert repo.text("repo", "reset", "@main", "--hard", "main~1") == one
        assert repo.text("get", "@main", "a") == "1"

    def test_gc_asks_and_removes_unreachable_commits(self, repo, snapshot):
        repo.text("branch", "create", "@try")
        gone = repo.commit("one", "try", a="1")
        repo.text("branch", "delete", "@try", "--yes")
        assert repo.json("repo", "show", f"@{gone}")["id"] == gone
        assert repo("gc", ".") == snapshot
        would = repo.json("repo", "gc", ".", "--dry-run")
        assert repo.json("repo", "gc", ".", "--yes") == would
        assert (would["commits"], would["objects"]) == (1, 1)
        assert repo("show", f"@{gone}").exit_code == 3


class TestBranchesAndTags:
    def test_branches_are_created_listed_shown_and_deleted(self, repo, snapshot):
        one = repo.commit("one", a="1")
        two = repo.commit("two", a="2")
        repo.put(a="3")
        repo.text("branch", "create", "@try")
        assert repo.text("get", "@try", "a") == "2"
        assert repo.run("branch", "create", "@try") == snapshot
        assert repo.run("branch", "create", "@try", "--from", one) == snapshot
        assert repo.run("branch", "create", "@other", "--from", "nope").exit_code == 3
        listed = repo.json("branch", "ls", ".")
        assert [(row["name"], row["commit"], row["staged"], row["message"]) for row in listed] == [
            ("main", two, 1, "two"),
            ("try", two, 0, "two"),
        ]
        table = repo.run("branch", "ls", ".", tty=True).out.splitlines()
        assert table[0].split() == ["name", "commit", "staged", "created", "message"]
        rows = [line.split() for line in table[2:]]  # an age is `just now` or `2s ago`
        assert [(*row[:3], row[-1]) for row in rows] == [("main", two[:12], "1", "two"), ("try", two[:12], "0", "two")]
        shown = repo.json("branch", "show", "@main")
        assert (shown["commit"], shown["staged"], shown["last"]["message"]) == (two, 1, "two")
        assert repo.run("branch", "show", "@nope").exit_code == 3
        assert repo.run("branch", "delete", "@try") == snapshot
        assert repo.run("branch", "delete", "@main", tty=True, stdin=b"n\n") == snapshot
        repo.text("branch", "delete", "@try", "--yes")
        assert repo.run("branch", "delete", "@try", "--yes").exit_code == 3
        assert repo.run("branch", "delete", "@try", "--ignore-missing").exit_code == 0
        assert repo.text("repo", "branch", "ls", ".", "-o", "name") == "main"

    def test_tags_are_created_listed_and_deleted(self, repo, snapshot):
        one = repo.commit("one", a="1")
        repo.commit("two", a="2")
        repo.text("tag", "create", "@v1.0", one)
        assert repo.run("tag", "create", "@v1.0", one) == snapshot
        assert repo.run("tag", "create", "@v1.0") == snapshot
        assert repo.run("tag", "create", "@main").exit_code == 4
        turned = repo.run("tag", "create", "@main", "v2")  # the wrong way round
        assert (turned.exit_code, f"hint: To tag `main`: `kvctl tag create {repo.name}@v2 main`" in turned.err) == (
            3,
            True,
        )
        (listed,) = repo.json("tag", "ls", ".")
        assert (listed["name"], listed["commit"], listed["message"]) == ("v1.0", one, "one")
        shown = repo.json("tag", "show", "@v1.0")
        assert (shown["name"], shown["commit"], shown["last"]) == ("v1.0", one, repo.json("repo", "show", "@v1.0"))
        assert repo.run("tag", "show", "@v1.0", tty=True).masked({r"20\S+Z": "TIME"}) == snapshot
        assert repo.text("tag", "show", "@v1.0").splitlines()[:3] == [
            "name\tv1.0",
            f"repository\t{repo.name}",
            f"commit\t{one}",
        ]
        assert repo.run("tag", "show", "@v2").exit_code == 3
        assert repo.text("get", "@v1.0", "a") == "1"
        assert repo.run("put", "@v1.0", "a", "2") == snapshot
        repo.text("tag", "delete", "@v1.0")
        assert repo.run("tag", "delete", "@v1.0").exit_code == 3


def test_missing_refs_exit_3(repo, run, server, snapshot):
    for line in ("show @nope", "log @nope", "status @nope", "commit @nope -m x", "show @dead", "show @main^2"):
        result = repo(*line.split())
        assert result.exit_code == 3
        assert f"{line}: {' '.join(result.err.replace(repo.name, 'REPO').split())}" == snapshot
    assert run("repo", "show", "nowhere", "-s", server.url).exit_code == 3


def test_read_only_connection_reads_but_does_not_write(repo):
    repo.commit("one", a="1")
    assert repo.text("get", "@main", "a", "--read-only") == "1"
    assert repo.text("repo", "log", "@main", "-o", "name", "--read-only")
    lines = "put @main a 2, repo commit @main -m x, branch create @b, repo delete . --yes, repo gc . --yes"
    for line in (*lines.split(", "), "load @main -"):
        assert repo.run(*line.split(), "--read-only").exit_code == 1
    for line in ("repo delete .", "branch delete @main", "delete @main a"):
        assert repo.run(*line.split(), "--dry-run", "--read-only").exit_code == 0
