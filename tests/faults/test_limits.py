"""Servers that take no more: full disks, expired or changed credentials, silence. Commands end as the contract says."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.faults.hosts import HostServer, started
from tests.faults.network import CLIENT, Network

pytestmark = pytest.mark.faults

TIMEOUT_S = 2.0
DISK = "16m"
COMMANDS = [
    (("get", "B", "k"), {5}),
    (("get", "B", ">"), {5}),
    (("put", "B", "k", "v"), {5, 6}),
    (("create", "B", "new", "v"), {5, 6}),
    (("update", "B", "k", "v", "1"), {5, 6}),
    (("delete", "B", "k"), {5, 6}),
    (("purge", "B", "k", "--yes"), {5, 6}),
    (("keys", "B"), {5}),
    (("history", "B"), {5}),
    (("watch", "B", "--until-current"), {5}),
    (("wait", "B", "never", "--wait-for", "2s"), {5}),
    (("dump", "B"), {5}),
    (("bucket", "ls"), {5}),
    (("bucket", "show", "B"), {5}),
    (("bucket", "add", "N"), {5, 6}),
    (("bucket", "delete", "B", "--yes"), {5, 6}),
    (("stream", "ls"), {5}),
    (("topology", "status"), {5}),
    (("topology", "audit"), {5}),
    (("doctor",), {5}),
    (("lock", "B", "l", "--", "true"), {5, 6}),
]


@pytest.fixture
def one(tmp_path):
    """One server on its host."""
    with Network(["n1"]) as net:
        (server,) = started(net, tmp_path, {"n1": 'jetstream { store_dir: "@store@" }\n'}).values()
        try:
            yield server
        finally:
            server.kill()


def run(server: HostServer, *words: str, stdin: str = "", limit: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvctl", "-s", server.url, "--timeout", f"{TIMEOUT_S:.0f}s", *words]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=limit, check=False)


@pytest.mark.parametrize(
    ("words", "codes"), COMMANDS, ids=lambda item: " ".join(item) if isinstance(item, tuple) else ""
)
@pytest.mark.parametrize("how", ["stopped", "cut"])
def test_command_without_an_answer_ends_in_time(one, words, codes, how):
    assert run(one, "bucket", "add", "B", "--marker-ttl", "1s").returncode == 0
    assert run(one, "put", "B", "k", "v").returncode == 0
    if how == "stopped":
        one.pause()
    else:
        one.network.cut("n1", CLIENT, both=False)
    begun = time.monotonic()
    ended = run(one, *words)
    took = time.monotonic() - begun
    assert ended.returncode in codes, ended.stderr
    assert ended.stderr.startswith("error: ")
    assert "Traceback" not in ended.stderr
    assert took < 4 * TIMEOUT_S + 2  # and what starting Python takes


def test_full_disk_loses_nothing_acknowledged(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)], check=True)
    try:
        with Network(["n1"]) as net:
            config = f'jetstream {{ store_dir: "{disk}", max_file_store: 1GB }}\n'
            (server,) = started(net, tmp_path, {"n1": config}).values()
            try:
                _fill(server)
            finally:
                server.kill()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _fill(server: HostServer) -> None:
    assert run(server, "bucket", "add", "B").returncode == 0
    acknowledged = []
    for number in range(40):
        put = run(server, "put", "B", f"k{number}", "-", stdin="v" * 900_000)
        if put.returncode != 0:
            assert put.returncode in (1, 5, 6, 7), put.stderr
            assert "Traceback" not in put.stderr
            break
        acknowledged.append(number)
    else:
        pytest.fail("the disk was never full")
    assert len(acknowledged) > 5
    for number in acknowledged:
        got = run(server, "get", "B", f"k{number}", limit=60)
        assert (got.returncode, len(got.stdout)) == (0, 900_000), got.stderr


def test_watch_ends_when_its_credentials_are_refused(tmp_path):
    jetstream = 'jetstream { store_dir: "@store@" }\n'
    users = "authorization {{ users: [ {{ user: a, password: {} }} ] }}\n"
    secret = tmp_path / "secret"
    secret.write_text("first")
    with Network(["n1"]) as net:
        (server,) = started(net, tmp_path, {"n1": jetstream + users.format("first")}).values()
        try:
            as_a = ("--user", "a", "--password-file", str(secret))
            assert run(server, *as_a, "bucket", "add", "B").returncode == 0
            command = [sys.executable, "-m", "kvctl", "-s", server.url, *as_a, "watch", "B", "-o", "ndjson"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
                assert "current" in watch.stdout.readline()
                server.configure(jetstream + users.format("second"))
                server.reload()
                _, errors = watch.communicate(timeout=120)
            assert watch.returncode == 5
            assert "refused" in errors
            assert "first" not in errors
        finally:
            server.kill()
