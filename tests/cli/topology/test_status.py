"""`kvctl topology status` as a process: once, in a pipe with --watch, live on a terminal."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable

from tests.cli.dialogue import Dialogue
from tests.support.raw import RawClient
from tests.support.waiting import until
from tests.topology.conftest import Replicas, source
from tests.topology.health.test_status import parsed, values


def pair(raw: RawClient, unique: Callable[..., str]) -> tuple[str, str]:
    """Create a bucket and a filled mirror of it."""
    origin, mirror = unique("ORDERS"), unique("COPY")
    raw.create_bucket(origin)
    raw.put(origin, "k", b"v")
    replicas = Replicas(raw)
    replicas.mirror(mirror, origin)
    until(lambda: replicas.info(mirror)["state"]["messages"])
    return origin, mirror


def test_status_shows_replicas_in_a_table_and_as_records(run, raw, unique):
    origin, mirror = pair(raw, unique)
    shown = run("topology", "status", mirror, tty=True).out
    title, heading, rule, line, _, answer = shown.splitlines()
    assert re.fullmatch(rf"{origin}  1 entry · \d+ B · revision 1", title)
    assert heading.split() == ["replica", "kind", "keys", "land", "as", "state", "behind", "seen"]
    assert rule == f"  {'─' * len(line[2:])}"
    assert re.fullmatch(rf"  {mirror} +mirror  all   as they are  ✓ ok        0  just now", line)
    assert answer == "1 origin, 1 replica: all ok"
    assert run("topology", "status", mirror).out == shown
    (record,) = json.loads(run("topology", "status", origin, "-o", "json").out)
    assert (record["replica"], record["origin"], record["state"], record["lag"]) == (mirror, origin, "ok", 0)
    names = (
        "replica stream kind context domain cluster origin origin_stream origin_context origin_domain origin_api "
        "origin_cluster keys state lag last_seen error revision origin_revision created origin_created evidence prefix "
        "map transforms"
    )
    assert list(record) == names.split()
    assert run("topology", "status", mirror, "-o", "tsv").out.split("\t")[:5] == [mirror, origin, "mirror", "ok", "0"]
    picked = run("topology", "status", mirror, "--columns", "Behind,lands as,replica", "--header").out
    assert picked == f"behind\tlands as\treplica\n0\t\t{mirror}\n"
    assert run("topology", "status", unique("NONE")).exit_code == 3


def test_status_ends_with_a_sentence_for_each_trouble(run, raw, unique):
    name = unique("A")
    Replicas(raw).aggregate(name, source("NOBODY", name, "a.>", "b.>"))
    title, _, _, row, _, *closing = run("topology", "status", name, tty=True).out.splitlines()
    assert title == "NOBODY"
    assert row.split() == [name, "aggregate", "a.>", "b.>", "✗", "missing", "origin"]
    assert closing == [
        "1 origin, 1 replica: 1 missing origin",
        f"✗ {name} (from NOBODY): `NOBODY` does not exist",
        "  Details and remedies: kvctl doctor",
    ]


def test_status_watch_in_a_pipe_prints_changed_rows(start, server, raw, unique):
    _, mirror = pair(raw, unique)
    process = start("topology", "status", mirror, "--watch", "--interval", "200ms", "-o", "json", "-s", server.url)
    assert json.loads(process.stdout.readline())["state"] == "ok"
    raw.api(f"STREAM.DELETE.{mirror}")
    assert json.loads(process.stdout.readline())["state"] == "gone"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stderr.read() == b""


def test_status_watch_waits_for_a_lost_server(start, own_server, unique):
    def state(process: "subprocess.Popen[bytes]") -> str:
        line = process.stdout.readline()
        assert line
        return str(json.loads(line)["state"])

    with RawClient(own_server.url) as raw:
        _, mirror = pair(raw, unique)
    options = ("--interval", "200ms", "--timeout", "3s", "-o", "ndjson", "-s", own_server.url)
    process = start("topology", "status", mirror, "--watch", *options)
    assert state(process) == "ok"
    own_server.kill()
    warning = process.stderr.readline()
    own_server.launch()
    own_server.wait_ready()
    assert b"waiting for the connection" in warning
    with RawClient(own_server.url) as raw:
        raw.api(f"STREAM.DELETE.{mirror}")
    while state(process) != "gone":
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_status_watch_on_a_terminal_leaves_the_last_screen(server, raw, unique):
    _, mirror = pair(raw, unique)
    options = ("--watch", "--interval", "200ms", "-s", server.url)
    with Dialogue("topology", "status", mirror, *options) as dialogue:
        live = "".join(dialogue.hear("\x1b[H") for _ in range(3))  # drawn three times
        dialogue.process.send_signal(signal.SIGINT)
        live += dialogue.hear("\x1b[?1049l")
        dialogue.hear(mirror)
        assert dialogue.end() == 130
        assert "Traceback" not in dialogue.hear()
    assert live.startswith("\x1b[?1049h")
    assert "1 replica: all ok" in live


def test_status_as_metrics(run, raw, unique, tmp_path):
    origin, mirror = pair(raw, unique)
    shown = run("topology", "status", origin, "--format", "prometheus")
    samples = parsed(shown.out)
    states = values(samples, "kvctl_replica_state", "replica", "origin", "state")
    assert [key for key, value in states.items() if value] == [(mirror, origin, "ok")]
    assert values(samples, "kvctl_replica_entries_behind", "replica") == {(mirror,): 0}
    assert values(samples, "kvctl_bucket_up", "bucket", "kind") == {(origin, "bucket"): 1, (mirror, "mirror"): 1}
    file = tmp_path / "kvctl.prom"
    file.write_text("before")
    file.chmod(0o600)
    done = run("topology", "status", "--format", "prometheus", "--to", str(file))
    assert (done.exit_code, done.out, os.listdir(tmp_path)) == (0, "", ["kvctl.prom"])
    assert set(values(parsed(file.read_text()), "kvctl_bucket_up", "bucket")) >= {(origin,), (mirror,)}
    assert file.stat().st_mode & 0o044 == 0o044  # the collector is another user
    assert run("topology", "status", "--format", "prometheus", "--to", str(tmp_path / "no" / "x")).exit_code == 1
    for args in (
        ["--format", "xml"],
        ["--to", "x"],
        ["--format", "prometheus", "--watch"],
        ["--format", "prometheus", "-o", "json"],
    ):
        assert run("topology", "status", *args).exit_code == 2
