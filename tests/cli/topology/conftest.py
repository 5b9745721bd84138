"""kvctl on the shared server, unless a command names another."""

import pytest

from tests.cli.conftest import Result, run_process


@pytest.fixture
def run(server):
    """Run kvctl to its end."""

    def command(*args, env=None, **settings) -> Result:
        return run_process(*args, env={"NATS_URL": server.url, **(env or {})}, **settings)

    return command
