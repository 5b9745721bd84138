"""Progress on a terminal."""

import os
import re
import subprocess
import sys

import pytest

from kvctl.render.progress import short_rate
from tests.cli.conftest import COLUMNS, open_terminal
from tests.support.readme import ROOT

SCRIPT = """
import time
from kvctl.render.progress import DELAY, Progress
with Progress("Waiting", enabled=True) as progress:
    time.sleep(DELAY)
    progress.say("word " * 100)
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
    frames = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen))
    assert max(map(len, frames)) <= COLUMNS
    assert "…" in seen
    assert seen.count("\n") == seen.count("\x1b[1A")  # the cursor goes back up as often as it went down


@pytest.mark.parametrize(
    ("rate", "shown"), [(2, "2.0"), (8.46, "8.5"), (20, "20"), (1_050, "1.1k"), (190_000, "190k"), (1_200_000, "1.2M")]
)
def test_rates_have_three_digits_at_most(rate, shown):
    assert short_rate(rate) == shown


BAR = """
import time
from kvctl.render.progress import DELAY, Progress
with Progress("Copying [orders]", 300_000, unit="entries", enabled=True) as progress:
    time.sleep(DELAY)
    progress.advance(80_000)
"""


def test_progress_has_total_unit_rate_and_time_left_on_one_line():
    seen = on_terminal(BAR)
    assert "Copying [orders]" in seen
    assert "80,000/300,000 entries" in seen
    assert "k entries/s" in seen
    assert re.search(r"0:0\d:\d\d|-:--:--", seen)
    assert seen.count("\n") == seen.count("\x1b[1A")


BYTES = """
import time
from kvctl.render.progress import DELAY, Progress
with Progress("Loading", 37_800_000, unit="bytes", enabled=True) as progress:
    progress.advance_rows(190_000)
    time.sleep(DELAY)
    progress.advance(24_500_000)
"""


def test_bytes_are_shown_in_units_of_1024_with_the_rate_of_their_rows():
    seen = on_terminal(BYTES)
    assert "23.4/36.0 MiB" in seen
    assert "k rows/s" in seen
