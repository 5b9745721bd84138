"""Options that every command takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache
from typing import Any

import typer
from typer.core import TyperOption

from kvctl import contexts
from kvctl.cli import records
from kvctl.errors import UsageError
from kvctl.render.terminal import COLORS
from kvctl.render.view import FORMATS
from kvctl.units import parse_duration


@dataclass(slots=True)
class Shared:
    """Values of the shared options, None if not given. The last one of the innermost command wins."""

    context: str | None = None
    server: str | None = None
    user: str | None = None
    password_file: str | None = None
    token_file: str | None = None
    creds: str | None = None
    nkey: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_first: bool | None = None
    domain: str | None = None
    api_prefix: str | None = None
    inbox_prefix: str | None = None
    timeout: timedelta | None = None
    read_only: bool | None = None
    output: str | None = None
    columns: tuple[str, ...] = ()
    header: bool = False
    quiet: bool = False
    verbose: bool = False
    color: str = "auto"

    def connection_flags(self) -> dict[str, object]:
        """Return the given connection options, for `contexts.resolve`."""
        rest = ("output", "columns", "header", "quiet", "verbose", "color")
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in rest}
        return {name: value for name, value in given.items() if value is not None}


class SharedOption(TyperOption):
    """Option of every command, whose value is stored in the context's `Shared` and not passed to the command."""

    def __init__(
        self,
        *spellings: str,
        help: str,
        metavar: str | None = None,
        parse: Callable[[str], Any] | None = None,
        choices: Sequence[str] = (),
        also: Sequence[str] = (),
        complete: Callable[[typer.Context, str], Sequence[str]] | None = None,
        is_eager: bool = False,
    ) -> None:
        super().__init__(
            param_decls=[spellings[-1].strip("-").replace("-", "_"), *spellings, *also],
            type=None if metavar is None else str,
            metavar=metavar,
            is_flag=metavar is None,
            is_eager=is_eager,
            expose_value=False,
            callback=_store,
            help=help,
            autocompletion=lambda ctx, args, incomplete: complete(ctx, incomplete) if complete else choices,
        )
        self.spellings = spellings
        self.choices = choices
        self.parse = parse


@cache
def shared_options() -> tuple[SharedOption, ...]:
    """Return the shared options in the order of the help; `also` holds hidden spellings of the `nats` CLI."""
    return (
        SharedOption(
            "--context", metavar="NAME", help="Context to use, see `kvctl context`", complete=_complete_context
        ),
        SharedOption("-s", "--server", metavar="URL", help="URL of the server, or several separated by commas"),
        SharedOption(
            "--user", metavar="NAME", help="User name; the password comes from --password-file or NATS_PASSWORD"
        ),
        SharedOption("--password-file", metavar="FILE", help="File with the password"),
        SharedOption("--token-file", metavar="FILE", help="File with the token"),
        SharedOption("--creds", metavar="FILE", help="Credentials file (JWT and seed)"),
        SharedOption("--nkey", metavar="FILE", help="NKey seed file"),
        SharedOption("--tls-cert", metavar="FILE", help="Client certificate", also=["--tlscert"]),
        SharedOption("--tls-key", metavar="FILE", help="Key of the client certificate", also=["--tlskey"]),
        SharedOption("--tls-ca", metavar="FILE", help="CA certificates to trust", also=["--tlsca"]),
        SharedOption("--tls-first", help="Start TLS before the server's INFO message", also=["--tlsfirst"]),
        SharedOption("--domain", metavar="NAME", help="JetStream domain", also=["--js-domain"]),
        SharedOption("--api-prefix", metavar="PREFIX", help="JetStream API prefix", also=["--js-api-prefix"]),
        SharedOption("--inbox-prefix", metavar="PREFIX", help="Prefix of reply subjects [default: _INBOX]"),
        SharedOption("--timeout", metavar="DURATION", help="Maximum time to wait for a response", parse=parse_duration),
        SharedOption("--read-only", help="Refuse all writes"),
        SharedOption("-o", "--output", metavar="FORMAT", help=", ".join(FORMATS), choices=FORMATS),
        SharedOption(
            "--columns",
            metavar="NAMES",
            help="Columns of tsv and tables: `name,kind`",
            parse=_column_names,
            complete=_complete_columns,
        ),
        SharedOption("--header", help="Begin tsv with a line of column names"),
        SharedOption("-q", "--quiet", help="Print only results and errors, no notes or progress"),
        SharedOption("-v", "--verbose", help="Show each API request and its duration", also=["--trace"]),
        SharedOption("--color", metavar="WHEN", help=", ".join(COLORS), choices=COLORS, is_eager=True),
    )


def output_of(argv: Sequence[str]) -> str | None:
    """Return the value of the last `--output` in a command line that could not be parsed, None without one."""
    words = [*argv[: argv.index("--")]] if "--" in argv else [*argv]
    found = None
    for index, word in enumerate(words):
        if word in ("-o", "--output"):
            found = next(iter(words[index + 1 :]), None)
        elif word.startswith("--output="):
            found = word.removeprefix("--output=")
        elif word.startswith("-o") and not word.startswith("--"):
            found = word.removeprefix("-o")
    return found


def _store(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    if value is not None and isinstance(param, SharedOption):
        setattr(ctx.obj, str(param.name), _parsed(param, value))
    return value


def _parsed(option: SharedOption, value: Any) -> Any:
    if option.choices and value not in option.choices:
        raise UsageError(
            f"`{value}` is not a value of `{option.spellings[-1]}`", hint=f"Use one of {', '.join(option.choices)}"
        )
    return option.parse(value) if option.parse else value


def _column_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if "" in names:
        raise UsageError(f"`{text}` is not a list of columns", hint="Separate names by commas: `--columns name,kind`")
    return names


def _complete_context(ctx: typer.Context, incomplete: str) -> list[str]:
    return context_names(incomplete)


def _complete_columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the last of several columns with those that are not picked yet."""
    picked = incomplete.split(",")[:-1]
    return [
        ",".join([*picked, name])
        for name in records.fields_of(getattr(ctx.command, "prints", ()))
        if name not in picked
    ]


def context_names(incomplete: str) -> list[str]:
    """Complete a context's name."""
    return [name for name in contexts.ContextStore().names() if name.startswith(incomplete)]
