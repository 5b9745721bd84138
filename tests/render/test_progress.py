"""Progress on a terminal."""

import os
import subprocess
import sys

from tests.cli.conftest import COLUMNS, open_terminal
from tests.support.readme import ROOT

SCRIPT = """
import time
from kvctl.render.progress import DELAY, Activity
with Activity(enabled=True) as activity:
    time.sleep(DELAY)
    activity.say("word " * 100)
"""


def test_what_is_wider_than_the_terminal_is_cut_and_taken_back() -> None:
    master, terminal = open_terminal()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", SCRIPT], stderr=terminal, env=environment, check=True, timeout=60)
    os.close(terminal)
    seen = os.read(master, 65536).decode()
    os.close(master)
    assert "word word" in seen
    assert seen.count("word ") < COLUMNS / 5
    assert "…" in seen
    assert seen.count("\n") == seen.count("\x1b[1A")  # the cursor goes back up as often as it went down
