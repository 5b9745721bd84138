"""Kills a job, or processes that it started: called from inside of the job, at a point of it."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARKS = {"worker": b"pyspark.daemon", "planner": b"python_streaming_source_runner", "jvm": b"org.apache.spark"}
"""Whom, and what the command line holds."""


def below(parent: int) -> Iterator[int]:
    """The processes that a process started, and those that they did."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and parent_of(int(entry.name)) == parent:
            yield int(entry.name)
            yield from below(int(entry.name))


def parent_of(pid: int) -> int:
    """The process that started one; 0 when it has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def kill(whom: str) -> None:
    """Kill this process, the `driver`, or those below it of a kind; says on stderr which."""
    if whom == "driver":
        os.kill(os.getpid(), signal.SIGKILL)
    for pid in list(below(os.getpid())):
        with suppress(OSError):
            if MARKS[whom] in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                print(f"killed {whom} {pid}", file=sys.stderr, flush=True)
