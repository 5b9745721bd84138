"""How a command's help looks: what it does, usage, examples, arguments, options."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from typer.core import TyperArgument, TyperOption

from kvctl import __version__
from kvctl.cli.options import SharedOption, shared_options
from kvctl.render.terminal import paint, wants_color


class TextRequested(Exception):
    """`--help` or `--version` was given; its text goes to stdout."""


def help_option() -> TyperOption:
    """`-h` and `--help`, which print through the same output as everything else."""
    return _eager("-h", "--help", help="Show this help", text=lambda ctx: str(ctx.get_help()))


def version_option() -> TyperOption:
    """`--version` of the root."""
    return _eager("--version", help="Show the version", text=lambda ctx: f"kvctl {__version__}")


def _eager(*spellings: str, help: str, text: Callable[[Any], str]) -> TyperOption:
    def request(ctx: Any, param: Any, value: Any) -> None:
        if value and not ctx.resilient_parsing:
            raise TextRequested(text(ctx))

    return TyperOption(
        param_decls=[spellings[-1].strip("-"), *spellings],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=request,
        help=help,
    )


class HelpPage:
    """Mixed into commands and groups: their help in the shape of this program."""

    params: list[Any]
    help: str | None
    callback: Any

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The whole page."""
        summary, _, details = inspect.cleandoc(self.help or "").partition("\n")
        formatter.write_text(summary)
        formatter.write_paragraph()
        formatter.write(f"{_heading('Usage')} {usage(ctx)}\n")
        if details.strip():
            formatter.write_paragraph()
            formatter.write_text(details.strip())
        self._write_examples(formatter)
        self._write_commands(ctx, formatter)
        _write_list(formatter, "Arguments", [argument_line(param) for param in _arguments(self.params)])
        _write_list(formatter, "Options", [option_line(param) for param in own_options(self.params)])
        self._write_shared(ctx, formatter)
        self._write_see(ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments, then `[OPTIONS]`."""
        is_group = hasattr(self, "entries")
        pieces = ["COMMAND"] if is_group else [argument_usage(param) for param in _arguments(self.params)]
        return [*pieces, "[OPTIONS]"]

    def _write_examples(self, formatter: Any) -> None:
        examples = getattr(self.callback, "examples", ())
        if examples:
            formatter.write(f"\n{_heading('Examples')}\n")
            for example in examples:
                formatter.write(f"  {example}\n")

    def _write_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in getattr(self, "entries", {}).items():
            if not entry.hidden:
                sections.setdefault(entry.section, []).append((name, entry.summary))
        widest = max((len(name) for rows in sections.values() for name, _ in rows), default=0)
        for section, rows in sections.items():
            _write_list(formatter, section, [(name.ljust(widest), summary) for name, summary in rows])

    def _write_shared(self, ctx: Any, formatter: Any) -> None:
        if ctx.parent is None:
            _write_list(formatter, "Shared options", [option_line(option) for option in shared_options()])
            return
        shared = [param for param in self.params if isinstance(param, SharedOption)]
        formatter.write(f"\n{_heading('Shared options')} (`kvctl --help` explains them)\n")
        formatter.write(_wrapped([shared_usage(option) for option in shared], formatter.width))

    def _write_see(self, ctx: Any, formatter: Any) -> None:
        see = getattr(self.callback, "see", ())
        aliases = ctx.parent.command.aliases(ctx.info_name) if ctx.parent is not None else []
        if aliases:
            formatter.write(f"\n{_heading('Also called')} {', '.join(aliases)}\n")
        if see:
            formatter.write(f"\n{_heading('See also')} {', '.join(f'`kvctl {name}`' for name in see)}\n")


def usage(ctx: Any) -> str:
    """`kvctl get BUCKET KEY... [OPTIONS]`"""
    return " ".join([ctx.command_path, *ctx.command.collect_usage_pieces(ctx)])


def argument_usage(param: TyperArgument) -> str:
    """`BUCKET`, `[REVISION]`, `KEY...`"""
    name = (param.metavar or str(param.name).upper()).strip("[].")
    dots = "..." if param.nargs == -1 else ""
    return f"{name}{dots}" if param.required else f"[{name}{dots}]"


def argument_line(param: TyperArgument) -> tuple[str, str]:
    """Name and help of an argument."""
    return argument_usage(param), (param.help or "") + _default(param)


def option_line(option: TyperOption) -> tuple[str, str]:
    """Spellings and help of an option."""
    return option_spelling(option), (option.help or "") + _default(option)


def option_spelling(option: TyperOption) -> str:
    """`-o, --output FORMAT`, lined up so that long names stand below each other."""
    shown = sorted(getattr(option, "spellings", option.opts), key=len)
    text = ", ".join([*shown, *option.secondary_opts])
    return ("" if not shown[0].startswith("--") else "    ") + text + _metavar(option)


def shared_usage(option: SharedOption) -> str:
    """`-o/--output FORMAT`"""
    return "/".join(sorted(option.spellings, key=len)) + _metavar(option)


def own_options(params: Iterable[Any]) -> list[TyperOption]:
    """The options that are the command's own, shown ones, `--help` last."""
    return [
        param
        for param in params
        if isinstance(param, TyperOption) and not isinstance(param, SharedOption) and not param.hidden
    ]


def _arguments(params: Iterable[Any]) -> list[TyperArgument]:
    return [param for param in params if isinstance(param, TyperArgument) and not param.hidden]


def _metavar(option: TyperOption) -> str:
    if option.is_flag:
        return ""
    choices = getattr(option.type, "choices", None)
    name = option.metavar or ("|".join(map(str, choices)) if choices else option.type.name.upper())
    return f" {name}{'...' if option.multiple else ''}"


def _default(param: Any) -> str:
    if param.default in (None, False, (), []) or param.required or not param.show_default:
        return ""
    return f" [default: {param.default}]"


def _heading(text: str) -> str:
    return paint(f"{text}:", "bold") if wants_color(sys.stdout, "auto", os.environ) else f"{text}:"


def _write_list(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        formatter.write(f"\n{_heading(title)}\n")
        formatter.indent()
        formatter.write_dl(rows, col_max=32)
        formatter.dedent()


def _wrapped(words: list[str], width: int) -> str:
    lines = [""]
    for word in words:
        if len(lines[-1]) + 4 + len(word) > width and lines[-1]:
            lines.append("")
        lines[-1] += ("  " if lines[-1] else "") + word
    return "".join(f"  {line}\n" for line in lines)
