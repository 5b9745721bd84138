"""`kvctl keys`: list keys, streamed in bounded memory."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import Filters, KeyedName
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import AsOf, check_filters, number, open_bucket
from kvctl.cli.keys.output.entry_rows import operation_style
from kvctl.render.escapes import escape
from kvctl.render.view import Column, Row, View, age_text
from kvctl.units import format_time

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket
    from kvctl.kv.point_in_time.as_of import Past

app = group()

CHUNK = 10_000
Fact = tuple[str, int, int, str]
"""Key, revision, time in nanoseconds since the epoch, operation."""
T = TypeVar("T", bytes, Fact)


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
    deleted: Annotated[bool, typer.Option("--deleted", help="Include keys whose last entry is a deletion")] = False,
    limit: Annotated[int | None, number("--limit", help="Maximum number of keys")] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Sort by name instead of by last write")] = False,
    as_of: AsOf = None,
) -> None:
    """List keys.

    Every key that exists during the complete listing is listed exactly once, even if it is written concurrently. A key
    that is created or deleted during the listing may or may not be listed.

    In a pipe the output is one name per line, in JSON objects with key, revision and created, and with --deleted the
    operation. --sort keeps all names in memory before it prints the first. --as-of lists the keys of an earlier state,
    as in `kvctl get --as-of`. At a ref of a repository (NAME@REF) keys are always sorted.
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
    if session.output == "name" or (session.output == "tsv" and not session.options.columns):
        await session.stream_bytes(_name_lines(session, source, wanted, deleted, limit, sort))
    else:
        rows = _name_rows(source, wanted, deleted, limit, sort)
        await session.stream(_keys_view(deleted), rows)
    if past and past.caveat:
        session.warn(past.caveat)


def _keys_view(deleted: bool) -> View:
    columns = [Column("revision", right=True, tsv=False), Column("created", "AGE", age_text, tsv=False)]
    if deleted:
        columns.append(Column("operation", tsv=False, style=operation_style))
    return View(columns=[*columns, Column("key")], name="key", empty="No keys")


async def _name_lines(
    session: Session, source: "Bucket | Past", filters: list[str], deleted: bool, limit: int | None, sort: bool
) -> AsyncIterator[bytes]:
    """Yield names as lines of output, batch by batch."""
    escaped = session.terminal.is_terminal
    backslashes = session.output == "tsv"
    if session.options.header and backslashes:
        yield b"key\n"
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
    """Reduce entries to the fields of a listing."""
    async with aclosing(source.entry_batches(*filters, deleted=deleted, values=False)) as batches:
        async for batch in batches:
            yield [(entry.key, entry.revision, entry.created_ns, str(entry.operation)) for entry in batch]


async def _limited(
    batches: AsyncGenerator[list[T], None], limit: int | None, sort: bool
) -> AsyncGenerator[list[T], None]:
    """Yield batches up to the limit; with `sort`, sort all of them first."""
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
