"""`kvctl pipeline`: Spark targets, errors, progress and interruption."""

import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kvctl.cli.app.options import SharedValues
from kvctl.cli.app.session import Session
from kvctl.cli.pipeline import runner
from kvctl.cli.pipeline.runner import source_options
from kvctl.contexts import Context, ContextStore
from kvctl.errors import UsageError
from kvctl.pipeline.spark.engine import Engine, SparkTarget
from kvctl.render.terminal import Terminal
from tests.cli.conftest import open_terminal, run_process
from tests.support.readme import ROOT
from tests.support.waiting import until

WITHOUT_SPARK = """
from importlib.machinery import PathFinder
from kvctl.__main__ import main

find = PathFinder.find_spec

def find_others(name, *more):
    return None if name.split(".")[0] in ("pyspark", "pyarrow", "pandas") else find(name, *more)

PathFinder.find_spec = find_others
raise SystemExit(main())
"""
"""kvctl, installed without the extra."""

ENDLESS = """
import os, sys, time
from pathlib import Path
from kvctl.cli.app.command import command
from kvctl.cli.app.main import main
from kvctl.cli.pipeline.runner import OnSpark, run_job

def slowly(batches):
    for batch in batches:
        time.sleep(0.05)
        yield batch

def working(engine):
    engine.doing = "working"
    rows = engine.spark.range(0, 10**9, 1, 2).mapInArrow(slowly, "id bigint")
    rows.write.format("noop").mode("overwrite").save()

def interrupted():
    while not Path(os.environ["TMPDIR"], "interrupted").exists():
        time.sleep(0.05)

def planning(engine):
    engine.doing = "about to work"
    interrupted()
    try:
        working(engine)
    finally:
        print("in order", flush=True)

def hashing(engine):
    engine.doing = "hashing"
    interrupted()
    return "done"

def waiting(engine):
    time.sleep(600)

@command("pipeline endless", examples=["kvctl pipeline endless working"])
async def endless(session, job: str, *, target: OnSpark):
    await run_job(session, target, "Moving", globals()[job], incomplete="`out` is incomplete", patience=10**6)

main()
"""
"""kvctl with one more command."""


def test_the_last_setting_of_a_name_counts():
    target = runner._target({"master": None, "remote": None, "conf": ["a.b=1", "c=x=y", "a.b=", " d =1"]})
    assert target.conf == {"a.b": "", "c": "x=y", "d": "1"}


def test_pipeline_without_extra_hints_how_to_install_it():
    found = run_process("pipeline", "check", command=[sys.executable, "-c", WITHOUT_SPARK])
    assert found.exit_code == 1
    assert found.err == (
        "error: The pipeline needs Spark: `pyspark` is not installed\n\n"
        "hint: Install it with `pip install 'kvctl[spark]'`\n"
    )


def test_pipeline_help_works_without_extra():
    found = run_process("pipeline", "check", "--help", command=[sys.executable, "-c", WITHOUT_SPARK])
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [
        (["--conf", "spark.ui.enabled"], 2),
        (["--master", "local", "--remote", "sc://127.0.0.1"], 2),
        (["--remote", "spark://127.0.0.1:7077"], 2),
        (["--master", "localhost:7077"], 2),
        (["--master", "spark://127.0.0.1:1"], 5),
        (["--remote", "sc://127.0.0.1:1"], 5),
    ],
    ids=str,
)
def test_unusable_spark_target_fails_immediately(run, options, exit_code):
    found = run("pipeline", "check", *options)
    assert found.exit_code == exit_code
    assert found.err.startswith("error: ")
    assert found.out == ""


PATIENCE_S = 900.0
"""Seconds for a JVM to start or end on a machine that is busy."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "shown", "said", "printed"),
    [
        ("working", b", task ", b"warning: `out` is incomplete", b""),
        ("waiting", b"starting Spark", b"warning: `out` is incomplete", b""),
        ("planning", b"about to work", b"warning: `out` is incomplete", b"in order\n"),
        ("hashing", b"hashing", b"warning: Interrupted after the job had finished: nothing is incomplete", b""),
    ],
)
def test_ctrl_c_ends_job_and_names_incomplete_output(tmp_path, job, shown, said, printed):
    command = [sys.executable, "-c", ENDLESS, "pipeline", "endless", job, "--master", "local[2]"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "NO_COLOR": "1"}
    master, terminal = open_terminal()
    process = subprocess.Popen(command, stderr=terminal, stdout=subprocess.PIPE, env=environment)
    os.close(terminal)
    screen = Screen(master)
    try:
        until(lambda: shown in screen.seen(), what="progress", within=PATIENCE_S)
        process.send_signal(signal.SIGINT)
        (tmp_path / "interrupted").touch()
        assert process.wait(PATIENCE_S) == 130
        assert said in screen.seen()
        assert process.stdout.read() == printed
        until(lambda: not processes_with(str(tmp_path)), what="the end of the JVM", within=PATIENCE_S)
        assert not list(tmp_path.glob("kvctl-*"))
    finally:
        process.kill()
        process.communicate()
        os.close(master)


def test_progress_continues_after_a_file_vanished(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "PROGRESS_INTERVAL_S", 0.01)
    work, sizes = Future[Any](), iter((tmp_path / "moved", tmp_path))

    def doing() -> str:
        next(sizes).stat()
        work.set_result(None)
        return "writing"

    engine, progress = Engine(SparkTarget()), runner._Progress()
    with engine:
        engine.doing = doing
        progress.watch(engine, work)  # type: ignore[arg-type]
    assert progress.text == "writing"


class TestHowWorkersConnect:
    def test_local_workers_receive_the_flags(self):
        flags = SharedValues(server="nats://a:1", creds="my.creds", tls_first=True, timeout=timedelta(seconds=90))
        assert source_options(Session(flags, Terminal()), SparkTarget()) == {
            "url": "nats://a:1",
            "creds": str(Path.cwd() / "my.creds"),
            "tlsFirst": "true",
            "timeout": "1m30s",
        }

    def test_remote_workers_receive_settings_of_the_environment(self, monkeypatch):
        monkeypatch.setenv("NATS_URL", "nats://b:2")
        monkeypatch.setenv("NATS_CREDS", "/etc/b.creds")
        assert source_options(Session(SharedValues(), Terminal()), SparkTarget()) == {}
        found = source_options(Session(SharedValues(), Terminal()), ELSEWHERE)
        assert found == {"url": "nats://b:2", "creds": "/etc/b.creds"}

    def test_remote_workers_receive_the_context_name(self):
        ContextStore().save(Context(name="prod", url="nats://c:3", user="ann", password="rose"))
        ContextStore().select("prod")
        assert source_options(Session(SharedValues(), Terminal()), ELSEWHERE) == {"context": "prod"}

    def test_remote_workers_cannot_receive_a_password(self, monkeypatch, tmp_path):
        monkeypatch.setenv("NATS_URL", "nats://b:2")
        monkeypatch.setenv("NATS_USER", "ann")
        monkeypatch.setenv("NATS_PASSWORD", "rose")
        with pytest.raises(UsageError, match="cannot be passed to remote workers"):
            source_options(Session(SharedValues(), Terminal()), ELSEWHERE)
        file = tmp_path / "password"
        file.write_text("rose\n")
        flags = SharedValues(user="ann", password_file=str(file))
        found = source_options(Session(flags, Terminal()), ELSEWHERE)
        assert found == {"url": "nats://b:2", "user": "ann", "passwordFile": str(file)}


ELSEWHERE = SparkTarget("spark://a:7077")


class Screen:
    """The output on a terminal."""

    def __init__(self, master: int) -> None:
        self._master, self._seen = master, b""
        os.set_blocking(master, False)

    def seen(self) -> bytes:
        """Return the output so far."""
        with suppress(OSError):
            while data := os.read(self._master, 65536):
                self._seen += data
        return self._seen


def processes_with(text: str) -> list[str]:
    """Processes whose command line holds a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found
