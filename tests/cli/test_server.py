"""`kvctl server run`: a line that says where, a clean end, contexts for the labs."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.raw import RawClient


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


@pytest.mark.parametrize("kind", ["leaf", "accounts", "cluster"])
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
