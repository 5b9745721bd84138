"""Jobs that are killed at a point of them, or processes that they started: the kills run inside of the job."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from tests.support.readme import ROOT

MARKS = {
    "worker": b"pyspark.daemon",
    "task": b"pyspark.daemon\0pyspark.worker",
    "executor": b"CoarseGrainedExecutorBackend",
    "planner": b"python_streaming_source_runner",
    "jvm": b"org.apache.spark",
}
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
    """Kill a process by its id, this one, the `driver`, it with `all` below it, or those below of a kind.

    Says on stderr which of a kind.
    """
    if whom.isdigit():
        os.kill(int(whom), signal.SIGKILL)
        return
    if whom == "all":
        for pid in list(below(os.getpid())):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    if whom in ("all", "driver"):
        os.kill(os.getpid(), signal.SIGKILL)
    for pid in list(below(os.getpid())):
        with suppress(OSError):
            if MARKS[whom] in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                print(f"killed {whom} {pid}", file=sys.stderr, flush=True)


def kill_when(whom: str, condition: Callable[[], object]) -> None:
    """Kill as soon as the condition holds, from a thread of the job."""

    def look() -> None:
        while not condition():
            time.sleep(0.001)
        kill(whom)

    threading.Thread(target=look, daemon=True).start()


def kill_at(
    whom: str,
    owner: object,
    name: str,
    *,
    call: int = 1,
    when: Callable[..., bool] = lambda *_: True,
    after: bool = False,
) -> None:
    """Kill before a call of `owner.name`, or after it: the n-th of those to which `when` applies."""
    real, calls = getattr(owner, name), count(1)

    def called(*args: Any, **settings: Any) -> Any:
        due = when(*args) and next(calls) == call
        if due and not after:
            kill(whom)
        result = real(*args, **settings)
        if due and after:
            kill(whom)
        return result

    setattr(owner, name, called)


def run(script: str, folder: Path, whom: str, *arguments: str) -> tuple[int, str]:
    """Run a script, which gets `whom`, the folder and the arguments; its exit code and stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder.parent)}
    command = [sys.executable, "-c", script, whom, str(folder), *arguments]
    with tempfile.TemporaryFile() as errors:  # what outlives a killed driver for a moment holds up nothing
        code = subprocess.run(command, env=environment, stderr=errors, timeout=900).returncode
        errors.seek(0)
        return code, errors.read().decode()


def run_killed(script: str, whom: str, folder: Path, *arguments: str) -> None:
    """Run a script that kills: a lost driver or JVM ends it, lost workers and what plans batches are replaced."""
    code, said = run(script, folder, whom, *arguments)
    assert code == {"driver": -signal.SIGKILL, "all": -signal.SIGKILL, "jvm": 1}.get(whom, 0), said
    assert whom in ("driver", "all") or f"killed {whom}" in said, said
    assert whom != "jvm" or "KvctlError: Spark ended unexpectedly" in said, said
