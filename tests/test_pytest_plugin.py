"""The plugin of pytest, in a small project of its own that has kvctl installed and nothing else of ours."""

import os
import re
import subprocess
import sys
import sysconfig
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests.support.readme import ROOT

ASYNC_TESTS = """
import asyncio
import pytest

async def test_bucket_is_fresh(kvctl_bucket):
    assert [key async for key in kvctl_bucket.keys()] == []
    revision = await kvctl_bucket.put("NEW.7", b"two of these")
    assert (await kvctl_bucket.get("NEW.7")).revision == revision == 1

async def test_bucket_is_fresh_again(kvctl_client, kvctl_bucket):
    assert await kvctl_client.bucket_names() == [kvctl_bucket.name]
    assert [key async for key in kvctl_bucket.keys()] == []

@pytest.mark.kvctl_bucket(history=5, description="of the test")
async def test_settings_come_from_the_marker(kvctl_bucket):
    status = await kvctl_bucket.status()
    assert (status.history, status.config["description"]) == (5, "of the test")

async def test_bucket_may_be_deleted(kvctl_client, kvctl_bucket):
    await kvctl_client.delete_bucket(kvctl_bucket.name)

def test_program_uses_the_server(kvctl_server, kvctl_bucket_name):
    import subprocess, sys
    command = [sys.executable, "-m", "kvctl", "put", kvctl_bucket_name, "k", "v", "--server", kvctl_server.url]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "1\\n"

def test_failure(kvctl_server):
    print(f"pid={kvctl_server.pid} store={kvctl_server.store}")
    assert not kvctl_server.running
"""
SYNC_TESTS = """
def test_name(kvctl_server, kvctl_bucket_name):
    assert kvctl_server.url.startswith("nats://127.0.0.1:") and kvctl_bucket_name.startswith("test-")

def test_client(kvctl_bucket):
    raise AssertionError("not reached")
"""


@pytest.fixture
def project(tmp_path):
    """A project with tests, and a folder for its environment's path that declares kvctl's entry points."""
    installed = tmp_path / "installed" / "kvctl_here-1.dist-info"
    installed.mkdir(parents=True)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in ours.items()) for group, ours in declared.items()
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: kvctl-here\nVersion: 1\n")
    return tmp_path


ASYNCIO = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
LEAN = ("-p", "no:cacheprovider", "-p", "no:syrupy", "-p", "no:hypothesispytest")
WITHOUT_ASYNCIO = ("-p", "no:asyncio")


def run_pytest(project: Path, tests: str, *options: str, ini: str = "", **environment: str) -> str:
    """Run the tests of the project, and return what pytest prints."""
    (project / "pytest.ini").write_text(f"[pytest]\n{ini}")
    (project / "test_it.py").write_text(tests)
    path = os.pathsep.join([str(ROOT), str(project / "installed")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *LEAN, "--strict-markers", "-W", "error", *options],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr


def test_other_project_tests_on_a_real_server_that_ends_with_its_session(project):
    told = run_pytest(project, ASYNC_TESTS, ini=ASYNCIO)
    assert "1 failed, 5 passed" in told, told
    printed = next(line for line in told.splitlines() if line.startswith("pid="))
    pid, store = (word.partition("=")[2] for word in printed.split())
    assert not Path("/proc", pid).exists()
    assert not Path(store).exists()


def test_samples_of_help_run_in_a_fresh_project_as_they_are_written(project):
    topic = (ROOT / "kvctl" / "topics" / "automation.md").read_text().partition("\n## Plans")[0]
    samples = re.findall(r"(?:^    (?:async def|def|import|@).*\n(?:(?:    .*)?\n)*)", topic, re.MULTILINE)
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    told = run_pytest(project, "\n".join(map(textwrap.dedent, samples)), "-W", "default", PATH=path)
    assert "3 passed" in told, told


def test_asynchronous_tests_of_others_stay_as_they_are(project):
    told = run_pytest(project, "async def test_it(): ...", "-W", "default")
    assert "async def functions are not natively supported" in told, told


def test_workers_of_xdist_have_a_server_each(project):
    tests = "import pytest\n" + "".join(
        f"def test_{number}(kvctl_server, kvctl_bucket_name, worker_id):\n"
        f"    with open(f'{project}/' + worker_id, 'w') as file: file.write(kvctl_server.url)\n"
        for number in range(4)
    )
    told = run_pytest(project, tests, "--numprocesses", "2", "--dist", "each", *WITHOUT_ASYNCIO)
    assert "8 passed" in told, told
    urls = [(project / worker).read_text() for worker in ("gw0", "gw1")]
    assert urls[0] != urls[1]


def test_project_without_asyncio_uses_names_and_is_told_what_a_client_needs(project):
    told = run_pytest(project, SYNC_TESTS, *WITHOUT_ASYNCIO)
    assert "1 passed, 1 error" in told, told
    assert "`kvctl_client` and `kvctl_bucket` need pytest-asyncio" in told


def test_missing_server_fails_with_a_hint_or_skips(project):
    missing = {"KVCTL_NATS_SERVER": "/nowhere/nats-server"}
    told = run_pytest(project, "def test_it(kvctl_server): ...", *WITHOUT_ASYNCIO, **missing)
    assert "1 error" in told
    assert "`/nowhere/nats-server` cannot be run" in told
    assert "Check the variable KVCTL_NATS_SERVER" in told
    skipping = "kvctl_missing_server = skip\n"
    told = run_pytest(project, "def test_it(kvctl_server): ...", "-rs", *WITHOUT_ASYNCIO, ini=skipping, **missing)
    assert "1 skipped" in told
    assert "Check the variable KVCTL_NATS_SERVER" in told


def test_plugin_imports_nothing_but_itself():
    program = (
        "import pytest, sys, typing, contextlib; before = set(sys.modules); import kvctl.pytest_plugin; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['kvctl', 'kvctl.pytest_plugin']"
