"""Reading keys: values, names, history."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import Filters, KeyedName, KeyNames
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import (
    AsOf,
    Encoding,
    Headers,
    Literal,
    check_filters,
    number,
    open_bucket,
    revision,
    split_keys,
)
from kvctl.cli.keys.entry_rows import Shape, encode, operation_style
from kvctl.cli.keys.entry_stream import show_entries
from kvctl.cli.keys.get_many import (
    Now,
    Reader,
    Then,
    show_several,
)
from kvctl.errors import UsageError
from kvctl.render.escapes import escape
from kvctl.render.view import Column, Row, View, age_text
from kvctl.units import format_time

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket
    from kvctl.kv.entry import Entry
    from kvctl.kv.point_in_time.as_of import Past

app = group()

CHUNK = 10_000
Fact = tuple[str, int, int, str]
"""Key, revision, time in nanoseconds, operation."""
T = TypeVar("T", bytes, Fact)


@command(
    app,
    "get",
    examples=[
        "kvctl get orders NEW.7",
        "kvctl get orders NEW.7 NEW.8 -o json",
        "kvctl get orders 'NEW.*' -o ndjson | jq -r .value",
        "kvctl get orders NEW.7 --revision 12",
        "kvctl get orders 'NEW.*' --as-of -15m",
        "kvctl get config@main app.port",
    ],
    see=["keys", "history", "watch", "help guarantees"],
)
async def get(
    session: Session,
    bucket: KeyedName,
    keys: KeyNames,
    revision: Annotated[int | None, revision("--revision", help="What this revision of the key holds")] = None,
    as_of: AsOf = None,
    leader: Annotated[bool, typer.Option("--leader", help="Ask the stream's leader, which is never stale")] = False,
    headers: Headers = False,
    encoding: Encoding = None,
    literal: Literal = False,
) -> None:
    """Read keys.

    One key without wildcards gives its value: the exact bytes in a pipe, escaped and with a newline on a terminal.
    -o or --headers asks for the whole entry instead.

    Several keys, or a filter with `*` (one token) or `>` (all that follow), give entries: the keys that were named in
    their order, then what the filters match. A named key that is missing, deleted or expired is reported after the
    others were printed, with exit code 3; a filter may match nothing.

    The nearest replica answers, a mirror too, also while the bucket's own servers are down. --leader asks the stream's
    leader, which is never behind.

    --as-of shows the keys as they were: right after a revision of the bucket, or at a time (RFC 3339, or `-15m` for a
    quarter of an hour ago), what was written at that very time included. Where the bucket no longer holds what a key
    was, since its history is too short or was purged, nothing is printed: the command names the keys and exits 3.

    NAME@REF reads a repository: at a branch with what is staged, at a tag, a commit or `main@` what was committed.
    """
    if "@" in bucket:
        from kvctl.cli.keys.at_ref import ref_read, ref_rows

        ref_rows.refuse(bucket, revision=revision, as_of=as_of, headers=headers, literal=literal)
        await ref_read.get(session, bucket, keys, encoding)
        return
    named, filters = split_keys(keys, literal=literal)
    if revision is not None and (filters or len(named) != 1):
        raise UsageError("`--revision` takes one key", hint="A revision belongs to one key: `kvctl history` shows it")
    if revision is not None and as_of is not None:
        raise UsageError("`--revision` and `--as-of` exclude each other")
    source = await open_bucket(session, bucket)
    reader: Reader = Now(source, revision=revision, leader=leader, literal=literal)
    if as_of is not None:
        reader = Then(await source.as_of(as_of), literal=literal)
    shape = Shape(encoding=encoding, headers=headers)
    if filters or len(named) != 1:
        await show_several(session, reader, named, filters, shape)
    else:
        _show_one(session, await reader.one(named[0]), shape)
    if reader.caveat:
        session.warn(reader.caveat)


def _show_one(session: Session, entry: "Entry", shape: Shape) -> None:
    """The bare value, unless a format or the headers ask for more."""
    if session.options.output is not None or shape.headers:
        session.show(shape.document(entry))
    elif shape.encoding == "base64":
        session.value(f"{encode(entry, 'base64')[0]}\n".encode())
    else:
        encode(entry, shape.encoding)  # a value that is not UTF-8 is an error where that was asked for
        session.value(entry.value)


@command(
    app,
    "keys",
    examples=["kvctl keys orders", "kvctl keys orders 'NEW.>' --sort --limit 10", "kvctl keys orders -o ndjson"],
    see=["get", "history", "bucket show"],
)
async def keys(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Also keys whose last entry is a deletion")] = False,
    limit: Annotated[int | None, number("--limit", help="At most so many")] = None,
    sort: Annotated[bool, typer.Option("--sort", help="By name; else in the order of their last writes")] = False,
    as_of: AsOf = None,
) -> None:
    """List keys.

    A key that lives while the list is read is listed once, whatever is written meanwhile; one that is written or
    deleted meanwhile may be listed or not.

    In a pipe, names only, one a line; in JSON objects with key, revision and created, under --deleted operation too.
    --sort holds all names before it prints the first. --as-of lists what lived at a moment of the past, as in
    `kvctl get --as-of`. At a ref of a repository (NAME@REF) names are always sorted.
    """
    if "@" in bucket:
        from kvctl.cli.keys.at_ref import ref_read, ref_rows

        ref_rows.refuse(bucket, deleted=deleted, as_of=as_of)
        await ref_read.keys(session, bucket, filters, limit)
        return
    wanted = check_filters(filters)
    now = await open_bucket(session, bucket)
    past = None if as_of is None else await now.as_of(as_of)
    source = past or now
    if session.output in ("tsv", "name"):
        await session.stream_bytes(_name_lines(session, source, wanted, deleted, limit, sort))
    else:
        rows = _name_rows(source, wanted, deleted, limit, sort)
        await session.stream(_keys_view(deleted), rows)
    if past and past.caveat:
        session.warn(past.caveat)


def _keys_view(deleted: bool) -> View:
    columns = [Column("key"), Column("revision", right=True, tsv=False), Column("created", "AGE", age_text, tsv=False)]
    if deleted:
        columns.append(Column("operation", tsv=False, style=operation_style))
    return View(columns=columns, name="key", empty="No keys")


async def _name_lines(
    session: Session, source: "Bucket | Past", filters: list[str], deleted: bool, limit: int | None, sort: bool
) -> AsyncIterator[bytes]:
    """The names as lines of the output, as many at a time as have come."""
    escaped = session.terminal.is_terminal
    backslashes = session.output == "tsv"
    async with aclosing(_limited(source.key_batches(*filters, deleted=deleted), limit, sort)) as batches:
        async for names in batches:
            lines = b"\n".join(names) + b"\n"
            if backslashes and b"\\" in lines:
                lines = lines.replace(b"\\", b"\\\\")
            yield escape(lines.decode("utf-8", "surrogateescape"), keep="\n").encode() if escaped else lines


async def _name_rows(
    source: "Bucket | Past", filters: list[str], deleted: bool, limit: int | None, sort: bool
) -> AsyncIterator[Sequence[Row]]:
    async with aclosing(_limited(_facts(source, filters, deleted), limit, sort)) as batches:
        async for facts in batches:
            rows: list[dict[str, Any]] = [
                {"key": key, "revision": revision, "created": format_time(created)}
                for key, revision, created, _ in facts
            ]
            if deleted:
                for row, fact in zip(rows, facts, strict=True):
                    row["operation"] = fact[3]
            yield rows


async def _facts(source: "Bucket | Past", filters: list[str], deleted: bool) -> AsyncGenerator[list[Fact], None]:
    """What a listing shows of its entries, without the rest of them."""
    async with aclosing(source.entry_batches(*filters, deleted=deleted, values=False)) as batches:
        async for batch in batches:
            yield [(entry.key, entry.revision, entry.created_ns, str(entry.operation)) for entry in batch]


async def _limited(
    batches: AsyncGenerator[list[T], None], limit: int | None, sort: bool
) -> AsyncGenerator[list[T], None]:
    """The batches up to the limit; with `sort` all of them in order first."""
    async with aclosing(batches):
        if sort:
            everything = sorted([item async for batch in batches for item in batch])[:limit]
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


@command(
    app,
    "history",
    examples=["kvctl history orders NEW.7", "kvctl history orders 'NEW.*' --limit 20 -o ndjson"],
    see=["get", "revert", "watch"],
)
async def history(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    limit: Annotated[int | None, number("--limit", help="Only the newest so many")] = None,
    headers: Headers = False,
    encoding: Encoding = None,
    literal: Literal = False,
) -> None:
    """Show what keys held before.

    Every entry that the bucket still holds, oldest first, deletions included: as many of a key as the bucket's history
    allows. --limit keeps the newest of all that match, still oldest first.

    At a ref of a repository (NAME@REF) there is an entry for each key of each commit that changed it; what is staged on
    the branch comes last.
    """
    if "@" in bucket:
        from kvctl.cli.keys.at_ref import ref_read, ref_rows

        ref_rows.refuse(bucket, headers=headers, literal=literal)
        await ref_read.history(session, bucket, filters, limit, encoding)
        return
    wanted = check_filters(filters, literal=literal)
    source = await open_bucket(session, bucket)
    shape = Shape(encoding=encoding, headers=headers)

    async def batches() -> AsyncGenerator[list["Entry"], None]:
        newest: deque[Entry] = deque(maxlen=limit)
        async with aclosing(source.history_batches(*wanted, literal=literal and bool(wanted))) as entries:
            async for batch in entries:
                if limit is None:
                    yield batch
                else:
                    newest.extend(batch)
        yield list(newest)

    await show_entries(session, shape, batches(), empty="No entries")
