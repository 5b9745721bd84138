"""`kvctl server`: a line that says where, a clean end, programs beside servers, labs and the control of them."""

import json
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from kvctl.labs import control
from tests.cli.conftest import KVCTL
from tests.support.raw import RawClient
from tests.support.waiting import until


def first_line(process: "subprocess.Popen[bytes]") -> str:
    return process.stdout.readline().decode().strip()


def test_prints_its_url_when_it_is_ready(start):
    begun = time.monotonic()
    process = start("server", "run", "--port", "0")
    with RawClient(first_line(process)) as raw:
        assert raw.api("INFO")["streams"] == 0
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(start, number):
    process = start("server", "run", "--port", "0", "-o", "json")
    told = b"".join(iter(process.stdout.readline, b"}\n")) + b"}"
    facts = json.loads(told)
    assert facts["temporary"] is True
    assert Path(facts["store"]).exists()
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (0, b"", b"")
    assert not Path(facts["store"]).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(facts["pid"], 0)


def test_keeps_the_data_in_a_directory_of_ones_own(start, tmp_path):
    for expected in (0, 1):
        process = start("server", "run", "--port", "0", "--store", "data", cwd=tmp_path)
        with RawClient(first_line(process)) as raw:
            assert raw.api("INFO")["streams"] == expected
            raw.create_bucket("B")
        process.terminate()
        process.communicate(timeout=60)
    assert (tmp_path / "data").is_dir()


def test_ends_with_an_error_when_the_server_dies(start):
    process = start("server", "run", "--port", "0", "-o", "ndjson")
    os.kill(json.loads(first_line(process))["pid"], signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"ended unexpectedly" in stderr


def test_a_taken_port(run, server, snapshot):
    assert run("server", "run", "--port", str(server.port)).masked(PORT=str(server.port)) == snapshot


def test_without_nats_server(run, tmp_path, snapshot):
    assert run("server", "run", env={"KVCTL_NATS_SERVER": str(tmp_path / "none")}) == snapshot


@pytest.mark.parametrize("kind", ["leaf", "accounts"])
def test_a_labs_contexts_are_ready_for_use(start, run, kind):
    base = random.randrange(20_000, 30_000, 20)  # below the ports that systems give out
    ports = ("--port", str(base)) if kind == "leaf" else ()
    process = start("server", "run", "--lab", kind, *ports, "-o", "json")
    told = json.loads(b"".join(iter(process.stdout.readline, b"}\n")) + b"}")
    environment = {"XDG_CONFIG_HOME": told["config_home"]}
    names = [context["name"] for context in told["contexts"]]
    if ports:
        urls = [f"nats://127.0.0.1:{port}" for port in (base, base + 1)]
        assert [context["url"] for context in told["contexts"]] == [*urls, urls[1]]
    assert run("context", "ls", "-o", "name", env=environment).out.split() == sorted(names)
    assert run("context", "test", names[0], env=environment).exit_code == 0
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not Path(told["config_home"]).exists()


def test_no_server_gives_one_hint_how_to_start_one(run, start, snapshot):
    process = start("server", "run", "--port", "0")
    url = first_line(process)
    process.terminate()
    process.wait()
    assert run("get", "orders", "k", env={"NATS_URL": url}) == snapshot


class TestProgram:
    """`kvctl server run -- CMD`"""

    def test_program_reaches_the_server_and_its_output_and_exit_code_are_kvctls(self, run, tmp_path):
        script = 'read line; echo "$NATS_URL $NATS_CONTEXT$NATS_USER $NATS_STREAM $line"; echo aside >&2; exit 7'
        env = {"NATS_CONTEXT": "prod", "NATS_USER": "ann", "NATS_STREAM": "theirs"}
        done = run("server", "run", "--", "sh", "-c", script, env=env, stdin=b"input\n")
        url, *rest = done.out.split()
        assert (done.exit_code, rest, done.err) == (7, ["theirs", "input"], "aside\n")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 1)

    def test_server_takes_writes_when_the_program_begins(self, run):
        done = run("server", "run", "--", *KVCTL, "bucket", "add", "B", "-o", "name")
        assert (done.exit_code, done.out) == (0, "B\n")

    def test_program_that_a_signal_ends_gives_128_and_its_number(self, run):
        assert run("server", "run", "--", "sh", "-c", "kill -9 $$").exit_code == 137

    def test_program_that_cannot_be_run_starts_no_server(self, run, tmp_path):
        (tmp_path / "plain").write_text("no program")
        for program, code in (("nowhere", 127), (str(tmp_path / "plain"), 126)):
            done = run("server", "run", "--store", str(tmp_path / "data"), "--", program)
            assert (done.exit_code, done.err.startswith("error: ")) == (code, True)
        assert not (tmp_path / "data").exists()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signals_are_passed_on_and_the_program_decides(self, start, number):
        name = signal.Signals(number).name.removeprefix("SIG")
        script = f"trap 'echo $NATS_URL; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
        process = start("server", "run", "--", "sh", "-c", script, start_new_session=True)
        assert first_line(process) == "ready"
        process.send_signal(number)
        assert (process.wait(60), first_line(process)[:7]) == (5, "nats://")

    def test_program_and_server_end_with_a_killed_kvctl(self, start):
        script = 'echo "$$ $NATS_URL"; while :; do sleep 0.05; done'
        process = start("server", "run", "--", "sh", "-c", script, start_new_session=True)
        pid, url = first_line(process).split()
        process.kill()
        process.wait()
        until(lambda: not Path("/proc", pid, "cwd").exists())
        until(lambda: socket.socket().connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0)

    def test_server_that_dies_is_a_warning_and_the_program_decides(self, run):
        script = "pkill -9 -P $PPID nats-server; sleep 0.6; exit 6"
        done = run("server", "run", "--", "sh", "-c", script)
        assert done.exit_code == 6
        assert "warning: nats-server ended unexpectedly: killed by SIGKILL" in done.err


def test_cluster_survives_its_servers_which_stop_and_start_from_elsewhere(start, run):
    process = start("server", "run", "--lab", "cluster", "-o", "json")
    told = json.loads(b"".join(iter(process.stdout.readline, b"}\n")) + b"}")
    env = {"XDG_CONFIG_HOME": told["config_home"]}
    assert run("context", "test", "cluster", env=env).exit_code == 0
    assert run("bucket", "add", "R3", "--replicas", "3", env=env).exit_code == 0, "the first context is selected"
    assert run("__complete", "--", "server", "stop", "").out == "n1\tcluster\nn2\tcluster\nn3\tcluster\nlab\tcluster\n"
    stopped = run("server", "stop", "n2", "n2", "-o", "json")
    assert json.loads(stopped.out) == [{"name": "n2", "lab": "cluster", "running": False, "changed": True}]
    assert run("server", "stop", "n2").err == "`n2` is not running\n"
    assert run("put", "R3", "k", "v", env=env).exit_code == 0
    assert run("__complete", "--", "server", "start", "").out == "n2\tcluster\nlab\tcluster\n"
    assert run("server", "start", "lab").err == "Started `n2`\n`n1`, `n3` are already running\n"
    os.kill(*_pid_of("n3", process.pid), signal.SIGKILL)
    notes = iter(process.stderr.readline, b"")
    warning = json.loads(next(line for line in notes if line.startswith(b"{")))["warning"]["message"]
    assert warning == "Server `n3` ended (killed by SIGKILL); start it with `kvctl server start n3`"
    assert run("server", "start", "n3").err == "Started `n3`\n"
    process.terminate()
    assert (process.wait(60), process.stderr.read()) == (0, b"")
    assert run("server", "start", "n1").exit_code == 3


def test_lab_ends_with_its_last_server(start):
    process = start("server", "run", "--lab", "accounts")
    first_line(process)
    os.kill(*_pid_of("accounts", process.pid), signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"error: Server `accounts` ended (killed by SIGKILL), and no other server of the lab runs\n" in stderr


class TestChoice:
    """Which lab `server stop` finds: two run, of one kind."""

    @pytest.fixture
    def labs(self, start):
        """The config homes of two labs."""
        processes = [start("server", "run", "--lab", "leaf", "-o", "json") for _ in range(2)]
        told = [json.loads(b"".join(iter(process.stdout.readline, b"}\n")) + b"}") for process in processes]
        return [lab["config_home"] for lab in told]

    def test_lab_is_that_of_the_environment_or_named(self, run, labs, home):
        names = sorted(path.stem for path in (home / "kvctl").glob("*.sock"))
        assert names == ["leaf", "leaf-2"]
        unclear = run("server", "stop", "hub")
        assert unclear.exit_code == 2
        assert unclear.err.startswith("error: Several labs have a server `hub`: `leaf`, `leaf-2`\n")
        here = run("server", "stop", "hub", "-o", "json", env={"XDG_CONFIG_HOME": labs[1]})
        lab = json.loads(here.out)[0]["lab"]
        assert run("server", "stop", "hub", "--lab", lab).err == "`hub` is not running\n"
        other = "leaf" if lab == "leaf-2" else "leaf-2"
        assert run("server", "stop", "hub", "--lab", other, env={"XDG_CONFIG_HOME": labs[1]}).err == "Stopped `hub`\n"

    def test_what_is_not_there_is_said_with_what_is(self, run, labs):
        assert "No running lab has a server `hubb`" in run("server", "stop", "hubb").err
        assert run("server", "stop", "hub", "--lab", "moon").exit_code == 3


def test_socket_that_a_killed_lab_left_is_taken_over(start, run, home):
    process = start("server", "run", "--lab", "accounts")
    first_line(process)
    process.kill()
    process.wait()
    left = home / "kvctl" / "accounts.sock"
    assert left.is_socket()
    assert run("server", "stop", "accounts").err.startswith("error: No lab is running\n")
    assert "accounts" in run("server", "run", "--lab", "accounts", "--", *KVCTL, "server", "stop", "accounts").err
    assert not left.exists()


@pytest.mark.parametrize("damage", ["mode", "link", "file"])
def test_folder_that_others_could_have_prepared_is_not_used(run, home, tmp_path, damage):
    folder = home / "kvctl"
    {"mode": folder.mkdir, "link": lambda: folder.symlink_to(tmp_path), "file": folder.touch}[damage]()
    folder.chmod(0o755)
    refused = run("server", "stop", "n1")
    assert (refused.exit_code, "is not a folder that only this user can open" in refused.err) == (1, True)
    if damage == "mode":
        warned = run("server", "run", "--lab", "accounts", "--", "true")
        assert (warned.exit_code, "warning: `kvctl server stop` will not find this lab" in warned.err) == (0, True)


def test_nonsense_on_the_socket_is_ignored(start, run, home):
    process = start("server", "run", "--lab", "accounts")
    first_line(process)
    for words in (b"", b"nonsense\n", b'{"action": "stop", "servers": ["moon"]}\n', b"[]\n", b'{"action": "x"}\n'):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(home / "kvctl" / "accounts.sock"))
            client.sendall(words)
    assert [lab.running for lab in control.running_labs()] == [{"accounts": True}]


def _pid_of(name: str, parent: int) -> list[int]:
    """The process of a lab's server."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if f"/{name}-" in line]
