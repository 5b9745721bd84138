"""Shared parameters of stream and consumer commands: names, `--config FILE`, `--set PATH=VALUE`; views of settings."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from kvctl.cli.app.options import argument, live, option
from kvctl.cli.app.session import Session
from kvctl.documents import parser
from kvctl.errors import StreamNotFound, UsageError
from kvctl.jetstream import config_diff, config_text, streams
from kvctl.render.view import Column
from kvctl.tokens import check_name, shown
from kvctl.units import Ago

StreamName = Annotated[str, argument("STREAM", "Name of the stream", live("streams"))]
ConsumerName = Annotated[str, argument("CONSUMER", "Name of the consumer", live("consumers"))]
ConfigFile = Annotated[
    str | None, option("--config", "FILE", "Configuration in JSON or YAML, as `show -o json` prints it; `-` for stdin")
]
Settings = Annotated[
    list[str] | None,
    option("--set", "PATH=VALUE", "Set a field, as in `max_age=1h`; an empty value unsets it; repeatable"),
]
Description = Annotated[str | None, option("--description", "TEXT", "Description")]


def check_stream(name: str) -> str:
    """Return the name. Raises UsageError if it is not a legal stream name."""
    return _check(name, "stream")


@contextmanager
def named(stream: str) -> Iterator[None]:
    """Name the stream in a StreamNotFound that the block raises."""
    try:
        yield
    except StreamNotFound:
        raise StreamNotFound(
            f"Stream `{stream}` does not exist", hint="List the streams with `kvctl stream ls`"
        ) from None


def check_consumer(name: str) -> str:
    """Return the name. Raises UsageError if it is not a legal consumer name."""
    return _check(name, "consumer")


def _check(name: str, what: str) -> str:
    if any(character.isspace() or not character.isprintable() for character in name):
        raise UsageError(
            f"`{shown(name)}` is not the name of a {what}",
            hint="A name must not contain white space or control characters",
        )
    return check_name(name, what)


def apply_settings(
    session: Session,
    config: "config_text.Config",
    file: str | None,
    texts: Iterable[str] | None,
    schema: "config_text.Schema",
) -> "config_text.Config":
    """Return the configuration with the fields of the file, then of `--set`. Raises UsageError."""
    found = dict(config)
    if file:
        document = parser.parse(session.read_input(file), "standard input" if file == "-" else file)
        found |= config_text.read(document.data, schema, document.where)
    for text in texts or ():
        config_text.assign(found, text, schema)
    return found


async def dated_by_server(
    session: Session, config: "config_text.Config", stream: str | None = None
) -> "config_text.Config":
    """Return the configuration with relative times resolved against the clock of the stream's leader.

    Without a stream, the clock is that of the connected server. Raises StreamNotFound.
    """
    if not config_text.is_relative(config):
        return config
    api = (await session.client()).api
    clock = await (streams.ServerClock.read(api, stream) if stream else streams.ServerClock.of_connection(api))
    found: config_text.Config = config_text.dated(config, clock.now_ns())
    return found


async def by_server(session: Session, stream: str, time_ns: int | None) -> int | None:
    """Return the time of an option; a relative one is resolved against the clock of the stream's leader."""
    if not isinstance(time_ns, Ago):
        return time_ns
    clock = await streams.ServerClock.read((await session.client()).api, stream)
    return time_ns.on(clock.now_ns())


def settings_columns(config: Mapping[str, Any], schema: "config_text.Schema", shown: str) -> list[Column]:
    """Return columns for the settings that differ from the defaults, but for those that are `shown` anyway."""

    def column(name: str, text: str) -> Column:
        words, text = name.replace("_", " "), f"{int(text):,}" if text.isdecimal() else text
        return Column("config", "", text=lambda _: words if text == "yes" else f"{words} {text}")

    differing = config_diff.differences({}, dict(config), schema)
    return [column(item.field, item.words[1]) for item in differing if item.field not in shown.split()]
