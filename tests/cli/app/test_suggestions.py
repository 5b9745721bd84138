"""Every misspelt or foreign command and option gets the right suggestion, or none."""

import ast
import itertools
import re
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

import kvctl
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


def test_commands_in_hints_and_messages_exist(lines, options):
    """Every `` `kvctl ...` `` in a string of the package, with its options; a placeholder ends the command."""
    wrong, found = [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for node, text in _texts(ast.parse(path.read_text(encoding="utf-8"))):
            for words in (line.partition("|")[0].split() for line in re.findall(r"`kvctl ([^`]*)`", text)):
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}: kvctl {' '.join(words)}"
                name, rest = _command_of(lines, words)
                found += 1
                if name is None:
                    if re.match(r"[a-z]", words[0]):
                        wrong.append(place)
                    continue
                is_group = isinstance(lines[name], Group)
                if is_group and rest and re.fullmatch(r"[a-z-]+", rest[0]) and not rest[0].startswith("-"):
                    wrong.append(place)
                typed = {word.partition("=")[0] for word in itertools.takewhile(lambda word: word != "--", rest)}
                typed = {word for word in typed if re.fullmatch(r"--?[a-z][a-z-]*", word)}
                if not is_group and typed - options[name]:
                    wrong.append(place)
    assert not wrong
    assert found > 200


PACKAGE = Path(kvctl.__file__).parent
PLACEHOLDER = "\0"


def _texts(tree: ast.AST) -> Iterator[tuple[ast.Constant | ast.JoinedStr, str]]:
    """Yield strings; in f-strings each value is a placeholder."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node, "".join(part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node, node.value


def _command_of(lines: Container[str], words: list[str]) -> tuple[str | None, list[str]]:
    """Return the command that words begin with, and the rest."""
    for length in range(min(len(words), 3), 0, -1):
        if (name := " ".join(words[:length])) in lines:
            return name, words[length:]
    return None, words
