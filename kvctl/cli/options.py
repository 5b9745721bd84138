"""Options: those that every command shares, and the parameters that many commands have."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Annotated, Any

import typer
from typer.core import TyperOption

from kvctl.errors import UsageError
from kvctl.quantities import parse_duration, parse_size, parse_time
from kvctl.render.terminal import COLORS
from kvctl.render.view import FORMATS


@dataclass(slots=True)
class Shared:
    """What the shared options said; None is not given. Of several, the innermost command's and the last wins."""

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
    quiet: bool = False
    verbose: bool = False
    color: str = "auto"

    def connection_flags(self) -> dict[str, object]:
        """The given ones among those that say how to connect, for `contexts.resolve`."""
        rest = ("output", "quiet", "verbose", "color")
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in rest}
        return {name: value for name, value in given.items() if value is not None}


class SharedOption(TyperOption):
    """An option of every command; its value goes into the context's `Shared`, not to the command."""

    def __init__(
        self,
        *spellings: str,
        help: str,
        metavar: str | None = None,
        parse: Callable[[str], Any] | None = None,
        also: tuple[str, ...] = (),
        complete: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(
            param_decls=[spellings[-1].strip("-").replace("-", "_"), *spellings, *also],
            type=None if metavar is None else str,
            metavar=metavar,
            is_flag=metavar is None,
            expose_value=False,
            callback=_store,
            help=help,
            autocompletion=complete,
        )
        self.spellings = spellings
        self.parse = parse


def shared_options() -> tuple[SharedOption, ...]:
    """The shared options, in the order of the help; the `nats` command's spellings work and are not shown."""
    if not _SHARED:
        _SHARED.extend(_make_shared())
    return tuple(_SHARED)


_SHARED: list[SharedOption] = []


def _make_shared() -> list[SharedOption]:
    return [
        SharedOption(
            "--context", metavar="NAME", help="Named connection, see `kvctl context`", complete=_contexts
        ),
        SharedOption("-s", "--server", metavar="URL", help="Server, or several with commas"),
        SharedOption(
            "--user", metavar="NAME", help="User name; the password from --password-file or NATS_PASSWORD"
        ),
        SharedOption("--password-file", metavar="FILE", help="File that holds the password"),
        SharedOption("--token-file", metavar="FILE", help="File that holds the token"),
        SharedOption("--creds", metavar="FILE", help="Credentials file (JWT and seed)"),
        SharedOption("--nkey", metavar="FILE", help="NKey seed file"),
        SharedOption("--tls-cert", metavar="FILE", help="Client certificate", also=("--tlscert",)),
        SharedOption("--tls-key", metavar="FILE", help="Client certificate's key", also=("--tlskey",)),
        SharedOption("--tls-ca", metavar="FILE", help="Certificate authority to trust", also=("--tlsca",)),
        SharedOption("--tls-first", help="TLS handshake before the server speaks", also=("--tlsfirst",)),
        SharedOption("--domain", metavar="NAME", help="JetStream domain", also=("--js-domain",)),
        SharedOption(
            "--api-prefix", metavar="PREFIX", help="JetStream API prefix", also=("--js-api-prefix",)
        ),
        SharedOption(
            "--inbox-prefix", metavar="PREFIX", help="Prefix of reply subjects, where `_INBOX` is not allowed"
        ),
        SharedOption(
            "--timeout", metavar="DURATION", help="Longest wait for an answer", parse=parse_duration
        ),
        SharedOption("--read-only", help="Refuse whatever would write"),
        SharedOption("-o", "--output", metavar="FORMAT", help=f"Output: {', '.join(FORMATS)}", parse=_output),
        SharedOption("-q", "--quiet", help="No notes and no progress, only results and errors"),
        SharedOption("-v", "--verbose", help="Show each API request and its time", also=("--trace",)),
        SharedOption("--color", metavar="WHEN", help="Colour: auto, always, never", parse=_color),
    ]


def _store(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    if value is not None and isinstance(param, SharedOption):
        setattr(ctx.obj, str(param.name), param.parse(value) if param.parse else value)
    return value


def _one_of(option: str, choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise UsageError(f"`{text}` is not a value of `{option}`", hint=f"One of {', '.join(choices)}")
        return text

    return parse


_output = _one_of("--output", FORMATS)
_color = _one_of("--color", COLORS)


def _contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    from kvctl.cli.complete import contexts

    return contexts(incomplete)


def _buckets(ctx: typer.Context, incomplete: str) -> list[str]:
    from kvctl.cli.complete import buckets

    return buckets(ctx.obj, incomplete)


def _keys(ctx: typer.Context, incomplete: str) -> list[str]:
    from kvctl.cli.complete import keys

    return keys(ctx.obj, ctx.params.get("bucket"), incomplete)


def duration(*spellings: str, help: str, **settings: Any) -> Any:
    """An option whose value is a `timedelta`: `Annotated[timedelta | None, duration("--ttl", help=...)]`."""
    return typer.Option(*spellings, parser=parse_duration, metavar="DURATION", help=help, **settings)


def size(*spellings: str, help: str, **settings: Any) -> Any:
    """An option whose value is bytes, as `int`."""
    return typer.Option(*spellings, parser=parse_size, metavar="SIZE", help=help, **settings)


def moment(*spellings: str, help: str, **settings: Any) -> Any:
    """An option whose value is nanoseconds since the epoch, as `int`: an RFC 3339 time or `-15m`."""
    return typer.Option(*spellings, parser=parse_time, metavar="TIME", help=help, **settings)


BucketName = Annotated[
    str, typer.Argument(metavar="BUCKET", help="Name of the bucket", autocompletion=_buckets)
]
KeyName = Annotated[str, typer.Argument(metavar="KEY", help="Key", autocompletion=_keys)]
KeyNames = Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys", autocompletion=_keys)]
Filters = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILTER]...",
        help="Keys to take: `*` is any one token, `>` at the end any further ones; without any, all",
        autocompletion=_keys,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Print what would be done, change nothing")]
Force = Annotated[
    list[str] | None,
    typer.Option("--force", metavar="NAME", help="Override the named safety check; repeatable"),
]
Confirm = Annotated[
    str | None, typer.Option("--confirm", metavar="NAME", help="Confirm by name what others replicate")
]
