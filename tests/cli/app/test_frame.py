"""The frame around every command, tried on a tree of made-up ones (tests/cli/demo.py)."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from array import array
from functools import partial
from typing import Any

import pytest

from kvctl import topics
from kvctl.cli.app.main import root
from kvctl.cli.app.options import SharedValues
from tests.cli.conftest import COLUMNS, Run, open_terminal, run_process
from tests.cli.demo import TREE
from tests.support.waiting import until

DEMO = [sys.executable, "-m", "tests.cli.demo"]
LONG = ("thing", "stream", "--batches", "2000", "--width", "1000")
FORMATS = ("table", "tsv", "json", "ndjson", "yaml", "name")
ANYWHERE = [("-o", "json", "thing", "ls"), ("thing", "-o", "json", "ls"), ("thing", "ls", "-o", "json")]


@pytest.fixture
def demo():
    """Runs a command of tests/cli/demo.py."""
    return partial(run_process, command="tests.cli.demo")


@pytest.fixture
def begin(start):
    """Starts a command of tests/cli/demo.py, with pipes; killed when the test ends."""
    return partial(start, command=DEMO)


def shown(demo: Run, *args: str) -> Any:
    """The JSON that `thing show x ARGS` prints about what it was given."""
    result = demo("thing", "show", "x", *args, "-o", "json")
    assert result.exit_code == 0, result.err
    return json.loads(result.stdout)


class TestHelp:
    def test_without_a_command_it_goes_to_stderr_with_exit_2(self, run):
        result = run()
        assert (result.exit_code, result.out) == (2, "")
        assert result.err == run("help").out

    def test_without_a_command_it_fits_a_screen_and_names_all_commands_and_topics(self, run):
        lines = run(env={"COLUMNS": "80"}).err.splitlines()
        assert len(lines) <= 45
        assert max(map(len, lines)) <= 80
        assert {*root().list_commands(None), *topics.titles(), "options"} <= set(" ".join(lines).split())

    def test_of_shared_options(self, run):
        assert run("help", "options").out.strip() in run("--help").out

    def test_group_without_a_command_too(self, demo):
        result = demo("thing")
        assert (result.exit_code, result.out) == (2, "")
        assert result.err == demo("thing", "-h").out

    def test_of_a_group_and_a_command(self, demo, snapshot):
        assert demo("thing", "--help") == snapshot
        assert demo("thing", "ls", "--help") == snapshot
        assert demo("thing", "del", "--help") == snapshot

    def test_is_coloured_on_a_terminal_only(self, demo):
        assert "\x1b[1mUsage:\x1b[0m" in demo("thing", "ls", "--help", tty=True, env={"NO_COLOR": ""}).out
        assert "\x1b" not in demo("thing", "ls", "--help", tty=True).out

    def test_wins_over_missing_arguments(self, demo):
        assert demo("thing", "show", "--help").exit_code == 0

    def test_version(self, run):
        assert run("--version").out.startswith("kvctl ")
        assert run("version", "-o", "name").out.split() == run("--version").out.split()[1:]


class TestSharedOptions:
    @pytest.mark.parametrize("args", ANYWHERE, ids=" ".join)
    def test_are_taken_in_any_position(self, demo, args):
        assert demo(*args).out.startswith('[\n  {"name": "thing-0"')

    def test_innermost_and_last_wins(self, demo):
        assert demo("-o", "yaml", "thing", "-o", "tsv", "ls", "-o", "yaml", "-o", "name").out == "thing-0\nthing-1\n"

    def test_never_steal_the_value_of_another_option(self, demo):
        assert shown(demo, "--description", "-q")["description"] == "-q"
        assert shown(demo, "--description", "--server")["description"] == "--server"

    def test_stop_at_two_dashes(self, demo):
        given = shown(demo, "-s", "nats://a:1", "-o", "json")
        assert given["server"] == "nats://a:1"
        result = demo("thing", "show", "-o", "ndjson", "x", "--", "-s", "nats://b:2", "-o", "yaml")
        assert '"rest": ["-s", "nats://b:2", "-o", "yaml"]' in result.out
        assert '"server": null' in result.out

    def test_spellings_of_the_nats_command_work(self, demo):
        old = "--tlscert c --tlskey k --tlsca a --tlsfirst --js-domain d --js-api-prefix p".split()
        new = ["--tls-cert=c", "--tls-key=k", "--tls-ca=a", "--tls-first", "--domain=d", "--api-prefix=p"]
        assert shown(demo, *old)["flags"] == shown(demo, *new)["flags"]
        assert shown(demo, *old)["flags"]["domain"] == "d"

    def test_help_fits_a_narrow_terminal(self, run):
        page = run("put", "--help", env={"COLUMNS": "40"}).out
        prose, _, rest = page.partition("Examples:")
        options = rest.partition("Arguments:")[2].partition("See also")[0]
        lines = [line for line in (prose + options).splitlines() if not line.startswith(("Usage:", "Shared"))]
        assert max(map(len, lines)) <= 40

    def test_spellings_of_the_nats_command_stay_out_of_the_help(self, run):
        assert not re.search("tlscert|js-domain|--trace", run("--help").out)

    def test_all_arrive(self, demo):
        names = (
            "context server user password_file token_file creds nkey tls_cert tls_key tls_ca domain api_prefix "
            "inbox_prefix"
        ).split()
        args = [f"--{name.replace('_', '-')}={name}" for name in names]
        flags = shown(demo, *args, "--tls-first", "--read-only", "--timeout", "90s")["flags"]
        expected = {name: name for name in names}
        assert flags == {**expected, "tls_first": "True", "read_only": "True", "timeout": "0:01:30"}

    def test_nothing_given_is_nothing_said(self):
        assert SharedValues().connection_flags() == {}


class TestArguments:
    def test_ages_are_values_and_numbers_below_zero_stand_after_dashes(self, demo):
        assert shown(demo, "--since", "-15m")["since"] is True
        given = json.loads(demo("thing", "show", "-o", "json", "x", "--", "-5", "-15m").out)
        assert given["rest"] == ["-5", "-15m"]
        refused = demo("thing", "show", "x", "-5")
        assert refused.exit_code == 2
        assert "put `--` before an argument that starts with a dash" in refused.err

    def test_quantities_are_parsed(self, demo):
        given = shown(demo, "--ttl", "1h30m", "--limit", "64KiB")
        assert (given["ttl"], given["limit"]) == (5400, 65536)

    @pytest.mark.parametrize(
        ("typed", "meant"),
        [("list", "ls"), ("del", "rm"), ("delete", "rm"), ("info", "show"), ("status", "show"), ("view", "show")],
    )
    def test_aliases(self, demo, typed, meant):
        assert demo("thing", typed, "--help").out == demo("thing", meant, "--help").out

    def test_aliases_in_groups_within_groups(self, demo):
        assert demo("thing", "part", "add").out == demo("thing", "part", "create").out == "made\n"

    def test_aliases_give_way_to_verbs(self):
        tree = root()
        assert tree.canonical("create") == "create"
        assert tree.canonical("rm") == tree.canonical("del") == "delete"
        assert tree.canonical("ls") is None

    def test_repositories_are_created_by_the_names_that_create_the_others(self):
        repo = root().entries["repo"].load()
        assert {repo.canonical(name) for name in ("add", "create", "new")} == {"init"}
        assert root().canonical("init") is None

    def test_what_is_wrong_is_said_with_the_way_on(self, demo, snapshot):
        lines = (
            "nonsense,thing lst,thing show,thing ls superfluous,thing ls --cuont 2,thing ls --cou 2,thing ls --trac,"
            "thing ls --count,thing ls --count many,thing show x --ttl 5parsecs,thing show x -z,thing ls -o xml,"
            "thing ls --password hunter2,thing ls --output,thing ls --quiet=yes"
        )
        for line in lines.split(","):
            result = demo(*line.split())
            assert result.exit_code == 2
            assert f"{line}: {' '.join(result.err.split())}" == snapshot

    def test_passwords_are_not_repeated(self, demo):
        assert "hunter2" not in demo("thing", "ls", "--password", "hunter2").err
        assert "hunter2" not in demo("thing", "ls", "--password=hunter2").err


class TestOutput:
    def test_formats(self, demo, snapshot):
        """They do not depend on where the output goes."""
        for output in FORMATS:
            for command in (("thing", "ls"), ("thing", "show", "x", "y")):
                piped, shown = (demo(*command, "-o", output, tty=tty) for tty in (False, True))
                assert piped == snapshot
                assert shown.transcript() == piped.transcript()

    def test_default_is_table_on_a_terminal_and_tsv_in_a_pipe(self, demo):
        assert demo("thing", "ls", tty=True).out == demo("thing", "ls", "-o", "table", tty=True).out
        assert demo("thing", "ls").out == demo("thing", "ls", "-o", "tsv").out

    @pytest.mark.guarantee("commands-3")
    def test_terminals_get_no_controls(self, demo, snapshot):
        for output in FORMATS:
            result = demo("thing", "ls", "--hostile", "--count", "1", "-o", output, tty=True)
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\udc80-\udcff]", result.out.replace("\t", ""))
            assert result == snapshot

    def test_pipes_get_bytes_as_they_are(self, demo):
        line = demo("thing", "ls", "--hostile", "--count", "1", "-o", "tsv").stdout
        assert line == b"a\x1b[31mb\xe2\x80\xaec\xff\\td\\\\e\\nf\t2000\t2026-01-02T03:04:05.000000006Z\t\n"

    def test_nothing_found_is_said_on_a_terminal_only(self, demo):
        assert demo("thing", "ls", "--count", "0", tty=True).err == "No things\n"
        assert demo("thing", "ls", "--count", "0", "-q", tty=True).err == ""
        assert demo("thing", "ls", "--count", "0").err == ""
        assert demo("thing", "ls", "--count", "0", "-o", "json").out == "[]\n"

    def test_colour(self, demo):
        plain = {"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm"}
        assert "\x1b[36mthing-0" in demo("thing", "ls", tty=True, env=plain).out
        assert "\x1b" not in demo("thing", "ls", tty=True, env={**plain, "NO_COLOR": "1"}).out
        assert "\x1b" not in demo("thing", "ls", tty=True, env={**plain, "TERM": "dumb"}).out
        assert "\x1b" not in demo("thing", "ls", "--color", "never", tty=True, env=plain).out
        assert "\x1b" not in demo("thing", "ls", "-o", "table", env=plain).out
        assert "\x1b" in demo("thing", "ls", "-o", "table", env={**plain, "FORCE_COLOR": "1"}).out
        assert "\x1b" in demo("thing", "ls", "-o", "table", "--color", "always", env=plain).out

    def test_values_are_exact_in_pipes_and_escaped_on_terminals(self, demo):
        assert demo("thing", "value", "--file", "-", stdin=b"a\x00\xff\r\n").stdout == b"a\x00\xff\r\n"
        assert demo("thing", "value", "--text", "a\x1bé\tb", tty=True).out == "a\\x1bé\tb\n"
        assert demo("thing", "value", "--text", "two\nlines\n", tty=True).out == "two\nlines\n"

    def test_tables_fit_the_terminal(self, demo):
        lines = demo("thing", "stream", "--width", "300", tty=True).out.splitlines()
        assert {len(line) for line in lines[2:]} == {COLUMNS}
        assert all(line.endswith("…") for line in lines[2:])


class TestStreams:
    def test_formats(self, demo, snapshot):
        for output in FORMATS:
            assert demo("thing", "stream", "--batches", "2", "-o", output, tty=True) == snapshot

    def test_endless_json_is_a_line_each(self, demo):
        out = demo("thing", "stream", "--endless", "--batches", "1", "-o", "json").out
        assert out == '{"name": "0.0", "text": "x"}\n{"name": "0.1", "text": "x"}\n'

    def test_empty(self, demo):
        assert demo("thing", "stream", "--batches", "0", "-o", "json").out == "[]\n"
        assert demo("thing", "stream", "--batches", "0", "-o", "yaml").out == "[]\n"
        assert demo("thing", "stream", "--batches", "0", "-o", "table").out == ""

    def test_batches_arrive_when_they_come(self, begin):
        process = begin("thing", "stream", "--batches", "2", "--rows", "1", "--pause", "30", "-o", "ndjson")
        assert process.stdout.readline() == b'{"name": "0.0", "text": "x"}\n'
        assert process.poll() is None

    def test_reader_that_stalls_stops_the_source_and_not_the_loop(self, begin):
        process = begin("thing", "stream", "--batches", "9", "--rows", "1", "--width", "200000", "--ticks")
        _wait_until_full(process.stdout)
        time.sleep(1)
        os.set_blocking(process.stderr.fileno(), False)
        begun = process.stderr.read().count(b"batch")
        assert 1 <= begun <= 2
        os.set_blocking(process.stderr.fileno(), True)
        stdout, stderr = process.communicate(timeout=60)
        assert stdout.count(b"\n") == 9
        ticks = re.search(rb"ticks (\d+)", stderr)
        assert ticks is not None
        assert int(ticks[1]) >= 3


class TestReaderGone:
    @pytest.mark.guarantee("commands-2", by="fault")
    @pytest.mark.parametrize("args", [("thing", "large"), LONG], ids=" ".join)
    def test_ends_quietly(self, begin, args):
        process = begin(*args)
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0

    def test_source_of_a_stream_is_closed(self, begin):
        process = begin(*LONG, "--ticks")
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read().splitlines()[-1] == b"warning: source closed"
        assert process.wait(60) == 0

    @pytest.mark.guarantee("commands-2", by="fault")
    @pytest.mark.parametrize(
        "args", [("thing", "ls"), ("thing", "stream"), ("--help",), ("thing", "value", "--text", "x")], ids=" ".join
    )
    def test_full_disk_is_a_failure(self, begin, args):
        with open("/dev/full", "wb") as full:
            process = begin(*args, stdout=full)
        assert process.wait(60) == 1
        assert process.stderr.read() == b"error: Cannot write to standard output: No space left on device\n"

    def test_closed_stdout_is_a_failure(self):
        for args in ("thing ls", "thing rm x --yes", "--help"):
            done = subprocess.run(["sh", "-c", f"{' '.join(DEMO)} {args} >&-"], capture_output=True, timeout=120)
            assert (done.returncode, done.stderr) == (1, b"error: Standard output is closed\n")

    def test_a_pipe_that_does_not_block_gets_everything(self, begin):
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        process = begin("thing", "large", stdout=writing)
        os.close(writing)
        _wait_until_full(reading)
        with open(reading, "rb") as pipe:
            assert len(pipe.read()) == 1001 * 1000
        assert process.wait(60) == 0

    def test_closed_stderr_is_none(self):
        for args, code in (("thing ls", 0), ("thing nonsense", 2), ("", 2)):
            done = subprocess.run(["sh", "-c", f"{' '.join(DEMO)} {args} 2>&-"], capture_output=True, timeout=120)
            assert done.returncode == code


class TestErrors:
    def test_message_and_hint(self, demo, snapshot):
        result = demo("thing", "work", "--seconds", "0", "--fail", "conflict")
        assert result.exit_code == 4
        assert result == snapshot

    def test_names_are_coloured_on_a_terminal(self, demo, snapshot):
        assert demo("thing", "work", "--seconds", "0", "--fail", "conflict", tty=True, env={"NO_COLOR": ""}) == snapshot

    def test_of_a_task_group_is_the_error_itself(self, demo):
        result = demo("thing", "work", "--seconds", "0", "--fail", "unknown")
        assert (result.exit_code, result.err) == (6, "error: Nobody knows\n")

    def test_of_a_file_names_it(self, demo):
        result = demo("thing", "work", "--seconds", "0", "--fail", "file")
        assert (result.exit_code, result.err) == (1, "error: Cannot use `/no/such/file`: No such file or directory\n")

    def test_bug_shows_a_traceback_only_when_asked(self, demo, snapshot):
        assert demo("thing", "work", "--seconds", "0", "--fail", "bug") == snapshot
        result = demo("thing", "work", "--seconds", "0", "--fail", "bug", "-v")
        assert result.exit_code == 1
        assert result.err.startswith("Traceback (most recent call last):\n")

    def test_exit_code_of_a_command(self, demo):
        assert demo("thing", "code", "8").exit_code == 8

    def test_file_that_cannot_be_read(self, demo, tmp_path):
        result = demo("thing", "value", "--file", "/no/such/file")
        assert (result.exit_code, result.err) == (2, "error: Cannot read `/no/such/file`: No such file or directory\n")
        (tmp_path / "topology.yaml").touch()
        result = demo("thing", "value", "--file", str(tmp_path / "topolgy.yaml"))
        assert result.err.endswith("hint: Did you mean `topology.yaml`?\n")
        line = f"{' '.join(DEMO)} thing value --file - <&-"
        done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=120)
        assert (done.returncode, done.stderr) == (2, b"error: Standard input is closed\n")


class TestSignals:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
    @pytest.mark.parametrize("how", [(), ("--aside",)], ids=["", "aside"])
    def test_end_a_command_after_it_has_cleaned_up(self, begin, how, number, code):
        """Also if no wait is interrupted: a signal reaches another thread, or comes just before the wait."""
        process = begin("thing", "work", "--seconds", "600", "--tell", *how)
        assert process.stdout.readline() == b"working\n"
        process.send_signal(number)
        assert process.wait(60) == code
        assert process.stderr.read() == b"warning: cleaned up\n"

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("how", ["", "--expression", "--clean"])
    def test_end_a_computation_that_does_not_look_at_them(self, begin, how, number):
        process = begin("thing", "compute", *how.split())
        assert process.stdout.readline() == b"working\n"
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert process.stderr.read() == b""

    @pytest.mark.parametrize("args", [("thing", "large"), LONG], ids=" ".join)
    def test_end_a_command_whose_reader_stalls(self, begin, args):
        process = begin(*args)
        _wait_until_full(process.stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""

    def test_that_the_parent_ignores_stay_ignored(self, begin):
        process = begin(
            "thing", "work", "--seconds", "60", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
        )
        _wait_until_running(process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143

    def test_end_reading_of_standard_input(self, begin):
        process = begin("thing", "value", "--file", "-", stdin=subprocess.PIPE)
        _wait_until_running(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""


class TestConfirmation:
    def test_on_a_terminal_asks(self, demo, snapshot):
        assert demo("thing", "rm", "x", tty=True, stdin=b"y\n") == snapshot
        assert demo("thing", "rm", "x", tty=True, stdin=b"\n") == snapshot
        assert demo("thing", "rm", "x", tty=True, stdin=b"\x04") == snapshot

    def test_elsewhere_needs_the_flag(self, demo, snapshot):
        assert demo("thing", "rm", "x", stdin=b"y\n") == snapshot
        assert demo("thing", "rm", "x", "--yes").exit_code == 0

    def test_asks_for_the_name_of_what_others_need(self, demo, snapshot):
        assert demo("thing", "rm", "dear", tty=True, stdin=b"dear\n") == snapshot
        assert demo("thing", "rm", "dear", tty=True, stdin=b"y\n") == snapshot

    def test_name_elsewhere_needs_its_flag(self, demo, snapshot):
        assert demo("thing", "rm", "dear", "--yes") == snapshot
        assert demo("thing", "rm", "dear", "--confirm", "deer") == snapshot
        assert demo("thing", "rm", "dear", "--confirm", "dear").exit_code == 0

    def test_interrupted_at_the_question(self, begin):
        master, slave = open_terminal()
        process = begin("thing", "rm", "x", stdin=slave, stderr=slave)
        os.close(slave)
        assert b"Delete thing" in os.read(master, 1000)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        os.close(master)


class TestMessages:
    def test_progress_is_for_terminals_and_what_takes_long(self):
        demo = partial(run_process, command=DEMO)  # the forkserver shows none
        assert "Working" in demo("thing", "work", tty=True).err
        assert demo("thing", "work", "-q", tty=True).err == ""
        assert demo("thing", "work", "--seconds", "0", tty=True).err == ""
        assert demo("thing", "work").err == ""

    def test_notes_are_for_terminals(self, demo):
        assert demo("thing", "rm", "x", "-y", tty=True).err == "Deleted `x`\n"
        assert demo("thing", "rm", "x", "-y", "-q", tty=True).err == ""
        assert demo("thing", "rm", "x", "-y").err == ""

    def test_requests_are_traced_when_asked(self, demo):
        assert demo("thing", "trace").err == ""
        assert demo("thing", "trace", "-v").err == "$JS.API.STREAM.INFO.KV_x\\x1b  1.2 ms  404 stream not found\n"


class TestInProcess:
    def test_main_returns_the_exit_code(self, capfdbinary):
        from kvctl.cli.app.main import main

        assert main(["thing", "code", "7"], TREE) == 7
        assert main(["thing", "stream", "--batches", "1", "--rows", "1", "-o", "name"], TREE) == 0
        assert capfdbinary.readouterr().out == b"0.0\n"


def _wait_until_running(process: "subprocess.Popen[bytes]") -> None:
    """Waits until the process catches SIGTERM: its command is about to run by then."""
    until(lambda: _caught_signals(process.pid) & 1 << signal.SIGTERM - 1)


def _caught_signals(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        caught = re.search(r"SigCgt:\s*(\w+)", status.read())
    return int(caught[1], 16) if caught else 0


def _wait_until_full(pipe: Any) -> None:
    """Waits until a pipe holds all it can: 64 KiB on Linux, less what did not fit in one piece."""
    until(lambda: array("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0] > 60_000)
