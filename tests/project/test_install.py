"""Installation, as a stranger does it: README's two commands on a bare machine, and what the wheel holds."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.readme import ROOT, setup_commands

pytestmark = pytest.mark.slow

USER_HOME = Path.home()
SUPPORTED = ("3.11", "3.12", "3.13")
CORE = ("tests/documents", "tests/connection", "tests/jetstream", "tests/kv", "tests/cli/app", "tests/cli/keys")
"""What stands on nats-py, PyYAML, rich and Typer."""
SYSTEM = ("bash", "cat", "chmod", "cut", "env", "head", "ls", "mkdir", "rm", "sh", "sleep", "sort", "stty", "tail")
"""What every machine has that has anything."""


@pytest.fixture
def checkout(tmp_path):
    """A clone of the last commit in an empty folder."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "kvctl")], check=True)
    return tmp_path / "kvctl"


@pytest.fixture
def bare_machine(tmp_path):
    """An environment with a home that is empty and a PATH that holds little but Python: no compiler, git, jq, nats."""
    for name in ("bin", "home", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "python3").symlink_to(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
    for name in filter(shutil.which, SYSTEM):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    return kept | {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that the working tree makes."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), str(ROOT)]
    subprocess.run(command, check=True)
    with ZipFile(next(directory.glob("kvctl-*.whl"))) as archive:
        yield archive


def test_the_first_command_installs_kvctl_and_shows_it_at_work(checkout, bare_machine):
    done = shell(setup_commands()[0], checkout, bare_machine)
    assert done.returncode == 0, done.stderr
    assert "kvctl bucket add" in done.stdout + done.stderr
    assert not list(Path(bare_machine["HOME"], ".config").glob("nats/*"))


def test_the_second_command_passes_the_tests(checkout, bare_machine):
    done = shell(setup_commands()[1], checkout, bare_machine)
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"^\d+ passed\b", done.stdout.splitlines()[-1])


def test_core_passes_with_newest_releases_of_its_dependencies(checkout, bare_machine):
    """Without the constraints that the default run installs from."""
    environment = {**bare_machine, "PIP_NO_CACHE_DIR": "1"}
    install = "python3 -m venv .venv && .venv/bin/pip install --quiet -e '.[test]'"
    done = shell(f"{install} && .venv/bin/pytest -n 0 {' '.join(CORE)}", checkout, environment)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def interpreter(version: str) -> str:
    """Return a Python of a version that is on this machine, on PATH or pyenv's; without one the test is skipped."""
    homes = [*os.environ["PATH"].split(os.pathsep), *map(str, USER_HOME.glob(f".pyenv/versions/{version}.*/bin"))]
    candidates = (os.path.join(home, f"python{version}") for home in homes)
    return next((path for path in candidates if _runs(path)), None) or pytest.skip(f"no Python {version}")


def _runs(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize("version", SUPPORTED)
def test_wheel_installs_and_works_on_every_supported_python(version, tmp_path):
    subprocess.run([interpreter(version), "-m", "venv", str(tmp_path / "venv")], check=True)
    bin_directory = tmp_path / "venv" / "bin"
    subprocess.run([bin_directory / "pip", "install", "--quiet", f"{ROOT}[server]"], check=True)
    environment = {"PATH": str(bin_directory), "HOME": str(tmp_path)}
    done = shell("kvctl version && kvctl quickstart", tmp_path, environment)
    assert done.returncode == 0, done.stderr
    for page in ("man/man1/kvctl.1", "bash-completion/completions/kvctl", "zsh/site-functions/_kvctl"):
        assert (tmp_path / "venv" / "share" / page).stat().st_size


def test_wheel_contains_every_data_file(wheel):
    names = set(wheel.namelist())
    inside = [*ROOT.glob("kvctl/labs/*.conf"), *ROOT.glob("kvctl/topics/*.md"), ROOT / "kvctl" / "py.typed"]
    inside.append(ROOT / "kvctl" / "pipeline" / "log4j2.properties")
    assert len(inside) > 8
    assert not {str(path.relative_to(ROOT)) for path in inside} - names


def test_the_wheel_ships_manual_pages_and_completion_scripts(wheel):
    shared = {name.split(".data/data/share/")[1] for name in wheel.namelist() if ".data/data/share/" in name}
    pages = {str(path.relative_to(ROOT)) for path in ROOT.glob("man/man?/*")}
    assert "man/man1/kvctl.1" in pages
    assert shared - pages == {
        *"""
        bash-completion/completions/kvctl zsh/site-functions/_kvctl fish/vendor_completions.d/kvctl.fish
        kvctl/schemas/topology.json
    """.split()
    }
    assert not pages - shared


def test_wheel_declares_the_plugin_of_pytest(wheel):
    (declared,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    assert "[pytest11]\nkvctl = kvctl.pytest_plugin\n" in wheel.read(declared).decode()


def test_the_wheel_holds_nothing_else(wheel):
    assert not [name for name in wheel.namelist() if not name.startswith(("kvctl", "pyspark_kvctl/__init__.py"))]


def shell(command: str, directory: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command line as a shell does, in a directory, with this environment alone."""
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=directory, env=environment, capture_output=True, text=True, timeout=1200
    )
