"""Completion as the shells do it: commands, options, files and live names, and silence when something fails."""

import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvctl.cli.app.completion import SCRIPTS
from tests.cli.commands import every_command
from tests.cli.conftest import run_process
from tests.support.patience import quickest

KEYS = ["app.port", "app.host", "app.db.user", "app.db.password", "apple", "k=v.x", "k=v.y", "solo"]

PATIENT = """
import sys
import kvctl.cli.app.live_names
from kvctl.__main__ import main
kvctl.cli.app.live_names.BUDGET = 60.0
sys.exit(main())
"""
"""kvctl, where a slow machine has time enough to complete."""


@pytest.fixture
def offered(run):
    """Return the candidates of `kvctl __complete` for the last word of a line."""

    def complete(*words: str) -> list[str]:
        result = run("__complete", "--", *words)
        assert (result.exit_code, result.err) == (0, "")
        return [line.partition("\t")[0] for line in result.out.splitlines()]

    return complete


@pytest.fixture
def bucket(server, raw, unique):
    """A bucket with KEYS."""
    name = unique("COMPLETE")
    raw.create_bucket(name)
    for key in KEYS:
        raw.put(name, key, b"x")
    return name


@pytest.fixture
def program(tmp_path):
    """An environment in which `kvctl` is a program, and the scripts of the shells are files in $SCRIPTS."""
    (tmp_path / "kvctl").write_text(f"#!{sys.executable}\n{PATIENT}")
    (tmp_path / "kvctl").chmod(0o755)
    for shell, script in SCRIPTS.items():
        (tmp_path / {"zsh": "_kvctl"}.get(shell, f"kvctl.{shell}")).write_text(script)
    here = str(Path(__file__).parents[3])
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": here, "SCRIPTS": str(tmp_path)}


class TestWords:
    def test_commands_with_their_summaries(self, run):
        assert run("__complete", "--", "buck").out == "bucket\tCreate, inspect, change and move buckets\n"

    def test_commands_of_groups(self, offered):
        assert "ls" in offered("bucket", "")
        assert offered("-q", "bucket", "-s", "nats://x:1", "l") == ["ls"]

    def test_groups_by_their_aliases(self, offered):
        assert "--history" in offered("bucket", "create", "--h")

    def test_hidden_commands_are_not_offered(self, offered):
        assert "__complete" not in offered("")
        assert offered("__") == []

    def test_options_own_ones_first(self, offered):
        found = offered("bucket", "add", "B", "--")
        assert found.index("--history") < found.index("--context")
        assert "--js-domain" not in found

    @pytest.mark.parametrize("words", [("-o", "nd"), ("bucket", "ls", "--output", "nd")], ids=" ".join)
    def test_values_of_options(self, offered, words):
        assert offered(*words) == ["ndjson"]

    def test_values_after_an_equals_sign(self, offered):
        assert offered("--output=nd") == ["--output=ndjson"]

    def test_files(self, offered, run):
        assert run("__complete", "--", "--creds", "").out.startswith("\tfiles")
        assert run("__complete", "--", "--tls-ca=x").out.startswith("\tfiles")

    def test_topics_and_commands_of_help(self, offered):
        assert {"exit-codes", "edit"} <= set(offered("help", "e"))
        assert offered("help", "bucket", "l") == ["ls"]

    def test_labs(self, offered):
        assert offered("server", "run", "--lab", "") == ["cluster", "supercluster", "leaf", "accounts"]
        assert offered("server", "stop", "") == offered("server", "stop", "--lab", "") == []

    def test_program_of_the_server_is_completed_as_a_file(self, run):
        assert run("__complete", "--", "server", "run", "--", "").out.startswith("\tfiles")

    def test_nonsense_offers_nothing(self, offered):
        assert offered("nonsense", "more", "") == []
        assert offered("completion", "bash", "bash", "more", "") == []
        assert offered("--output=") == [
            f"--output={name}" for name in ("table", "tsv", "json", "ndjson", "yaml", "name")
        ]


class TestKinds:
    """Names that fit the command, with descriptions."""

    def test_every_command_with_force_has_its_safety_checks(self):
        for path, (_, found) in every_command().items():
            takes = any("--force" in param.opts and not getattr(param, "hidden", False) for param in found.params)
            assert takes == bool(found.forces()), path

    def test_safety_checks_are_offered(self, offered):
        assert offered("mirror", "create", "M", "--force", "short") == ["shorter-history", "shorter-ttl"]
        assert offered("bucket", "rm", "B", "--force=") == ["--force=unreachable-stream"]

    def test_replicas_are_offered_to_their_commands(self, run, offered, server, bucket):
        at, mirror, aggregate = ("-s", server.url), f"{bucket}_M", f"{bucket}_A"
        assert run("mirror", "create", mirror, "--origin", bucket, *at).exit_code == 0
        assert run("aggregate", "create", aggregate, "--origin", bucket, *at).exit_code == 0
        assert offered(*at, "mirror", "promote", bucket) == [mirror]
        assert offered(*at, "aggregate", "show", bucket) == [aggregate]
        assert offered(*at, "aggregate", "remove-origin", aggregate, "") == [bucket]
        described = run("__complete", "--", *at, "bucket", "show", bucket).out
        assert set(described.split("\n")) == {f"{bucket}\tbucket", f"{mirror}\tmirror", f"{aggregate}\taggregate", ""}

    def test_revisions_of_a_key_latest_first(self, run, offered, server, raw, unique):
        name = unique("REVISIONS")
        raw.create_bucket(name, max_msgs_per_subject=3)
        for value in (b"1", b"2"):
            raw.put(name, "k", value)
        assert offered("-s", server.url, "revert", name, "k", "") == ["2", "1"]
        assert offered("-s", server.url, "get", name, "k", "--revision", "1") == ["1"]
        assert "\tPUT 20" in run("__complete", "--", "-s", server.url, "revert", name, "k", "").out

    def test_keys_of_a_table(self, run, offered, server, unique):
        name, at = unique("T"), ("-s", server.url)
        assert run("table", "create", name, "--partitions", "2", *at).exit_code == 0
        for key in ("alice", "alan", "bob"):
            assert run("table", "put", name, key, "v", *at).exit_code == 0
        assert sorted(offered(*at, "table", "get", name, "al")) == ["alan", "alice"]

    def test_clusters_that_are_seen(self, offered, cluster):
        url = next(iter(cluster.servers.values())).url
        assert run_process("bucket", "add", "PLACED", "-s", url).exit_code in (0, 4)
        (found,) = offered("-s", url, "bucket", "add", "B", "--cluster", "")
        assert found
        assert offered("-s", url, "bucket", "add", "B", "--tag", "nothing") == []


class TestNames:
    def test_contexts(self, offered, home):
        directory = home / ".config" / "nats" / "context"
        directory.mkdir(parents=True)
        for name in ("prod", "proto", "test", "bad name"):
            (directory / f"{name}.json").write_text('{"url": "nats://127.0.0.1:1"}')
        assert offered("--context", "pro") == ["prod", "proto"]
        assert offered("--context=t") == ["--context=test"]
        assert offered("context", "select", "") == ["prod", "proto", "test"]

    def test_buckets(self, offered, server, bucket):
        assert offered("-s", server.url, "get", bucket[:-1]).count(bucket) == 1
        assert offered("bucket", "show", "--server", server.url, bucket) == [bucket]

    def test_keys_a_token_at_a_time(self, offered, server, bucket):
        at = ("-s", server.url, "get", bucket)
        assert sorted(offered(*at, "")) == ["app.", "apple", "k=v.", "solo"]
        assert sorted(offered(*at, "app")) == ["app.", "apple"]
        assert sorted(offered(*at, "app.")) == ["app.db.", "app.host", "app.port"]
        assert sorted(offered(*at, "app.db.u")) == ["app.db.user"]
        assert sorted(offered(*at, "solo", "k=")) == ["k=v."]

    def test_what_a_shell_could_run_is_not_offered(self, offered, server, raw, bucket):
        for key in ("evil$(id)", "evil;id", "evil`id`", "evil\x1b[2J", "evil'"):
            raw.put(bucket, key, b"x")
        raw.put(bucket, "evil-but-legal", b"x")
        assert offered("-s", server.url, "get", bucket, "evil") == ["evil-but-legal"]

    def test_of_a_server_by_environment(self, offered, server, bucket, monkeypatch):
        monkeypatch.setenv("NATS_URL", server.url)
        assert offered("get", bucket, "sol") == ["solo"]

    def test_none_without_a_server(self, offered):
        assert offered("-s", "nats://127.0.0.1:1", "get", "") == []
        assert offered("--context", "missing", "get", "") == []

    async def test_a_server_that_says_nothing_costs_a_second(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
            words = ("__complete", "--", "-s", url, "--timeout", "300s", "get", "")

            async def asked() -> float:
                begun = time.monotonic()
                assert run_process(*words, command=[sys.executable, "-m", "kvctl"]).stdout == b""
                return time.monotonic() - begun

            assert await quickest(asked, 4, tries=5) < 4


class TestBash:
    def test_interactively(self, program, server, bucket):
        typed = [f"kvctl -s {server.url} get {bucket} k=v.\t", "x\n"]
        with Shell(["bash", "--norc", "-i"], program) as shell:
            shell.say(
                'PS1=\'> \'; kvctl() { if [ $1 = __complete ]; then command kvctl "$@"; else echo GOT "$@"; fi; }\n'
            )
            shell.say("source $SCRIPTS/kvctl.bash; echo READY\n", until="READY\r\n")
            shell.say(typed[0], until="k=v.", pause=True)
            assert f"GOT -s {server.url} get {bucket} k=v.x" in shell.say(typed[1], until="GOT")

    def test_refs(self, program, server, run, unique):
        name, env = unique("COMPLETE"), {**program, "NATS_URL": server.url}
        assert run("repo", "init", name, "-s", server.url).exit_code == 0
        for _ in range(10):  # a busy server may not answer in time
            if found := _bash(env, f"kvctl repo log {name}@m", ["kvctl", "repo", "log", name, "@", "m"]):
                break
        assert found == "main"

    @pytest.mark.parametrize(
        ("line", "words", "expected"),
        [
            ("kvctl buc", ["kvctl", "buc"], "bucket"),
            ("kvctl --output=nd", ["kvctl", "--output", "=", "nd"], "ndjson"),
            ("kvctl --output=", ["kvctl", "--output", "="], "table tsv json ndjson yaml name"),
            ("kvctl  -o   nd", ["kvctl", "-o", "nd"], "ndjson"),
            ("kvctl -s nats://127.0.0.1:1 buc", ["kvctl", "-s", "nats", ":", "//127.0.0.1", ":", "1", "buc"], "bucket"),
            ("kvctl nonsense ", ["kvctl", "nonsense", ""], ""),
        ],
    )
    def test_words(self, program, line, words, expected):
        assert _bash(program, line, words) == expected

    def test_live_keys_that_hold_equals_signs(self, program, server, bucket):
        scheme, _, host = server.url.partition(":")
        host, _, port = host.partition(":")
        words = ["kvctl", "-s", scheme, ":", host, ":", port, "get", bucket, "k", "=", "v."]
        assert _bash(program, f"kvctl -s {server.url} get {bucket} k=v.", words) == "v.x v.y"

    def test_in_the_middle_of_a_line(self, program):
        assert _bash(program, "kvctl buc", ["kvctl", "bucket"], rest="ket ls") == "bucket"


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh")
class TestZsh:
    def test_interactively(self, program, server, bucket):
        with Shell(["zsh", "-f", "-i"], program) as shell:
            shell.say(
                "PS1='> '; fpath=($SCRIPTS $fpath); autoload -U compinit; compinit -u -D; echo READY\n",
                until="READY\r\n",
            )
            shell.say(f"kvctl -s {server.url} get {bucket} sol\t", until="solo ", pause=True)
            assert b"x" in shell.say("\n", until="x").encode()

    def test_script_is_valid(self, program):
        assert subprocess.run(["zsh", "-n", f"{program['SCRIPTS']}/_kvctl"], capture_output=True).stderr == b""


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish")
class TestFish:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("kvctl buc", ["bucket\tCreate, inspect, change and move buckets"]),
            ("kvctl bucket ls --outp", ["--output\ttable, tsv, json, ndjson, yaml, name"]),
            ("kvctl -o nd", ["ndjson"]),
            ("kvctl --creds /etc/host", ["/etc/hosts"]),
            ("kvctl --creds=/etc/host", ["--creds=/etc/hosts"]),
        ],
    )
    def test_words(self, program, line, expected):
        found = _fish(program, line)
        assert [text for text in found if text in expected] == expected

    def test_live_keys(self, program, server, bucket):
        assert sorted(_fish(program, f"kvctl -s {server.url} get {bucket} k=v.")) == ["k=v.x", "k=v.y"]
        assert "app." in _fish(program, f"kvctl -s {server.url} get {bucket} ")


class TestScripts:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_are_printed(self, run, shell):
        assert run("completion", shell).out == SCRIPTS[shell]

    def test_of_other_shells_are_refused(self, run, snapshot):
        assert run("completion", "tcsh") == snapshot

    def test_work_with_the_oldest_bash(self):
        """macOS has 3.2: without mapfile, negative subscripts and compopt."""
        assert "mapfile" not in SCRIPTS["bash"]
        assert "[-1]" not in SCRIPTS["bash"]


class TestInstall:
    @pytest.fixture
    def install(self, run, home):
        """`kvctl completion install` in the empty home, of bash."""
        return lambda *words, shell="/bin/bash": run(
            "completion", "install", *words, env={"SHELL": shell, "XDG_DATA_HOME": ""}
        ).masked(HOME=str(home))

    def test_script_is_written_once_where_the_shell_looks(self, install, home, snapshot):
        for words, shell in (((), "/bin/bash"), (("zsh",), "/bin/bash"), ((), "/usr/local/bin/fish")):
            assert install(*words, shell=shell) == snapshot
        assert install() == snapshot
        assert (home / ".local/share/bash-completion/completions/kvctl").read_text() == SCRIPTS["bash"]
        assert (home / ".zfunc/_kvctl").read_text() == SCRIPTS["zsh"]
        assert (home / ".config/fish/completions/kvctl.fish").read_text() == SCRIPTS["fish"]

    def test_line_that_is_there_is_not_asked_for(self, install, home):
        (home / ".bashrc").write_text("# see bash_completion\n")
        assert "source " in install().out + install().err
        (home / ".bashrc").write_text("  . /usr/share/bash-completion/bash_completion\n")
        assert "source " not in install().err
        (home / ".zshrc").write_text("fpath+=~/.zfunc\ncompinit\n")
        assert "fpath" not in install("zsh").err

    def test_older_script_is_updated_and_a_file_of_others_is_kept(self, install, home, run):
        path = home / ".local/share/bash-completion/completions/kvctl"
        install()
        path.write_text(SCRIPTS["bash"].partition("\n")[0] + "\nold\n")
        assert install().err.startswith("Updated `")
        assert path.read_text() == SCRIPTS["bash"]
        path.write_text("mine\n")
        refused = install()
        assert (refused.exit_code, path.read_text()) == (4, "mine\n")
        assert "is not a script of kvctl" in refused.err

    def test_shell_that_is_not_supported_is_refused(self, install):
        assert "`tcsh` is not a supported shell" in install(shell="/bin/tcsh").err
        assert install(shell="").exit_code == 2


class Shell:
    """An interactive shell on a terminal."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        env = {**env, "TERM": "dumb", "COLUMNS": "250"}
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True, cwd=env["SCRIPTS"]
        )
        os.close(slave)

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def say(self, text: str, *, until: str = "", pause: bool = False) -> str:
        """Types text; what the shell answers up to `until`, with `pause` and until it falls silent."""
        os.write(self._master, text.encode())
        answer = ""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ready = select.select([self._master], [], [], 0.3)[0]
            if ready:
                answer += os.read(self._master, 65536).decode("utf-8", "replace")
            if until in answer and not (pause and ready):
                if not pause and until:
                    answer += self._line()
                return answer
        raise AssertionError(answer)

    def _line(self) -> str:
        rest = ""
        while select.select([self._master], [], [], 0.5)[0]:
            rest += os.read(self._master, 65536).decode("utf-8", "replace")
        return rest


def _bash(env: dict[str, str], line: str, words: list[str], rest: str = "") -> str:
    """Return the candidates of _kvctl, called as bash calls it."""
    script = (
        'source "$SCRIPTS/kvctl.bash"; COMP_LINE=$1$2; COMP_POINT=${#1}; shift 2; COMP_WORDS=("$@");'
        'COMP_CWORD=$(($# - 1)); _kvctl; echo "${COMPREPLY[*]}"'
    )
    done = subprocess.run(["bash", "-c", script, "bash", line, rest, *words], capture_output=True, text=True, env=env)
    assert done.stderr == ""
    return done.stdout.strip()


def _fish(env: dict[str, str], line: str) -> list[str]:
    script = f"source $SCRIPTS/kvctl.fish; complete -C '{line}'"
    return subprocess.run(["fish", "-N", "-c", script], capture_output=True, text=True, env=env).stdout.splitlines()
