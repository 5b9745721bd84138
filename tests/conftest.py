"""Real servers for every test, and none of the user's environment."""

import compileall
import gc
import os
import random
import re
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

import kvctl
from kvctl.labs import run_lab
from kvctl.server import run_server
from tests.support.proxy import Proxy
from tests.support.raw import RawClient

_ROOT = Path(__file__).parents[1]
_MEMORY = "/dev/shm"
_numbers = count(1)
DEFAULT_RUN = "not slow and not faults and not git"
"""What runs without `-m`."""
_FOREIGN = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "VISUAL", "EDITOR", "PAGER")

# The same examples each time, so that what fails fails by what was changed, and none of them timed.
settings.register_profile("kvctl", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvctl")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the oracles: `pytest -m oracle --seed N --steps N`."""
    group = parser.getgroup("oracles")
    group.addoption("--seed", type=int, default=1, help="First seed of random operations")
    group.addoption("--steps", type=int, default=None, help="Number of operations of each oracle")
    group.addoption("--faults-report", metavar="FILE", help="Write the figures of `-m faults` into a file")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Four processes for the whole default run, which waits more than it computes; one for anything less."""
    whole = config.args == config.getini("testpaths") and config.option.markexpr == DEFAULT_RUN
    return 4 if whole and not config.option.keyword else 0


class _Scheduling(LoadFileScheduling):
    """A file's tests stay in one process, all tests that use Spark in one, and what takes longest begins first."""

    def _split_scope(self, nodeid: str) -> str:
        return next((_SHARED[name] for name in _used(nodeid) if name in _SHARED), super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = max(self.workqueue, key=lambda scope: sum(map(_seconds, self.workqueue[scope])))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


_SHARED = {"engine": "Spark", "spark": "Spark", "supercluster": "two clusters"}
"""Fixtures that take long to start, which one process of a run does."""
_SECONDS = {"engine": 2, "own_cluster": 7, "supercluster": 3, "cluster": 1, "steps": 4, "own_server": 0.5}
"""About the duration of a test that uses a fixture; without any, a tenth of a second."""
_FUNCTIONS = re.compile(r"^ *(?:async )?def (\w+)\(([^)]*)\)", re.MULTILINE)


@cache
def _seconds(nodeid: str) -> float:
    return 0.1 + sum(_SECONDS.get(name, 0) for name in _used(nodeid))


@cache
def _used(nodeid: str) -> set[str]:
    """The fixtures that a test uses, those of its file's own fixtures included."""
    file, *_, name = nodeid.partition("[")[0].split("::")
    asked, found, more = _arguments(file), set[str](), {name}
    while more:
        more = set[str]().union(*(asked[one] for one in more)) - found
        found |= more
    return found


@cache
def _arguments(file: str) -> Mapping[str, set[str]]:
    """The arguments of each function of a file, by its name."""
    asked = defaultdict[str, set[str]](set)
    for name, arguments in _FUNCTIONS.findall((_ROOT / file).read_text(encoding="utf-8")):
        asked[name] |= {*re.findall(r"\w+", arguments)}
    return asked


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling:
    """How tests are dealt out to processes."""
    return _Scheduling(config, log)


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Servers and tests write some gigabytes that nobody reads again: into memory, where there is room for them."""
    with suppress(OSError):
        memory = os.statvfs(_MEMORY)
        if "TMPDIR" in os.environ or memory.f_bavail * memory.f_frsize < 4 << 30 or memory.f_flag & os.ST_NOEXEC:
            return
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="kvctl.", dir=_MEMORY)
        config.add_cleanup(lambda: shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True))


def pytest_sessionstart() -> None:
    """Compile once what hundreds of processes will start, also where PYTHONDONTWRITEBYTECODE keeps them from it.

    A shell's background jobs ignore SIGINT, those of nohup SIGHUP, and so would their processes, which tests signal.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    compileall.compile_dir(Path(kvctl.__file__).parent, quiet=2)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage while tests are collected, and leave these out of every later collection of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def homes(tmp_path_factory):
    """The directory of the homes, so that no search for a free name has to read thousands of them."""
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(autouse=True)
def home(homes, monkeypatch):
    """An empty home directory, and an environment that says nothing about servers, colours or editors."""
    directory = homes / f"{next(_numbers)}"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory / ".config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    for name in [*_FOREIGN, *(name for name in os.environ if name.startswith("NATS_"))]:
        monkeypatch.delenv(name, raising=False)
    return directory


@pytest.fixture
def seed(request):
    """The seed of a random test, also of the module `random`; printed when it fails."""
    chosen: int = request.config.getoption("--seed")
    print(f"--seed {chosen}")
    random.seed(chosen)
    return chosen


@pytest.fixture
def steps(request):
    """The number of operations of an oracle: `steps(300)` is 300 unless `--steps` names another."""
    chosen: int | None = request.config.getoption("--steps")
    return lambda default: default if chosen is None else chosen


@pytest.fixture(scope="session")
def server():
    """One server for the whole run; make fresh buckets on it."""
    with run_server(name="tests") as running:
        yield running


@pytest.fixture
def own_server():
    """A server of the test's own, to restart, kill and pause."""
    with run_server(name="own") as running:
        yield running


@pytest.fixture(scope="session")
def cluster():
    """Three servers n1 n2 n3; context `cluster`."""
    with run_lab("cluster") as lab:
        yield lab


@pytest.fixture
def own_cluster():
    """A cluster of the test's own, to kill and pause servers of."""
    with run_lab("cluster") as lab:
        yield lab


@pytest.fixture(scope="session")
def supercluster():
    """Clusters lon and nyc joined by gateways; a context each. Takes up to ten seconds."""
    with run_lab("supercluster") as lab:
        yield lab


@pytest.fixture(scope="session")
def leaf():
    """Servers hub and leaf, a JetStream domain each; contexts `hub`, `leaf` and `hub-via-leaf`."""
    with run_lab("leaf") as lab:
        yield lab


@pytest.fixture(scope="session")
def accounts():
    """One server, accounts ORIGIN and REPLICA; contexts `origin`, `replica` and `origin-via-replica`."""
    with run_lab("accounts") as lab:
        yield lab


@pytest.fixture
def raw(server):
    """A client on the shared server that shares no code with kvctl."""
    with RawClient(server.url) as client:
        yield client


@pytest.fixture
def proxy(server):
    """A way to the shared server on which messages are lost, late or cut off."""
    with Proxy(server.url) as running:
        yield running


@pytest.fixture
async def client(server):
    """The library, connected to the shared server."""
    async with kvctl.connect(server.url) as connected:
        yield connected


@pytest.fixture
def unique():
    """Makes names that no other test uses: `unique()`, `unique("ORDERS")`."""
    return lambda prefix="B": f"{prefix}{next(_numbers)}"


@pytest.fixture
def bucket_name(unique):
    """A bucket name that no other test uses."""
    return unique()
