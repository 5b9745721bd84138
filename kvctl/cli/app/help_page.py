"""Layout of a command's help: description, usage, examples, arguments, options."""

import inspect
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from inspect import Parameter
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperArgument, TyperOption

from kvctl import __version__
from kvctl.cli.app.options import TAIL, shared_options, shared_spellings, typer_options
from kvctl.cli.records import PrintedRecord, fields_of
from kvctl.render.terminal import paint, wants_color

Rows = Sequence[tuple[str, str]]

NARROWEST = 36
"""Minimum width of help, in terminal columns."""


class TextRequested(Exception):
    """Signal that `--help` or `--version` was given, with its text for stdout."""


class HelpPage:
    """Mixin of commands and groups that formats their help."""

    params: list[Any]
    help: str | None
    examples: Sequence[str] = ()
    see: Sequence[str] = ()
    prints: tuple[PrintedRecord, ...] = ()
    forces: Callable[[], Sequence[str]] = tuple
    in_pipe: str = "tsv"

    def help_text(self, ctx: Any, stream: TextIO | None) -> str:
        """Return the page, coloured if the stream supports it."""
        ctx.color = wants_color(stream, ctx.obj.color, os.environ)
        return str(ctx.get_help())

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page; called by Typer."""
        page = Page(formatter, bool(ctx.color))
        summary, _, details = inspect.cleandoc(self.help or "").partition("\n")
        page.text(summary)
        page.line("Usage", usage(ctx))
        page.text(details.strip("\n"))
        page.block("Examples", [line for example in self.examples for line in wrapped_command(example, page.width - 2)])
        for section, rows in self.command_sections().items():
            page.list(section, rows)
        page.list("Arguments", [argument_line(param) for param in arguments(self.params)])
        page.list("Options", [option_line(param) for param in own_options(self.params)])
        for title, names in record_lists(self.prints):
            page.block(title, wrapped_words(names, page.width - 2))
        self._format_shared(ctx, page)
        self._format_references(ctx, page)

    def command_sections(self) -> dict[str, list[tuple[str, str]]]:
        """Return headings with names and summaries of a group's commands; empty for a command."""
        return {}

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments, the required options, `[OPTIONS]`, and the argument for a program to run."""
        tail = tail_of(self.params)
        own = [argument_usage(param) for param in arguments(self.params) if param is not tail]
        required = [required_usage(param) for param in own_options(self.params) if param.required]
        program = [f"-- {TAIL}..." if tail.required else f"[-- {TAIL}...]"] if tail else []
        return [*own, *required, "[OPTIONS]", *program]

    def _format_shared(self, ctx: Any, page: "Page") -> None:
        if ctx.parent is None:
            shared_list(page)
        else:
            shared = [shared_usage(param) for param in self.params if param in shared_options()]
            page.block("Shared options, explained by `kvctl help options`", wrapped_words(shared, page.width - 2))

    def _format_references(self, ctx: Any, page: "Page") -> None:
        aliases = ctx.parent.command.aliases(ctx.info_name) if ctx.parent is not None else []
        page.line("Aliases", ", ".join(aliases))
        page.line("See also", ", ".join(f"kvctl {name}".replace(" ", _UNBROKEN) for name in self.see))


def record_lists(records: Sequence[PrintedRecord]) -> list[tuple[str, list[str]]]:
    """Return headings with names: the columns of a command's tsv, and what else `--columns` can pick."""
    if not records:
        return []
    columns = list(records[0].columns)
    more = [name for name in fields_of(records) if name not in columns]
    found = [("Columns", columns), ("Further columns for --columns", more)]
    return [(title, names) for title, names in found if names]


def built_page(ctx: Any, stream: TextIO | None, write: "Callable[[Page], None]") -> str:
    """Return the text of a page that `write` fills, coloured if the stream supports it."""
    formatter = ctx.make_formatter()
    write(Page(formatter, wants_color(stream, ctx.obj.color, os.environ)))
    return str(formatter.getvalue()).strip("\n")


def shared_list(page: "Page") -> None:
    """Write the options of every command."""
    page.list("Shared options of every command", [option_line(option) for option in shared_options()])


@cache
def help_option() -> TyperOption:
    """Return `-h` and `--help`, which use the same output as everything else."""
    return _eager("-h", "--help", help="Show this help", text=lambda ctx: ctx.command.help_text(ctx, sys.stdout))


def version_option() -> TyperOption:
    """Return `--version` of the root."""
    return _eager("--version", help="Show the version", text=lambda ctx: f"kvctl {__version__}")


def usage(ctx: Any) -> str:
    """Return a command's usage line: `kvctl get BUCKET KEY... [OPTIONS]`."""
    return " ".join([ctx.command_path, *ctx.command.collect_usage_pieces(ctx)])


def arguments(params: Iterable[Any]) -> list[TyperArgument]:
    """Return the arguments among a command's parameters."""
    return [param for param in params if isinstance(param, TyperArgument) and not param.hidden]


def tail_of(params: Iterable[Any]) -> TyperArgument | None:
    """Return the argument that takes only what follows `--`, a program to run, or None."""
    return next((param for param in arguments(params) if param.metavar == TAIL), None)


def argument_usage(param: TyperArgument) -> str:
    """Return an argument's usage: `BUCKET`, `[REVISION]`, `KEY...`."""
    name = (param.metavar or str(param.name).upper()).strip("[].")
    dots = "..." if param.nargs == -1 else ""
    return f"{name}{dots}" if param.required else f"[{name}{dots}]"


def argument_line(param: TyperArgument) -> tuple[str, str]:
    """Return name and help of an argument."""
    return argument_usage(param), (param.help or "") + _default(param)


def own_options(params: Iterable[Any]) -> list[TyperOption]:
    """Return the command's own options, without hidden ones."""
    return [
        param for param in params if isinstance(param, TyperOption) and not shared_spellings(param) and not param.hidden
    ]


def option_line(option: TyperOption) -> tuple[str, str]:
    """Return spellings and help of an option: `-o, --output FORMAT`, with aligned long names."""
    shown = sorted(spellings(option), key=len)
    indent = "    " if shown[0].startswith("--") else ""
    note = " (required)" if option.required else _default(option)
    return indent + ", ".join(shown) + metavar(option), (option.help or "") + note


def required_usage(option: TyperOption) -> str:
    """Return a required option's usage: `--origin BUCKET`, `-m MSG`."""
    return min(spellings(option), key=len) + metavar(option)


def shared_usage(option: TyperOption) -> str:
    """Return a shared option's usage: `-o/--output FORMAT`."""
    return "/".join(sorted(spellings(option), key=len)) + metavar(option)


def spellings(option: TyperOption) -> list[str]:
    """Return an option's names, without hidden ones."""
    return [*(shared_spellings(option) or (*option.opts, *option.secondary_opts))]


def metavar(option: TyperOption) -> str:
    """Return ` FORMAT`, or an empty text for a flag."""
    if option.is_flag:
        return ""
    return f" {option.metavar or str(option.name).upper()}{'...' if option.multiple else ''}"


class Page:
    """Page of sections with headings, separated by blank lines, without empty ones."""

    def __init__(self, formatter: Any, color: bool) -> None:
        # The formatter assumes at least 50 columns.
        formatter.width = min(formatter.width, max(shutil.get_terminal_size().columns - 2, NARROWEST))
        self.width: int = formatter.width
        self._formatter = formatter
        self._color = color

    def text(self, text: str) -> None:
        """Write paragraphs; those with code or a list keep their lines."""
        for block in filter(None, re.split(r"\n{2,}", text)):
            self._formatter.write_paragraph()
            if re.search(r"^(?: |- )", block, re.MULTILINE):
                self._formatter.write(f"{block}\n")
            else:
                self._formatter.write_text(block)

    def line(self, title: str, text: str) -> None:
        """Write a heading with a text behind it."""
        if text:
            lines = textwrap.wrap(f"{title}: {text}", self.width, subsequent_indent="  ", **_AT_SPACES)
            wrapped = "\n".join(lines).replace(_UNBROKEN, " ").removeprefix(f"{title}:")
            self._formatter.write(f"\n{self._heading(title)}{wrapped}\n")

    def block(self, title: str, lines: Sequence[str]) -> None:
        """Write lines under a heading."""
        if lines:
            self._formatter.write(f"\n{self._heading(title)}\n")
            self._formatter.write("".join(f"  {line}\n" for line in lines))

    def list(self, title: str, rows: Rows) -> None:
        """Write names and explanations in two columns under a heading."""
        if rows:
            self._formatter.write(f"\n{self._heading(title)}\n")
            with self._formatter.indentation():
                self._formatter.write_dl(rows, col_max=32)

    def _heading(self, title: str) -> str:
        return paint(f"{title}:", "bold") if self._color else f"{title}:"


def _eager(*names: str, help: str, text: Callable[[Any], str]) -> TyperOption:
    def request(ctx: typer.Context, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            raise TextRequested(text(ctx))

    option = typer.Option(*names, help=help, callback=request, is_eager=True, expose_value=False)
    name, kind = names[-1].strip("-"), Annotated[bool, option]
    (made,) = typer_options([Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=kind)])
    return made


def _default(param: Any) -> str:
    if param.default in (None, False, "", (), []) or param.required or not param.show_default:
        return ""
    return f" [default: {param.opts[0] if param.default is True else param.default}]"


_UNBROKEN = "\N{NO-BREAK SPACE}"
"""Stands for a space at which a text is not wrapped."""
_AT_SPACES: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def wrapped_command(line: str, width: int) -> list[str]:
    """Return a command line as lines of a shell, each but the last with a backslash; quoted words stay together."""
    words = (word.replace(" ", _UNBROKEN) for word in re.findall(r"(?:'[^']*'|\"[^\"]*\"|\S)+", line))
    lines = textwrap.wrap(" ".join(words), width - len(" \\"), subsequent_indent="    ", **_AT_SPACES)
    return " \\\n".join(lines).replace(_UNBROKEN, " ").split("\n")


def wrapped_words(words: Sequence[str], width: int) -> list[str]:
    """Return words as lines, two spaces apart."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return lines
