"""`topology status` as a process: once, followed in a pipe, live on a terminal."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from kvctl.server import Server
from tests.cli.conftest import Run, open_terminal
from tests.support.raw import RawClient
from tests.topology.conftest import Replicas, until


def pair(raw: RawClient, unique: Callable[..., str]) -> tuple[str, str]:
    """A bucket and a mirror of it that is filled."""
    origin, mirror = unique("ORDERS"), unique("COPY")
    raw.create_bucket(origin)
    raw.put(origin, "k", b"v")
    replicas = Replicas(raw)
    replicas.mirror(mirror, origin)
    until(lambda: replicas.info(mirror)["state"]["messages"])
    return origin, mirror


def test_shows_replicas_in_a_table_and_as_records(
    run: Run, server: Server, raw: RawClient, unique: Callable[..., str]
) -> None:
    origin, mirror = pair(raw, unique)
    shown = run("topology", "status", mirror, "-s", server.url, tty=True)
    heading, line = shown.out.splitlines()
    assert heading.split() == ["REPLICA", "KIND", "ORIGIN", "STATE", "LAG", "ACTIVE", "REVISION", "OF"]
    assert re.fullmatch(rf"{mirror} +mirror +{origin} +ok +0 +just now +1 +1", line)
    (record,) = json.loads(run("topology", "status", origin, "-o", "json", "-s", server.url).out)
    assert (record["replica"], record["origin"], record["state"], record["lag"]) == (mirror, origin, "ok", 0)
    assert list(record) == [
        "replica", "stream", "kind", "context", "domain", "cluster", "origin", "origin_stream", "origin_context",
        "origin_domain", "origin_api", "origin_cluster", "rules", "state", "lag", "active", "error", "revision",
        "origin_revision", "created", "origin_created", "evidence",
    ]  # fmt: skip
    assert run("topology", "status", mirror, "-s", server.url).out.split("\t")[12:15] == ["[]", "ok", "0"]
    assert run("topology", "status", unique("NONE"), "-s", server.url).exit_code == 3


def test_an_interval_needs_watch(run: Run, server: Server) -> None:
    assert run("topology", "status", "--interval", "5s", "-s", server.url).exit_code == 2
    assert run("topology", "status", "--watch", "--interval", "1ms", "-s", server.url).exit_code == 2


def test_a_pipe_has_what_changes(
    start: Callable[..., "subprocess.Popen[bytes]"], server: Server, raw: RawClient, unique: Callable[..., str]
) -> None:
    _, mirror = pair(raw, unique)
    process = start("topology", "status", mirror, "--watch", "--interval", "200ms", "-o", "json", "-s", server.url)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["state"] == "ok"
    raw.api(f"STREAM.DELETE.{mirror}")
    assert json.loads(process.stdout.readline())["state"] == "gone"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_servers_that_go_are_waited_for(
    start: Callable[..., "subprocess.Popen[bytes]"], own_server: Server, unique: Callable[..., str]
) -> None:
    def state(process: "subprocess.Popen[bytes]") -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line
        return str(json.loads(line)["state"])

    with RawClient(own_server.url) as raw:
        _, mirror = pair(raw, unique)
    options = ("--interval", "200ms", "--timeout", "3s", "-o", "ndjson", "-s", own_server.url)
    process = start("topology", "status", mirror, "--watch", *options)
    assert state(process) == "ok"
    own_server.kill()
    assert process.stderr is not None
    told = process.stderr.readline()
    own_server.launch()
    own_server.wait_ready()
    assert told.endswith(b"waiting for it\n")
    with RawClient(own_server.url) as raw:
        raw.api(f"STREAM.DELETE.{mirror}")
    while state(process) != "gone":
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_a_terminal_has_a_live_table_that_leaves_its_last_state(
    server: Server, raw: RawClient, unique: Callable[..., str]
) -> None:
    _, mirror = pair(raw, unique)
    master, slave = open_terminal()
    line = [sys.executable, "-m", "kvctl", "topology", "status", mirror, "--watch", "--interval", "200ms"]
    process = subprocess.Popen([*line, "-s", server.url], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        output = b""
        deadline = time.monotonic() + 60
        while output.count(b"\x1b[H") < 3:  # drawn thrice
            assert time.monotonic() < deadline
            output += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        while b"\x1b[?1049l" not in output or mirror.encode() not in output.partition(b"\x1b[?1049l")[2]:
            output += os.read(master, 65536)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(master)
    live, _, after = output.partition(b"\x1b[?1049l")
    assert live.startswith(b"\x1b[?1049h")
    assert b"1 replica, none amiss" in live
    assert mirror.encode() in after
    assert b"Traceback" not in output
