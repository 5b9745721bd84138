"""Jobs of the pipeline on a Spark of several processes, with a fault while their tasks run, and what they leave."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.server import Server
from tests.pipeline.cluster import READY
from tests.pipeline.killing import MARKS, below
from tests.pipeline.lasting_session import LastingSession
from tests.support.raw import RawClient
from tests.support.waiting import until

KEYS = 30_000
ROWS = 40_000
OUTAGE_S = 20
_NUMBERS = count(1)
_COPY = """
create temporary view source using `nats-kv` options (bucket 'B', url '${url}');
create temporary view target using `nats-kv` options (bucket '${to}', url '${url}', columns 'key,value');
insert into target select key, value from source;
"""


@dataclass(frozen=True)
class Filled:
    """Server with a bucket `B` of KEYS keys and ROWS entries, its equal `SAME`, and tables of it in a folder."""

    server: Server
    folder: Path
    where: Sequence[str]
    session: LastingSession | None = None
    """Session of the jobs; without one, each is a process of its own."""

    def kvctl(self, *line: str, code: int = 0) -> str:
        """Run a command, and return what it printed."""
        done = subprocess.run(self.command(*line), capture_output=True, text=True, timeout=READY)
        assert done.returncode == code, done.stderr
        return done.stdout

    def command(self, *line: str) -> list[str]:
        """Return the command line of a command."""
        return [sys.executable, "-m", "kvctl", "-s", self.server.url, *line]


@dataclass(frozen=True)
class Run:
    """Run of a job: what it was given, and what it reported."""

    filled: Filled
    to: Path
    new: str
    result: dict[str, Any] = field(default_factory=dict)


def fill(server: Server, folder: Path, where: Sequence[str], session: LastingSession | None = None) -> Filled:
    """Make the buckets, and the tables by jobs on a Spark."""
    filled = Filled(server, folder, where, session)
    with RawClient(server.url, timeout=120) as raw:
        for name in ("B", "SAME"):
            raw.create_bucket(name, max_msgs_per_subject=3)
            for number in range(ROWS - 1):
                raw.publish(f"$KV.{name}.k.{number % KEYS}", b"%d" % number * 50)
            raw.put(name, f"k.{KEYS - 1}", b"last")
    _run(filled, ["export", "B", "--to", str(folder / "latest")])
    _run(filled, ["export", "B", "--to", str(folder / "history"), "--mode", "history"])
    _run(filled, ["capture", "B", "--to", str(writable(folder / "captured")), "--once"])
    (folder / "table.csv").write_text("key,value\n" + "".join(f"k.{number},{number}\n" for number in range(KEYS)))
    (folder / "copy.sql").write_text(_COPY)
    return filled


def run(filled: Filled, job: str, folder: Path, fault: Callable[[], object] | None = None) -> Run:
    """Run a job, with a fault once it runs; it has to succeed and to leave what it should."""
    line, check = JOBS[job]
    begun = Run(filled, folder / "out", f"NEW{next(_NUMBERS)}")
    if job == "commit":
        filled.kvctl("repo", "init", begun.new)
    if job in ("load-csv", "run"):
        filled.kvctl("bucket", "create", begun.new)
    if job == "capture":
        writable(begun.to)
    if job == "compact":
        shutil.copytree(filled.folder / "captured", begun.to)
    words = line.format(to=begun.to, new=begun.new, tables=filled.folder).split()
    done = Run(filled, begun.to, begun.new, _run(filled, words, fault))
    check(done)
    return done


def _run(filled: Filled, line: Sequence[str], fault: Callable[[], object] | None = None) -> dict[str, Any]:
    line = [*line, "-s", filled.server.url, "-o", "json"]
    if filled.session is not None:
        filled.session.begin(*line)
        if fault is not None:
            fault()
        code, out, errors = filled.session.result()
    else:
        command = filled.command("pipeline", *line, *filled.where)
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=filled.folder) as process:
            try:
                if fault is not None:
                    fault()
                    assert process.poll() is None, "the job ended before the fault"
                out, errors = process.communicate(timeout=READY)
            finally:
                process.kill()
        code = process.returncode
    assert code == 0, errors
    result: dict[str, Any] = json.loads(out)
    return result


def writable(folder: Path) -> Path:
    """Make the folder of a capture, which the user that runs the executors has to be able to write."""
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def stop(server: Server) -> None:
    """Stop a server for a while."""
    server.stop()
    time.sleep(OUTAGE_S)
    server.start()


def wait_for_tasks(above: int | None = None) -> None:
    """Wait until a Python worker runs below an executor, or below this process id."""

    def runs() -> bool:
        executors = [above] if above else [pid for pid in below(os.getpid()) if _named(pid, MARKS["executor"])]
        return any(_named(pid, MARKS["task"]) for executor in executors for pid in below(executor))

    until(runs, what="tasks", within=READY)


def _named(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _table(rows: int) -> Callable[[Run], None]:
    def check(run: Run) -> None:
        found = stored_table.open_table(TablePlace(str(run.to)))
        assert found.rows == rows
        assert stored_table.damages(found) == []

    return check


def _copied(run: Run) -> None:
    assert (run.result["rows"], run.result["rejected"]) == (KEYS, 0)
    assert run.result["written"] + run.result["unchanged"] == KEYS
    _equal(run)


def _equal(run: Run) -> None:
    with RawClient(run.filled.server.url) as raw:
        assert raw.api(f"STREAM.INFO.KV_{run.new}")["state"]["messages"] == KEYS
    run.filled.kvctl("bucket", "diff", "B", run.new, "--exit-code")


def _copied_history(run: Run) -> None:
    assert run.result["rows"] == run.result["written"] + run.result["unchanged"] == ROWS
    with RawClient(run.filled.server.url) as raw:
        assert raw.api(f"STREAM.INFO.KV_{run.new}")["state"]["messages"] == ROWS
    run.filled.kvctl("bucket", "diff", "B", run.new, "--exit-code")


def _numbers(run: Run) -> None:
    assert (run.result["rows"], run.result["rejected"]) == (KEYS, 0)
    assert run.filled.kvctl("get", run.new, f"k.{KEYS - 1}") == f"{KEYS - 1}"
    with RawClient(run.filled.server.url) as raw:
        assert raw.api(f"STREAM.INFO.KV_{run.new}")["state"]["messages"] == KEYS


def _committed(run: Run) -> None:
    assert run.filled.kvctl("keys", f"{run.new}@main", "--count").strip() == f"{KEYS}"
    assert run.filled.kvctl("get", f"{run.new}@main", f"k.{KEYS - 1}") == "last"


def _nothing(run: Run) -> None:
    """The exit code tells it."""


def _empty(run: Run) -> None:
    assert list(run.to.iterdir()) == []


JOBS: dict[str, tuple[str, Callable[[Run], None]]] = {
    "export": ("export B --to {to}", _table(KEYS)),
    "export-parquet": ("export B --to {to} --format parquet", _table(KEYS)),
    "capture": ("capture B --to {to} --once", _table(ROWS)),
    "capture-latest": ("capture B --to {to} --once --mode latest", _table(KEYS)),
    "load": ("load {tables}/latest --into {new} --create", _copied),
    "load-history": ("load {tables}/history --into {new} --create", _copied_history),
    "load-csv": ("load {tables}/table.csv --into {new} --key key", _numbers),
    "audit": ("audit B SAME", _nothing),
    "audit-export": ("audit {tables}/latest B", _nothing),
    "commit": ("commit {new}@main --from {tables}/latest -m x", _committed),
    "compact": ("compact {to}", _table(ROWS)),
    "verify": ("verify {tables}/latest", _nothing),
    "run": ("run {tables}/copy.sql --set to={new}", _equal),
    "check": ("check --to {to}", _empty),
}
"""Jobs by their names: the command, and what has to be there afterwards."""
