"""`kvctl quickstart`: every command is shown before it runs, works, and nothing is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHANGING = {
    r"\d{4}-\d\d-\d\dT[\d:.]+Z": "TIME",
    r"in \d+\.\d s": "in SECONDS",
    r"(?<=shop\tnew\.\d\t)\d|\d(?=  just now  PUT +new\.)": "N",  # whichever origin an aggregate reads first
    r"(?<=\"stream\": \")[\w-]+": "STREAM",  # the bucket or its mirror
}


@pytest.fixture
def temporary(tmp_path):
    """Directory for the temporary files of the run."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    return directory


def test_the_tour(run, temporary, snapshot):
    result = run("quickstart", env={"TMPDIR": str(temporary)})
    assert result.masked(CHANGING) == snapshot
    assert list(temporary.iterdir()) == []


def test_the_tour_on_a_terminal_has_the_same_commands_and_texts(run, temporary):
    piped, shown = (run("quickstart", tty=tty, env={"TMPDIR": str(temporary)}).transcript() for tty in (False, True))
    told = [[line for line in out.splitlines() if line.startswith(("#", "$"))] for out in (piped, shown)]
    assert told[0] == told[1]
    assert max(len(line) for line in told[0]) <= 80


@pytest.mark.slow
def test_the_commands_work_when_they_are_typed(run, own_server):
    """Run the printed commands in a shell against another server, and compare their exit codes."""
    lines = run("quickstart").out.replace(" \\\n   ", "").splitlines()
    printed = [line for line in lines if line.startswith(("$ kvctl", "# exit code"))]
    script, wanted = f'kvctl() {{ "{sys.executable}" -m kvctl "$@" >&2; echo $?; }}\n', []
    for line in printed:
        if line.startswith("# exit code "):
            wanted[-1] = line.removeprefix("# exit code ")
        else:
            script += line.removeprefix("$ ") + "\n"
            wanted.append("0")
    environment = {**os.environ, "NATS_URL": own_server.url, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == wanted


@pytest.mark.parametrize("option", [("-s", "nats://127.0.0.1:1"), ("--context", "test")], ids=" ".join)
def test_a_given_server_is_refused(run, option):
    result = run("quickstart", *option)
    assert (result.exit_code, result.out) == (2, "")
    assert "The tour runs on a server of its own" in result.err


def test_foreign_settings_do_no_harm(run, home):
    (home / ".config" / "nats").mkdir(parents=True)
    (home / ".config" / "nats" / "context.txt").write_text("gone")
    settings = {"NATS_URL": "nats://gone.invalid", "NATS_CREDS": "/gone", "NATS_CONTEXT": "gone"}
    assert run("quickstart", env=settings).exit_code == 0


def test_without_nats_server(run, tmp_path):
    result = run("quickstart", env={"KVCTL_NATS_SERVER": str(tmp_path / "none")})
    assert (result.exit_code, result.out) == (1, "")
    assert "cannot be run" in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_tour_leaves_nothing(start, temporary, number):
    process = start("quickstart", env={"TMPDIR": str(temporary)})
    while not process.stdout.readline().startswith(b"$ kvctl"):
        pass
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert b"Traceback" not in stderr
    deadline = time.monotonic() + 60
    while list(temporary.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(temporary.iterdir()) == []


def test_a_reader_that_goes_away_ends_it_quietly(start, temporary):
    process = start("quickstart", env={"TMPDIR": str(temporary)})
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.wait(60)
    assert list(temporary.iterdir()) == []
