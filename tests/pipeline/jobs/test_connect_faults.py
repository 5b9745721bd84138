"""Every job behind a Spark Connect server, also while it loses its Python workers, or the NATS server for 20 s."""

import os

import pytest

from kvctl.server import run_server
from tests.pipeline.cluster import run_connect
from tests.pipeline.jobs_on_spark import JOBS, fill, run, stop, wait_for_tasks
from tests.pipeline.killing import kill

pytestmark = pytest.mark.slow

OF_DRIVER = {"capture-latest", "compact", "verify"}
"""Jobs without Python tasks."""


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    with run_connect(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture(scope="module")
def filled(remote, tmp_path_factory):
    with run_server(name="connect") as server:
        yield fill(server, tmp_path_factory.mktemp("tables"), ["--remote", remote])


@pytest.mark.guarantee("pipeline-1")
@pytest.mark.parametrize("job", JOBS)
def test_a_job_behind_a_connect_server_is_complete(job, filled, tmp_path):
    run(filled, job, tmp_path)


@pytest.mark.guarantee("pipeline-14", by="kill")
@pytest.mark.parametrize("job", sorted(JOBS.keys() - OF_DRIVER))
def test_a_job_is_complete_after_the_connect_server_lost_its_python_workers(job, filled, tmp_path):
    kill("task")  # those that wait for work

    def lose() -> None:
        wait_for_tasks(os.getpid())
        kill("task")

    run(filled, job, tmp_path, lose)


@pytest.mark.parametrize("job", ["export", "capture", "load", "audit", "commit"])
def test_a_job_behind_a_connect_server_waits_for_a_server_that_is_away(job, filled, tmp_path):
    kill("task")

    def lose() -> None:
        wait_for_tasks(os.getpid())
        stop(filled.server)

    run(filled, job, tmp_path, lose)
