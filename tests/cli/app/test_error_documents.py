"""Errors and warnings as JSON documents, with `-o json` and `-o ndjson`."""

import json
import signal
from typing import Any

import pytest

from tests.cli.conftest import Result


def documents(result: Result) -> list[dict[str, Any]]:
    """The objects on stderr, a line each."""
    return [json.loads(line) for line in result.err.splitlines()]


@pytest.mark.parametrize("format", ["json", "ndjson"])
def test_error_of_a_command_is_one_document_on_stderr(keyed, format):
    result = keyed("get", "B", "nothing", "-o", format)
    (found,) = documents(result)
    assert (result.exit_code, result.stdout) == (3, b"")
    assert list(found) == ["error"]
    assert list(found["error"]) == ["code", "kind", "message", "hint"]
    assert (found["error"]["code"], found["error"]["kind"]) == (3, "key-not-found")
    assert found["error"]["message"] == f"Key `nothing` is not in bucket `{keyed.name}`"
    assert found["error"]["hint"] == f"List the keys with `kvctl keys {keyed.name}`"
    assert keyed("get", "B", "nothing", "-o", "yaml").err.startswith("error: ")


def test_commands_of_a_hint_are_for_the_context_that_was_given(keyed, server):
    keyed("context", "add", "prod", "--server", server.url)
    (found,) = documents(keyed("get", "B", "nothing", "-o", "json", "--context", "prod"))
    assert found["error"]["hint"] == f"List the keys with `kvctl --context prod keys {keyed.name}`"
    (found,) = documents(keyed("bucket", "shw", "B", "-o", "json", "--context", "prod"))
    assert "`kvctl bucket --help` lists" in found["error"]["hint"]


def test_hint_of_an_error_without_one_is_null(keyed):
    (found,) = documents(keyed("get", "B", "k", "--revision", "1", "--as-of", "1", "-o", "json"))
    assert found["error"]["hint"] is None


@pytest.mark.parametrize(
    "line",
    [
        ("-o", "json", "get", "B", "k", "--sideways"),
        ("get", "B", "k", "--sideways", "--output=json"),
        ("get", "--sideways", "B", "-ojson"),
        ("gett", "B", "k", "-o", "json"),
        ("-o", "json"),
        ("bucket", "-o", "ndjson"),
        ("-o", "json", "bucket"),
        ("get", "B", "-o", "json"),
        ("history", "B", "--limit", "many", "-o", "json"),
    ],
)
def test_error_of_a_command_line_is_a_document_wherever_the_format_stands(run, line):
    result = run(*line)
    (found,) = documents(result)
    assert (result.exit_code, result.stdout) == (2, b"")
    assert (found["error"]["code"], found["error"]["kind"]) == (2, "usage")


def test_format_of_a_program_after_the_dashes_is_not_that_of_errors(keyed):
    result = keyed("lock", "B", "..", "--", "program", "-o", "json")
    assert (result.exit_code, result.err[:7]) == (2, "error: ")


def test_warnings_are_documents_before_the_error(keyed):
    rows = b'{"key": "a", "value": "1"}\n{"key": "a..b", "value": "1"}\n'
    result = keyed("load", "B", "-", "-o", "json", stdin=rows)
    warning, error = documents(result)
    assert (result.exit_code, json.loads(result.out)["rejected"]) == (7, 1)
    assert warning["warning"]["message"].startswith("Line 2: ")
    assert error["error"]["kind"] == "partly-done"


def test_notes_for_people_are_left_out_of_documents(keyed):
    command = ("bucket", "add", f"{keyed.name}_NOTED")
    keyed(*command)
    assert "already exists" in keyed(*command).out
    again = keyed(*command, "-o", "json")
    assert (json.loads(again.out)["changed"], again.err) == (False, "")


def test_error_on_a_terminal_is_escaped_in_its_document(keyed):
    result = keyed("get", "B", "k\u202ek", "-o", "json", tty=True)
    (found,) = documents(result)
    assert "\u202e" not in result.err
    assert found["error"]["kind"] in ("usage", "key-not-found")


def test_interrupted_command_prints_no_document(keyed, start):
    keyed.put("a")
    process = start("watch", keyed.name, "-o", "json", env=keyed.env())
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert (process.wait(30), process.communicate()[1]) == (130, b"")
