"""`kvctl keys`: list keys, streamed in bounded memory."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, TypeVar

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import Filters, KeyedName
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import AsOf, check_filters, number
from kvctl.cli.keys.target.interface import Fact, Reader, Reading
from kvctl.cli.keys.target.target import parse_target
from kvctl.cli.records import KEY, KEY_AT_REF, KEY_COUNT
from kvctl.errors import UsageError
from kvctl.render.escapes import escape
from kvctl.render.fields import columns
from kvctl.render.view import Row, View

CHUNK = 10_000
T = TypeVar("T", bytes, Fact)


@command(
    "keys",
    examples=[
        "kvctl keys orders",
        "kvctl keys orders 'NEW.>' --sort --limit 10",
        "kvctl keys orders -o ndjson",
        "kvctl keys orders 'NEW.>' --count",
    ],
    see=["get", "history", "bucket show"],
    prints=(KEY, KEY_AT_REF, KEY_COUNT),
)
async def keys(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Include keys whose last entry is a deletion")] = False,
    limit: Annotated[int | None, number("--limit", help="Maximum number of keys")] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Sort by name instead of by last write")] = False,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of matching keys")] = False,
    as_of: AsOf = None,
) -> None:
    """List keys.

    Every key that exists during the complete listing is listed exactly once, even if it is written concurrently. A key
    that is created or deleted during the listing may or may not be listed.

    In a pipe the output is one name per line, in JSON objects with key, revision and created, and with --deleted the
    operation. --sort keeps all names in memory before it prints the first. --as-of lists the keys of an earlier state,
    as in `kvctl get --as-of`. --count prints only the number of keys. At a ref of a repository (NAME@REF) keys are
    always sorted.
    """
    if count and limit is not None:
        raise UsageError("`--count` and `--limit` cannot be combined")
    target = parse_target(bucket)
    target.refuse(deleted=deleted, as_of=as_of)
    wanted = check_filters(filters)
    reader = await target.reader(session, Reading(as_of=as_of))
    if count:
        session.show(_count_view(reader, await _counted(reader.names(wanted, deleted=deleted))))
    elif session.output == "name" or (session.output == "tsv" and not session.options.columns):
        names = _limited(reader.names(wanted, deleted=deleted), limit, sort)
        await session.stream_bytes(_lines(session, names))
    else:
        facts = _limited(reader.facts(wanted, deleted=deleted), limit, sort)
        await session.stream(reader.facts_view(deleted=deleted), _rows(reader, facts, deleted))
    if reader.caveat:
        session.warn(reader.caveat)


def _count_view(reader: Reader, number: int) -> View:
    shown = columns("count", count="Keys")
    return View(columns=shown, rows=[{**reader.fields, "count": number}], single=True, name="count")


async def _counted(names: AsyncGenerator[list[bytes], None]) -> int:
    async with aclosing(names):
        return sum([len(batch) async for batch in names])


async def _lines(session: Session, names: AsyncGenerator[list[bytes], None]) -> AsyncIterator[bytes]:
    """Yield names as lines of output, batch by batch."""
    escaped = session.terminal.is_terminal
    backslashes = session.output == "tsv"
    if session.options.header and backslashes:
        yield b"key\n"
    async with aclosing(names):
        async for batch in names:
            lines = b"\n".join(batch) + b"\n" if batch else b""
            if backslashes and b"\\" in lines:
                lines = lines.replace(b"\\", b"\\\\")
            yield escape(lines.decode("utf-8", "surrogateescape"), keep="\n").encode() if escaped else lines


async def _rows(reader: Reader, facts: AsyncGenerator[list[Fact], None], deleted: bool) -> AsyncIterator[Sequence[Row]]:
    async with aclosing(facts):
        async for batch in facts:
            yield await reader.fact_rows(batch, deleted=deleted)


async def _limited(
    batches: AsyncGenerator[list[T], None], limit: int | None, sort: bool
) -> AsyncGenerator[list[T], None]:
    """Yield batches up to the limit; with `sort`, sort all of them first."""
    async with aclosing(batches):
        if sort:
            everything = sorted([item async for batch in batches for item in batch], key=_name)[:limit]
            for start in range(0, len(everything), CHUNK):
                yield everything[start : start + CHUNK]
            return
        left = limit
        async for batch in batches:
            yield batch[:left]
            if left is not None:
                left -= len(batch)
                if left <= 0:
                    return


def _name(item: bytes | Fact) -> Any:
    return item if isinstance(item, bytes) else item[0]
