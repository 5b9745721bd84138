"""Jobs whose credentials end while they run: a clear error in time, nothing half done; a next run completes it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import pytest

from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.server import Server, run_server
from tests.pipeline.cluster import free_ports
from tests.pipeline.lasting_session import LastingSession
from tests.support.raw import RawClient
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ROWS = 200_000
MOVED_BYTES = 2_000_000
"""Bytes that a job moves before its credentials end: a tenth of all, or less."""
CONFIG = """
listen: 127.0.0.1:@client@
http: 127.0.0.1:{page}
jetstream {{ store_dir: "@store@" }}
authorization {{ users: [ {{ user: app, password: {word} }}, {{ user: test, password: test }} ] }}
"""
JOBS = {
    "export": "export B --to {to}",
    "capture": "capture B --to {to} --once",
    "load": "load {tables} --into COPY --create",
    "audit": "audit B SAME",
    "commit": "commit REPO@main --from {tables} -m x",
}


@dataclass
class Guarded:
    """Server with a password that changes, and the file with that of this machine."""

    server: Server
    session: LastingSession
    page: int
    folder: Path
    words: Iterator[str] = field(default_factory=lambda: (f"tulip-{number}-password" for number in count(1)))
    word: str = "tulip-0-password"

    @property
    def connection(self) -> list[str]:
        """Options of a command."""
        return ["-s", self.server.url, "--user", "app", "--password-file", str(self.folder / "password")]

    def expire(self) -> None:
        """Change the password in the server, which ends the connections of the old one."""
        config, before = self.server.store.parent / "server.conf", self.word
        self.word = next(self.words)
        config.write_text(config.read_text().replace(before, self.word))
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGHUP)

    def renew(self) -> None:
        """Write the password into its file."""
        (self.folder / "password").write_text(self.word)
        (self.folder / "password").chmod(0o600)

    def moved(self) -> int:
        """Bytes that the server received and sent."""
        with urlopen(f"http://127.0.0.1:{self.page}/varz", timeout=60) as answer:
            found = json.load(answer)
        return int(found["in_bytes"] + found["out_bytes"])

    def kvctl(self, *line: str) -> str:
        """Run a command that is not a job."""
        command = [sys.executable, "-m", "kvctl", *self.connection, *line]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[Guarded]:
    """Two equal buckets, an export, and an empty repository."""
    port, page = free_ports(2)
    folder = tmp_path_factory.mktemp("guarded")
    where = ["--master", "local[2]", "--conf", f"spark.local.dir={folder}/spark"]  # a command removes its own
    with (
        run_server(port=port, config=CONFIG.format(page=page, word=Guarded.word)) as server,
        LastingSession(where) as session,
    ):
        found = Guarded(server, session, page, folder)
        found.renew()
        with RawClient(server.url, user="test", password="test", timeout=120) as raw:
            for name in ("B", "SAME"):
                raw.create_bucket(name)
                for number in range(ROWS - 1):
                    raw.publish(f"$KV.{name}.k.{number}", b"%d" % number * 20)
                raw.put(name, "last", b"x")
        found.kvctl("repo", "init", "REPO")
        code, _, errors = session.run("export", "B", "--to", str(folder / "tables"), *found.connection)
        assert code == 0, errors
        yield found


@pytest.mark.parametrize("job", JOBS)
def test_a_job_ends_with_its_password_and_the_next_run_completes(job, guarded, tmp_path):
    line = JOBS[job].format(to=tmp_path / "out", tables=guarded.folder / "tables").split()
    line += [*guarded.connection, "-o", "json"]
    before = guarded.moved()
    guarded.session.begin(*line)
    until(lambda: guarded.moved() > before + MOVED_BYTES, what="rows", within=600)
    guarded.expire()
    code, out, errors = guarded.session.result()
    guarded.renew()
    assert (code, out) == (5, ""), errors
    found = json.loads(errors.splitlines()[-1])["error"]
    assert (found["code"], found["kind"]) == (5, "authentication-refused"), found
    assert "-password" not in errors.replace("--password-file", "")
    if job == "export":
        assert not stored_table.is_table(TablePlace(str(tmp_path / "out")))
    code, out, errors = guarded.session.run(*line)
    assert code == 0, errors
    if job in ("export", "capture"):
        table = stored_table.open_table(TablePlace(str(tmp_path / "out")))
        assert table.rows == ROWS
        assert stored_table.damages(table) == []
    if job == "load":
        assert (json.loads(out)["rows"], json.loads(out)["rejected"]) == (ROWS, 0)
        guarded.kvctl("bucket", "diff", "B", "COPY", "--exit-code")
    if job == "commit":
        assert guarded.kvctl("keys", "REPO@main", "--count").strip() == f"{ROWS}"


def test_a_capture_goes_on_when_its_password_is_renewed_in_the_file(guarded, tmp_path):
    """A capture runs for months, and its credentials do not."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "kvctl", "pipeline", "capture", "B", "--to", str(out), "--master", "local[2]"]
    with subprocess.Popen([*command, *guarded.connection], stderr=subprocess.PIPE) as process:
        try:
            until(lambda: process.poll() is not None or _rows(out) == ROWS, what="all rows", within=600)
            guarded.expire()
            guarded.renew()
            with RawClient(guarded.server.url, user="test", password="test", timeout=120) as raw:
                raw.put("B", "later", b"x")
            until(lambda: process.poll() is not None or _rows(out) == ROWS + 1, what="the row after", within=300)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert _rows(out) == ROWS + 1


def _rows(folder: Path) -> int:
    """Rows of a capture; 0 before it is there."""
    with suppress(Exception):
        return stored_table.open_table(TablePlace(str(folder))).rows
    return 0
