"""Pager for long texts on a terminal: KVCTL_PAGER, PAGER or `less`, chosen and run as git does."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from kvctl.render.table_layout import plain_width

_NEEDS_SHELL = re.compile(r"[|&;<>()$`\\\"' \t\n*?\[#~=%]")
_SETTINGS = {"LESS": "FRX", "LV": "-c"}
"""Settings of pagers, unless the user has others: quit if all fits, show colours, keep the screen."""


def paged(text: str, size: os.terminal_size) -> bool:
    """Show a text in the pager, and return True; False without a pager, for a short text, and after a failure."""
    command = pager(os.environ)
    if not command or _height(text, size.columns) < size.lines:
        return False
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**_SETTINGS, **os.environ})
    except OSError:
        return False
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager
    try:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the reader has seen enough
            process.stdin.write(text.encode())
        with suppress(BrokenPipeError):
            process.stdin.close()
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return not 0 < code < 128


def pager(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the command of the pager, empty if none is wanted."""
    command = environ.get("KVCTL_PAGER", environ.get("PAGER", "less")).strip()
    if command in ("", "cat") or environ.get("TERM") == "dumb":
        return ()
    return ["/bin/sh", "-c", command] if _NEEDS_SHELL.search(command) else [command]


def _height(text: str, columns: int) -> int:
    """Return the lines that a text takes on a terminal."""
    return sum(max(1, -(-plain_width(line) // max(columns, 1))) for line in text.splitlines())
