"""Progress on a terminal."""

import os
import subprocess
import sys

import pytest

from kvctl.render.progress import Progress
from tests.cli.conftest import COLUMNS, open_terminal
from tests.support.readme import ROOT

SCRIPT = """
import time
from kvctl.render.progress import DELAY, Activity
with Activity(enabled=True) as activity:
    time.sleep(DELAY)
    activity.say("word " * 100)
"""


def on_terminal(script: str) -> str:
    """What a script writes to its stderr on a terminal."""
    master, terminal = open_terminal()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", script], stderr=terminal, env=environment, check=True, timeout=60)
    os.close(terminal)
    seen = os.read(master, 65536).decode()
    os.close(master)
    return seen


def test_what_is_wider_than_the_terminal_is_cut_and_taken_back():
    seen = on_terminal(SCRIPT)
    assert "word word" in seen
    assert seen.count("word ") < COLUMNS / 5
    assert "…" in seen
    assert seen.count("\n") == seen.count("\x1b[1A")  # the cursor goes back up as often as it went down


@pytest.mark.parametrize(
    ("total", "unit", "done", "rows", "seconds", "shown"),
    [
        (37_800_000, "bytes", 24_500_000, 190_000, 1.0, "23.4/36.0 MiB  190k rows/s  0:01 left"),
        (37_800_000, "bytes", 24_500_000, 0, 2.0, "23.4/36.0 MiB  11.7 MiB/s  0:01 left"),
        (None, "bytes", 24_500_000, 0, 61.0, "23.4 MiB  392.2 KiB/s  1:01"),
        (900, "bytes", 450, 0, 1.0, "450/900 B  450 B/s  0:01 left"),
        (300_000, "entries", 80_000, 0, 4.0, "80,000/300,000 entries  20k entries/s  0:11 left"),
        (None, "keys", 85, 0, 10.0, "85 keys  8.5 keys/s  0:10"),
        (10, "keys", 12, 0, 6.0, "12 keys  2.0 keys/s  0:06"),
        (10_000_000, "entries", 1_000, 0, 1.0, "1,000/10,000,000 entries  1.0k entries/s  2:46:39 left"),
        (5, "", 0, 0, 3.0, "0/5  0:03"),
    ],
)
def test_progress_has_units_rate_and_time_left(total, unit, done, rows, seconds, shown):
    progress = Progress("Loading", total, unit=unit, enabled=False)
    progress.advance_rows(rows)
    progress.advance(done)
    assert progress.facts(seconds) == shown


BAR = """
import time
from kvctl.render.progress import DELAY, Progress
with Progress("Copying [orders]", 300_000, unit="entries", enabled=True) as progress:
    time.sleep(DELAY)
    progress.advance(80_000)
"""


def test_progress_bar_fits_the_terminal():
    seen = on_terminal(BAR)
    assert "Copying [orders]" in seen
    assert "80,000/300,000 entries" in seen
    assert " left" in seen
