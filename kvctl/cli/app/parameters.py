"""Parameters that many commands have, and options with this program's parsers."""

from typing import Annotated, Any

import typer

from kvctl.cli.app.help_page import TAIL
from kvctl.units import parse_duration, parse_instant, parse_size


def duration(*spellings: str, help: str, **settings: Any) -> Any:
    """An option whose value is a `timedelta`: `Annotated[timedelta | None, duration("--ttl", help=...)]`."""
    return typer.Option(*spellings, parser=parse_duration, metavar="DURATION", help=help, **settings)


def size(*spellings: str, help: str, **settings: Any) -> Any:
    """An option whose value is bytes, as `int`."""
    return typer.Option(*spellings, parser=parse_size, metavar="SIZE", help=help, **settings)


def moment(*spellings: str, help: str, **settings: Any) -> Any:
    """An option whose value is nanoseconds since the epoch, as `int`: an RFC 3339 time, or an `Ago` for `-15m`."""
    return typer.Option(*spellings, parser=parse_instant, metavar="TIME", help=help, **settings)


def bucket_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes names of buckets."""
    from kvctl.cli.app.live_names import buckets

    return buckets(ctx.obj, incomplete)


def key_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes keys of the bucket that the argument `bucket` names."""
    from kvctl.cli.app.live_names import keys

    return keys(ctx.obj, ctx.params.get("bucket"), incomplete)


def keyed_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes names of buckets, and NAME@REF of repositories."""
    from kvctl.cli.app.live_names import keyed

    return keyed(ctx.obj, incomplete)


BucketName = Annotated[str, typer.Argument(metavar="BUCKET", help="Name of the bucket", autocompletion=bucket_names)]
KeyedName = Annotated[
    str,
    typer.Argument(
        metavar="BUCKET", help="Name of the bucket; NAME@REF: a repository at a ref", autocompletion=keyed_names
    ),
]
KeyName = Annotated[str, typer.Argument(metavar="KEY", help="Key", autocompletion=key_names)]
KeyNames = Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys", autocompletion=key_names)]
Filters = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILTER",
        help="Keys to take: `*` is any one token, `>` at the end any further ones; without any, all",
        autocompletion=key_names,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Print what would be done, change nothing")]
Force = Annotated[
    list[str] | None, typer.Option("--force", metavar="NAME", help="Override the named safety check; repeatable")
]
Confirm = Annotated[str | None, typer.Option("--confirm", metavar="NAME", help="Confirm by name what others replicate")]
Program = Annotated[list[str], typer.Argument(metavar=TAIL, help="What to run, and its arguments")]
