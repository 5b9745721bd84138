"""Limits of an account that are reached while kvctl works: the reason is named, and nothing is left half done."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvctl.server import Server, run_server
from tests.support.raw import RawClient

pytestmark = pytest.mark.faults

ACCOUNT = """
listen: 127.0.0.1:@client@
jetstream {{ store_dir: "@store@", max_file_store: 1GB, max_memory_store: 1MB }}
accounts {{ A {{ users: [ {{ user: a, password: a }} ], jetstream: {{ {limits} }} }} }}
"""
CONSUMERS, STREAMS, STORAGE = "max_consumers: 2", "max_streams: 2", "max_file: 2MB"
ROWS, SIZE = 400, 20_000
THREE = "version: 1\nbuckets: {B1: {}, B2: {}, B3: {}}\n"


@pytest.fixture
def limited(request):
    """A server whose account A has the limits of the parameter."""
    with run_server(config=ACCOUNT.format(limits=request.param)) as server:
        yield server


def command(server: Server, *words: str) -> list[str]:
    return [sys.executable, "-m", "kvctl", "-s", server.url.replace("//", "//a:a@"), *words]


def run(server: Server, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(server, *words), capture_output=True, text=True, input=stdin, timeout=120, check=False
    )


def refused(ended: subprocess.CompletedProcess[str], reason: str, codes: tuple[int, ...] = (1,)) -> None:
    """Check that a command failed for a limit, said so, and knew what it did."""
    assert ended.returncode in codes, ended
    assert reason in ended.stderr, ended
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("limited", [STREAMS], indirect=True)
def test_limit_of_streams_leaves_nothing_half_done(limited, tmp_path):
    assert run(limited, "bucket", "add", "O").returncode == 0
    assert run(limited, "put", "O", "k", "v").returncode == 0
    file = tmp_path / "topology.yaml"
    file.write_text(THREE)
    refused(run(limited, "topology", "apply", "-f", str(file), "--yes"), "streams", (7,))
    assert _streams(limited) == {"KV_O", "KV_B1"}
    for words in (
        ("bucket", "add", "B"),
        ("stream", "create", "S", "--subject", "s"),
        ("mirror", "create", "M", "--origin", "O"),
        ("aggregate", "create", "AG", "--origin", "bucket=O"),
        ("bucket", "copy", "O", "C", "--data", "history"),
        ("table", "create", "T"),
        ("table", "create", "T2", "--partition-streams"),
        ("repo", "init", "R"),
    ):
        refused(run(limited, *words), "streams")
        assert _streams(limited) == {"KV_O", "KV_B1"}, words
    assert run(limited, "bucket", "delete", "O", "--yes").returncode == 0
    refused(run(limited, "topology", "apply", "-f", str(file), "--yes"), "streams", (7,))
    assert _streams(limited) == {"KV_B1", "KV_B2"}


@pytest.mark.parametrize("limited", [STORAGE], indirect=True)
def test_limit_of_storage_keeps_what_was_acknowledged(limited, tmp_path):
    assert run(limited, "bucket", "add", "O").returncode == 0
    rows = tmp_path / "rows.ndjson"
    rows.write_text("".join(json.dumps({"key": f"k{n}", "value": "v" * SIZE}) + "\n" for n in range(ROWS)))
    refused(run(limited, "load", "O", str(rows)), "storage", (1, 7))
    kept = run(limited, "keys", "O").stdout.split()
    assert 0 < len(kept) < ROWS
    refused(run(limited, "put", "O", "more", "-", stdin="v" * SIZE), "Raise the limit of the server or account")
    refused(run(limited, "mirror", "create", "M", "--origin", "O", "--wait-for", "5s"), "", (1, 9))
    assert set(run(limited, "keys", "O").stdout.split()) == set(kept)
    for key in kept:
        got = run(limited, "get", "O", key) if key in (kept[0], kept[-1]) else None
        assert got is None or (got.returncode, len(got.stdout)) == (0, SIZE)


@pytest.mark.parametrize("limited", [CONSUMERS], indirect=True)
def test_limit_of_consumers_ends_readings_that_need_one(limited):
    assert run(limited, "bucket", "add", "O").returncode == 0
    for number in range(3):
        assert run(limited, "put", "O", f"k{number}", "v").returncode == 0
    watching = [
        subprocess.Popen(command(limited, "watch", "O", "-o", "ndjson"), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for watch in watching:
            while '"current"' not in watch.stdout.readline():
                assert watch.poll() is None
        for words in (("watch", "O", "--until-current"), ("keys", "O"), ("history", "O"), ("dump", "O")):
            refused(run(limited, *words), "consumers")
        assert run(limited, "get", "O", "k1").stdout == "v"
        assert run(limited, "put", "O", "k1", "w").returncode == 0
    finally:
        for watch in watching:
            watch.terminate()
            watch.communicate()
    assert len(run(limited, "keys", "O").stdout.split()) == 3


def _streams(server: Server) -> set[str]:
    with RawClient(server.url, user="a", password="a") as raw:
        return {info["config"]["name"] for info in raw.api("STREAM.LIST").get("streams") or []}
