"""Every misspelt or foreign command and option gets the right suggestion, or none."""

import re
from collections.abc import Iterator

import pytest

from kvctl.cli.app import error_report
from kvctl.cli.app.command import Command, Group
from kvctl.cli.app.help_page import spellings
from kvctl.cli.app.main import root


def commands(group: Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Command | Group]]:
    """Command lines and their commands, groups included."""
    for name in group.list_commands(None):
        found = group.get_command(None, name)
        yield " ".join((*path, name)), found
        if isinstance(found, Group):
            yield from commands(found, (*path, name))


@pytest.fixture(scope="module")
def lines():
    """Each command by its line."""
    return dict(commands(root()))


@pytest.fixture(scope="module")
def options(lines):
    """The options of each line."""
    return {
        line: {name for param in found.params if hasattr(param, "is_flag") for name in spellings(param)}
        for line, found in lines.items()
    }


def test_suggested_commands_and_options_exist(lines, options):
    assert set(error_report.COMMANDS.values()) <= lines.keys()
    assert {line.rpartition(" ")[2] for line in lines} >= set(error_report.VERBS.values())
    everywhere = set().union(*options.values())
    meant = {other.partition(" ")[0] for others in error_report.OPTIONS.values() for other in others}
    assert meant <= everywhere
    remarks = [*error_report.REMARKS.values(), *error_report.OPTION_REMARKS.values()]
    remarked = [line for text in remarks for line in re.findall(r"`kvctl (.*?)`", text)]
    assert len(remarked) >= len(remarks) - 1
    for line in remarked:
        name = re.split(r" (?=[A-Z-])", line)[0]
        assert set(re.findall(r"--[a-z-]+", line)) <= options[name]


def test_foreign_words_are_not_commands_or_options_of_their_own(lines, options):
    assert not {*error_report.COMMANDS, *error_report.REMARKS} & lines.keys()
    for line in error_report.OPTION_REMARKS:
        name, _, option = line.rpartition(" ")
        assert option not in options[name]
