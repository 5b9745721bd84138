"""Every `delete` ignores what is missing if asked to, and takes `--yes`."""

import json

import pytest

from tests.cli.commands import every_command

DELETIONS = {
    "bucket delete": ["NOPE"],
    "mirror delete": ["NOPE"],
    "aggregate delete": ["NOPE"],
    "stream delete": ["NOPE"],
    "consumer delete": ["NOPE", "c"],
    "table delete": ["NOPE"],
    "repo delete": ["NOPE"],
    "branch delete": ["NOPE@b"],
    "tag delete": ["NOPE@t"],
    "context delete": ["NOPE"],
}
"""Command -> arguments that name nothing."""
KEYS = {"delete"}
"""The deletion of keys has tests of its own."""


def test_every_deletion_is_covered():
    assert {name for name in every_command() if name.split()[-1] == "delete"} == DELETIONS.keys() | KEYS


@pytest.mark.parametrize("line", DELETIONS)
def test_delete_of_what_is_missing_exits_3_or_is_ignored(run, server, line):
    args = (*line.split(), *DELETIONS[line], "--yes", "-s", server.url)
    assert run(*args).exit_code == 3
    ignored = run(*args, "--ignore-missing")
    assert (ignored.exit_code, "does not exist" in ignored.out, ignored.err) == (0, True, "")
    named = DELETIONS[line][-1].rpartition("@")[2]
    assert json.loads(run(*args, "--ignore-missing", "-o", "json").out) == {"name": named, "changed": False}
    assert run(*args, "--ignore-missing", "-q").out == ""


def test_missing_context_of_the_connection_is_never_ignored(run):
    assert run("bucket", "delete", "NOPE", "--yes", "--ignore-missing", "--context", "nowhere").exit_code == 3


def test_delete_with_ignore_missing_deletes_what_exists(run, server, bucket_name):
    where = ("-s", server.url)
    assert run("bucket", "add", bucket_name, *where).exit_code == 0
    args = ("bucket", "delete", bucket_name, "--ignore-missing", *where)
    assert run(*args).exit_code == 2  # without `--yes`
    assert json.loads(run(*args, "--yes", "-o", "json").out)["changed"] is True
    assert json.loads(run(*args, "--yes", "-o", "json").out)["changed"] is False
