"""Parameters shared by many commands, and options with parsers for quantities."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from kvctl.cli.app import live_names
from kvctl.cli.app.help_page import TAIL
from kvctl.errors import ContextNotFound, NotFoundError, UsageError
from kvctl.render.view import document
from kvctl.units import parse_duration, parse_instant, parse_size


@dataclass(frozen=True, slots=True)
class OptionGroup:
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


def duration(*spellings: str, help: str, **settings: Any) -> Any:
    """Create an option whose value is a `timedelta`: `Annotated[timedelta | None, duration("--ttl", help=...)]`."""
    return typer.Option(*spellings, parser=parse_duration, metavar="DURATION", help=help, **settings)


def size(*spellings: str, help: str, **settings: Any) -> Any:
    """Create an option whose value is a size in bytes, as `int`."""
    return typer.Option(*spellings, parser=parse_size, metavar="SIZE", help=help, **settings)


def moment(*spellings: str, help: str, **settings: Any) -> Any:
    """Create an option for a time: `int` nanoseconds since the epoch for RFC 3339, or an `Ago` for `-15m`."""
    return typer.Option(*spellings, parser=parse_instant, metavar="TIME", help=help, **settings)


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Return a completion of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


MarkdownFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="`markdown`: a report for a pull request or a job summary",
        autocompletion=one_of("markdown"),
    ),
]


def check_markdown(format: str | None, output: str | None) -> None:
    """Raise UsageError for another format, and for one beside `--output`."""
    if format not in (None, "markdown"):
        raise UsageError(f"`{format}` is not a format of this report", hint="Use `--format markdown`, or `-o`")
    if format and output:
        raise UsageError("`--format` and `--output` cannot be combined")


def names_of(*kinds: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Return a completion of the names of buckets, mirrors and aggregates, or of these kinds."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        return live_names.buckets(ctx.obj, incomplete, *kinds)

    return complete


bucket_names = names_of()


def cluster_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of clusters."""
    return live_names.placements(ctx.obj, incomplete)


def server_tags(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete tags of servers."""
    return live_names.placements(ctx.obj, incomplete, tags=True)


def revision_numbers(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete revisions of the key that the arguments `bucket` and `key`, or `keys`, name."""
    keys = ctx.params.get("keys") or [ctx.params.get("key")]
    return live_names.revisions(ctx.obj, ctx.params.get("bucket"), keys[0], incomplete)


def safety_checks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the safety checks that the command can override."""
    known: Callable[[], Sequence[str]] = getattr(ctx.command, "forces", tuple)
    return [name for name in known() if name.startswith(incomplete)]


def key_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete keys of the bucket that the argument `bucket` names."""
    return live_names.keys(ctx.obj, ctx.params.get("bucket"), incomplete)


def keyed_names(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete names of buckets, and NAME@REF of repositories."""
    return live_names.keyed(ctx.obj, incomplete)


BucketName = Annotated[str, typer.Argument(metavar="BUCKET", help="Name of the bucket", autocompletion=bucket_names)]
KeyedName = Annotated[
    str,
    typer.Argument(
        metavar="BUCKET", help="Name of the bucket, or NAME@REF for a repository", autocompletion=keyed_names
    ),
]
KeyName = Annotated[str, typer.Argument(metavar="KEY", help="Key", autocompletion=key_names)]
KeyNames = Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys", autocompletion=key_names)]
Filters = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILTER",
        help="Filter on keys: `*` matches one token, a final `>` all that follow [default: all keys]",
        autocompletion=key_names,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Print the changes without making them")]
Force = Annotated[
    list[str] | None,
    typer.Option(
        "--force", metavar="NAME", help="Override the named safety check; repeatable", autocompletion=safety_checks
    ),
]
Confirm = Annotated[
    str | None, typer.Option("--confirm", metavar="NAME", help="Confirm the deletion of replicated data by its name")
]
Unasked = Annotated[bool, typer.Option("--yes", "-y", hidden=True)]
"""`--yes` of a command that never asks, so that scripts can give it to every deletion."""
IgnoreMissing = Annotated[bool, typer.Option("--ignore-missing", help="Succeed if it does not exist")]
Program = Annotated[list[str], typer.Argument(metavar=TAIL, help="Program to run, and its arguments")]


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
                    session.note(error.message)

        own = signature(function)
        option = Parameter("ignore_missing", Parameter.KEYWORD_ONLY, default=False, annotation=IgnoreMissing)
        run.__dict__["__signature__"] = own.replace(parameters=[*own.parameters.values(), option])
        return run

    return add
