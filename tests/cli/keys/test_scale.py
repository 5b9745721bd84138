"""Memory of long readings: a million keys, in the slow suite; the same in small by default."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvctl
from kvctl.server import Server, run_server

SMALL = 10_000
UNDER_WAY = 32 * 1024
"""KiB of batches under way, whatever the number of keys: 100,000 keys and a million take the same."""


@pytest.fixture(scope="module")
def large():
    """A server for buckets too large to share."""
    with run_server(name="large") as server:
        yield server


async def _fill(server: Server, keys: int) -> str:
    """Fill a bucket with this number of keys of 20 bytes, one value each."""
    async with kvctl.connect(server.url) as client:
        bucket = await client.create_bucket(f"K{keys}")
        summary = await bucket.put_many((f"key.{number:08d}.abcdefg", b"v" * 20) for number in range(keys))
        assert (summary.written, summary.failed) == (keys, [])
    return f"K{keys}"


def _peak(server: Server, *args: str, lines: int) -> int:
    """Return the peak memory of a command in KiB. Peaks are inherited: a small process starts it."""
    code = (
        "import os, subprocess, sys\n"
        "process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n"
        "lines = sum(chunk.count(b'\\n') for chunk in iter(lambda: process.stdout.read1(1 << 16), b''))\n"
        "_, status, usage = os.wait4(process.pid, 0)\n"
        "print(status, lines, usage.ru_maxrss)\n"
    )
    command = [sys.executable, "-c", code, sys.executable, "-m", "kvctl", *args, "-s", server.url]
    here = str(Path(__file__).parents[3])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": here}, capture_output=True, check=True)
    status, count, peak = map(int, done.stdout.split())
    assert (status, count) == (0, lines)
    return peak


@pytest.mark.guarantee("reading-17")
@pytest.mark.parametrize("keys", [60_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
async def test_listing_is_flat_and_takes_150_bytes_a_key_if_sorted(large, keys):
    few, many = await _fill(large, SMALL), await _fill(large, keys)
    for options, each in (((), 0), (("-o", "ndjson"), 0), (("--sort",), 150)):
        base = _peak(large, "keys", few, *options, lines=SMALL)
        peak = _peak(large, "keys", many, *options, lines=keys)
        allowed = each * (keys - SMALL) // 1024 + UNDER_WAY
        assert peak - base < allowed, (options, base, peak)


@pytest.mark.parametrize("keys", [60_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "command", [("watch", "--until-current", "-o", "name"), ("history",)], ids=lambda line: line[0]
)
async def test_following_and_history_are_flat(large, keys, command):
    few, many = await _fill(large, SMALL), await _fill(large, keys)
    base = _peak(large, command[0], few, *command[1:], lines=SMALL)
    assert _peak(large, command[0], many, *command[1:], lines=keys) - base < UNDER_WAY
