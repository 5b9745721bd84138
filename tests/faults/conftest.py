"""Networks, servers on them, and the table of figures."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults import network
from tests.faults.hosts import cluster_config, started
from tests.faults.network import Network
from tests.faults.workload import Workload

NAMES = ["n1", "n2", "n3"]
HEAD = "| fault | times | operations | failed (5) | unknown (6) | violations | longest gap | longest wait | seconds |"


@dataclass(frozen=True)
class Figures:
    """One line of the report."""

    fault: str
    times: int
    work: Workload
    seconds: float

    def row(self) -> str:
        work = self.work
        cells = [self.fault, self.times, work.operations, work.failed, work.unknown, len(work.violations)]
        cells += [f"{work.longest_gap:.1f} s", f"{work.longest_wait:.1f} s", f"{self.seconds:.0f}"]
        return "| " + " | ".join(map(str, cells)) + " |"


_figures: list[Figures] = []


@pytest.fixture(scope="session", autouse=True)
def namespaces():
    """Skip everything here where no hosts can be made."""
    if not network.available():
        pytest.skip("hosts of their own need root and network namespaces")


@pytest.fixture
def cluster3(tmp_path):
    """Three servers of a cluster, each on its host."""
    with Network(NAMES) as net:
        servers = started(net, tmp_path, {name: cluster_config(net, NAMES, name) for name in NAMES})
        try:
            yield servers
        finally:
            for server in servers.values():
                server.kill()


@pytest.fixture
def report(request):
    """Notes a workload and the number of its faults for the table."""
    begun = time.monotonic()
    noted: list[tuple[Workload, int]] = []
    yield lambda work, times: noted.append((work, times))
    name = request.node.name.removeprefix("test_").replace("_", " ")
    _figures.extend(Figures(name, times, work, time.monotonic() - begun) for work, times in noted)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table."""
    file = session.config.getoption("--faults-report", None)
    if file and _figures:
        rows = [HEAD, "|" + " --- |" * HEAD.count(" | ") + " --- |", *(one.row() for one in _figures)]
        Path(file).write_text("\n".join(rows) + "\n")
