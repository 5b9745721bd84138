"""Every misspelt or foreign command and option gets the right suggestion, or none."""

import re
from collections.abc import Iterator

import pytest

from kvctl.cli.app import error_report
from kvctl.cli.app.command import Command, Group
from kvctl.cli.app.help_page import spellings
from kvctl.cli.app.main import root

TREE = root()


def commands(group: Group = TREE, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Command | Group]]:
    """Command lines and their commands, groups included."""
    for name in group.list_commands(None):
        found = group.get_command(None, name)
        yield " ".join((*path, name)), found
        if isinstance(found, Group):
            yield from commands(found, (*path, name))


COMMANDS = dict(commands())
OPTIONS = {
    line: {name for param in found.params if hasattr(param, "is_flag") for name in spellings(param)}
    for line, found in COMMANDS.items()
}


@pytest.mark.parametrize(
    ("line", "suggested"),
    [
        ("bucket crate", "kvctl bucket create"),
        ("bucket describe", "kvctl bucket show"),
        ("describe", "kvctl bucket show"),
        ("import", "kvctl load"),
        ("status", "kvctl topology status` or `kvctl repo status"),
        ("diff", "kvctl bucket diff` or `kvctl repo diff"),
        ("backup", "kvctl bucket backup"),
        ("bakup", "kvctl bucket backup"),
        ("apply", "kvctl topology apply"),
        ("ls", "kvctl bucket ls`, `kvctl mirror ls` or `kvctl aggregate ls"),
        ("topology diff", "kvctl topology plan"),
        ("topology validate", "kvctl topology plan"),
        ("topology ls", "kvctl topology status"),
        ("mirror backup", "kvctl bucket backup"),
        ("bucket put", "kvctl put"),
        ("repo blame", "kvctl repo annotate"),
        ("branch merge", "kvctl repo merge"),
        ("kv", "kvctl bucket"),
        ("kv add", "kvctl bucket add"),
        ("kv del", "kvctl delete"),
        ("kv info", "kvctl bucket show"),
        ("kv status", "kvctl bucket show"),
        ("kv nothing", "kvctl bucket"),
        ("gett", "kvctl get"),
        ("lst", "kvctl bucket list`, `kvctl mirror list` or `kvctl aggregate list"),
        ("xyzzy", None),
        ("stream xyzzy", None),
    ],
)
def test_unknown_command_suggests_what_is_meant(run, line, suggested):
    result = run(*line.split())
    assert result.exit_code == 2
    hint = result.err.partition("hint: ")[2]
    group = "" if line.startswith("kv") else line.rpartition(" ")[0]
    listed = f"`{f'kvctl {group}'.strip()} --help` lists the commands\n"
    assert " ".join(hint.split()) + "\n" == (f"Did you mean `{suggested}`? " if suggested else "") + listed


@pytest.mark.parametrize(
    ("line", "suggested"),
    [
        ("bucket add X --max-bucket-size 1MB", "--max-bytes"),
        ("bucket add X --tags a", "--tag"),
        ("bucket add X --republish-source a", "--republish"),
        ("bucket add X --republish-destination a", "--republish"),
        ("bucket add X --compresion", "--compress"),
        ("bucket ls --json", "-o json"),
        ("delete B K --force", "--yes"),
        ("update B K V --revision 3", "--if-revision"),
        ("watch B --revision 3", "--from-revision"),
        ("mirror create M --source B", "--origin"),
        ("topology apply --auto-approve", "--yes"),
        ("get B K --url x", "--server"),
        ("put B K V --since 1", None),
        ("put B K V --use", "--user"),
        ("put B K V --x", None),
    ],
)
def test_unknown_option_suggests_what_is_meant(run, line, suggested):
    result = run(*line.split())
    assert result.exit_code == 2
    hint = result.err.partition("hint: ")[2]
    assert re.findall(r"Did you mean `(.*?)`\?", hint) == [suggested] * bool(suggested)


@pytest.mark.parametrize(
    ("line", "remark"),
    [
        ("bucket add X --mirror Y", "`kvctl mirror create NAME --origin BUCKET` creates a mirror"),
        ("repo push R", "`kvctl repo checkout NAME@REF --to BUCKET` writes a commit to a bucket"),
    ],
)
def test_word_without_a_counterpart_gets_a_remark(run, line, remark):
    assert run(*line.split()).err.partition("hint: ")[2].strip() == remark


def test_suggested_commands_and_options_exist():
    assert set(error_report.COMMANDS.values()) <= COMMANDS.keys()
    assert {line.rpartition(" ")[2] for line in COMMANDS} >= set(error_report.VERBS.values())
    everywhere = set().union(*OPTIONS.values())
    meant = {other.partition(" ")[0] for others in error_report.OPTIONS.values() for other in others}
    assert meant <= everywhere
    remarks = [*error_report.REMARKS.values(), *error_report.OPTION_REMARKS.values()]
    lines = [line for text in remarks for line in re.findall(r"`kvctl (.*?)`", text)]
    assert len(lines) >= len(remarks) - 1
    for line in lines:
        name = re.split(r" (?=[A-Z-])", line)[0]
        assert set(re.findall(r"--[a-z-]+", line)) <= OPTIONS[name]


def test_foreign_words_are_not_commands_or_options_of_their_own():
    lines = {*error_report.COMMANDS, *error_report.REMARKS}
    assert not lines & COMMANDS.keys()
    for line in error_report.OPTION_REMARKS:
        name, _, option = line.rpartition(" ")
        assert option not in OPTIONS[name]
