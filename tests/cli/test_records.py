"""Columns of tsv and tables: `--columns`, `--header`, and the catalogue of fields."""

import json

import pytest

from kvctl.cli import records
from kvctl.cli.app.command import Command
from kvctl.cli.app.manual import with_field_list
from kvctl.render.fields import columns
from kvctl.render.formats import TsvWriter
from kvctl.render.view import View
from tests.cli.commands import every_command
from tests.support import record_check

SILENT = {"context select", "env", "help", "lock", "quickstart", "top"}
"""Commands that print no records: text for people, a screen, the output of a program, or nothing."""


def test_every_command_declares_its_records():
    assert {path for path, (_, command) in every_command().items() if not command.prints} == SILENT


def test_fields_of_a_record_are_named_once():
    for path, (_, command) in every_command().items():
        for record in command.prints:
            assert len(set(record.fields)) == len(record.fields), path


def test_every_show_prints_a_line_for_each_field_in_a_pipe():
    cards = (" show", "bucket stats", "context test")
    shows = {path: command.in_pipe for path, (_, command) in every_command().items() if path.endswith(cards)}
    assert len(shows) > 9
    assert set(shows.values()) == {"fields"}, shows


def test_list_of_fields_replaces_an_outdated_one():
    listed = with_field_list("# Title\n\noutdated\n")
    assert listed.startswith("# Title\n\nEvery command")
    assert "outdated" not in listed
    assert "\n    bucket ls\n      - name (stream) kind" in listed


def test_columns_are_picked_in_the_given_order_below_a_header(keyed):
    keyed.put("a", b"1")
    keyed.put("b", b"x\ty")
    found = keyed("get", "B", "a", "b", "--columns", "value,delta,revision,key", "--header")
    assert found.out == "value\tdelta\trevision\tkey\n1\t\t1\ta\nx\\ty\t\t2\tb\n"
    assert keyed("get", "B", "a", "--columns", "revision").out == "1\n"
    assert keyed("keys", "B", "--columns", "revision,key").out == "1\ta\n2\tb\n"
    assert keyed("keys", "B", "--header").out == "key\na\nb\n"
    assert keyed("watch", "B", "--until-current", "--columns", "key", "--header").out == "key\na\nb\n"
    assert keyed("put", "B", "c", "v", "--columns", "key,revision").out == "c\t3\n"
    assert keyed("keys", "B", "nothing", "--header").out == "key\n"


def test_columns_of_a_change_are_printed_in_a_pipe(keyed):
    made = keyed("bucket", "add", f"{keyed.name}_PICKED", "--columns", "changed,name")
    assert (made.out, made.err) == (f"true\t{keyed.name}_PICKED\n", "")


def test_list_in_a_column_is_json(keyed):
    config = keyed("bucket", "show", "B", "--columns", "config").out
    assert json.loads(config.replace("\\\\", "\\"))["name"] == f"KV_{keyed.name}"


def test_columns_on_a_terminal_are_those_of_a_table(keyed):
    keyed.put("a", b"1")
    shown = keyed("bucket", "show", "B", "--columns", "bytes,name,values", tty=True).out.splitlines()
    assert shown[0].split() == ["bytes", "name", "values"]
    assert shown[2].split()[-2:] == [keyed.name, "1"]
    entries = keyed("get", "B", ">", "--columns", "key,encoding", tty=True).out
    assert entries.split() == ["key", "encoding", "─" * 13, "a", "utf-8"]


def test_headings_of_the_table_pick_columns_whatever_their_case(keyed):
    listed = keyed("bucket", "ls", keyed.name, "--columns", "Name,size,last write,ttl", "--header").out.splitlines()
    assert listed[0] == "name\tsize\tlast write\tttl"
    assert listed[1].split("\t")[:2] == [keyed.name, "0"]
    shown = keyed("bucket", "ls", keyed.name, "--columns", "SIZE,bytes,name", tty=True).out
    assert shown.splitlines()[0].split() == ["bytes", "name"]
    keyed.put("a", b"1")
    assert keyed("keys", "B", "--columns", "key,age", tty=True).out.split()[:2] == ["key", "age"]
    refused = keyed("bucket", "ls", "--columns", "sise")
    assert (refused.exit_code, "`sise` is not a column of" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("columns", "field"),
    [(columns("name bytes"), "tsv"), (columns("name ttl kind"), "order"), (columns("bytes", bytes="Room"), "heading")],
)
def test_listing_with_other_columns_than_its_record_fails_every_test(columns, field):
    """`tests/support/record_check.py` compares them whenever a test's command prints one."""
    record = records.record("name kind bytes", "name bytes kind")
    view = View(columns=columns)
    assert not (record_check.is_tsv_of(record, TsvWriter(view).keys) and record_check.is_table_of(record, view)), field


def test_every_listing_sorts_and_limits():
    """Those that print rows as they come have `--limit`, and `keys` a `--sort` without a column."""
    found = {path for path, (_, command) in every_command().items() if has(command, "sort", "limit")}
    listings = {path for path in every_command() if path.endswith(" ls")}
    assert listings | {"bucket diff", "bucket alternates", "stream subjects", "repo annotate", "keys"} == found
    limited = {path for path, (_, command) in every_command().items() if has(command, "limit")}
    assert limited >= {"get", "history", "repo log", "bucket stats"}


def has(command: Command, *names: str) -> bool:
    return {f"--{name}" for name in names} <= {spelling for param in command.params for spelling in param.opts}


def test_help_lists_the_columns_of_a_command(run):
    shown = run("keys", "--help").out
    assert "\nColumns:\n  key\n\nFurther columns for --columns:\n  revision  created" in shown


def test_columns_are_completed_one_by_one(run):
    offered = run("__complete", "--", "bucket", "ls", "--columns", "kind,na").out.splitlines()
    assert [line.split("\t")[0] for line in offered] == ["kind,name"]
