"""The scripts in examples/, run as they stand."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvctl.server import Server
from tests.raw import RawClient
from tests.readme import ROOT

EXAMPLES = ROOT / "examples"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(server: Server) -> Run:
    """Runs an example against the shared server, with kvctl on PATH."""
    path = os.pathsep.join([os.path.dirname(sys.executable), "/usr/bin", "/bin"])
    environment = {**os.environ, "NATS_URL": server.url, "PATH": path}

    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    return run


def test_every_example_has_a_test() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    assert not [path.name for path in EXAMPLES.iterdir() if path.is_file() and f'"{path.name}"' not in tested]


def test_the_cache_follows_the_bucket(run: Run, raw: RawClient, bucket_name: str) -> None:
    raw.create_bucket(bucket_name)
    for key, value in (("a", b"1"), ("b", b"2"), ("gone", b"3")):
        raw.put(bucket_name, key, value)
    raw.put(bucket_name, "gone", b"", {"KV-Operation": "DEL"})
    done = run(sys.executable, str(EXAMPLES / "cache.py"), bucket_name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a 1\nb 2\nseen.by the cache\n"


def test_increments_by_several_at_once_all_count(run: Run, raw: RawClient, bucket_name: str) -> None:
    raw.create_bucket(bucket_name)
    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(lambda _: run(str(EXAMPLES / "increment.sh"), bucket_name, "counter"), range(4)))
    assert [done.returncode for done in runs] == [0] * 4
    stored = raw.request(f"$JS.API.DIRECT.GET.KV_{bucket_name}.$KV.{bucket_name}.counter")
    assert stored.data == b"4"
