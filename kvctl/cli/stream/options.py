"""Names of streams and consumers, and their configurations as options: `--config FILE`, `--set PATH=VALUE`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.session import Session
from kvctl.errors import StreamNotFound, UsageError
from kvctl.render.view import Column, View
from kvctl.tokens import check_name, shown
from kvctl.units import Ago

if TYPE_CHECKING:
    from kvctl.jetstream.config.config_text import Change, Config, Schema


def stream_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes names of streams."""
    from kvctl.cli.app.live_names import streams

    return streams(ctx.obj, incomplete)


def consumer_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes names of consumers of the stream that the argument `stream` names."""
    from kvctl.cli.app.live_names import consumers

    return consumers(ctx.obj, ctx.params.get("stream"), incomplete)


def one_of(*words: str) -> Any:
    """Completes one of the words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream", autocompletion=stream_names)]
ConsumerName = Annotated[
    str, typer.Argument(metavar="CONSUMER", help="Name of the consumer", autocompletion=consumer_names)
]
ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Configuration in JSON or YAML, or `-`; what `show -o json` prints"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Set a field, as in `max_age=1h`; no value unsets it; repeatable"),
]
Description = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="What it is for")]


def check_stream(name: str) -> str:
    """The name. Raises UsageError for what no stream can be called."""
    return _check(name, "stream")


@contextmanager
def named(stream: str) -> Iterator[None]:
    """The block's StreamNotFound says which stream."""
    try:
        yield
    except StreamNotFound:
        raise StreamNotFound(
            f"Stream `{stream}` does not exist", hint="`kvctl stream ls` lists those that do"
        ) from None


def check_consumer(name: str) -> str:
    """The name. Raises UsageError for what no consumer can be called."""
    return _check(name, "consumer")


def _check(name: str, what: str) -> str:
    if any(character.isspace() or not character.isprintable() for character in name):
        raise UsageError(
            f"`{shown(name)}` is not the name of a {what}", hint="A name has no white space and no control characters"
        )
    return check_name(name, what)


def apply_settings(
    session: Session, config: "Config", file: str | None, texts: Iterable[str] | None, schema: "Schema"
) -> "Config":
    """The configuration with the file's fields, then what `--set` says. Raises UsageError."""
    from kvctl.jetstream.config import config_text

    found = {**config, **(_from_file(session, file, schema) if file else {})}
    for text in texts or ():
        config_text.assign(found, text, schema)
    return found


async def dated_by_server(session: Session, config: "Config", stream: str | None = None) -> "Config":
    """The configuration with `-15m` counted back from the time on the server that leads the stream.

    Without a stream the time is that of the server of the connection. Raises StreamNotFound.
    """
    from kvctl.jetstream.config import config_text
    from kvctl.jetstream.server_clock import ServerClock

    if not config_text.is_relative(config):
        return config
    api = (await session.client()).api
    clock = await (ServerClock.read(api, stream) if stream else ServerClock.of_connection(api))
    found: Config = config_text.dated(config, clock.now_ns())
    return found


def _from_file(session: Session, file: str, schema: "Schema") -> "Config":
    from kvctl.documents import parser
    from kvctl.jetstream.config import config_text

    name = "standard input" if file == "-" else file
    document = parser.parse(session.read_input(file), name) if file == "-" else parser.read(file)
    return config_text.read(document.data, schema, document.where)


def change_view(found: "Iterable[Change]", *, worded: bool) -> View:
    """What an edit changes; in words for people, in plain values for scripts."""
    rows = []
    for change in found:
        before, after = change.words if worded else (change.before, change.after)
        rows.append({"field": change.field, "before": before, "after": after})
    columns = [Column("field"), Column("before", style="red"), Column("after", style="green")]
    return View(columns=columns, rows=rows, name="field", empty="Nothing would change")


def change_rows(found: "Iterable[Change]") -> list[dict[str, Any]]:
    """The changes as JSON objects."""
    return [{"field": change.field, "before": change.before, "after": change.after} for change in found]


async def by_server(session: Session, stream: str, time_ns: int | None) -> int | None:
    """Return the time of an option; `-15m` counts back from the time on the server that leads the stream."""
    if not isinstance(time_ns, Ago):
        return time_ns
    from kvctl.jetstream.server_clock import ServerClock

    clock = await ServerClock.read((await session.client()).api, stream)
    return time_ns.on(clock.now_ns())
