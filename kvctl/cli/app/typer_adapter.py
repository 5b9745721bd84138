"""Adapter to Typer, the only module that touches its private names."""

from typing import Any

import typer
from typer.core import TyperArgument

from kvctl.errors import KvctlError

SUPPORTED = (0, 28)
"""Version of Typer whose internals are known: its parser, and the arguments that a group passes to its command."""


def require_supported(version: str | None = None) -> None:
    """Raise KvctlError for a version of Typer whose internals may differ."""
    found = version or typer.__version__
    known = ".".join(map(str, SUPPORTED))
    if not found.startswith(f"{known}."):
        raise KvctlError(
            f"Typer {found} is not supported, kvctl needs {known}",
            hint=f"Install it with `pip install 'typer=={known}.*'`",
        )


def remaining(ctx: Any) -> list[str]:
    """Return the rest of a group's command line: the name of a command and its arguments."""
    return [*ctx._protected_args, *ctx.args]


def take_digits_as_arguments(parser: Any) -> None:
    """Let the parser take `-5` and `-15m` as arguments, as no option here is a digit.

    Short options are looked up at once: the parser would look for long options that resemble them first.
    """
    process_option = parser._process_opts

    def process(arg: str, state: Any) -> None:
        if arg[1:2].isdigit():
            state.largs.append(arg)
        elif arg[:2] in parser._short_opt and arg not in parser._long_opt:
            parser._match_short_opt(arg, state)
        else:
            process_option(arg, state)

    parser._process_opts = process


def keep_tail(parser: Any, tail: TyperArgument) -> None:
    """Pass everything after the first `--` to the given argument, and parse only what precedes it."""
    parse = parser.parse_args
    parser._args = [argument for argument in parser._args if argument.obj is not tail]

    def parse_args(args: list[str]) -> Any:
        at = args.index("--") if "--" in args else len(args)
        values, rest, order = parse(args[:at])
        values[tail.name] = tuple(args[at + 1 :])
        return values, rest, order

    parser.parse_args = parse_args
