"""Every command that a message, hint or page of the source names exists, with its options."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvctl.cli.app.command import Group
from kvctl.cli.app.main import root
from kvctl.topics import titles

PACKAGE = Path(__file__).parents[2] / "kvctl"
ANY = "\x00"
"""Stands for what is only known when the message is written."""
NAMED = re.compile(r"`(?:kvctl )([^`]+)`")
SHARED = {"--help", "--version"}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module's strings, with what is formatted into them left open."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner.update(id(part) for part in ast.walk(node) if part is not node)
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else ANY for part in node.values]
            yield node.lineno, "".join(map(str, parts))


@cache
def named() -> list[tuple[str, str]]:
    """Place and command line of each command in backticks."""
    return [
        (f"{path.relative_to(PACKAGE)}:{line}", found)
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in texts(path)
        for found in NAMED.findall(text)
    ]


@cache
def found_at(path: tuple[str, ...]) -> Any:
    """The command or group of these words, None if there is none."""
    return found_at(path[:-1]).get_command(None, path[-1]) if path else root()


@cache
def options_of(path: tuple[str, ...]) -> set[str] | None:
    """The options of a command, None for a group."""
    found = found_at(path)
    if isinstance(found, Group):
        return None
    return {spelling for param in found.params for spelling in (*param.opts, *param.secondary_opts)}


def problem(line: str) -> str | None:
    """What does not exist in a command line, if anything."""
    words = line.split()
    path: tuple[str, ...] = ()
    while words and options_of(path) is None:
        word = words[0]
        if ANY in word or word.startswith("-") or word.isupper() or word == "...":
            return None  # a command that is filled in, or a group's own option
        if path == ("help",) or (not path and word == "help"):
            known = len(words) == 1 or ANY in words[1] or words[1].isupper() or words[1] in {*titles(), "options"}
            return None if known else f"no topic {words[1]}"
        if found_at((*path, word)) is None:
            return f"no command {word}"
        path += (words.pop(0),)
    own = options_of(path)
    for word in words:
        if word == "--":
            break
        name = word.partition("=")[0].rstrip(".,;)]").lstrip("([")
        if name.startswith("--") and ANY not in name and name not in SHARED | (own or set()):
            return f"no option {name}"
    return None


def test_commands_are_found_in_messages():
    assert len(named()) > 250


@pytest.mark.parametrize("line", ["bucket lst", "bucket ls --al", "frob", "help nothing", "repo frob R"])
def test_what_does_not_exist_is_found(line):
    assert problem(line)


def test_every_command_in_a_message_exists():
    assert not [f"{place}: `kvctl {line}`: {why}" for place, line in named() if (why := problem(line))]
