"""Every job on a cluster of two workers while it loses an executor, Python workers, a machine, or the NATS server."""

from collections.abc import Callable

import pytest

from kvctl.server import run_server
from tests.pipeline.cluster import Cluster
from tests.pipeline.jobs_on_spark import Filled, fill, run, stop, wait_for_tasks
from tests.pipeline.killing import kill

pytestmark = pytest.mark.slow

JOBS = ("export", "capture", "load", "audit", "commit")
"""Those with tasks that take a while; all jobs run behind a Connect server."""
FAULTS: dict[str, Callable[[Cluster, Filled], None]] = {
    "executor": lambda cluster, filled: kill("executor"),
    "worker": lambda cluster, filled: kill("task"),
    "machine": lambda cluster, filled: cluster.lose(),
    "server": lambda cluster, filled: stop(filled.server),
}


@pytest.fixture(scope="module")
def filled(machines):
    with run_server(name="cluster") as server:
        yield fill(server, machines.folder("tables"), machines.where, machines.session)


@pytest.mark.guarantee("pipeline-1")
@pytest.mark.guarantee("pipeline-22", "pipeline-24", "pipeline-29", by="kill")
@pytest.mark.parametrize("fault", ["none", *FAULTS])
@pytest.mark.parametrize("job", JOBS)
def test_a_job_on_a_cluster_is_complete_after_a_fault(job, fault, machines, filled):
    def strike() -> None:
        wait_for_tasks()
        FAULTS[fault](machines.cluster, filled)

    if fault != "none":
        kill("task")  # those of other jobs, which wait for work
    run(filled, job, machines.folder(f"{job}-{fault}"), strike if fault != "none" else None)
