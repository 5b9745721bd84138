"""Usage errors of each group: refused with exit code 2, an error and a hint, before anything is sent."""

import shlex
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("usage_errors.txt").read_text()
"""Groups, each of a heading and of lines `ARGUMENTS => ERROR HINT`."""
NOWHERE = {"NATS_URL": "nats://127.0.0.1:1"}
"""A command that tries to connect exits 5."""


@pytest.mark.parametrize("group", TABLE.split("\n\n"), ids=lambda group: group.splitlines()[0])
def test_usage_errors(run, group):
    for line in group.splitlines()[1:]:
        arguments = line.partition(" => ")[0]
        result = run(*shlex.split(arguments), env=NOWHERE)
        assert (result.exit_code, result.out) == (2, ""), line
        assert f"{arguments} => {' '.join(result.err.split())}" == line
