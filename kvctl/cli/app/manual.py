"""Man pages and completion scripts from the command tree, written by `python -m kvctl.cli.app.manual`."""

import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kvctl import __version__, topics
from kvctl.cli.app.command import Command, Group
from kvctl.cli.app.completion import SCRIPTS
from kvctl.cli.app.help_page import argument_line, arguments, metavar, option_line, own_options, record_lists, usage
from kvctl.cli.app.main import root
from kvctl.cli.app.options import SharedValues, shared_options
from kvctl.cli.records import ANY, PARTS, PrintedRecord
from kvctl.pipeline.options import with_option_list

ROOT = Path(__file__).parents[3]
COMPLETIONS = {"bash": "kvctl.bash", "zsh": "_kvctl", "fish": "kvctl.fish"}


def main(directory: Path = ROOT) -> None:
    """Write every page and script below `directory`, and remove outdated pages."""
    files = generated()
    stale = [path for path in directory.glob("man/man[17]/kvctl*") if str(path.relative_to(directory)) not in files]
    for path in stale:
        path.unlink()
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")


def generated() -> dict[str, str]:
    """File name -> text: a page for the root and for each group, one for each topic, and the completion scripts.

    So are the topics whose lists of options and fields are made from the code.
    """
    tree = root()
    pages = {"man/man1/kvctl.1": _root_page(tree)}
    for name in tree.list_commands(None):
        command = tree.get_command(None, name)
        if isinstance(command, Group):
            pages[f"man/man1/kvctl-{name}.1"] = _group_page(tree, command)
    for topic, title in topics.titles().items():
        pages[f"man/man7/kvctl-{topic}.7"] = _topic_page(topic, title)
    scripts = {f"completions/{COMPLETIONS[shell]}": script for shell, script in SCRIPTS.items()}
    lists = {f"kvctl/topics/{name}.md": _topic(name) for name in ("fields", "pipeline")}
    return {**pages, **scripts, **lists}


def walk(group: Group, parent: Any = None) -> Iterator[tuple[Any, Command]]:
    """Yield every command of a group and its subgroups with its Typer context, without hidden ones."""
    ctx = group.make_context(group.name, [], parent=parent, obj=SharedValues(), resilient_parsing=True)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, Group):
            yield from walk(command, ctx)
        else:
            yield command.make_context(name, [], parent=ctx, resilient_parsing=True), command


def _root_page(tree: Group) -> str:
    ctx = _context(tree)
    groups = [name for name in tree.list_commands(ctx) if isinstance(tree.get_command(ctx, name), Group)]
    parts = [_head("kvctl", 1, tree.help or ""), ".SH SYNOPSIS\n", f"{_bold(usage(ctx))}\n", ".SH COMMANDS\n"]
    for section, rows in tree.command_sections().items():
        listed = [(name.strip(), summary) for name, summary in rows if name.strip() in tree.entries]
        parts += [f".SS {_text(section)}\n" if listed else "", *(_term(_bold(name), help) for name, help in listed)]
    parts += [".SH SHARED OPTIONS\n", _paragraph("Every command takes these options, in any position before `--`.")]
    parts += [_option(option) for option in shared_options()]
    parts += [".SH KEYS AND SETUP\n"]
    parts += [_command(ctx, command) for ctx, command in walk(tree) if ctx.parent.parent is None]
    references = [*(f"kvctl-{name}(1)" for name in groups), *(f"kvctl-{topic}(7)" for topic in topics.titles())]
    return "".join([*parts, _see_also(references)])


def _group_page(tree: Group, group: Group) -> str:
    commands = list(walk(group, _context(tree)))
    summary, _, details = inspect.cleandoc(group.help or "").partition("\n")
    synopsis = "\n.br\n".join(_bold(usage(ctx)) for ctx, _ in commands)
    parts = [_head(f"kvctl-{group.name}", 1, summary), f".SH SYNOPSIS\n{synopsis}\n.SH DESCRIPTION\n"]
    parts += [
        _markdown(details.strip() or f"{summary.rstrip('.')}."),
        _paragraph("All commands take the shared options"),
    ]
    parts += ["of\n.BR kvctl (1).\n.SH COMMANDS\n", *(_command(ctx, command) for ctx, command in commands)]
    return "".join([*parts, _see_also(["kvctl(1)"])])


def _topic_page(topic: str, title: str) -> str:
    _, _, text = _topic(topic).partition("\n")
    return f"{_head(f'kvctl-{topic}', 7, title)}.SH DESCRIPTION\n{_markdown(text)}{_see_also(['kvctl(1)'])}"


def _topic(topic: str) -> str:
    """Return a topic's text, with generated parts rewritten from the code."""
    generators = {"pipeline": with_option_list, "fields": with_field_list}
    text = topics.page(topic)
    return generators[topic](text) if topic in generators else text


_WIDTH = 78
_INTRODUCTION = """
Every command with a result, and the fields of its JSON objects in their order.
Fields in parentheses are not columns of tsv unless `--columns` names them.
Fields with a question mark are absent if they are unknown or do not apply. A
command with several lists has several kinds of objects, by its options.

"""


def with_field_list(topic: str) -> str:
    """Return the topic, the catalogue of fields below the title of `topic`."""
    printed = {ctx.command_path.removeprefix("kvctl "): command.prints for ctx, command in walk(root())}
    listed = "".join(
        f"    {name}\n{''.join(map(_lines, records))}" for name, records in sorted(printed.items()) if records
    )
    inside = "".join(f"    {name}\n{''.join(map(_names, parts))}" for name, parts in sorted(PARTS.items()))
    title, _, _ = topic.partition("\n")
    return f"{title}\n{_INTRODUCTION}{listed}\n## Fields that hold objects, or lists of objects\n\n{inside}"


def _lines(kind: PrintedRecord) -> str:
    if kind is ANY:
        return "      - a configuration, file or schema\n"
    return _field_names(name if name.strip("?") in kind.columns else f"({name})" for name in _marked(kind))


def _names(part: PrintedRecord) -> str:
    return _field_names(_marked(part))


def _marked(kind: PrintedRecord) -> list[str]:
    return [f"{name}?" if name in kind.optional else name for name in kind.fields]


def _field_names(names: Iterable[str]) -> str:
    return textwrap.fill(" ".join(names), _WIDTH, initial_indent="      - ", subsequent_indent="        ") + "\n"


def _context(tree: Group) -> Any:
    return tree.make_context("kvctl", [], obj=SharedValues(), resilient_parsing=True)


def _head(name: str, section: int, summary: str) -> str:
    return (
        '.\\" Generated by `python -m kvctl.cli.app.manual`, do not edit\n'
        f'.TH {name.upper()} {section} "" "kvctl {__version__}" "kvctl manual"\n'
        f".SH NAME\n{_text(name)} \\- {_text(summary.rstrip('.'))}\n"
    )


def _command(ctx: Any, command: Command) -> str:
    summary, _, details = inspect.cleandoc(command.help or "").partition("\n")
    name = ctx.command_path.removeprefix("kvctl ")
    parts = [f".SS {_text(name)}\n{_bold(usage(ctx))}\n", _paragraph(summary), _markdown(details)]
    parts += [_term(_bold(label), help) for label, help in map(argument_line, arguments(command.params))]
    parts += [_option(option) for option in own_options(command.params) if option.name != "help"]
    for title, names in record_lists(command.prints):
        parts.append(_paragraph(f"{title}: {', '.join(names)}."))
    return "".join([*parts, ".PP\nExamples:\n", _code(command.examples)])


def _option(option: Any) -> str:
    spelling, help = option_line(option)
    value = metavar(option).strip()
    names = spelling.strip().removesuffix(value).strip().split(", ")
    return _term(", ".join(map(_bold, names)) + (f" \\fI{_text(value)}\\fR" if value else ""), help)


def _term(term: str, help: str) -> str:
    return f".TP\n{term}\n{_inline(help) or _NOTHING}\n"


def _see_also(references: list[str]) -> str:
    lines = [f".BR {_text(reference[:-3])} {reference[-3:]}" for reference in references]
    return ".SH SEE ALSO\n" + " ,\n".join(lines) + "\n"


def _markdown(text: str) -> str:
    """Convert the Markdown of topics and docstrings: headings, paragraphs, lists and indented code."""
    blocks: list[list[str]] = []
    for block in re.split(r"\n{2,}", text.strip("\n")):
        if blocks and block.startswith(_CODE) and blocks[-1][0].startswith(_CODE):
            blocks[-1] += ["", *block.split("\n")]
        else:
            blocks.append(block.split("\n"))
    return "".join(_block(block) for block in blocks if block != [""])


def _block(lines: list[str]) -> str:
    first = lines[0]
    if first.startswith("#"):
        rest = _paragraph(" ".join(lines[1:])) if lines[1:] else ""
        return f".SS {_inline(first.lstrip('# '))}\n{rest}"
    if first.startswith(_CODE):
        return f".PP\n{_code([line.removeprefix(_CODE) for line in lines])}"
    if _ITEM.match(first):
        items = re.split(r"\n(?=- |\d+\. )", "\n".join(lines))
        return "".join(_item(" ".join(line.strip() for line in item.split("\n"))) for item in items)
    return _paragraph(" ".join(line.strip() for line in lines))


def _item(text: str) -> str:
    mark, _, rest = text.partition(" ")
    sign, width = ("\\(bu", 2) if mark == "-" else (mark, 4)
    return f".IP {sign} {width}\n{_inline(rest)}\n"


def _paragraph(text: str) -> str:
    return f".PP\n{_inline(text)}\n"


def _code(lines: Sequence[str]) -> str:
    return ".RS 4\n.EX\n" + "".join(f"{_text(line)}\n" for line in lines) + ".EE\n.RE\n"


def _bold(text: str) -> str:
    return f"\\fB{_text(text)}\\fR"


def _inline(text: str) -> str:
    """Convert inline text: `code` and **strong** in bold."""
    parts = re.split(r"`([^`]+)`|\*\*([^*]+)\*\*", text)
    plain = [_escaped(part or "") for part in parts[::3]]
    marked = [f"\\fB{_escaped(code or strong)}\\fR" for code, strong in zip(parts[1::3], parts[2::3], strict=True)]
    return _protected("".join(one + two for one, two in zip_longest(plain, marked, fillvalue="")))


def _text(text: str) -> str:
    return _protected(_escaped(text))


def _protected(text: str) -> str:
    """Protect a leading dot or quote, which would make the line a roff request."""
    return f"{_NOTHING}{text}" if text[:1] in (".", "'") else text


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = text.replace("~", "\\(ti").replace("^", "\\(ha")
    return "".join(character if character.isascii() else f"\\[u{ord(character):04X}]" for character in text)


_NOTHING = "\\&"
_CODE = "    "
_ITEM = re.compile(r"- |\d+\. ")

if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
