"""Help topics: complete, plain enough for a terminal and a manual page, and true where a test can tell."""

import ast
import json
import pkgutil
import re
from functools import cache
from importlib import import_module
from typing import Any

import pytest

import kvctl
from kvctl import errors
from kvctl.cli.app.main import COMMANDS, root
from kvctl.render.view import FORMATS
from tests.cli.conftest import run_process
from tests.support.readme import README, ROOT

TOPICS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "kvctl" / "topics").glob("*.md"))}
NAMED = set(
    "audit automation confirmation deploying environment exit-codes fields formats guarantees hazards pipeline scale "
    "security servers tables topologies versions".split()
)
WIDTH = 80


def test_the_topics_there_are():
    assert set(TOPICS) == NAMED


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_plain_markdown_that_fits_a_terminal(topic):
    text = TOPICS[topic]
    assert re.match(r"# [A-Z][^\n]+[^.\n]\n\n", text)
    assert text.endswith("\n")
    assert not [line for line in text.splitlines() if len(line) > WIDTH]
    assert not [line for line in text.splitlines() if line != line.rstrip() or "\t" in line]
    assert not re.search(r"^```|^\||^ {1,3}\d\. |^\* |\]\(|<\w+>", text, re.MULTILINE)


@pytest.mark.parametrize("topic", sorted(TOPICS.keys() - {"automation"}))  # its examples are tests
def test_topic_names_no_tests(topic):
    assert not re.search(r"\btest_\w+|\btests/", TOPICS[topic])


def test_every_exit_code_is_explained():
    codes = {error.exit_code for error in _subclasses(errors.KvctlError)} | {0, 8, 130}
    explained = re.findall(r"^    (\d+) +\w", TOPICS["exit-codes"].split("##")[0], re.MULTILINE)
    reached = {int(name.split("_")[1]) for name in _tests_in("tests/cli/app/test_exit_codes.py")}
    assert [int(code) for code in explained] == sorted(codes) == sorted(reached)
    scripts = (ROOT / "docs" / "scripts.md").read_text(encoding="utf-8")
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", scripts, re.MULTILINE)] == sorted(codes)


def test_every_kind_of_error_is_listed_with_its_exit_code():
    for package in pkgutil.walk_packages(kvctl.__path__, "kvctl."):
        if not package.name.startswith(("kvctl.pipeline", "kvctl.cli.pipeline", "kvctl.__main__", "kvctl.pytest")):
            import_module(package.name)
    known = {(error.exit_code, error.kind) for error in [errors.KvctlError, *_subclasses(errors.KvctlError)]}
    section = TOPICS["exit-codes"].split("## Errors in JSON")[1].split("##")[0]
    rows = re.findall(r"^    (\d) +(\w(?:.|\n {9})+)$", section, re.MULTILINE)
    assert sorted(known) == [(int(code), kind) for code, kinds in rows for kind in kinds.split()]


def test_every_variable_is_explained():
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "kvctl").rglob("*.py"))
    read = set(re.findall(r"\b(?:NATS|KVCTL)_[A-Z_]+\b", source))
    explained = set(re.findall(r"\b(?:NATS|KVCTL)_[A-Z_]+\b", TOPICS["environment"]))
    assert {"NATS_URL", "NATS_CONTEXT"} <= read
    assert read == explained


def test_every_subject_that_is_probed_is_explained(server):
    probed = json.loads(run_process("context", "test", "-s", server.url, "-o", "json").out)["permissions"]
    needed = re.findall(r"^ {4}.* (\$\S+)$", TOPICS["security"], re.MULTILINE)
    assert len(probed) == len(needed) > 10
    for subject in (item["subject"].replace("KV_KEY", "KV_BUCKET") for item in probed):
        assert [one for one in needed if re.fullmatch(re.escape(one).replace(">", ".+"), subject)], subject


def test_every_format_is_explained():
    explained = re.findall(r"^    (\w+) +\w", TOPICS["formats"].split("##")[0], re.MULTILINE)
    assert sorted(explained) == sorted(FORMATS)


@pytest.mark.parametrize("topic", [*TOPICS, "README"])
def test_commands_and_options_in_the_text_exist(topic):
    text = TOPICS.get(topic, README)
    lines = re.findall(r"(?:^(?: {4}|\$ )|`|\$\()kvctl ([a-z][^`\n]*)", text, re.MULTILINE)
    unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - _options()
    assert lines or topic in ("servers", "fields")
    assert not [line for line in lines if not _is_command(line)]
    assert not unknown


@pytest.mark.parametrize("topic", TOPICS)
def test_the_readme_links_to_every_topic(topic):
    assert f"](kvctl/topics/{topic}.md)" in README


def test_help_lists_the_topics_with_their_titles():
    assert set(root().command_sections()["Help topics (kvctl help TOPIC)"]) == {
        (name, text.partition("\n")[0].removeprefix("# ")) for name, text in TOPICS.items()
    }


def _is_command(line: str) -> bool:
    words = line.split()
    if words[0] == "help":
        return len(words) == 1 or words[1] in TOPICS or words[1].isupper() or _is_command(" ".join(words[1:]))
    names = {name for commands in COMMANDS.values() for name in commands}
    if words[0] not in names:
        return False
    command = _command(words[0])
    wanted = words[1] if len(words) > 1 else ""
    return not hasattr(command, "entries") or not wanted.isalpha() or command.canonical(wanted) is not None


@cache
def _command(name: str) -> Any:
    return root().get_command(None, name)


@cache
def _options() -> set[str]:
    """Every option of every command, and one of spark-submit."""
    found = {"--version", "--class"}
    commands = [root()]
    while commands:
        command = commands.pop()
        found |= {spelling for param in command.params for spelling in (*param.opts, *param.secondary_opts)}
        commands += [command.get_command(None, name) for name in getattr(command, "entries", ())]
    return found


@cache
def _tests_in(path: str) -> set[str]:
    """`test_name` and `TestClass::test_name` of a file."""
    if not (ROOT / path).exists():
        return set()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    groups = [("", tree), *((f"{node.name}::", node) for node in tree.body if isinstance(node, ast.ClassDef))]
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {prefix + node.name for prefix, group in groups for node in group.body if isinstance(node, functions)}


def _subclasses(kind: type[errors.KvctlError]) -> set[type[errors.KvctlError]]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))
