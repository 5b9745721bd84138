"""Every misspelt or foreign command and option gets the right suggestion, or none."""

import re
from collections.abc import Iterator

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
