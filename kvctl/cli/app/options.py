"""Options: those of every command, kinds of parameters, and parameters that many commands have."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperOption
from typer.main import get_command

from kvctl import contexts
from kvctl.cli.app import live_names
from kvctl.cli.records import fields_of
from kvctl.errors import ContextNotFound, NotFoundError, UsageError
from kvctl.render.terminal import COLORS
from kvctl.render.view import FORMATS, document
from kvctl.units import parse_duration, parse_instant, parse_size, parse_ttl

TAIL = "COMMAND"
"""Metavar of the argument that takes everything after `--`."""


@dataclass(slots=True, eq=False, repr=False)
class SharedValues:
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
    columns: Mapping[str, str | None] = field(default_factory=dict)
    """Fields to print, each with the heading by which it was chosen, None for its name."""
    header: bool = False
    sort: str | None = None
    """Field by which a listing is sorted; `-` before it turns the order round."""
    limit: int | None = None
    """Maximum number of rows of a listing."""
    quiet: bool = False
    verbose: bool = False
    color: str = "auto"
    in_pipe: str = "tsv"
    """Format of the command without a terminal: `tsv`, `table` of a report, `fields` of a document."""

    @property
    def chooses(self) -> bool:
        """Return True if the user chose columns, their order or a number of rows, as only tables have them."""
        return bool(self.columns or self.sort or self.limit)

    def connection_flags(self) -> dict[str, object]:
        """Return the given connection options, for `contexts.resolve`."""
        rest = ("output", "columns", "header", "sort", "limit", "quiet", "verbose", "color", "in_pipe")
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in rest}
        return {name: value for name, value in given.items() if value is not None}


class SharedOption:
    """Option of every command, whose value is stored in the context's `SharedValues` and not passed to the command."""

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
        self.name = spellings[-1].strip("-").replace("-", "_")
        self.spellings = spellings
        self._choices = choices
        self._parse = parse
        self._complete = complete
        self._flag = metavar is None
        self._names = [*spellings, *also]
        self._settings: dict[str, Any] = {"metavar": metavar, "is_eager": is_eager, "help": help, "expose_value": False}

    def parameter(self) -> Parameter:
        """Return the parameter that Typer makes the option of."""

        def store(ctx: typer.Context, value: Any) -> None:
            if value is not None:
                setattr(ctx.obj, self.name, self._parsed(value))

        def complete(ctx: typer.Context, incomplete: str) -> list[str]:
            words = self._complete(ctx, incomplete) if self._complete else self._choices
            return [word for word in words if word.startswith(incomplete)]

        completion = complete if self._complete or self._choices else None
        option = typer.Option(*self._names, **self._settings, callback=store, autocompletion=completion)
        kind = bool if self._flag else str
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])

    def _parsed(self, value: Any) -> Any:
        if self._choices and value not in self._choices:
            raise UsageError(
                f"`{value}` is not a value of `{self.spellings[-1]}`", hint=f"Use one of {', '.join(self._choices)}"
            )
        return self._parse(value) if self._parse else value


def typer_options(parameters: Sequence[Parameter]) -> list[TyperOption]:
    """Return the options that Typer makes of the parameters of a function."""

    def declare(**_: Any) -> None:
        """Take the options."""

    declare.__dict__["__signature__"] = Signature(parameters)
    declare.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False)
    app.command(add_help_option=False)(declare)
    return [param for param in get_command(app).params if isinstance(param, TyperOption)]


@cache
def shared_options() -> list[TyperOption]:
    """Return the shared options in the order of the help."""
    return typer_options([option.parameter() for option in _declared().values()])


@cache
def listing_options() -> list[TyperOption]:
    """Return the options of every listing whose rows are all known before the first is printed."""
    options = (
        SharedOption(
            "--sort",
            metavar="COLUMN",
            help="Sort by a column, numbers and times from the top; `-COLUMN` turns the order round",
            complete=lambda ctx, incomplete: fields_of(getattr(ctx.command, "prints", ())),
        ),
        SharedOption("--limit", metavar="N", help="Maximum number of rows", parse=parse_count),
    )
    return typer_options([option.parameter() for option in options])


def shared_spellings(option: TyperOption) -> Sequence[str]:
    """Return the names of a shared option without those of the `nats` CLI; empty for an option of a command."""
    return _declared()[str(option.name)].spellings if option in shared_options() else ()


@cache
def _declared() -> dict[str, SharedOption]:
    """Return the declarations by name; `also` holds hidden spellings of the `nats` CLI."""
    options = (
        SharedOption(
            "--context",
            metavar="NAME",
            help="Context to use, see `kvctl context`",
            complete=lambda ctx, incomplete: context_names(incomplete),
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
    return {option.name: option for option in options}


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


def _column_names(text: str) -> dict[str, None]:
    names = dict.fromkeys(text.split(","))
    if "" in names:
        raise UsageError(f"`{text}` is not a list of columns", hint="Separate names by commas: `--columns name,kind`")
    return names


def _complete_columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the last of several columns with those that are not picked yet."""
    picked = incomplete.split(",")[:-1]
    return [",".join([*picked, name]) for name in fields_of(getattr(ctx.command, "prints", ())) if name not in picked]


# -- kinds of parameters -----------------------------------------------------------------------------------


class OptionGroup(NamedTuple):
    """Options that a command takes as one parameter: `given: Annotated[Any, OptionGroup(...)]`."""

    options: Mapping[str, tuple[Any, Any]]
    """Type and default of each option, by parameter name."""
    collect: Callable[[Mapping[str, Any]], Any]
    """Returns the command's argument for the values. Raises UsageError."""

    def parameters(self, kind: Any) -> Iterator[Parameter]:
        """Return the parameters that Typer makes options of."""
        for name, (annotation, default) in self.options.items():
            yield Parameter(name, kind, default=default, annotation=annotation)

    def take(self, arguments: dict[str, Any]) -> Any:
        """Remove the options from the arguments of a command line, and return the command's own argument."""
        return self.collect({name: arguments.pop(name) for name in self.options})


def option(spellings: str, metavar: str | None, help: str, complete: Any = None, **settings: Any) -> Any:
    """Create an option with a value: `Annotated[str, option("--file -f", "FILE", "Read the value from a file")]`."""
    return typer.Option(*spellings.split(), metavar=metavar, help=help, autocompletion=complete, **settings)


def flag(spellings: str, help: str, **settings: Any) -> Any:
    """Create an option without a value: `Annotated[bool, flag("--yes -y", "Skip the confirmation prompt")]`."""
    return typer.Option(*spellings.split(), help=help, **settings)


def argument(metavar: str, help: str, complete: Any = None, **settings: Any) -> Any:
    """Create an argument: `Annotated[str, argument("BUCKET", "Name of the bucket")]`."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete, **settings)


def duration(spellings: str, help: str, **settings: Any) -> Any:
    """Create an option whose value is a `timedelta`."""
    return option(spellings, "DURATION", help, parser=parse_duration, **settings)


def key_ttl(help: str) -> Any:
    """Create an option `--ttl` for a key, whose value is a `timedelta`: NEVER for `never`."""
    return option("--ttl", "DURATION|never", help, parser=parse_ttl)


def size(spellings: str, help: str, **settings: Any) -> Any:
    """Create an option whose value is a size in bytes, as `int`."""
    return option(spellings, "SIZE", help, parser=parse_size, **settings)


def moment(spellings: str, help: str, **settings: Any) -> Any:
    """Create an option for a time: `int` nanoseconds since the epoch for RFC 3339, or an `Ago` for `-15m`."""
    return option(spellings, "TIME", help, parser=parse_instant, **settings)


def number(spellings: str, help: str) -> Any:
    """Create an option whose value is a count of at least 1."""
    return option(spellings, "N", help, parser=parse_count)


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Return a completion of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


MarkdownFormat = Annotated[
    str | None,
    option("--format", "FORMAT", "`markdown`: a report for a pull request or a job summary", one_of("markdown")),
]


def check_markdown(format: str | None, output: str | None) -> None:
    """Raise UsageError for another format, and for one beside `--output`."""
    if format not in (None, "markdown"):
        raise UsageError(f"`{format}` is not a format of this report", hint="Use `--format markdown`, or `-o`")
    if format and output:
        raise UsageError("`--format` and `--output` cannot be combined")


def live(question: str, **settings: Any) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Return a completion of what a server knows; the questions are those of `live_names`."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        return live_names.offered(question, ctx, incomplete, **settings)

    return complete


def context_names(incomplete: str) -> list[str]:
    """Complete names of contexts."""
    return [name for name in contexts.ContextStore().names() if name.startswith(incomplete)]


def safety_checks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the safety checks that the command can override."""
    known: Callable[[], Sequence[str]] = getattr(ctx.command, "forces", tuple)
    return [name for name in known() if name.startswith(incomplete)]


bucket_names, key_names = live("buckets"), live("keys")

NewName = Annotated[str, argument("NAME", "Name: letters, digits, `_` and `-`")]
BucketName = Annotated[str, argument("BUCKET", "Name of the bucket", bucket_names)]
KeyedName = Annotated[str, argument("BUCKET", "Name of the bucket, or NAME@REF for a repository", live("keyed"))]
KeyName = Annotated[str, argument("KEY", "Key", key_names)]
KeyNames = Annotated[list[str], argument("KEY...", "Keys", key_names)]
Filters = Annotated[
    list[str] | None,
    argument(
        "FILTER", "Filter on keys: `*` matches one token, a final `>` all that follow [default: all keys]", key_names
    ),
]
Yes = Annotated[bool, flag("--yes -y", "Skip the confirmation prompt")]
DryRun = Annotated[bool, flag("--dry-run -n", "Print the changes without making them")]
Force = Annotated[
    list[str] | None, option("--force", "NAME", "Override the named safety check; repeatable", safety_checks)
]
Confirm = Annotated[str | None, option("--confirm", "NAME", "Confirm the deletion of replicated data by its name")]
Unasked = Annotated[bool, typer.Option("--yes", "-y", hidden=True)]
"""`--yes` of a command that never asks, so that scripts can give it to every deletion."""
IgnoreMissing = Annotated[bool, flag("--ignore-missing", "Succeed if it does not exist")]
Program = Annotated[list[str], argument(TAIL, "Program to run, and its arguments")]


def deletes(named: str, missing: type[NotFoundError] = NotFoundError) -> Callable[[Any], Any]:
    """Add `--ignore-missing` to a command that deletes what its parameter `named` names.

    With it, a `missing` error is a note, and the result has `"changed": false`. A context of the connection that does
    not exist remains an error.
    """

    def add(function: Any) -> Any:
        @wraps(function)
        async def run(session: Any, *values: Any, ignore_missing: bool = False, **arguments: Any) -> Any:
            try:
                return await function(session, *values, **arguments)
            except missing as error:
                elsewhere = isinstance(error, ContextNotFound) and missing is not ContextNotFound
                if not ignore_missing or elsewhere:
                    raise
                if session.options.output:
                    session.show(document({"name": arguments[named].rpartition("@")[2], "changed": False}))
                else:
                    session.result(error.message)

        own = signature(function)
        option = Parameter("ignore_missing", Parameter.KEYWORD_ONLY, default=False, annotation=IgnoreMissing)
        run.__dict__["__signature__"] = own.replace(parameters=[*own.parameters.values(), option])
        return run

    return add


def parse_count(text: str) -> int:
    """Parse a count of at least 1. Raises UsageError."""
    if not text.isdecimal() or int(text[:19]) < 1:
        raise UsageError(f"`{text}` is not a number greater than 0")
    return int(text)
