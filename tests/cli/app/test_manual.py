"""Every command explains itself, and what is generated from the command tree is current and clean."""

import inspect
import re
import shlex
import shutil
import subprocess

import pytest

from kvctl import topics
from kvctl.cli.app.command import Group
from kvctl.cli.app.help_page import arguments, option_line, own_options
from kvctl.cli.app.main import COMMANDS, root
from kvctl.cli.app.manual import ROOT, generated, main
from kvctl.cli.app.options import SharedValues
from tests.cli.commands import every_command


@pytest.fixture(scope="module")
def tree():
    return root()


@pytest.fixture(scope="module")
def commands():
    """Each command with its Typer context, by its path."""
    return {f"kvctl {path}": found for path, found in every_command().items()}


@pytest.fixture(scope="module")
def files():
    """What is generated; it takes seconds."""
    return generated()


@pytest.fixture(scope="module")
def pages(files):
    return {name: text for name, text in files.items() if name.startswith("man/")}


class TestEveryCommand:
    def test_says_what_it_does_in_one_line(self, commands):
        for path, (_, command) in commands.items():
            summary, _, rest = inspect.cleandoc(command.help or "").partition("\n")
            assert summary.endswith("."), path
            assert len(summary) <= 76, path
            assert not rest or rest.startswith("\n"), path

    def test_explains_each_parameter(self, commands):
        for path, (_, command) in commands.items():
            params = [*arguments(command.params), *own_options(command.params)]
            assert [param.name for param in params if not (param.help or "").strip()] == [], path
            assert [param.name for param in params if (param.help or "").endswith(".")] == [], path

    def test_names_defaults_as_they_are_typed(self, commands):
        for path, (_, command) in commands.items():
            texts = [text for _, text in map(option_line, own_options(command.params))]
            assert not [text for text in texts if "[default: ]" in text or "[default: True]" in text], path

    def test_has_examples_that_parse(self, tree, commands):
        for path, (_, command) in commands.items():
            assert any(path in example for example in command.examples), path
            for words in (words for example in command.examples for words in _calls(example)):
                tree.invoke(tree.make_context("kvctl", words, obj=SharedValues()))

    def test_refers_to_what_exists(self, tree, commands):
        there = {*commands, *_groups(tree)}
        for path, (_, command) in commands.items():
            for reference in getattr(command.callback, "see", ()):
                kind, _, name = reference.partition(" ")
                assert f"kvctl {reference}" in there or (kind == "help" and name in topics.titles()), (path, reference)

    def test_fits_80_columns(self, commands, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        texts = {path: str(command.get_help(ctx)) for path, (ctx, command) in commands.items()}
        wide = [f"{path}: {line}" for path, text in texts.items() for line in text.splitlines() if len(line) > 80]
        assert wide == []

    def test_that_creates_has_both_names(self, tree):
        groups = [tree.get_command(None, path.split()[1]) for path in _groups(tree)]
        creating = [group for group in groups if {"add", "create"} & {*group.list_commands(None)}]
        assert len(creating) >= 9
        assert all({"add", "create"} <= {*group.all_names()} for group in creating)
        assert all("`create`" in str(group.help) for group in creating if "add" in group.list_commands(None))

    def test_at_the_root_is_listed_as_it_describes_itself(self, tree):
        listed = {name: summary for commands in COMMANDS.values() for name, (_, summary) in commands.items()}
        own = {name: inspect.cleandoc(tree.get_command(None, name).help or "").partition("\n")[0] for name in listed}
        assert listed == {name: summary.rstrip(".") for name, summary in own.items()}

    def test_takes_the_shared_options(self, commands):
        for path, (_, command) in commands.items():
            spellings = {spelling for param in command.params for spelling in param.opts}
            assert {"-o", "--context", "-q", "-v", "-h", "--color"} <= spellings, path


class TestGenerated:
    def test_files_are_current(self, files):
        """If not: `python -m kvctl.cli.app.manual`."""
        for name, text in files.items():
            assert (ROOT / name).is_file(), name
            assert (ROOT / name).read_text(encoding="utf-8") == text, name

    def test_files_of_what_is_gone_are_too(self, files):
        there = {str(path.relative_to(ROOT)) for kind in ("man", "completions") for path in (ROOT / kind).rglob("*.*")}
        assert there <= {*files}

    def test_are_written_anew_and_the_stale_removed(self, files, tmp_path):
        stale = tmp_path / "man" / "man1" / "kvctl-gone.1"
        stale.parent.mkdir(parents=True)
        stale.touch()
        main(tmp_path)
        assert not stale.exists()
        assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {*files}

    def test_pages_hold_no_dates_and_only_ascii(self, pages):
        for name, page in pages.items():
            assert page.isascii(), name
            assert re.search(r'^\.TH \S+ [17] "" "kvctl [\d.]+" "kvctl manual"$', page, re.MULTILINE), name

    @pytest.mark.skipif(not shutil.which("groff"), reason="no groff")
    def test_pages_are_clean(self, pages, tmp_path):
        command = ["groff", "-man", "-ww", "-Tutf8", "-z"]
        for name, page in pages.items():
            done = subprocess.run(command, input=page.encode(), capture_output=True, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, b""), name

    def test_pages_mention_every_command_and_option(self, pages, commands):
        text = _unescaped("".join(pages.values()))
        for path, (_, command) in commands.items():
            assert path in text
            for option in own_options(command.params):
                assert option.name == "help" or max(option.opts, key=len) in text


class TestTopics:
    @pytest.mark.parametrize("topic", topics.titles())
    def test_are_shown_as_they_are_in_a_pipe(self, run, topic):
        text = (ROOT / "kvctl" / "topics" / f"{topic}.md").read_text(encoding="utf-8")
        assert run("help", topic).out == text

    def test_are_coloured_on_a_terminal(self, run):
        out = run("help", "exit-codes", tty=True, env={"NO_COLOR": ""}).out
        assert out.startswith("\x1b[1mExit codes\x1b[0m\n")

    def test_are_listed(self, run):
        assert set(topics.titles()) <= set(run("help").out.split())
        out = run("--help").out
        assert all(re.search(rf"^  {topic} +\S", out, re.MULTILINE) for topic in topics.titles())

    def test_help_on_commands(self, run):
        assert run("help", "bucket").out == run("bucket", "--help").out
        assert run("help", "bucket", "create").out == run("bucket", "add", "--help").out

    @pytest.mark.parametrize("words", [("exitcodes",), ("bucket", "nothing"), ("get", "more")], ids=" ".join)
    def test_help_on_what_does_not_exist(self, run, words, snapshot):
        result = run("help", *words)
        assert result.exit_code == 2
        assert result == snapshot


def _groups(tree: Group) -> list[str]:
    return [f"kvctl {name}" for name in tree.list_commands(None) if isinstance(tree.get_command(None, name), Group)]


def _calls(example: str) -> list[list[str]]:
    """The arguments of each kvctl in a line of shell."""
    lexer = shlex.shlex(example.replace("$(", " ( "), posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    calls: list[list[str]] = []
    inside = False
    for word in lexer:
        if set(word) <= set("|&;<>()"):
            inside = False
        elif word == "kvctl" and not inside:
            calls.append([])
            inside = True
        elif inside:
            calls[-1].append(word)
    return calls


def _unescaped(page: str) -> str:
    return re.sub(r"\\f[BRI]", "", page).replace("\\-", "-").replace("\\&", "")
