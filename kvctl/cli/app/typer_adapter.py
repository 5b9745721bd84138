"""The adapter to Typer: every private name of it that kvctl needs is touched here."""

import re
from typing import Any

import typer
from typer.core import TyperArgument

from kvctl.errors import KvctlError

SUPPORTED = (0, 28)
"""Version of Typer whose internals are known: its parser, and the arguments that a group leaves to its command."""


def require_supported(version: str | None = None) -> None:
    """Raises KvctlError for a Typer whose internals may be others than those that are used here."""
    found = version or typer.__version__
    if tuple(map(int, re.findall(r"\d+", found)[:2])) != SUPPORTED:
        known = ".".join(map(str, SUPPORTED))
        raise KvctlError(
            f"Typer {found} is not supported, kvctl needs {known}",
            hint=f"Install it with `pip install 'typer=={known}.*'`",
        )


def remaining(ctx: Any) -> list[str]:
    """Return what a group has left on its command line: the name of a command and its arguments."""
    return [*ctx._protected_args, *ctx.args]


def take_digits_as_arguments(parser: Any) -> None:
    """Let `-5` and `-15m` be arguments: no option of ours is a digit."""
    process_option = parser._process_opts

    def process(arg: str, state: Any) -> None:
        if arg[1:2].isdigit():
            state.largs.append(arg)
        else:
            process_option(arg, state)

    parser._process_opts = process


def keep_tail(parser: Any, tail: TyperArgument) -> None:
    """Let the argument take what follows the first `--`, and the others what stands before it."""
    parse = parser.parse_args
    parser._args = [argument for argument in parser._args if argument.obj is not tail]

    def parse_args(args: list[str]) -> Any:
        at = args.index("--") if "--" in args else len(args)
        values, rest, order = parse(args[:at])
        values[tail.name] = tuple(args[at + 1 :])
        return values, rest, order

    parser.parse_args = parse_args
